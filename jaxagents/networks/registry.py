"""Registered networks, which configurations name for actors and critics."""

import inspect
from collections.abc import Callable
from typing import Any

from flax import linen as nn

from jaxagents.config import NamedNetwork, NetworkChoice
from jaxagents.errors import Registry
from jaxagents.networks.entities import NetworkContext, attention, deep_sets

NETWORKS: Registry[Callable[..., nn.Module]] = Registry("network", "jaxagents.networks")
"""Constructors of networks: this package's, and those that users and installed packages add."""
NETWORKS.register("attention", attention)
NETWORKS.register("deep_sets", deep_sets)


def register_network(name: str, constructor: Callable[..., nn.Module]) -> None:
    """Add a network that ``actor_network`` and ``critic_network`` may name.

    Args:
        name: The new name.
        constructor: A flax module's class, or a function that returns a module. It is called as
            ``constructor(n_outputs, **arguments)``. For an actor, ``n_outputs`` is the number of
            logits or means, and the module maps ``[*batch, *obs]`` to ``[*batch, n_outputs]``. For
            a critic it is None, and the module maps to values ``[*batch]``. The arguments are the
            configuration's, with lists turned into tuples. If one of its parameters is named
            ``context``, it is also given a `NetworkContext`.

    Raises:
        TypeError: the constructor cannot be called.
        ValueError: the name is taken by another network.
    """
    NETWORKS.register(name, constructor)


def chosen_module(
    field: str, choice: NetworkChoice, n_outputs: int | None, context: NetworkContext
) -> Any:
    """Construct a named network; return a module or None unchanged.

    Args:
        field: The configuration's field, for error messages.
        choice: Its value.
        n_outputs: As for `register_network`.
        context: What the network is for.

    Raises:
        TypeError: the constructor returns no module.
        ValueError: the name is unknown, or the constructor fails.
    """
    if not isinstance(choice, NamedNetwork):
        return choice
    try:
        constructor = NETWORKS.get(choice.name)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from error
    try:
        given = {"context": context} if _takes_context(constructor) else {}
        module: Any = constructor(n_outputs, **given, **choice.arguments)
    except Exception as error:  # a user's constructor may raise anything
        arguments = ", ".join(f"{name}={value!r}" for name, value in choice.arguments.items())
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(
            f"{field}: {choice.name} cannot be constructed with n_outputs {n_outputs} and "
            f"{arguments or 'no arguments'}: {reason}"
        ) from error
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"{field}: {choice.name} constructs a {type(module).__name__}; its constructor should "
            "return a flax.linen module."
        )
    return module


def _takes_context(constructor: Callable[..., nn.Module]) -> bool:
    try:
        return "context" in inspect.signature(constructor).parameters
    except ValueError:  # of a built-in, which has no signature
        return False
