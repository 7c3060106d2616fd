"""Sums in the form that a CPU computes, or XLA compiles for it, fastest."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PyTree

from jaxagents.compiler.switch import tunes_for_cpu


def sum_last_axis(values: Float[Array, "*batch n"]) -> Float[Array, "*batch"]:
    """Sum over a short last axis.

    As a matrix product: on a CPU, a sum over the few choices or dimensions of an action takes as
    long as a hidden layer.
    """
    if not tunes_for_cpu():
        return jnp.sum(values, axis=-1)
    return jnp.matmul(values, jnp.ones(values.shape[-1]), precision="highest")


def weighted_sums(
    values: Sequence[Float[Array, "*batch"]], weight: Float[Array, "*batch"]
) -> Float[Array, " quantities"]:
    """Sum several quantities times the same weights.

    As one matrix product: on a CPU each sum over many samples is three kernels to compile.
    """
    if not tunes_for_cpu():
        return jnp.stack([jnp.sum(weight * each) for each in values])
    rows = jnp.stack([each.reshape(-1) for each in values])
    return jnp.matmul(rows, weight.reshape(-1), precision="highest")


def global_norm(gradients: PyTree) -> Float[Array, ""]:
    """Compute the Euclidean norm of all gradients together.

    As one row: on a CPU, optax's norm is two or three kernels to compile for each array.
    """
    leaves = jax.tree.leaves(gradients)
    if leaves and not tunes_for_cpu():
        return optax.tree.norm(gradients)
    row = jnp.concatenate([jnp.ravel(leaf) for leaf in leaves] or [jnp.zeros(0)])
    return jnp.sqrt(jnp.matmul(row, row, precision="highest"))


def nan_unless_finite(tree: PyTree) -> Float[Array, ""]:
    """Return 0 if all floats of a tree are finite, else NaN.

    As the sum of one row of differences, which compiles to a fraction of the kernels that a test of
    each array takes.
    """
    floats = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    if not tunes_for_cpu():
        return jnp.where(_are_finite(floats), 0.0, jnp.nan)
    row = jnp.concatenate([jnp.ravel(leaf) for leaf in floats] or [jnp.zeros(0)])
    return jnp.sum(row - row)


def _are_finite(arrays: Sequence[Array]) -> Bool[Array, ""]:
    each = [jnp.all(jnp.isfinite(array)) for array in arrays]
    return jnp.all(jnp.stack(each)) if each else jnp.array(True)
