"""Signals during work: handled whichever thread receives them, unless the user handles them."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future

import pytest

from jaxagents.compiler.waiting import wait_for
from jaxagents.training.interruption import Interrupted, Interruption

# Shells let background processes and their children ignore Ctrl-C: restore the default handler.
DEFAULT_HANDLERS = """
import os, signal, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from jaxagents.training.interruption import Interrupted, Interruption
interruption = Interruption()
"""
SIGNAL_FOR_ANOTHER_THREAD = f"""{DEFAULT_HANDLERS}
from concurrent.futures import ThreadPoolExecutor
from jaxagents.compiler.waiting import wait_for

def work():
    started = time.monotonic()
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
    while not interruption.requested and time.monotonic() < started + 50:
        time.sleep(0.1)
    print(time.monotonic() - started)

try:
    with interruption.handling():
        wait_for(ThreadPoolExecutor().submit(work))
except Interrupted as interrupted:
    print(interrupted.signal_number, interrupted.at_once)
"""


def test_a_signal_is_handled_whichever_thread_receives_it():
    command = [sys.executable, "-c", SIGNAL_FOR_ANOTHER_THREAD]
    finished = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    seconds, outcome = finished.stdout.splitlines()
    assert float(seconds) < 20
    assert outcome == "2 False"


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def default_handlers():
    """Give the signals the default handlers of a Python program."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def handle(interruption, work, **choices):
    with interruption.handling(**choices):
        return work()


def test_without_a_signal_the_context_ends_and_raises_its_errors(default_handlers):
    interruption = Interruption()
    handlers = handle(interruption, lambda: [signal.getsignal(number) for number in SIGNALS])
    assert not {signal.default_int_handler, signal.SIG_DFL} & set(handlers)
    with pytest.raises(ZeroDivisionError):
        handle(interruption, lambda: 1 / 0)
    assert not interruption.requested
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("number", SIGNALS)
def test_a_run_is_asked_to_end_by_the_first_signal(default_handlers, number, capsys):
    interruption, ended = Interruption(), []

    def work():
        assert not interruption.requested
        signal.raise_signal(number)
        assert interruption.requested
        ended.append(True)

    with pytest.raises(Interrupted) as raised:
        handle(interruption, work)
    assert ended
    assert (raised.value.signal_number, raised.value.at_once) == (number, False)
    assert "a second signal ends it at once" in capsys.readouterr().err


def test_a_second_signal_abandons_a_program_and_a_later_run_waits_for_it(default_handlers):
    interruption, program = Interruption(), Future()

    def work():
        signal.raise_signal(signal.SIGTERM)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        wait_for([program])

    with pytest.raises(Interrupted) as raised:
        handle(interruption, work)
    assert (raised.value.signal_number, raised.value.at_once) == (signal.SIGINT, True)
    threading.Timer(0.2, program.set_result, (None,)).start()
    assert handle(interruption, program.done)


def test_the_second_signal_is_named_although_compiled_code_has_changed_its_exception(
    default_handlers,
):
    def work():
        signal.raise_signal(signal.SIGTERM)
        try:
            signal.raise_signal(signal.SIGTERM)
        except Interrupted as error:
            raise RuntimeError(f"CpuCallback error: {error!r}") from None

    with pytest.raises(Interrupted) as raised:
        handle(Interruption(), work)
    assert (raised.value.signal_number, raised.value.at_once) == (signal.SIGTERM, True)


def test_an_interrupt_that_was_lost_is_raised_again_by_the_next_wait(default_handlers):
    """What a handler raises in a callback of the garbage collector is printed and lost."""
    interruption, program = Interruption(), Future()

    def work():
        with contextlib.suppress(Interrupted):
            signal.raise_signal(signal.SIGTERM)
        wait_for(program)

    with pytest.raises(Interrupted):
        handle(interruption, work, has_results=False)
    program.set_result(None)


def test_a_terminal_that_goes_may_hang_up_more_than_once(default_handlers):
    def work():
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)

    with pytest.raises(Interrupted) as raised:
        handle(Interruption(), work)
    assert (raised.value.signal_number, raised.value.at_once) == (signal.SIGHUP, False)


def test_a_signal_ends_a_run_without_results_at_once(default_handlers):
    def work():
        signal.raise_signal(signal.SIGTERM)
        pytest.fail("the run goes on")

    with pytest.raises(Interrupted) as raised:
        handle(Interruption(), work, has_results=False)
    assert (raised.value.signal_number, raised.value.at_once) == (signal.SIGTERM, True)


STUCK = """
import ctypes, os, signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
from jaxagents.training import interruption
interruption._SECONDS_TO_ANSWER = 0.5
with interruption.ending_stuck_calls(130, lambda: print("interrupted", flush=True)):
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    lock, mutex = ctypes.CDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64)
    lock(mutex), lock(mutex)  # a deadlock
"""


def test_ctrl_c_ends_a_command_whose_main_thread_does_not_answer():
    command = [sys.executable, "-c", STUCK]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (finished.returncode, finished.stdout) == (130, "interrupted\n")


COLLECTING = """
import gc, os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from jaxagents.training import interruption
def callback(phase, _):
    if phase == "start" and not sent:
        sent.append(True)
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):  # Python runs the handler in here
            pass
sent = []
try:
    with interruption.ending_stuck_calls(130, lambda: None):
        gc.callbacks.append(callback)
        gc.collect()
        signal.pause()
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_in_a_callback_of_the_garbage_collector_is_not_lost():
    command = [sys.executable, "-c", COLLECTING]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (finished.stdout, finished.stderr) == ("interrupted\n", "")


STUCK_IN_TRAINING = """
import ctypes, os, signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
from jaxagents.training import interruption
interruption._SECONDS_TO_ANSWER = 0.5
with interruption.ending_stuck_calls(130, lambda: print("interrupted", flush=True)):
    with interruption.Interruption().handling(has_results={has_results}):
        for seconds in (0.5, 2.0):
            threading.Timer(seconds, os.kill, (os.getpid(), signal.{signal})).start()
        threading.Timer(1.5, print, ("it goes on",), dict(flush=True)).start()
        lock, mutex = ctypes.CDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64)
        lock(mutex), lock(mutex)  # a deadlock
"""


@pytest.mark.parametrize(
    ("number", "has_results", "output", "status"),
    [
        ("SIGINT", False, "interrupted\n", 130),
        ("SIGTERM", False, "interrupted\n", 143),
        ("SIGTERM", True, "it goes on\ninterrupted\n", 143),
    ],
)
def test_a_training_whose_main_thread_does_not_answer_ends_once_nothing_is_lost(
    number, has_results, output, status
):
    program = STUCK_IN_TRAINING.format(signal=number, has_results=has_results)
    command = [sys.executable, "-c", program]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (finished.stdout, finished.returncode) == (output, status)


def test_signals_that_the_user_ignores_or_handles_are_left_alone(default_handlers):
    handled = []
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: handled.append(True))
    interruption = Interruption()
    with interruption.handling():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert handled
    assert not interruption.requested


def test_outside_the_main_thread_signals_keep_their_handlers(default_handlers):
    seen = []

    def run():
        with Interruption().handling():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(20)
    assert seen == [signal.default_int_handler]
