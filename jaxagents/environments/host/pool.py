"""Worker processes that step environments together. Numpy only: callbacks of jax call it.

Several environments share a process. Gymnasium's `AsyncVectorEnv` has a process and a pickled
message for each, closes all when one fails, and with 16 CartPoles on two cores made 17,000
environment steps a second where one worker of this pool made 45,000.
"""

import contextlib
import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from typing import IO, Literal, NamedTuple, final

import numpy as np

from jaxagents.environments.host.actor_arrays import Sight
from jaxagents.environments.host.errors import HostEnvironmentError
from jaxagents.environments.host.images import ImageSettings
from jaxagents.environments.host.messages import (
    DONE,
    FAILED,
    RESET,
    STEP,
    Failure,
    receive_object,
    send_object,
)
from jaxagents.environments.host.shared_arrays import Layout, map_arrays, new_memory
from jaxagents.environments.host.worker import Task

OnWorkerFailure = Literal["raise", "restart"]
Frame = dict[str, np.ndarray]
"""Copies of the shared arrays, ``[envs, ...]``, after a reset or a step."""

_SECONDS_TO_CLOSE = 5.0
_PROGRAM = (
    "import sys; sys.path[:] = {path!r}; "
    "from jaxagents.environments.host.worker import main; main({descriptor})"
)
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_logger = logging.getLogger(__name__)


class PoolSettings(NamedTuple):
    """How environments are distributed over workers, and what happens when one fails."""

    make_env: bytes  # pickled by cloudpickle
    images: ImageSettings
    layout: Layout
    max_episode_steps: int | None
    n_workers: int | None  # at most; None: one per processor
    timeout: float  # seconds, of a step and of a start
    n_drawn: int  # the first environments, of which every step is drawn
    on_worker_failure: OnWorkerFailure


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
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                pass_fds=(descriptor, task.memory),
                env=_ONE_THREAD | os.environ,
            )
        send_object(self._channel, task)

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
            answer = self._channel.recv(1)
            if answer == DONE:
                return None
            if answer == FAILED:
                return receive_object(self._channel)
        except TimeoutError:
            text = f"has not returned within timeout={self._timeout:g} s"
            return Failure(None, text, "")
        except (OSError, EOFError):
            pass
        return Failure(None, f"ended its worker process ({self._ending()})", "")

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
            code = self._process.wait(_SECONDS_TO_CLOSE)
        except subprocess.TimeoutExpired:
            return "it closed its socket"
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


