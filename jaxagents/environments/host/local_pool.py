"""Environments that the training process steps itself."""

import contextlib
from collections.abc import Callable
from typing import final

import numpy as np

from jaxagents.environments.host.errors import HostEnvironmentError
from jaxagents.environments.host.infos import EpisodeInfos
from jaxagents.environments.host.pool import (
    SECONDS_TO_CLOSE,
    Closing,
    Frame,
    PoolSettings,
    describe,
)
from jaxagents.environments.host.shared_arrays import new_arrays
from jaxagents.environments.host.stepper import Stepper


@final
class LocalPool:
    """Environments without workers, for those whose steps are shorter than waking a process.

    An environment that raises is reported as by `WorkerPool`; nothing can be done about one that
    hangs, or that ends the process.

    Args:
        settings: See `PoolSettings`.
        n_envs: Number of environments.

    Attributes:
        n_envs: Number of environments.
        n_restarts: Zeros, ``[envs]``.
    """

    def __init__(self, settings: PoolSettings, n_envs: int):
        self.n_envs = n_envs
        self.n_restarts = np.zeros(n_envs, np.int32)
        self._n_steps = 0
        self._first_env = settings.first_env
        self._arrays = new_arrays(settings.layout, n_envs)
        self._envs = range(n_envs)
        self._stepper = Stepper(settings.making, self._envs, self._arrays)
        self._closing = Closing(self._stepper.close)
        self._do(self._stepper.make)

    @property
    def is_open(self) -> bool:
        """True until `close`."""
        return self._closing.is_open

    @property
    def process_ids(self) -> list[int]:
        """Empty: there are no worker processes."""
        return []

    def reset(self, seed: np.ndarray) -> Frame:
        """Start an episode in each environment; see `Pool.reset`."""
        self._n_steps = 0
        self._arrays["seed"][:] = seed
        self._do(self._stepper.reset)
        return self._arrays

    def step(self, action: np.ndarray, seed: np.ndarray) -> Frame:
        """Step each environment; see `Pool.step`."""
        self._n_steps += 1
        self._arrays["action"][:] = action
        self._arrays["seed"][:] = seed
        self._do(self._stepper.step)
        return self._arrays

    def pictures(self) -> np.ndarray:
        """Return the latest pictures of the environments that are drawn, ``[envs, ...]``."""
        return self._arrays["picture"].copy()

    def infos(self) -> list[EpisodeInfos]:
        """Return infos of first episodes; see `Pool.infos`."""
        return self._stepper.infos()

    def close(self, seconds: float = SECONDS_TO_CLOSE) -> None:
        """Close the environments; it can be called again."""
        del seconds
        self._closing.close()

    def _do(self, work: Callable[[], None]) -> None:
        try:
            with self._closing.at_work():
                work()
        except Exception as error:
            failure = self._stepper.failure(error)
            at_work, n_steps = self._arrays["at_work"], self._n_steps
            text = describe(failure, self._envs, at_work, n_steps, self._first_env)
            with contextlib.suppress(Exception):  # of an environment that is broken already
                self.close()
            raise HostEnvironmentError(f"{text}.") from error
