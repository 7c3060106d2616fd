"""Ctrl-C, SIGTERM and SIGHUP during training, and Ctrl-C in commands.

The first signal ends training after the next evaluation; the second raises `Interrupted` at once,
and so does the first if there is no evaluation yet: waiting would only last through a compilation,
with nothing to save.
"""

import contextlib
import gc
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, final

_SECONDS_TO_TRY_AGAIN = 0.1
_SECONDS_TO_ANSWER = 3.0  # of the main thread to a signal, before it counts as stuck
_SECONDS_BEFORE = 0.5  # a handler may run before the watch learns of its signal
_answered = threading.Event()  # Ctrl-C has reached the main thread, outside of training


def raise_interrupt(number: int, frame: FrameType | None) -> None:
    """Raise `KeyboardInterrupt`: the handler of Ctrl-C within `ending_stuck_calls`."""
    callbacks = [getattr(callback, "__code__", None) for callback in gc.callbacks]
    if frame is not None and frame.f_code in callbacks:
        # An exception in a callback of the garbage collector is printed and lost: raise it again
        # later.
        threading.Timer(_SECONDS_TO_TRY_AGAIN, os.kill, (os.getpid(), number)).start()
        return
    _answered.set()
    signal.default_int_handler(number, frame)


# Sent when the terminal closes. Windows has none.
_HANGUPS = {signal.SIGHUP} if hasattr(signal, "SIGHUP") else set()
_DEFAULT_HANDLERS = {
    signal.SIGINT: (signal.default_int_handler, raise_interrupt),
    **dict.fromkeys({signal.SIGTERM, *_HANGUPS}, (signal.SIG_DFL,)),
}


class Interrupted(KeyboardInterrupt):
    """A signal interrupted training.

    Attributes:
        signal_number: Number of the signal.
        at_once: True after a second signal: a compiled program was left running, and nothing of it
            is recorded. Also True after a first signal before there is an evaluation.
    """

    def __init__(self, signal_number: int, at_once: bool):
        super().__init__(f"interrupted by {signal.Signals(signal_number).name}")
        self.signal_number = signal_number
        self.at_once = at_once


@final
class Interruption:
    """Handles Ctrl-C, SIGTERM and SIGHUP while a run trains; the run polls `requested`.

    Signals that the process ignores or the user's program handles keep their handlers. Outside the
    main thread, where Python cannot install handlers, no signal is handled.

    Attributes:
        has_results: False as long as the run has nothing to save: a signal then ends it at once.
        signal_number: The number of the signal that has arrived, here or in another process; 0:
            none.
    """

    def __init__(self) -> None:
        self.has_results: bool = True
        self.signal_number: int = 0
        self._at_once: int | None = None  # the signal that ends the run without waiting for it
        self._answered_at = -math.inf  # when a handler has run
        self._abandoned: list[Any] = []  # results of programs that were left running

    @property
    def requested(self) -> bool:
        """True after a signal: the run should end soon."""
        return self.signal_number > 0

    @contextlib.contextmanager
    def handling(self, has_results: bool = True) -> Iterator[None]:
        """Handle signals within this context.

        Python runs handlers in the main thread, between two of its own instructions: `wait_for`
        waits in Python for compiled programs. While a program is compiled, handlers wait.

        Raises:
            Interrupted: A signal arrived and the context has ended, or a second signal arrived, or
                one before there are results.
        """
        from jaxagents.compiler.waiting import interruptible  # commands import this before jax

        self.wait_for_abandoned_work()
        self.signal_number, self._at_once, self.has_results = 0, None, has_results
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        if _answered.is_set():
            raise KeyboardInterrupt  # what the handler raised was lost: see `_raise_again`
        before = {number: signal.getsignal(number) for number in _DEFAULT_HANDLERS}
        ours = [number for number, each in before.items() if each in _DEFAULT_HANDLERS[number]]
        try:
            for number in ours:
                signal.signal(number, self._on_signal)
            with interruptible(self._raise_again, self._abandoned):
                yield
        except BaseException as error:
            if self._at_once is None or isinstance(error, Interrupted):
                raise
            # What the handler raised has gone through compiled code, which makes it another error.
            raise Interrupted(self._at_once, at_once=True) from None
        finally:
            for number in ours:
                signal.signal(number, before[number])
        if self.requested:
            raise Interrupted(self.signal_number, at_once=False)

    def wait_for_abandoned_work(self) -> None:
        """Wait for programs that a second signal left running."""
        from jaxagents.compiler.waiting import wait_for

        while self._abandoned:
            wait_for(self._abandoned[-1])
            self._abandoned.pop()

    def answers(self) -> bool:
        """Wait for the handler of a signal that arrives now; False: the main thread is stuck."""
        now = time.monotonic()
        while self._answered_at < now - _SECONDS_BEFORE:
            if time.monotonic() > now + _SECONDS_TO_ANSWER:
                return False
            time.sleep(_SECONDS_TO_TRY_AGAIN)
        return True

    def _raise_again(self) -> None:
        """Raise again a handler's exception that was lost in a callback of garbage collection."""
        if self._at_once is not None:
            raise Interrupted(self._at_once, at_once=True)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        """Handle a signal."""
        self._answered_at = time.monotonic()
        if number in _HANGUPS and number == self.signal_number:
            return  # the shell and the kernel each send one when a terminal closes
        if self.requested or not self.has_results:
            self._at_once = self.signal_number = number
            raise Interrupted(number, at_once=True)
        self.signal_number = number
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        with contextlib.suppress(OSError, ValueError):  # the terminal may be closed
            text = "the training ends after the next evaluation; a second signal ends it at once."
            print(f"\n{name}: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def ending_stuck_calls(status: int, complain: Callable[[], object]) -> Iterator[None]:
    """End the process if a signal cannot reach the main thread, as while it compiles a program.

    Python's handlers wait for the main thread to come back from compiled code. Handlers of the
    user's program, and programs that ignore Ctrl-C, are left alone. In training a first signal may
    wait if there is something to save.

    Args:
        status: Exit status after Ctrl-C; after another signal it is 128 plus the signal's number.
        complain: Called before the process ends in this way.
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
    """End the process after a signal that the main thread does not answer."""
    may_wait = True
    while received := signals.recv(1):
        number = received[0]
        handler = signal.getsignal(number)
        training = getattr(handler, "__self__", None)
        if isinstance(training, Interruption):
            is_answered = training.answers()
            if not is_answered and training.has_results and may_wait:
                may_wait = False
                continue
        elif handler is raise_interrupt:
            is_answered = _answered.wait(_SECONDS_TO_ANSWER)
        else:
            continue
        if not is_answered:
            complain()
            os._exit(status if number == signal.SIGINT else 128 + number)
