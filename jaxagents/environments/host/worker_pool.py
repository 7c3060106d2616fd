"""Worker processes that step environments together.

Several environments share a process. Gymnasium's `AsyncVectorEnv` has a process and a pickled
message for each, closes all when one fails, and with 16 CartPoles on two cores made 17,000
environment steps a second where one worker of this pool made 45,000.
"""

import itertools
import logging
import os
import time
import weakref
from typing import IO, final

import numpy as np

from jaxagents.environments.host.actor_arrays import Sight
from jaxagents.environments.host.errors import HostEnvironmentError
from jaxagents.environments.host.infos import EpisodeInfos
from jaxagents.environments.host.messages import RESET, STEP, Failure
from jaxagents.environments.host.pool import SECONDS_TO_CLOSE, Frame, PoolSettings, describe
from jaxagents.environments.host.shared_arrays import map_arrays, new_memory
from jaxagents.environments.host.worker import Task
from jaxagents.environments.host.worker_process import WorkerProcess

_logger = logging.getLogger(__name__)


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
        self._lost: set[int] = set()  # environments made anew since the reset
        self._n_steps = 0
        n_workers = min(settings.n_workers or _n_processors(), n_envs)
        bounds = np.linspace(0, n_envs, n_workers + 1).astype(int).tolist()
        self._workers: list[WorkerProcess] = []
        self._finalizer = weakref.finalize(self, _close, self._workers, self._file)
        for start, stop in itertools.pairwise(bounds):
            self._workers.append(self._start(range(start, stop)))

    @property
    def is_open(self) -> bool:
        """True until `close`."""
        return self._finalizer.alive

    @property
    def process_ids(self) -> list[int]:
        """The numbers of the worker processes in the system."""
        return [worker.process_id for worker in self._workers]

    def reset(self, seed: np.ndarray) -> Frame:
        """Start an episode in each environment; see `Pool.reset`."""
        self._n_steps = 0
        self._lost.clear()
        self._arrays["seed"][:] = seed
        for worker, failure in self._command(RESET):
            if self._settings.on_worker_failure == "raise":
                raise self._error(worker, failure)
            self._replace(worker, failure)
        return self._frame()

    def pictures(self) -> np.ndarray:
        """Return the latest pictures of the environments that are drawn, ``[envs, ...]``."""
        return self._latest["picture"]

    def infos(self) -> list[EpisodeInfos]:
        """Return infos of first episodes; see `Pool.infos`. Workers made anew have none."""
        rows: list[EpisodeInfos] = [{} for _ in range(self.n_envs)]
        for worker in self._workers:
            for env, row in zip(worker.envs, worker.infos(), strict=False):
                rows[env] = {} if env in self._lost else row
        return rows

    def step(self, action: np.ndarray, seed: np.ndarray) -> Frame:
        """Step each environment; see `Pool.step`."""
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
            self._lost.update(worker.envs)
        return self._frame()

    def close(self, seconds: float = SECONDS_TO_CLOSE) -> None:
        """End the workers; see `Pool.close`."""
        if self._finalizer.detach() is not None:
            _close(self._workers, self._file, seconds)

    def _start(self, envs: range) -> WorkerProcess:
        settings, memory = self._settings, self._file.fileno()
        task = Task(settings.making, settings.layout, self.n_envs, envs, memory)
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
        at_work, first_env = self._arrays["at_work"], self._settings.first_env
        return describe(failure, worker.envs, at_work, self._n_steps, first_env)


def _n_processors() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _close(
    workers: list[WorkerProcess], file: IO[bytes], seconds: float = SECONDS_TO_CLOSE
) -> None:
    """End the processes, and kill those that are stuck; free the memory."""
    for worker in workers:
        worker.hang_up()
    deadline = time.monotonic() + seconds
    for worker in workers:
        worker.end(deadline)
    workers.clear()
    file.close()
