"""Wrappers of Gymnasium's and PettingZoo's environments."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, final

import gymnasium
import numpy as np

from jaxagents.environments.host import VectorRewardError
from jaxagents.environments.wrappers import Wrapper, named_wrappers, wrap


@final
class WeightedReward(gymnasium.RewardWrapper):
    """Earns the weighted sum of a vector of rewards."""

    def __init__(self, env: Any, weights: Sequence[float]):
        super().__init__(env)
        self._weights = np.array(weights, float)

    def reward(self, reward: Any) -> float:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Weigh one step's rewards."""
        if np.shape(reward) != self._weights.shape:
            raise VectorRewardError(
                f"returned a reward of shape {np.shape(reward)}, for which reward_weights has "
                f"{self._weights.size} numbers"
            )
        return float(np.dot(reward, self._weights))


def with_wrappers(
    make_env: Callable[..., Any], wrappers: Any, reward_weights: Any = None
) -> Callable[..., Any]:
    """Return a constructor that wraps each environment, in order.

    Args:
        make_env: Constructs an environment.
        wrappers: Each is a name, or a mapping from a name to its keyword arguments.
        reward_weights: Weights of a vector of rewards; the wrappers see the weighted sum.

    Raises:
        ValueError: an entry is of another form, or names nothing that can be called.
    """
    chosen = named_wrappers(wrappers)
    if reward_weights is not None:
        weights = _checked_weights(reward_weights)
        chosen.insert(0, Wrapper("reward_weights", WeightedReward, {"weights": weights}))
    return functools.partial(_construct_wrapped, make_env, chosen) if chosen else make_env


def _construct_wrapped(make_env: Callable[..., Any], wrappers: Sequence[Wrapper]) -> Any:
    return wrap(make_env(), wrappers)


def _checked_weights(weights: Any) -> list[float]:
    try:
        values = np.array(weights, float)
    except (TypeError, ValueError):
        values = np.array(np.nan)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise ValueError(f"reward_weights={weights!r}; give a list of finite numbers.")
    return values.tolist()
