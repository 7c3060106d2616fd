"""Environments that are stepped together, outside jax. Numpy only: callbacks of jax call it.

Several environments share a worker process. Gymnasium's `AsyncVectorEnv` has a process and a
pickled message for each, closes all when one fails, and made 17,000 environment steps a second with
16 CartPoles on two cores, where one worker of this pool made 45,000.
"""

import contextlib
import itertools
import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import IO, Literal, NamedTuple, final

import numpy as np

from jaxagents.compiler.processors import n_processors
from jaxagents.environments.host import HostEnvironmentError
from jaxagents.environments.host.actor_arrays import HostObservation
from jaxagents.environments.host.sharing import (
    RESET,
    STEP,
    Failure,
    Layout,
    map_arrays,
    new_arrays,
    new_memory,
)
from jaxagents.environments.host.stepper import EnvironmentSettings, EpisodeInfos, Stepper
from jaxagents.environments.host.vectors import VectorStepper
from jaxagents.environments.host.worker import WorkerProcess, WorkerTask

OnWorkerFailure = Literal["raise", "restart"]
Frame = dict[str, np.ndarray]
"""Arrays ``[envs, ...]`` by name, after a reset or a step; the next one may change them."""
_CLOSED = "the environments were closed in mid-step."
SECONDS_TO_CLOSE = 5.0
"""Time after which workers that have not ended are killed."""
_logger = logging.getLogger(__name__)


class PoolSettings(NamedTuple):
    """How environments are distributed over workers, and what happens when one fails."""

    environments: EnvironmentSettings
    layout: Layout
    n_workers: int | None  # at most; None: one per processor; 0: this process steps them itself
    timeout: float  # seconds, of a step and of a start
    on_worker_failure: OnWorkerFailure
    first_env: int = 0  # the number of environment 0 in messages: others may be in other processes


@final
class LocalWorker:
    """Environments that this process steps, where a step is shorter than waking a process.

    Has the interface of `WorkerProcess`, and reports errors in the same way. It cannot interrupt an
    environment that hangs, or survive one that ends the process.
    """

    process_id = None

    def __init__(self, stepper: Stepper | VectorStepper, envs: range):
        self.envs = envs
        self.stepper = stepper
        self._failure: Failure | None = None
        self._is_due = self._has_closed = False  # to be closed
        self._at_work = threading.Lock()
        self._try(stepper.make)

    def send(self, command: bytes) -> None:
        """Reset or step."""
        self._try(self.stepper.reset if command == RESET else self.stepper.step)

    def wait(self) -> Failure | None:
        """Return any failure, and only once, because its traceback keeps this worker alive."""
        failure, self._failure = self._failure, None
        return failure

    def infos(self) -> list[EpisodeInfos]:
        """Return the infos of its environments' first episodes."""
        return self.stepper.infos()

    def hang_up(self) -> None:
        """Close the environments, at once or, if another thread steps them, after the step."""
        self._is_due = True
        if self._at_work.acquire(blocking=False):
            try:
                if not self._has_closed:
                    self._has_closed = True
                    self.stepper.close()
            finally:
                self._at_work.release()

    def end(self, deadline: float) -> None:
        """Do nothing: they are closed, or will be after the step."""

    def _try(self, work: Callable[[], None]) -> None:
        try:
            try:
                with self._at_work:
                    if not self._is_due:
                        work()
            finally:
                if self._is_due:
                    self.hang_up()
        except Exception as error:
            self._failure = self.stepper.failure(error)


