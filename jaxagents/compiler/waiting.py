"""Waiting for compiled code in Python, where Ctrl-C arrives and messages can be logged."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jaxtyping import PyTree

_SECONDS_TO_REPORT = 60.0
_SECONDS_BETWEEN_CHECKS = 0.1


class _Waits(threading.local):
    """The settings of `interruptible` for this thread."""

    check: Callable[[], None] | None = None
    unfinished: list[PyTree] | None = None


_waits = _Waits()


@contextlib.contextmanager
def interruptible(check: Callable[[], None], unfinished: list[PyTree]) -> Iterator[None]:
    """Within this context, let the waits of this thread end early.

    Args:
        check: Called ten times a second; its exception ends the wait.
        unfinished: Receives the results of waits that an exception ends.
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
    """Wait until arrays, or futures, are done; whoever reads them gets their errors.

    `jax.block_until_ready` waits in C++, where Python handles no signals, so another thread calls
    it. Asking the arrays again and again would take time from the program.

    Args:
        results: The arrays or futures.
        report: Called once after a minute, to log the reason.
    """
    started, done = time.perf_counter(), threading.Event()
    leaves = [leaf for leaf in jax.tree.leaves(results) if not _is_done(leaf)]
    if not leaves:
        return
    # No daemon: at the interpreter's end Python waits for it, as jax waits for its programs.
    threading.Thread(target=_wait, args=(leaves, done), name="waiting").start()
    try:
        while not done.wait(_SECONDS_BETWEEN_CHECKS):
            if _waits.check is not None:
                _waits.check()
            if report is not None and time.perf_counter() - started >= _SECONDS_TO_REPORT:
                report()
                report = None
    except BaseException:
        if _waits.unfinished is not None:
            _waits.unfinished.append(leaves)
        raise


def _is_done(leaf: Any) -> bool:
    is_done = getattr(leaf, "is_ready", None) or getattr(leaf, "done", None)
    return is_done is None or is_done()


def _wait(leaves: list[Any], done: threading.Event) -> None:
    for leaf in leaves:
        wait = getattr(leaf, "block_until_ready", None) or leaf.exception
        with contextlib.suppress(Exception):
            wait()
    done.set()