@final
class WorkerPool:
    """Environments ``0`` to ``n_envs - 1``, in worker processes.

    Args:
        settings: See `PoolSettings`.
        n_envs: Number of environments.

    Attributes:
        n_envs: Number of environments.
        n_restarts: How often each environment was made anew because its worker failed, ``[envs]``.
    """

    def __init__(self, settings: PoolSettings, n_envs: int):
        self.n_envs = n_envs
        self.n_restarts = np.zeros(n_envs, np.int32)
        self._settings = settings
        self._file = new_memory(settings.layout, n_envs)
        self._arrays = map_arrays(self._file.fileno(), settings.layout, n_envs)
        self._latest: Frame = {}
        self._n_steps = 0
        n_workers = min(settings.n_workers or _n_processors(), n_envs)
        bounds = np.linspace(0, n_envs, n_workers + 1).astype(int).tolist()
        self._workers: list[WorkerProcess] = []
        self.close = weakref.finalize(self, _close, self._workers, self._file)
        for start, stop in itertools.pairwise(bounds):
            self._workers.append(self._start(range(start, stop)))

    @property
    def is_open(self) -> bool:
        """True until `close`."""
        return self.close.alive

    @property
    def process_ids(self) -> list[int]:
        """The numbers of the worker processes in the system."""
        return [worker.process_id for worker in self._workers]

    def reset(self, seed: np.ndarray) -> Frame:
        """Start an episode in each environment.

        Args:
            seed: ``[envs]``, of each environment.

        Raises:
            HostEnvironmentError: an environment failed, and failures are not to be mended, or not
                even a new worker could reset it.
        """
        self._n_steps = 0
        self._arrays["seed"][:] = seed
        for worker, failure in self._command(RESET):
            if self._settings.on_worker_failure == "raise":
                raise self._error(worker, failure)
            self._replace(worker, failure)
        return self._frame()

    def pictures(self) -> np.ndarray:
        """Return the latest pictures of the environments that are drawn, ``[envs, ...]``."""
        return self._latest["picture"]

    def step(self, action: np.ndarray, seed: np.ndarray) -> Frame:
        """Step each environment, and reset where the episode is over.

        Args:
            action: ``[envs, actors, ...]``.
            seed: ``[envs]``, for those that are reset.

        Raises:
            HostEnvironmentError: an environment failed, and failures are not to be mended, or a new
                worker failed at its first step.
        """
        self._n_steps += 1
        self._arrays["action"][:] = action
        self._arrays["seed"][:] = seed
        for worker in self._workers:
            worker.n_steps += 1
        for worker, failure in self._command(STEP):
            # A worker that fails at once would be replaced without end.
            fails_again = worker.is_replacement and worker.n_steps == 1
            if self._settings.on_worker_failure == "raise" or fails_again:
                raise self._error(worker, failure)
            self._replace(worker, failure)
            self._truncate(slice(worker.envs.start, worker.envs.stop))
        return self._frame()

    def _start(self, envs: range) -> WorkerProcess:
        settings = self._settings
        task = Task(
            make_env=settings.make_env,
            images=settings.images,
            layout=settings.layout,
            n_envs=self.n_envs,
            envs=envs,
            memory=self._file.fileno(),
            max_episode_steps=settings.max_episode_steps,
            n_drawn=settings.n_drawn,
        )
        return WorkerProcess(task, settings.timeout)

    def _command(self, command: bytes) -> list[tuple[WorkerProcess, Failure]]:
        for worker in self._workers:
            worker.send(command)
        answers = [(worker, worker.wait()) for worker in self._workers]
        return [(worker, failure) for worker, failure in answers if failure is not None]

    def _replace(self, failed: WorkerProcess, failure: Failure) -> None:
        """Start a new worker, which resets the environments of one that has failed."""
        _logger.warning("%s; its worker is restarted.", self._describe(failed, failure))
        failed.end(deadline=0.0)
        worker = self._start(failed.envs)
        worker.is_replacement = True
        self._workers[self._workers.index(failed)] = worker
        worker.send(RESET)
        new_failure = worker.wait()
        if new_failure is not None:
            raise self._error(worker, new_failure)
        self.n_restarts[slice(worker.envs.start, worker.envs.stop)] += 1

    def _truncate(self, rows: slice) -> None:
        """End the episodes of environments that have been made anew where they were."""
        arrays = self._arrays
        for name in Sight._fields:
            if name in self._latest:
                arrays[f"final_{name}"][rows] = self._latest[name][rows]
        if "picture" in self._latest:  # of the end, not of the episode that has begun since
            arrays["picture"][rows] = self._latest["picture"][rows]
        arrays["reward"][rows] = 0.0
        arrays["terminated"][rows] = False
        arrays["truncated"][rows] = self._latest["alive"][rows]
        arrays["over"][rows] = True

    def _frame(self) -> Frame:
        # Copies: jax may read them after the workers have gone on.
        self._latest = {name: array.copy() for name, array in self._arrays.items()}
        return self._latest

    def _error(self, worker: WorkerProcess, failure: Failure) -> HostEnvironmentError:
        """Close the pool, whose environments are now at different steps."""
        text = self._describe(worker, failure)
        worker.end(deadline=0.0)
        self.close()
        if failure.traceback:
            return HostEnvironmentError(f"{text}; the worker's traceback:\n\n{failure.traceback}")
        return HostEnvironmentError(f"{text}; mend it, or set on_worker_failure='restart'.")

    def _describe(self, worker: WorkerProcess, failure: Failure) -> str:
        envs: Sequence[int] = worker.envs
        if failure.env is None:
            envs = [env for env in envs if self._arrays["at_work"][env]][:1] or envs
        else:
            envs = [failure.env]
        which = f"environment {envs[0]}" if len(envs) == 1 else f"environments {envs[0]}-{envs[-1]}"
        when = f"at step {self._n_steps}" if self._n_steps else "at the reset"
        return f"{which} {when} {failure.text}"


def _n_processors() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _close(workers: list[WorkerProcess], file: IO[bytes]) -> None:
    """End the processes, and kill those that are stuck; free the memory."""
    for worker in workers:
        worker.hang_up()
    deadline = time.monotonic() + _SECONDS_TO_CLOSE
    for worker in workers:
        worker.end(deadline)
    workers.clear()
    file.close()
