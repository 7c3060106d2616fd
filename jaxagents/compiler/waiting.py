"""Waiting for compiled code in Python, where Ctrl-C arrives and a message can be given."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jaxtyping import PyTree

_SECONDS_TO_REPORT = 60.0
_SHARE_OF_WAITING = 0.01  # by which polling may lengthen a wait
_SHORTEST, _LONGEST = 20e-6, 0.1  # seconds between two checks


class _Waits(threading.local):
    """The settings of `interruptible` for this thread."""

    check: Callable[[], None] | None = None
    unfinished: list[PyTree] | None = None


_waits = _Waits()


@contextlib.contextmanager
def interruptible(check: Callable[[], None], unfinished: list[PyTree]) -> Iterator[None]:
    """Let the waits of this thread end early, within this context.

    Args:
        check: Called between waits; its exception ends the wait.
        unfinished: Gets the results of waits that an exception ends.
    """
    before = _waits.check, _waits.unfinished
    _waits.check, _waits.unfinished = check, unfinished
    try:
        yield
    finally:
        _waits.check, _waits.unfinished = before


@contextlib.contextmanager
def reporting(report: Callable[[], None]) -> Iterator[None]:
    """Call ``report`` if this context takes longer than a minute."""
    timer = threading.Timer(_SECONDS_TO_REPORT, report)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def wait_for(results: PyTree, report: Callable[[], None] | None = None) -> None:
    """Wait until arrays, or futures, are done.

    `jax.block_until_ready` waits in C++, where Python handles no signals.

    Args:
        results: The arrays or futures.
        report: Called once after a minute, to log the reason.
    """
    started, leaves = time.perf_counter(), jax.tree.leaves(results)
    try:
        while not all(map(_is_done, leaves)):
            if _waits.check is not None:
                _waits.check()
            elapsed = time.perf_counter() - started
            if report is not None and elapsed >= _SECONDS_TO_REPORT:
                report()
                report = None
            time.sleep(min(max(_SHARE_OF_WAITING * elapsed, _SHORTEST), _LONGEST))
    except BaseException:
        if _waits.unfinished is not None:
            _waits.unfinished.append(leaves)
        raise


def _is_done(leaf: Any) -> bool:
    is_done = getattr(leaf, "is_ready", None) or getattr(leaf, "done", None)
    return is_done is None or is_done()
