"""Processes that were forked after jax had run, in which jax has lost its threads.

Does not import jax: forks are noted from the moment that the package is imported.
"""

import os
import sys

_has_lost_threads = False


def note_forks() -> None:
    """Let each process that is forked from now on know whether jax had run before."""
    if hasattr(os, "register_at_fork"):  # not on Windows
        os.register_at_fork(after_in_child=_note_fork)


def check_has_threads() -> None:
    """Raise RuntimeError in a process that was forked after jax had run: jax would wait forever."""
    if _has_lost_threads:
        raise RuntimeError(
            "this process was forked from one in which jax had run, and jax does not work in it; "
            'start it by multiprocessing.get_context("spawn"), or fork before jax runs.'
        )


def _note_fork() -> None:
    global _has_lost_threads
    bridge = sys.modules.get("jax._src.xla_bridge")  # jax has no public way to ask
    _has_lost_threads = _has_lost_threads or bool(getattr(bridge, "_backends", ()))
