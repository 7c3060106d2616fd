"""A worker process as the process that started it sees it."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from typing import final

from jaxagents.environments.host.infos import EpisodeInfos
from jaxagents.environments.host.messages import (
    DONE,
    FAILED,
    INFOS,
    Failure,
    receive_object,
    send_object,
)
from jaxagents.environments.host.worker import Task

_SECONDS_TO_DIE = 5.0
_SECONDS_OF_SLICE = 0.5  # of waiting
_PROGRAM = (
    "import sys; sys.path[:] = {path!r}; "
    "from jaxagents.environments.host.worker import main; main({descriptor})"
)
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@final
class WorkerProcess:
    """A process that runs `worker.main`.

    It is a process of its own, not a fork: jax has threads, which a fork would not survive. Unlike
    the processes of `multiprocessing` it does not import the user's script again.
    """

    def __init__(self, task: Task, timeout: float):
        self.envs = task.envs
        self.n_steps = 0  # begun
        self.is_replacement = False
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
                    env=_ONE_THREAD | os.environ,
                )
            except OSError:
                self._channel.close()
                raise
        send_object(self._channel, task)
        self._channel.settimeout(min(timeout, _SECONDS_OF_SLICE))

    @property
    def process_id(self) -> int:
        """The process's number in the system."""
        return self._process.pid

    def send(self, command: bytes) -> None:
        """Begin to reset or to step."""
        with contextlib.suppress(OSError):  # it has died, as `wait` will find
            self._channel.sendall(command)

    def wait(self) -> Failure | None:
        """Wait until it is done, and return what failed."""
        try:
            answer = self._receive()
            if answer == DONE:
                return None
            if answer == FAILED:
                self._channel.settimeout(self._timeout)
                return receive_object(self._channel)
        except TimeoutError:
            text = f"has not returned within timeout={self._timeout:g} s"
            return Failure(None, text, "")
        except (OSError, EOFError):
            pass
        return Failure(None, f"ended its worker process ({self._ending()})", "")

    def infos(self) -> list[EpisodeInfos]:
        """Return the infos of its environments' first episodes; none if it has died since.

        A worker that does not answer in time is killed: a late answer would be taken for the next.
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
        """Receive an answer within the timeout, of which a suspended process uses up nothing.

        While this process is stopped (Ctrl-Z, SIGSTOP, a laptop that sleeps), so are its workers,
        but the clock is not. So the time is counted in slices, and no slice as more than it is.
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
