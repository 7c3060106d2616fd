"""Signals during work: handled whichever thread receives them, unless the user handles them."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from jaxagents.training.interruption import Interrupted, Interruption

# Shells let background processes and their children ignore Ctrl-C: restore the default handler.
DEFAULT_HANDLERS = """
import os, signal, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from jaxagents.training.interruption import Interrupted, Interruption
interruption = Interruption()
"""
SIGNAL_FOR_ANOTHER_THREAD = f"""{DEFAULT_HANDLERS}
def work():
    time.sleep(1)  # until the main thread sleeps
    started = time.monotonic()
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
    while not interruption.requested and time.monotonic() < started + 50:
        time.sleep(0.1)
    print(time.monotonic() - started)

try:
    interruption.run(work)
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


def send(number):
    """Send this process a signal, which the main thread handles soon."""
    os.kill(os.getpid(), number)


def wait_for(condition):
    started = time.monotonic()
    while not condition():
        assert time.monotonic() < started + 20
        time.sleep(0.01)


def test_without_a_signal_work_returns_its_result_and_raises_its_errors(default_handlers):
    interruption = Interruption()
    assert interruption.run(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        interruption.run(lambda: 1 / 0)
    assert not interruption.requested
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("number", SIGNALS)
def test_work_is_asked_to_end_by_the_first_signal(default_handlers, number, capsys):
    interruption, ended = Interruption(), []

    def work():
        assert not interruption.requested
        send(number)
        wait_for(lambda: interruption.requested)
        ended.append(True)

    with pytest.raises(Interrupted) as raised:
        interruption.run(work)
    assert ended
    assert (raised.value.signal_number, raised.value.at_once) == (number, False)
    assert "a second signal ends it at once" in capsys.readouterr().err


def test_a_second_signal_abandons_work_and_later_work_waits_for_it(default_handlers):
    interruption, go_on, ended = Interruption(), threading.Event(), []

    def work():
        send(signal.SIGTERM)
        wait_for(lambda: interruption.requested)
        send(signal.SIGINT)
        go_on.wait(20)
        time.sleep(0.2)  # later work would overtake it if it did not wait
        ended.append("first")

    with pytest.raises(Interrupted) as raised:
        interruption.run(work)
    assert not ended
    assert (raised.value.signal_number, raised.value.at_once) == (signal.SIGINT, True)
    go_on.set()
    interruption.run(lambda: ended.append("second"))
    assert ended == ["first", "second"]


def test_a_terminal_that_goes_may_hang_up_more_than_once(default_handlers):
    interruption = Interruption()

    def work():
        for _ in range(2):
            send(signal.SIGHUP)
            wait_for(lambda: interruption.requested)
            time.sleep(0.2)  # until the main thread has handled it

    with pytest.raises(Interrupted) as raised:
        interruption.run(work)
    assert (raised.value.signal_number, raised.value.at_once) == (signal.SIGHUP, False)


def test_a_signal_ends_work_without_results_at_once(default_handlers):
    interruption, go_on = Interruption(), threading.Event()

    def work():
        send(signal.SIGTERM)
        go_on.wait(20)

    with pytest.raises(Interrupted) as raised:
        interruption.run(work, has_results=False)
    assert (raised.value.signal_number, raised.value.at_once) == (signal.SIGTERM, True)
    assert interruption.requested  # work that goes on in its thread ends at its next evaluation
    go_on.set()


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


def test_signals_that_the_user_ignores_or_handles_are_left_alone(default_handlers):
    handled = []
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: handled.append(True))
    interruption = Interruption()

    def work():
        send(signal.SIGINT)
        send(signal.SIGTERM)
        wait_for(lambda: handled)

    interruption.run(work)
    assert not interruption.requested


def test_outside_the_main_thread_signals_keep_their_handlers(default_handlers):
    interruption, seen = Interruption(), []

    def run():
        interruption.run(lambda: seen.append(signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(20)
    assert seen == [signal.default_int_handler]
