"""The agents that users build: for discrete actions, for continuous ones, or by their names."""

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxagents.config import AgentConfig
from jaxagents.environments.spaces import ActionSpace, Box, Discrete, as_space
from jaxagents.errors import Registry
from jaxagents.ippo.base import IPPOBase
from jaxagents.ippo.distributions import (
    Categorical,
    CategoricalProduct,
    ClippedGaussian,
    DiagonalGaussian,
    Distribution,
    SquashedGaussian,
)
from jaxagents.training.callbacks import Callback
from jaxagents.types import PyTree


class DiscreteIPPO(IPPOBase):
    """IPPO with a categorical distribution, or a product of them for `MultiDiscrete` actions.

    Actions that the observation's ``action_mask`` excludes have probability 0.
    """

    def _make_distribution(self, space: ActionSpace) -> Distribution:
        if isinstance(space, Box):
            raise TypeError(
                f"DiscreteIPPO plays discrete actions, but {type(self.env).__name__} has a Box of "
                f"shape {space.shape}; use jaxagents.ContinuousIPPO."
            )
        if self.config.squash:
            raise ValueError(
                f"squash=True bounds continuous actions, but {type(self.env).__name__} has "
                f"{space}; use squash=False."
            )
        if isinstance(space, Discrete):
            return Categorical(space)
        return CategoricalProduct(space)


class ContinuousIPPO(IPPOBase):
    """IPPO with a diagonal Gaussian whose log standard deviation is a parameter of its own.

    With ``squash=False`` the sampled action is clipped to the environment's bounds. With
    ``squash=True`` its tanh is scaled to them. Dimensions that the observation's ``action_mask``
    excludes are left out of log probability and entropy.
    """

    def _make_distribution(self, space: ActionSpace) -> DiagonalGaussian:
        if not isinstance(space, Box):
            raise TypeError(
                f"ContinuousIPPO plays Box actions, but {type(self.env).__name__} has "
                f"{space}; use jaxagents.DiscreteIPPO."
            )
        if not self.config.squash:
            return ClippedGaussian(space)
        with np.errstate(over="ignore", invalid="ignore"):
            width = space.high - space.low
        if not np.all(np.isfinite(width) & (width > 0)):
            raise ValueError(
                f"squash=True needs finite bounds that differ, but {type(self.env).__name__} has "
                f"actions in {space}; use squash=False."
            )
        return SquashedGaussian(space)


def IPPO(  # noqa: N802 - it stands for the class that it chooses
    env: Any, env_params: PyTree, config: AgentConfig, callbacks: Sequence[Callback] = ()
) -> IPPOBase:
    """Build the agent that plays an environment's actions: see `IPPOBase`.

    It is a `ContinuousIPPO` for a `Box`, and a `DiscreteIPPO` for all others.
    """
    return class_for(env, env_params)(env, env_params, config, callbacks)


def class_for(env: Any, env_params: PyTree) -> type[IPPOBase]:
    """Return the class of agents that plays an environment's actions."""
    is_box = isinstance(as_space(env.action_space(env_params)), Box)
    return ContinuousIPPO if is_box else DiscreteIPPO


def register_agent(name: str, cls: type[IPPOBase]) -> None:
    """Add a class of agents that ``agent_class`` may name.

    Args:
        name: The new name.
        cls: A subclass of `IPPOBase`. It is called as ``cls(env, env_params, config, callbacks)``.

    Raises:
        TypeError: it is not a class of agents, or it is abstract.
        ValueError: the name is taken by another class.
    """
    AGENTS.register(name, cls)


def _check_agent(cls: Any) -> None:
    if not (isinstance(cls, type) and issubclass(cls, IPPOBase)):
        raise TypeError(f"{cls!r} is no class of agents; inherit from jaxagents.IPPOBase.")
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))
        raise TypeError(f"{cls.__name__} is abstract; write its {missing}.")


AGENTS: Registry[type[IPPOBase]] = Registry("agent", "jaxagents.agents", _check_agent)
"""The classes that users and installed packages add."""
