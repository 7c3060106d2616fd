"""The platform that jax computes on: whether it is available, and has memory left."""

import contextlib
import os
from collections.abc import Iterator

import jax


def check_platform() -> None:
    """Check that jax has the requested platform.

    Raises:
        ValueError: it lacks the platform; jax would raise its own error much later.
    """
    try:
        jax.default_backend()
    except (RuntimeError, AssertionError) as error:  # the latter for cuda without a GPU
        platforms = os.environ.get("JAX_PLATFORMS", "")
        remedy = "unset it, or install jax for that platform"
        reason = " ".join(str(error).split()) or "jax finds no such device"
        raise ValueError(f"JAX_PLATFORMS={platforms}: {reason}; {remedy}.") from error


@contextlib.contextmanager
def explaining_exhausted_memory() -> Iterator[None]:
    """Raise a `MemoryError` of one line in place of jax's error."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        reason = str(error).splitlines()[0].rpartition("RESOURCE_EXHAUSTED: ")[2].rstrip(".")
        raise MemoryError(
            f"the memory of the device ({jax.default_backend()}) is exhausted: {reason}; lower "
            "batch_size, rollout_length or n_evals, or use smaller networks."
        ) from error
