"""Scalar infos of episodes, by which environments say how an episode went. Numpy only."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

import numpy as np

InfoFunctions = Mapping[str, Callable[[Mapping[str, Any]], float | None]]
"""By the name of a metric, what computes it from an actor's info; None: the actor has none."""
EpisodeInfos = dict[int, dict[str, float]]
"""Of one episode: each actor's numbers by name, at the actor's own last step."""


@final
class FirstEpisodes:
    """Keeps the infos of the first episode that each environment plays after `begin`.

    An info stands until its actor has a later one, so that an actor whose episode ends before
    those of others keeps that of its own last step.

    Args:
        envs: The environments.
        functions: Metrics that are computed from infos.
    """

    def __init__(self, envs: Iterable[int], functions: InfoFunctions):
        self._functions = functions
        self._latest: dict[int, dict[int, Any]] = {env: {} for env in envs}
        self._ended: dict[int, EpisodeInfos] = {}

    def begin(self) -> None:
        """Forget all episodes."""
        self._ended.clear()
        for latest in self._latest.values():
            latest.clear()

    def note(self, env: int, infos: Mapping[int, Any], is_over: bool) -> None:
        """Note a step's infos, by actor."""
        if env in self._ended:
            return
        latest = self._latest[env]
        latest.update(infos)
        if is_over:
            self._ended[env] = {
                actor: numbers_of(info, self._functions)
                for actor, info in latest.items()
                if isinstance(info, Mapping)
            }

    def forget(self, env: int) -> None:
        """Leave out an environment's episode, which has been lost."""
        self._ended[env] = {}

    def has_ended(self, env: int) -> bool:
        """True if the environment's first episode has ended."""
        return env in self._ended

    def infos(self) -> list[EpisodeInfos]:
        """Return each environment's infos; empty before the end of its first episode."""
        return [self._ended.get(env, {}) for env in self._latest]


def numbers_of(info: Mapping[str, Any], functions: InfoFunctions) -> dict[str, float]:
    """Return an info's scalars, and what functions compute from it; all else is left out."""
    numbers = {
        name: float(value)
        for name, value in info.items()
        if isinstance(name, str) and not name.startswith("_") and _is_number(value)
    }
    for name, function in functions.items():
        value = function(info)
        if value is not None:
            numbers[name] = float(value)
    return numbers


def mean_over_actors(
    episodes: Iterable[EpisodeInfos], names: Iterable[str], actors: Iterable[int]
) -> dict[str, np.ndarray]:
    """Return each info's mean over the actors that have it, ``[episodes]``; NaN without any."""
    episodes, actors = list(episodes), list(actors)

    def mean(episode: EpisodeInfos, name: str) -> float:
        values = [episode[i][name] for i in actors if name in episode.get(i, {})]
        return sum(values) / len(values) if values else math.nan

    return {
        name: np.array([mean(episode, name) for episode in episodes], np.float32) for name in names
    }


def _is_number(value: Any) -> bool:
    if isinstance(value, bool | int | float):
        return True
    is_scalar = isinstance(value, np.generic | np.ndarray) and value.ndim == 0
    return is_scalar and value.dtype.kind in "biuf"
