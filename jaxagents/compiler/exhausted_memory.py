"""An explanation where the device's memory is exhausted."""

import contextlib
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def explaining_exhausted_memory() -> Iterator[None]:
    """Raise `MemoryError` in one line in place of jax's error."""
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
