"""Whether programs are tuned: for a CPU, unless the switch to plain jax is on."""

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
    """True if everything is compiled by plain `jax.jit` and computed by plain jax functions.

    So it is under `jax.disable_jit()`, where each operation costs a millisecond: tuned forms take
    more operations, for a compiler that fuses them.
    """
    return _is_plain or jax.config.jax_disable_jit  # pyright: ignore[reportAttributeAccessIssue]


def tunes_for_cpu() -> bool:
    """True if programs get the form that suits a CPU: it is jax's default backend.

    Everything that only suits CPUs asks here, while it is traced. XLA's other backends compute
    plain jax at least as fast: a sum or a transpose is fused into its neighbours there, and every
    further kernel or condition costs a launch or a wait of the host.
    """
    return not is_plain() and jax.default_backend() == "cpu"


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
