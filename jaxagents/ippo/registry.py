"""Classes of agents by name, which configurations may choose."""

import inspect
from typing import Any

from jaxagents.errors import Registry
from jaxagents.ippo.base import IPPOBase


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
