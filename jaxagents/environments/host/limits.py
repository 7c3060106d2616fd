"""Time limits of Gymnasium's environments, in steps of the agent. Numpy only."""

import math
from collections.abc import Iterator
from typing import Any, final


def layers_of(env: Any) -> Iterator[Any]:
    """Iterate over an environment and those that it wraps; a vector is followed by its first."""
    while env is not None:
        yield env
        own = getattr(env, "__dict__", {})
        inner = own.get("env", own.get("_vector", own.get("envs")))
        env = inner[0] if isinstance(inner, list | tuple) and inner else inner


def name_and_limit(env: Any) -> tuple[str, int | None]:
    """Return the name of an environment of Gymnasium, and its time limit if that is known."""
    spec = getattr(env, "spec", None)
    name = type(getattr(env, "unwrapped", env)).__name__ if spec is None else spec.id
    limits = [each._max_episode_steps for each in _time_limits(env)]
    return name, min(limits, default=None if spec is None else spec.max_episode_steps)


@final
class StepCounts:
    """Steps that Gymnasium's TimeLimit wrappers count for each step of the agent.

    A wrapper around a TimeLimit may take several of its steps at a time, or some at a reset.
    """

    def __init__(self, env: Any):
        self._limits = _time_limits(env)
        self._ratios: list[set[float]] = [set() for _ in self._limits]

    def note(self, n_steps: int) -> None:
        """Compare the wrappers' counts with the agent's steps in the episode, which goes on."""
        for limit, ratios in zip(self._limits, self._ratios, strict=True):
            ratios.add(limit._elapsed_steps / n_steps)

    def limit(self, limit_read: int | None) -> int | None:
        """Return the time limit, in steps of the agent.

        A wrapper whose ratio varies has no known limit.

        Args:
            limit_read: The limit without a TimeLimit, or if no step was noted.
        """
        if not any(self._ratios):
            return limit_read
        known = [
            math.ceil(limit._max_episode_steps / min(ratios))
            for limit, ratios in zip(self._limits, self._ratios, strict=True)
            if len(ratios) == 1 and min(ratios) > 0
        ]
        return min(known, default=None)


def _time_limits(env: Any) -> list[Any]:
    names = {"_max_episode_steps", "_elapsed_steps"}  # of Gymnasium's TimeLimit
    return [each for each in layers_of(env) if names <= getattr(each, "__dict__", {}).keys()]
