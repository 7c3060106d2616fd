"""Ctrl-C and SIGTERM during a training: first a request, then an order."""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from types import FrameType
from typing import Any, TypeVar, final

Result = TypeVar("Result")
_SECONDS_OF_SLEEP = 0.1
_HANDLED = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


class Interrupted(KeyboardInterrupt):
    """A training was interrupted by a signal.

    Attributes:
        signal_number: Of the signal.
        at_once: It came twice: what runs was left running in a thread, and will end where the
            first one asked it to.
    """

    def __init__(self, signal_number: int, at_once: bool):
        super().__init__(f"interrupted by {signal.Signals(signal_number).name}")
        self.signal_number = signal_number
        self.at_once = at_once


@final
class Interruption:
    """Listens to Ctrl-C and SIGTERM while something runs that looks at `requested` now and then.

    A signal that the process ignores, or that the user's own program handles, is left alone, and
    so are all outside of the main thread, which alone may listen.
    """

    def __init__(self) -> None:
        self._signal_number: int | None = None
        self._thread: threading.Thread | None = None

    @property
    def requested(self) -> bool:
        """Whether to end at the next occasion."""
        return self._signal_number is not None

    def run(self, work: Callable[[], Result]) -> Result:
        """Run ``work`` while listening.

        It runs in another thread: the main one would hear nothing while compiled code runs.

        Raises:
            Interrupted: a signal came; ``work`` has ended, unless a second one came.
        """
        self.settle()
        self._signal_number = None
        if threading.current_thread() is not threading.main_thread():
            return work()
        before = {number: signal.getsignal(number) for number in _HANDLED}
        for number, handler in before.items():
            if handler is _HANDLED[number]:
                signal.signal(number, self._on_signal)
        try:
            result = self._run_in_thread(work)
        finally:
            for number, handler in before.items():
                if handler is _HANDLED[number]:
                    signal.signal(number, handler)
        if self._signal_number is not None:
            raise Interrupted(self._signal_number, at_once=False)
        return result

    def settle(self) -> None:
        """Wait for work that was left running."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
            self._thread = None

    def _run_in_thread(self, work: Callable[[], Result]) -> Result:
        outcome: Future[Any] = Future()

        def run() -> None:
            try:
                outcome.set_result(work())
            except BaseException as error:
                outcome.set_exception(error)

        self._thread = threading.Thread(target=run, daemon=True, name="training")
        self._thread.start()
        # The system may hand a signal to any thread, and Python looks at it only once the main
        # one wakes up: it must not sleep until the end.
        while not outcome.done():
            wait([outcome], timeout=_SECONDS_OF_SLEEP)
        self._thread = None
        return outcome.result()

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self._signal_number is not None:
            raise Interrupted(number, at_once=True)
        self._signal_number = number
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        with contextlib.suppress(OSError, ValueError):  # nobody may be reading any more
            text = "the training ends after the next evaluation; once more ends it at once."
            print(f"\n{name}: {text}", file=sys.stderr, flush=True)
