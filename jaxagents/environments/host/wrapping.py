"""Wrappers and constructors that are named ``module:name``, as in configuration files."""

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, final

import gymnasium
import numpy as np

from jaxagents.environments.host import VectorRewardError
from jaxagents.errors import did_you_mean

_EXAMPLE = '["minigrid.wrappers:ImgObsWrapper", {"package.module:Class": {"argument": 1}}]'


class Wrapper(NamedTuple):
    """A named class or function that takes an environment and returns another."""

    name: str
    construct: Callable[..., Any]
    arguments: Mapping[str, Any]

    def __call__(self, env: Any) -> Any:
        """Wrap an environment.

        Raises:
            ValueError: the wrapper refuses the environment or the arguments.
            TypeError: it returns no environment.
        """
        try:
            wrapped = self.construct(env, **self.arguments)
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise ValueError(f"the wrapper {self.name} raised {reason}") from error
        if not (hasattr(wrapped, "reset") and hasattr(wrapped, "step")):
            raise TypeError(
                f"the wrapper {self.name} returns {type(wrapped).__name__}, which is not an "
                "environment"
            )
        return wrapped


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
    if not isinstance(wrappers, list | tuple):
        raise ValueError(f"wrappers={wrappers!r}; give a list such as {_EXAMPLE}.")
    chosen = [_wrapper_of(entry) for entry in wrappers]
    if reward_weights is not None:
        weights = _checked_weights(reward_weights)
        chosen.insert(0, Wrapper("reward_weights", WeightedReward, {"weights": weights}))
    return functools.partial(_construct_wrapped, make_env, chosen) if chosen else make_env


def _construct_wrapped(make_env: Callable[..., Any], wrappers: Sequence[Wrapper]) -> Any:
    return functools.reduce(lambda env, wrapper: wrapper(env), wrappers, make_env())


def _wrapper_of(entry: Any) -> Wrapper:
    name, arguments = entry, {}
    if isinstance(entry, Mapping) and len(entry) == 1:
        ((name, arguments),) = entry.items()
    if not isinstance(name, str) or not isinstance(arguments, Mapping | None):
        raise ValueError(f"wrappers has the entry {entry!r}; entries are as in {_EXAMPLE}.")
    module_name, separator, attribute = name.partition(":")
    if not separator:
        raise ValueError(f"the wrapper {name!r} names no module; entries are as in {_EXAMPLE}.")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(f"the wrapper {name} cannot be imported: {error}.") from error
    if not hasattr(module, attribute):
        suggestion = did_you_mean(attribute, vars(module))
        raise ValueError(f"{module_name} has no wrapper {attribute!r}.{suggestion}")
    construct = getattr(module, attribute)
    if not callable(construct):
        raise ValueError(f"the wrapper {name} is {construct!r}, which cannot be called.")
    return Wrapper(name, construct, dict(arguments or {}))


def _checked_weights(weights: Any) -> list[float]:
    try:
        values = np.array(weights, float)
    except (TypeError, ValueError):
        values = np.array(np.nan)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise ValueError(f"reward_weights={weights!r}; give a list of finite numbers.")
    return values.tolist()
