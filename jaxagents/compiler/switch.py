"""The switch between tuned programs and plain jax."""

import contextlib
import os
from collections.abc import Iterator

import jax

_is_plain = os.environ.get("JAXAGENTS_PLAIN_JAX", "").lower() not in (
    "",
    "0",
    "false",
    "f",
    "no",
    "n",
    "off",
)


def is_plain() -> bool:
    """True if everything is compiled by plain `jax.jit` and computed by plain jax functions."""
    return _is_plain


@contextlib.contextmanager
def plain_jax() -> Iterator[None]:
    """Run the package by plain `jax.jit` and plain jax functions, as JAXAGENTS_PLAIN_JAX=1 does.

    Results are the same up to rounding; training is slower. Use it to find out whether a fault
    lies in this package's tuning, in XLA, or elsewhere. The switch is the process's, not the
    thread's. Entering and leaving drop all compiled programs, also those of other code.
    """
    global _is_plain
    before = _is_plain
    try:
        _is_plain = True
        jax.clear_caches()
        yield
    finally:
        _is_plain = before
        jax.clear_caches()
