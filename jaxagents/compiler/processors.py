"""The processors that this process may use; does not import jax."""

import os


def n_processors() -> int:
    """Count the processors, without those that its affinity excludes."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    return len(affinity(0)) if affinity else os.cpu_count() or 1
