"""Worker processes, seen from both sides: they step some of the environments of a pool.

A worker imports no jax. Its arrays are shared with the process that started it, which says when to
reset and when to step; a worker ends when that process does.
"""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import NamedTuple, final

import numpy as np

from jaxagents.environments.host.sharing import (
    DONE,
    FAILED,
    INFOS,
    QUIET_PYGAME,
    RESET,
    Failure,
    Layout,
    map_arrays,
    receive_object,
    send_object,
)
from jaxagents.environments.host.stepper import EnvironmentSettings, EpisodeInfos, Stepper

_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_AWAKE = 300e-6  # waiting for a command; training is 5 to 18 % faster than asleep
_SECONDS_TO_DIE = 5.0
_SECONDS_OF_SLICE = 0.5  # of waiting
_PROGRAM = (
    "import sys; sys.path[:] = {path!r}; "
    "from jaxagents.environments.host.worker import serve; serve({descriptor})"
)
_ENVIRONMENT_VARIABLES = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    **QUIET_PYGAME,
}


class WorkerTask(NamedTuple):
    """A worker's task, sent to it at its start."""

    settings: EnvironmentSettings
    layout: Layout
    n_envs: int  # of all workers
    envs: range  # of this one
    memory: int  # file descriptor


@final
class WorkerProcess:
    """A process that runs `main`.

    It is a new process, not a fork: jax has threads, which a fork would not survive. Unlike
    the processes of `multiprocessing` it does not import the user's script again.
    """

    def __init__(self, task: WorkerTask, timeout: float):
        self.envs = task.envs
        self._timeout = timeout
        self._channel, theirs = socket.socketpair()
        self._channel.settimeout(timeout)
        with theirs:
            descriptor = theirs.fileno()
            program = _PROGRAM.format(path=sys.path, descriptor=descriptor)
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", program],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(descriptor, task.memory),
                    env=_ENVIRONMENT_VARIABLES | os.environ,
                )
            except OSError:
                self._channel.close()
                raise
        send_object(self._channel, task)
        self._channel.settimeout(min(timeout, _SECONDS_OF_SLICE))

    @property
    def process_id(self) -> int:
        """The system's process id."""
        return self._process.pid

    def send(self, command: bytes) -> None:
        """Begin to reset or to step."""
        with contextlib.suppress(OSError):  # it has died, as `wait` will find
            self._channel.sendall(command)

    def wait(self) -> Failure | None:
        """Wait until it is done, and return any failure."""
        try:
            answer = self._receive()
            if answer == DONE:
                return None
            if answer == FAILED:
                self._channel.settimeout(self._timeout)
                return receive_object(self._channel)
        except TimeoutError:
            text = f"has not returned within timeout={self._timeout:g} s"
            return Failure(None, text)
        except (OSError, EOFError):
            pass
        return Failure(None, f"ended its worker process ({self._ending()})")

    def infos(self) -> list[EpisodeInfos]:
        """Return the infos of its environments' first episodes; none if it has died since.

        A worker that does not answer in time is killed: a late answer would be taken for the next
        one.
        """
        self.send(INFOS)
        try:
            if self._receive() == DONE:
                self._channel.settimeout(self._timeout)
                received = receive_object(self._channel)
                self._channel.settimeout(min(self._timeout, _SECONDS_OF_SLICE))
                return received
        except TimeoutError:
            self._process.kill()
        except (OSError, EOFError):
            pass
        return []

    def _receive(self) -> bytes:
        """Receive an answer within the timeout, not counting time in which this process is stopped.

        While this process is stopped (Ctrl-Z, SIGSTOP, a laptop that sleeps), so are its workers,
        but the clock is not. So the time is counted in slices of limited length.
        """
        left = self._timeout
        while True:
            began = time.monotonic()
            try:
                return self._channel.recv(1)
            except TimeoutError:
                left -= min(time.monotonic() - began, _SECONDS_OF_SLICE)
                if left <= 0:
                    raise

    def hang_up(self) -> None:
        """Ask the process to end; it closes its environments."""
        self._channel.close()

    def end(self, deadline: float) -> None:
        """Wait for the process to end, and kill it at the deadline (of `time.monotonic`)."""
        self._channel.close()
        try:
            self._process.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ending(self) -> str:
        try:
            code = self._process.wait(_SECONDS_TO_DIE)
        except subprocess.TimeoutExpired:
            return "it closed its socket"
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def serve(descriptor: int) -> None:
    """Serve the process at the other end of a socket until that process closes it."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # which reach whole groups of processes
        if hasattr(signal, name):  # Windows has no SIGHUP
            signal.signal(getattr(signal, name), signal.SIG_IGN)  # the other process decides
    channel = socket.socket(fileno=descriptor)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    try:
        task: WorkerTask = receive_object(channel)
    except (EOFError, ConnectionError):
        return  # the other process has ended
    arrays = map_arrays(task.memory, task.layout, task.n_envs)
    stepper = Stepper(task.settings, task.envs, arrays)
    try:
        stepper.make()
        while command := _receive(channel):
            if command == INFOS:
                channel.sendall(DONE)
                send_object(channel, stepper.infos())
                continue
            if command == RESET:
                _seed_global_generators(int(arrays["seed"][task.envs.start]))
                stepper.reset()
            else:
                stepper.step()
            channel.sendall(DONE)
        stepper.close()
    except ConnectionError:
        pass  # the other process has ended
    except BaseException as error:
        channel.sendall(FAILED)
        send_object(channel, stepper.failure(error)._replace(error=None))


def _receive(channel: socket.socket) -> bytes:
    """Receive a command, or nothing if the other end has closed.

    The next command usually arrives immediately, and a sleeping process wakes up late.
    """
    until = time.perf_counter() + _SECONDS_AWAKE
    while time.perf_counter() < until:
        try:
            return channel.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            os.sched_yield()
    return channel.recv(1)


def _seed_global_generators(seed: int) -> None:
    """Seed the generators of the process, from which some environments draw."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 -- the generator meant


def _end_with(parent: int) -> None:
    """End this process, even in the middle of a step, when its parent has ended."""
    while os.getppid() == parent:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os._exit(1)
