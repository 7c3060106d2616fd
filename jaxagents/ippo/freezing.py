"""Frozen parameters and statistics: those that no update changes.

A path is dotted: ``actor`` or ``critic`` and flax's names of modules and parameter, as in
``actor.torso.Dense_0.kernel``, or ``normalizers`` and a field of `Normalizers`. It stands for
everything that begins with it.
"""

from collections.abc import Collection, Iterable, Iterator

import jax

from jaxagents.networks.network import Network
from jaxagents.ppo.normalization import Normalizers
from jaxagents.ppo.optimization import Loss
from jaxagents.types import PyTree, Runner, leaf_name

_OF_VALUES = ("value", "reward")  # normalizers that are the unit of a critic's outputs


def without_frozen(params: PyTree, network: str, freeze: Iterable[str]) -> PyTree:
    """Replace the frozen parameters of one network with None.

    Gradients, their norm, the optimizer and its state then cover only the others.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: None if _is_frozen(_name(network, path), freeze) else leaf, params
    )


def with_frozen(trained: PyTree, params: PyTree) -> PyTree:
    """Undo `without_frozen`: take the frozen parameters from ``params``."""
    return jax.tree.map(
        lambda new, old: old if new is None else new,
        trained,
        params,
        is_leaf=lambda leaf: leaf is None,
    )


def loss_of_trainable(loss: Loss, params: PyTree) -> Loss:
    """Turn a loss of all parameters into one of the trainable ones; the others are constants."""
    return lambda trained, minibatch: loss(with_frozen(trained, params), minibatch)


def frozen_normalizers(freeze: Collection[str], critic: Network) -> frozenset[str]:
    """Name the normalizers that no update changes.

    The last layer of a default critic is rescaled when the statistics of values change. If it is
    frozen, so are these statistics and the scale of rewards. A user's own critic has no known last
    layer: the statistics are frozen if all of its parameters are.
    """
    if not freeze:
        return frozenset()
    frozen = {name for name in Normalizers._fields if _is_frozen(f"normalizers.{name}", freeze)}
    names = list(_names("critic", critic.parameters()))
    if critic.can_rescale_values:
        last = ".".join(("critic", *critic.last_layer))
        fixes_values = any(_is_frozen(name, freeze) for name in names if _is_within(name, last))
    else:
        fixes_values = all(_is_frozen(name, freeze) for name in names)
    return frozenset(frozen.union(_OF_VALUES) if fixes_values else frozen)


def check_paths(freeze: Iterable[str], runner: Runner) -> None:
    """Check that every path names something.

    Args:
        freeze: The frozen paths.
        runner: The agent's, or its shapes.

    Raises:
        ValueError: one does not; the message lists the existing paths, by layer.
    """
    names = [*_names("actor", runner.actor.params), *_names("critic", runner.critic.params)]
    statistics = runner.normalizers._asdict()
    names += [f"normalizers.{name}" for name, each in statistics.items() if each is not None]
    for path in freeze:
        if not any(_is_within(name, path) for name in names):
            layers = dict.fromkeys(_layer(name) for name in names)
            raise ValueError(f"freeze: {path} names nothing; there are {', '.join(layers)}.")


def _names(network: str, params: PyTree) -> Iterator[str]:
    for path, _ in jax.tree_util.tree_leaves_with_path(params):
        yield _name(network, path)


def _name(network: str, path: tuple[jax.tree_util.KeyEntry, ...]) -> str:
    """Name a parameter without flax's collection and the place beside a log_std."""
    inner = leaf_name(path).removeprefix("network.").removeprefix("params.")
    return f"{network}.{inner}"


def _layer(name: str) -> str:
    """Return the path of a parameter's layer; a parameter outside of layers is its own."""
    return name.rpartition(".")[0] if name.count(".") > 1 else name


def _is_frozen(name: str, freeze: Iterable[str]) -> bool:
    return any(_is_within(name, path) for path in freeze)


def _is_within(name: str, path: str) -> bool:
    return name == path or name.startswith(f"{path}.")
