"""Environments that are stepped together, outside jax. Numpy only: callbacks of jax call them."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, Protocol, final, runtime_checkable

import numpy as np

from jaxagents.environments.host.infos import EpisodeInfos
from jaxagents.environments.host.messages import Failure
from jaxagents.environments.host.shared_arrays import Layout
from jaxagents.environments.host.stepper import Making

OnWorkerFailure = Literal["raise", "restart"]
Frame = dict[str, np.ndarray]
"""Arrays ``[envs, ...]`` by name, after a reset or a step; the next one may change them."""
SECONDS_TO_CLOSE = 5.0
"""After which workers that have not ended are killed."""


class PoolSettings(NamedTuple):
    """How environments are distributed over workers, and what happens when one fails."""

    making: Making
    layout: Layout
    n_workers: int | None  # at most; None: one per processor; 0: none
    timeout: float  # seconds, of a step and of a start
    on_worker_failure: OnWorkerFailure
    first_env: int = 0  # the number of environment 0 in messages: others may be in other processes


@runtime_checkable
class Pool(Protocol):
    """Environments ``0`` to ``n_envs - 1``."""

    @property
    def n_envs(self) -> int:
        """Number of environments."""
        ...

    @property
    def n_restarts(self) -> np.ndarray:
        """How often each environment was made anew because its worker failed, ``[envs]``."""
        ...

    @property
    def is_open(self) -> bool:
        """True until `close`."""
        ...

    @property
    def process_ids(self) -> list[int]:
        """The numbers of the worker processes in the system."""
        ...

    def reset(self, seed: np.ndarray) -> Frame:
        """Start an episode in each environment.

        Args:
            seed: ``[envs]``, of each environment.

        Raises:
            HostEnvironmentError: an environment failed, and failures are not to be mended, or not
                even a new worker could reset it.
        """
        ...

    def step(self, action: np.ndarray, seed: np.ndarray) -> Frame:
        """Step each environment, and reset where the episode is over.

        Args:
            action: ``[envs, actors, ...]``.
            seed: ``[envs]``, for those that are reset.

        Raises:
            HostEnvironmentError: an environment failed, and failures are not to be mended, or a new
                worker failed at its first step.
        """
        ...

    def pictures(self) -> np.ndarray:
        """Return the latest pictures of the environments that are drawn, ``[envs, ...]``."""
        ...

    def infos(self) -> list[EpisodeInfos]:
        """Return each environment's infos of its first episode since `reset`, if they are kept."""
        ...

    def close(self, seconds: float = SECONDS_TO_CLOSE) -> object:
        """End the environments and their processes; it can be called again.

        Args:
            seconds: After which processes are killed.
        """
        ...


@final
class Closing:
    """Closes environments of this process, where another thread may be stepping them.

    That thread then closes them when its step has ended.

    Attributes:
        is_open: True until `close`.
    """

    def __init__(self, close: Callable[[], object]):
        self.is_open = True
        self._close = close
        self._has_closed = False
        self._at_work = threading.Lock()

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Keep the environments from being closed, within this context."""
        try:
            with self._at_work:
                yield
        finally:
            if not self.is_open:
                self.close()

    def close(self) -> None:
        """Close the environments, at once or after the step; it can be called again."""
        self.is_open = False
        if self._at_work.acquire(blocking=False):
            try:
                if not self._has_closed:
                    self._has_closed = True
                    self._close()
            finally:
                self._at_work.release()


def describe(
    failure: Failure, envs: Sequence[int], at_work: np.ndarray, n_steps: int, first_env: int
) -> str:
    """Say which environment failed, and when.

    Args:
        failure: What happened.
        envs: The environments that it can belong to.
        at_work: True where an environment had begun and not ended its step, ``[envs]``.
        n_steps: Steps since the reset of all environments.
        first_env: As in `PoolSettings`.
    """
    if failure.env is None:
        envs = [env for env in envs if at_work[env]][:1] or envs
    else:
        envs = [failure.env]
    first, last = first_env + envs[0], first_env + envs[-1]
    which = f"environment {first}" if len(envs) == 1 else f"environments {first}-{last}"
    when = f"at step {n_steps}" if n_steps else "at the reset"
    return f"{which} {when} {failure.text}"
