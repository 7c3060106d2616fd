"""Ctrl-C, SIGTERM and SIGHUP during training, and Ctrl-C in commands.

The first ends training after the next evaluation; the second raises `Interrupted` at once, and so
does the first before there is an evaluation: it would wait for a compilation, with nothing to save.
"""

import contextlib
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from types import FrameType
from typing import Any, TypeVar, final

Result = TypeVar("Result")
_POLL_SECONDS = 0.1
_SECONDS_TO_ANSWER = 3.0  # of the main thread to Ctrl-C, before it counts as stuck
_answered = threading.Event()  # Ctrl-C has reached the main thread


def raise_interrupt(number: int, frame: FrameType | None) -> None:
    """Raise `KeyboardInterrupt`: the handler of Ctrl-C within `ending_stuck_calls`."""
    callbacks = [getattr(callback, "__code__", None) for callback in gc.callbacks]
    if frame is not None and frame.f_code in callbacks:
        # What a callback of the garbage collector raises is printed and lost: once more, later.
        threading.Timer(_POLL_SECONDS, os.kill, (os.getpid(), number)).start()
        return
    _answered.set()
    signal.default_int_handler(number, frame)


# Sent when the terminal goes. Windows has none.
_HANGUPS = {signal.SIGHUP} if hasattr(signal, "SIGHUP") else set()
_DEFAULT_HANDLERS = {
    signal.SIGINT: (signal.default_int_handler, raise_interrupt),
    **dict.fromkeys({signal.SIGTERM, *_HANGUPS}, (signal.SIG_DFL,)),
}


class Interrupted(KeyboardInterrupt):
    """A signal interrupted training.

    Attributes:
        signal_number: Number of the signal.
        at_once: True after a second signal: training was left running in a thread, and ends
            after its next evaluation. Also after a first signal, before there is an evaluation.
    """

    def __init__(self, signal_number: int, at_once: bool):
        super().__init__(f"interrupted by {signal.Signals(signal_number).name}")
        self.signal_number = signal_number
        self.at_once = at_once


@final
class Interruption:
    """Handles Ctrl-C, SIGTERM and SIGHUP while a function runs; the function polls `requested`.

    Signals that the process ignores or the user's program handles keep their handlers. Outside the
    main thread, where Python cannot install handlers, no signal is handled.

    Attributes:
        has_results: False as long as the work has nothing to save: a signal then ends it at once.
    """

    def __init__(self) -> None:
        self.has_results: bool = True
        self._signal_number: int | None = None
        self._at_once: int | None = None  # the signal that ends the work without waiting for it
        self._thread: threading.Thread | None = None

    @property
    def requested(self) -> bool:
        """True after a signal: the work should end soon."""
        return self._signal_number is not None

    @property
    def signal_number(self) -> int:
        """The number of the signal that has arrived; 0: none."""
        return self._signal_number or 0

    def adopt(self, signal_number: int) -> None:
        """Treat a signal that another process has received as one of this process; 0: none."""
        if signal_number:
            self._signal_number = signal_number

    def run(self, work: Callable[[], Result], has_results: bool = True) -> Result:
        """Run ``work`` while handling signals.

        ``work`` runs in another thread: Python handles signals in the main thread only, and not
        while that runs compiled code.

        Raises:
            Interrupted: A signal arrived and ``work`` has ended, or a second signal arrived, or
                one before ``work`` has results.
        """
        self.wait_for_abandoned_work()
        self._signal_number, self._at_once, self.has_results = None, None, has_results
        if threading.current_thread() is not threading.main_thread():
            return work()
        if _answered.is_set():
            raise KeyboardInterrupt  # what the handler raised was lost: see `_run_in_thread`
        before = {number: signal.getsignal(number) for number in _DEFAULT_HANDLERS}
        for number, handler in before.items():
            if handler in _DEFAULT_HANDLERS[number]:
                signal.signal(number, self._on_signal)
        try:
            result = self._run_in_thread(work)
        finally:
            for number, handler in before.items():
                if handler in _DEFAULT_HANDLERS[number]:
                    signal.signal(number, handler)
        if self._signal_number is not None:
            raise Interrupted(self._signal_number, at_once=False)
        return result

    def wait_for_abandoned_work(self) -> None:
        """Wait for work that a second signal left running."""
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
        # The system may deliver a signal to any thread, but Python runs its handler in the main
        # one, which must therefore wake up now and then.
        while not outcome.done():
            wait([outcome], timeout=_POLL_SECONDS)
            if self._at_once is not None:
                # What a handler raises in a callback of the garbage collector is lost.
                raise Interrupted(self._at_once, at_once=True)
        self._thread = None
        return outcome.result()

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if number in _HANGUPS and number == self._signal_number:
            return  # the shell and the kernel each send one when a terminal goes
        if self._signal_number is not None or not self.has_results:
            self._at_once = self._signal_number = number
            raise Interrupted(number, at_once=True)
        self._signal_number = number
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        with contextlib.suppress(OSError, ValueError):  # the terminal may have gone
            text = "the training ends after the next evaluation; a second signal ends it at once."
            print(f"\n{name}: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def ending_stuck_calls(status: int, complain: Callable[[], object]) -> Iterator[None]:
    """End the process if Ctrl-C cannot reach the main thread, as while that compiles a program.

    Python's handlers wait for the main thread to come back from compiled code. Handlers of the
    user's program, and programs that ignore Ctrl-C, are left alone.

    Args:
        status: Exit status.
        complain: Called before the process ends so.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        _answered.clear()
        signal.signal(signal.SIGINT, raise_interrupt)
        before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        watch = threading.Thread(target=_watch, args=(ours, status, complain), daemon=True)
        watch.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            theirs.shutdown(socket.SHUT_WR)
            watch.join()
            _answered.clear()


def _watch(signals: socket.socket, status: int, complain: Callable[[], object]) -> None:
    """End the process after a Ctrl-C that the main thread does not answer."""
    while number := signals.recv(1):
        # During training another handler is at work, whose main thread waits and can answer.
        is_ours = number[0] == signal.SIGINT and signal.getsignal(signal.SIGINT) is raise_interrupt
        if not is_ours:
            continue
        if not _answered.wait(_SECONDS_TO_ANSWER):
            complain()
            os._exit(status)
