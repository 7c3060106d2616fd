"""The platform that jax computes on."""

import os

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
