"""Minibatches of a policy's batch, shuffled anew every epoch.

Their units are trajectories, time rows or single steps, never actors: a policy's actors stay
together. An epoch draws indices, and each minibatch is gathered only when it is used.
Recurrent networks learn from sequences: trajectories, or chunks of them.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from jaxagents.compiler.devices import key_of_device
from jaxagents.config import AgentConfig
from jaxagents.types import PyTree


def unit_of(config: AgentConfig, is_recurrent: bool) -> str:
    """Return what a network's minibatches are drawn over: whole sequences if it is recurrent."""
    return "sequence" if is_recurrent else config.minibatch_unit


def draw_minibatches(
    rng: PRNGKeyArray, rollout_length: int, batch_size: int, n_minibatches: int, unit: str
) -> Int[Array, "minibatches units"]:
    """Divide the units of a batch into minibatches of equal size, at random on each device."""
    n_units = {
        "sequence": batch_size,
        "trajectory": batch_size,
        "time": rollout_length,
        "step": rollout_length * batch_size,
    }[unit]
    return jax.random.permutation(key_of_device(rng), n_units).reshape(n_minibatches, -1)


def take_minibatch(batch: PyTree, indices: Int[Array, " units"], unit: str) -> PyTree:
    """Gather units of a batch ``[time, envs, actors, ...]`` as samples ``[samples, ...]``.

    Matrix products are a tenth faster on flat samples. Sequences keep their axes: ``[time, units,
    actors, ...]``.
    """
    units = take_units(batch, indices, unit)
    if unit == "sequence":
        return units
    n_axes = 2 if unit == "step" else 3
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[n_axes:]), units)


def take_units(batch: PyTree, indices: Int[Array, " units"], unit: str) -> PyTree:
    """Gather units of a batch ``[time, envs, actors, ...]``; all but steps keep their axes."""

    def take(leaf: Array) -> Array:
        if unit in ("sequence", "trajectory"):
            return jnp.take(leaf, indices, axis=1, mode="clip")
        if unit == "step":
            leaf = leaf.reshape(-1, *leaf.shape[2:])
        return jnp.take(leaf, indices, axis=0, mode="clip")

    return jax.tree.map(take, batch)


def replace_units(leaf: Array, indices: Int[Array, " units"], values: Array, unit: str) -> Array:
    """Put values where `take_units` takes them from."""
    if unit in ("sequence", "trajectory"):
        return leaf.at[:, indices].set(values)
    if unit == "step":
        return leaf.reshape(-1, *leaf.shape[2:]).at[indices].set(values).reshape(leaf.shape)
    return leaf.at[indices].set(values)


def cut(tree: PyTree, chunk_length: int) -> PyTree:
    """Cut trajectories ``[time, envs, ...]`` into chunks ``[chunk_length, chunks * envs, ...]``."""

    def cut_leaf(leaf: Array) -> Array:
        chunks = leaf.reshape(-1, chunk_length, *leaf.shape[1:])
        return jnp.moveaxis(chunks, 1, 0).reshape(chunk_length, -1, *leaf.shape[2:])

    return jax.tree.map(cut_leaf, tree)


def join(tree: PyTree, n_chunks: int) -> PyTree:
    """Undo `cut`."""

    def join_leaf(leaf: Array) -> Array:
        chunks = leaf.reshape(len(leaf), n_chunks, -1, *leaf.shape[2:])
        joined = jnp.moveaxis(chunks, 1, 0)
        return joined.reshape(-1, *joined.shape[2:])

    return jax.tree.map(join_leaf, tree)


def beside(batches: Sequence[PyTree], n_chunks: int) -> PyTree:
    """Put the environments of batches ``[time, chunks * envs, ...]`` beside each other."""

    def join_envs(*leaves: Array) -> Array:
        parts = [leaf.reshape(len(leaf), n_chunks, -1, *leaf.shape[2:]) for leaf in leaves]
        joined = jnp.concatenate(parts, axis=2)
        return joined.reshape(len(joined), -1, *joined.shape[3:])

    return jax.tree.map(join_envs, *batches)