@final
class WorkerPool:
    """Environments ``0`` to ``n_envs - 1``, in worker processes or in this process.

    Args:
        settings: How they are distributed.
        n_envs: Number of environments.

    Attributes:
        n_envs: Number of environments.
        n_restarts: How often each environment was rebuilt because its worker failed, ``[envs]``.
        workers: Those that step them.

    Raises:
        HostEnvironmentError: this process cannot make its environments.
    """

    def __init__(self, settings: PoolSettings, n_envs: int):
        self.n_envs = n_envs
        self.n_restarts = np.zeros(n_envs, np.int32)
        self._settings = settings
        self._latest: Frame = {}
        self._lost: set[int] = set()  # environments rebuilt since the reset
        self._replacements: set[WorkerProcess | LocalWorker] = set()  # before their first step
        self._n_steps = 0
        self._file: IO[bytes] | None = None
        self.workers: list[WorkerProcess | LocalWorker] = []
        if settings.n_workers == 0:
            self._arrays = new_arrays(settings.layout, n_envs)
        else:
            self._file = new_memory(settings.layout, n_envs)
            self._arrays = map_arrays(self._file.fileno(), settings.layout, n_envs)
        self._finalizer = weakref.finalize(self, _close, self.workers, self._file)
        n_workers = min(settings.n_workers or n_processors(), n_envs) if self._file else 1
        bounds = np.linspace(0, n_envs, n_workers + 1).astype(int).tolist()
        for start, stop in itertools.pairwise(bounds):
            self.workers.append(self._start(range(start, stop)))
        if self._file is None and (failure := self.workers[0].wait()) is not None:
            raise self._error(self.workers[0], failure)

    @property
    def is_open(self) -> bool:
        """True until `close`."""
        return self._finalizer.alive

    @property
    def process_ids(self) -> list[int]:
        """The system's process ids of the workers."""
        return [worker.process_id for worker in self.workers if worker.process_id is not None]

    def reset(self, seed: np.ndarray) -> Frame:
        """Start an episode in each environment.

        Args:
            seed: ``[envs]``, of each environment.

        Raises:
            HostEnvironmentError: an environment failed, and its worker is not to be restarted, or a
                new worker could not reset it either. Or another thread has closed the pool.
        """
        self._n_steps = 0
        self._lost.clear()
        self._arrays["seed"][:] = seed
        for worker, failure in self._command(RESET):
            if self._settings.on_worker_failure == "raise":
                raise self._error(worker, failure)
            self._replace(worker, failure)
        return self._frame()

    def step(self, action: np.ndarray, seed: np.ndarray) -> Frame:
        """Step each environment, and reset where the episode is over.

        Args:
            action: ``[envs, actors, ...]``.
            seed: ``[envs]``, for those that are reset.

        Raises:
            HostEnvironmentError: an environment failed, and its worker is not to be restarted, or a
                new worker failed at its first step. Or another thread has closed the pool.
        """
        self._n_steps += 1
        self._arrays["action"][:] = action
        self._arrays["seed"][:] = seed
        failures = self._command(STEP)
        replacements = self._replacements
        if replacements:
            self._replacements = set()
        for worker, failure in failures:
            # A worker that always fails at once would be replaced forever.
            if self._settings.on_worker_failure == "raise" or worker in replacements:
                raise self._error(worker, failure)
            self._replace(worker, failure)
            self._truncate(slice(worker.envs.start, worker.envs.stop))
            self._lost.update(worker.envs)
        return self._frame()

    def pictures(self) -> np.ndarray:
        """Return the latest pictures of the environments that are drawn, ``[envs, ...]``."""
        return self._arrays["picture"].copy()

    def infos(self) -> list[EpisodeInfos]:
        """Return each environment's infos of its first episode since `reset`, if they are kept.

        Rebuilt environments have none.
        """
        rows: list[EpisodeInfos] = [{} for _ in range(self.n_envs)]
        for worker in self.workers:
            for env, row in zip(worker.envs, worker.infos(), strict=False):
                rows[env] = {} if env in self._lost else row
        return rows

    def close(self, seconds: float = SECONDS_TO_CLOSE) -> None:
        """End the environments and their processes; it can be called again.

        Args:
            seconds: Time after which processes are killed.
        """
        if self._finalizer.detach() is not None:
            _close(self.workers, self._file, seconds)

    def _start(self, envs: range) -> WorkerProcess | LocalWorker:
        settings = self._settings
        if self._file is None:
            stepper = VectorStepper if settings.environments.is_vector else Stepper
            return LocalWorker(stepper(settings.environments, envs, self._arrays), envs)
        memory = self._file.fileno()
        task = WorkerTask(settings.environments, settings.layout, self.n_envs, envs, memory)
        return WorkerProcess(task, settings.timeout)

    def _command(self, command: bytes) -> list[tuple[WorkerProcess | LocalWorker, Failure]]:
        workers = self.workers.copy()  # `close` empties it
        for worker in workers:
            worker.send(command)
        failures = []
        for worker in workers:
            failure = worker.wait()
            if failure is not None:
                failures.append((worker, failure))
        if not self.is_open:
            raise HostEnvironmentError(_CLOSED)
        return failures

    def _replace(self, failed: WorkerProcess | LocalWorker, failure: Failure) -> None:
        """Start a new worker, which resets the environments of one that has failed."""
        _logger.warning("%s; its worker is restarted.", self._described(failed.envs, failure))
        failed.end(deadline=0.0)
        worker = self._start(failed.envs)
        self._replacements.add(worker)
        new_failure = None
        if self.is_open:
            self.workers[self.workers.index(failed)] = worker
            worker.send(RESET)
            new_failure = worker.wait()
        if not self.is_open:
            worker.end(deadline=0.0)
            raise HostEnvironmentError(_CLOSED)
        if new_failure is not None:
            raise self._error(worker, new_failure)
        self.n_restarts[slice(worker.envs.start, worker.envs.stop)] += 1

    def _truncate(self, rows: slice) -> None:
        """Truncate the episodes of rebuilt environments."""
        arrays = self._arrays
        for name in HostObservation._fields:
            if name in self._latest:
                arrays[f"final_{name}"][rows] = self._latest[name][rows]
        if "picture" in self._latest:  # of the end, not of the episode that has begun since
            arrays["picture"][rows] = self._latest["picture"][rows]
        arrays["reward"][rows] = 0.0
        arrays["terminated"][rows] = False
        arrays["truncated"][rows] = self._latest["alive"][rows]
        arrays["over"][rows] = True

    def _frame(self) -> Frame:
        if self._settings.on_worker_failure == "raise":
            return self._arrays
        # A copy, in which `_truncate` finds the step before.
        self._latest = {name: array.copy() for name, array in self._arrays.items()}
        return self._latest

    def _error(self, worker: WorkerProcess | LocalWorker, failure: Failure) -> HostEnvironmentError:
        """Close the pool, whose environments are now at different steps."""
        text = self._described(worker.envs, failure)
        worker.end(deadline=0.0)
        with contextlib.suppress(Exception):  # of an environment that is broken already
            self.close()
        if failure.error is not None:
            error = HostEnvironmentError(f"{text}.")
            error.__cause__ = failure.error
            return error
        if failure.traceback:
            return HostEnvironmentError(f"{text}; the worker's traceback:\n\n{failure.traceback}")
        return HostEnvironmentError(f"{text}; mend it, or set on_worker_failure='restart'.")

    def _described(self, envs: Sequence[int], failure: Failure) -> str:
        """Describe which environment failed, and when.

        Args:
            envs: The environments that the failure can belong to.
            failure: What happened.
        """
        at_work, first_env = self._arrays["at_work"], self._settings.first_env
        if failure.env is None:
            envs = [env for env in envs if at_work[env]][:1] or envs
        else:
            envs = [failure.env]
        first, last = first_env + envs[0], first_env + envs[-1]
        which = f"environment {first}" if len(envs) == 1 else f"environments {first}-{last}"
        when = f"at step {self._n_steps}" if self._n_steps else "at the reset"
        return f"{which} {when} {failure.text}"


def _close(
    workers: list[WorkerProcess | LocalWorker],
    file: IO[bytes] | None,
    seconds: float = SECONDS_TO_CLOSE,
) -> None:
    """End the processes, and kill those that are stuck; free the memory."""
    for worker in workers:
        worker.hang_up()
    deadline = time.monotonic() + seconds
    for worker in workers:
        worker.end(deadline)
    workers.clear()
    if file is not None:
        file.close()
