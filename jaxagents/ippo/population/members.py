"""A population's members: how many there are, and each one's random key and hyperparameters."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxagents.compiler.random_keys import as_key
from jaxagents.hyperparameters import HyperParameters, flat_items
from jaxagents.types import PyTree, leaf_name


def stack(members: Sequence[PyTree]) -> PyTree:
    """Stack the trees of all members, ``[members, ...]``."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)


def member_of(tree: PyTree, index: int) -> PyTree:
    """Return one member's part of a tree, ``[members, ...]``."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


@jax.jit
def members_at(tree: PyTree, index: Int[Array, "..."]) -> PyTree:
    """Return the parts of some members, ``[..., *leaf]``, with one program for any members."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


@jax.jit
def with_members(tree: PyTree, index: Int[Array, " n"], parts: PyTree) -> PyTree:
    """Replace the parts of some members; an index past the last one replaces nothing."""
    return jax.tree.map(lambda leaf, part: leaf.at[index].set(part, mode="drop"), tree, parts)


def members_first(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Turn metrics of ``[evaluations, members, ...]`` into ``[members, evaluations, ...]``."""
    return {name: values.swapaxes(0, 1) for name, values in metrics.items()}


def best_member(metrics: Mapping[str, Any], mode: str) -> int:
    """Return the member with the highest mean return over an evaluation's episodes and actors.

    Args:
        metrics: ``[members, evaluations, ...]``.
        mode: "best" compares each one's best evaluation, "last" the last.

    Raises:
        ValueError: there were no evaluations.
    """
    if "returns" not in metrics:
        raise ValueError(
            "the population was not evaluated (n_evals=0), so no member is the best; name one."
        )
    returns = np.asarray(metrics["returns"])
    scores = returns.mean(axis=(2, 3), dtype=np.float64)
    scores = np.where(np.isfinite(scores), scores, -np.inf)
    return int(np.argmax(scores.max(axis=1) if mode == "best" else scores[:, -1]))


def count_members(rng: Any, hyperparams: Any) -> int | None:
    """Return the number of members that keys and stacked hyperparameters ask for; None: one run.

    Args:
        rng: A random key, or one per member.
        hyperparams: Leaves ``[members, policies]`` ask for members; vectors do not, because they
            may belong to the policies of one run.

    Raises:
        ValueError: they disagree, or there is no member.
    """
    counts: dict[str, int] = {}
    if np.ndim(keys := as_key(rng)) == 1:
        counts["rng"] = len(keys)
    elif np.ndim(keys) > 1:
        raise ValueError(f"rng has shape {keys.shape}; give one key, or one per member.")
    if isinstance(hyperparams, HyperParameters):
        for name, value in flat_items(hyperparams).items():
            shape = np.shape(value)
            if len(shape) == 2:
                counts[name] = shape[0]
    if not counts:
        return None
    if len(set(counts.values())) > 1:
        text = ", ".join(f"{name} is for {count}" for name, count in counts.items())
        raise ValueError(f"the members of the population disagree: {text}.")
    (n_members,) = set(counts.values())
    if n_members < 1:
        raise ValueError("the population has no members; give at least one key.")
    return n_members


def split_hyperparams(
    hyperparams: HyperParameters, n_members: int, n_policies: int
) -> list[HyperParameters]:
    """Return each member's hyperparameters.

    Raises:
        ValueError: a leaf is neither for all members nor for each of them, or could be both.
    """
    is_ambiguous = n_members == n_policies > 1

    def of_member(index: int, name: str, value: Any) -> Any:
        shape = np.shape(value)
        if len(shape) == 0 or (shape == (n_policies,) and not is_ambiguous):
            return value
        if shape in ((n_members, n_policies), (n_members,)) and shape != (n_policies,):
            return value[index]
        if shape == (n_policies,):
            raise ValueError(
                f"{name} has {n_members} values, for as many members and policies; give "
                f"[members, policies], shape ({n_members}, {n_policies})."
            )
        raise ValueError(
            f"{name} has shape {shape}; a population of {n_members} takes a scalar, "
            f"({n_members},) for its members, ({n_policies},) for its policies, or both, "
            f"({n_members}, {n_policies})."
        )

    return [
        jax.tree_util.tree_map_with_path(
            lambda path, value, i=i: of_member(i, leaf_name(path), value),
            hyperparams,
            is_leaf=lambda node: isinstance(node, list | tuple),
        )
        for i in range(n_members)
    ]
