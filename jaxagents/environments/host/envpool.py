"""Environments of EnvPool, which steps a batch in threads of its own. Does not import jax."""

import functools
import importlib
import warnings
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, final

import numpy as np

from jaxagents.environments.host.environment import HostEnvironment
from jaxagents.errors import did_you_mean, pip_install

_SETTINGS = (
    "time_limits", "image_size", "grayscale", "scale_images", "infos", "success", "explored_steps",
)  # fmt: skip
_REFUSED = (
    "n_workers", "timeout", "on_worker_failure", "teams", "vectorized", "wrappers",
    "reward_weights", "num_envs", "batch_size", "seed", "env_seed",
)  # fmt: skip
_SEEDS = 2**30  # EnvPool adds an environment's index to the seed, an int32


@final
class EnvPoolVector:
    """A batch of EnvPool's environments, as a `gymnasium.vector.VectorEnv`.

    EnvPool takes seeds only when a pool is made, so a reset with a seed makes a new pool.
    """

    def __init__(self, name: str, env_kwargs: Mapping[str, Any], num_envs: int):
        from gymnasium.vector import AutoresetMode
        from gymnasium.vector.utils import batch_space

        envpool = _import()
        arguments = {"num_envs": num_envs, **env_kwargs}
        self._make = functools.partial(envpool.make_gymnasium, name, **arguments)
        self._pool: Any = None
        with warnings.catch_warnings():  # of float64 bounds that become float32
            warnings.simplefilter("ignore")
            spec = envpool.make_spec(name, **arguments)
            self.single_observation_space = spec.gymnasium_observation_space
            self.single_action_space = spec.gymnasium_action_space
            self.observation_space = batch_space(self.single_observation_space, num_envs)
        if spec.config.max_num_players > 1:
            raise ValueError(
                f"envpool/{name} has up to {spec.config.max_num_players} players, whose number may "
                "change; only environments with one are supported."
            )
        self.spec = SimpleNamespace(id=name, max_episode_steps=_limit_of(spec.config))
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode in each environment."""
        if seed is not None or self._pool is None:
            self.close()
            self._pool = self._make(seed=(seed or 0) % _SEEDS)
            with warnings.catch_warnings():  # as above; the pool keeps the space
                warnings.simplefilter("ignore")
                _ = self._pool.observation_space
        observations, infos = self._pool.reset(options=options)
        return observations, _of_environments(infos)

    def step(self, actions: np.ndarray) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step; where an episode ended in the last step, reset instead."""
        *outcome, infos = self._pool.step(actions)
        return (*outcome, _of_environments(infos))

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


def make_envpool(name: str, env_kwargs: dict[str, Any]) -> HostEnvironment:
    """Make an environment by EnvPool's id.

    Raises:
        ValueError: EnvPool is not installed, does not know the id, or refuses the arguments.
    """
    known = _import().list_all_envs()
    if name not in known:
        raise ValueError(f"envpool/{name} is not an environment.{did_you_mean(name, known)}")
    refused = [each for each in _REFUSED if each in env_kwargs]
    if refused:
        raise ValueError(
            f"{', '.join(refused)} cannot be set for a pool of environments; the agent sets their "
            "number and seeds, and EnvPool steps them in num_threads threads"
        )
    settings = {each: value for each, value in env_kwargs.items() if each in _SETTINGS}
    library = {each: value for each, value in env_kwargs.items() if each not in _SETTINGS}
    make_env = functools.partial(EnvPoolVector, name, library)
    return HostEnvironment(make_env, vectorized=True, **settings)


def _import() -> Any:
    try:
        return importlib.import_module("envpool")
    except ImportError as error:
        raise ValueError(
            f"EnvPool cannot be imported ({error}): {pip_install('envpool')}."
        ) from error


def _limit_of(config: Any) -> int | None:
    """Return the time limit; EnvPool's largest integer stands for none."""
    limit = getattr(config, "max_episode_steps", None)
    return limit if limit is not None and limit < np.iinfo(np.int32).max else None


def _of_environments(infos: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the indices of environments and players."""
    return {name: each for name, each in infos.items() if name not in ("env_id", "players")}
