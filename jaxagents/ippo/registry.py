"""Classes of agents: by an environment's action space, or by names that configurations give."""

import inspect
from collections.abc import Sequence
from typing import Any

from jaxagents.config import AgentConfig
from jaxagents.environments.spaces import Box, as_space
from jaxagents.errors import Registry
from jaxagents.ippo.base import IPPOBase
from jaxagents.ippo.continuous import ContinuousIPPO
from jaxagents.ippo.discrete import DiscreteIPPO
from jaxagents.training.callbacks import Callback
from jaxagents.types import PyTree


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
        TypeError: it is no class of agents, or it is abstract.
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
