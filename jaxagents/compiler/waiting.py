"""Waiting for compiled code in Python, where Ctrl-C arrives and a message can be given."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import jax
from jaxtyping import PyTree

_SECONDS_TO_REPORT = 60.0
_SHARE_OF_WAITING = 0.01  # by which polling may lengthen a wait
_SHORTEST, _LONGEST = 20e-6, 0.1  # seconds between two looks


@contextlib.contextmanager
def reporting(report: Callable[[], None]) -> Iterator[None]:
    """Call ``report`` if what is done in this context takes longer than a minute."""
    timer = threading.Timer(_SECONDS_TO_REPORT, report)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def wait_for(results: PyTree, report: Callable[[], None] | None = None) -> None:
    """Wait until arrays are there.

    `jax.block_until_ready` waits in C++, where Python handles no signals.

    Args:
        results: The arrays.
        report: Called once after a minute, to say what takes so long.
    """
    started, leaves = time.perf_counter(), jax.tree.leaves(results)
    while not all(leaf.is_ready() for leaf in leaves if hasattr(leaf, "is_ready")):
        elapsed = time.perf_counter() - started
        if report is not None and elapsed >= _SECONDS_TO_REPORT:
            report()
            report = None
        time.sleep(min(max(_SHARE_OF_WAITING * elapsed, _SHORTEST), _LONGEST))
