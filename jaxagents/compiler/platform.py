"""The platform that jax computes on."""

import os

import jax


def check_platform() -> None:
    """Check that jax has the platform that is asked for.

    Raises:
        ValueError: it has not; jax would raise its error deep inside.
    """
    try:
        jax.default_backend()
    except (RuntimeError, AssertionError) as error:  # the latter for cuda without a GPU
        platforms = os.environ.get("JAX_PLATFORMS", "")
        remedy = "unset it, or install jax for that platform"
        reason = " ".join(str(error).split()) or "jax finds no such device"
        raise ValueError(f"JAX_PLATFORMS={platforms}: {reason}; {remedy}.") from error
