"""Computing only the part of a batch that is needed."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from jaxagents.compiler.random_keys import is_key
from jaxagents.compiler.tuned_forms import tunes_for_cpu


def apply_where(
    needed: Bool[Array, "*batch"],
    function: Callable[[PyTree], PyTree],
    samples: PyTree,
    others: PyTree,
    part_size: int,
) -> PyTree:
    """Apply a function to the samples that need it.

    On a CPU these samples are gathered and computed in parts. On other devices the function is
    applied to the whole batch, whether a sample needs it or not: a condition would make a GPU wait
    for the host, which costs more than most functions do.

    Args:
        needed: Which samples need it.
        function: Maps samples ``[n, ...]`` to results ``[n, ...]``; each result depends on its own
            sample only. Results for samples that do not need it are discarded.
        samples: ``[*batch, ...]``.
        others: The results of the samples that do not need it, ``[*batch, ...]``.
        part_size: Samples computed at a time. A batch of at most this size is computed as a whole,
            without gathering, if any sample needs it.

    Returns:
        The results ``[*batch, ...]``, of the shapes and dtypes of ``others``.
    """
    batch_shape, flat = needed.shape, needed.reshape(-1)
    samples, others = _reshape((samples, others), needed.ndim, (flat.size,))

    if not tunes_for_cpu():
        results = _select(flat, function(samples), others)
    elif part_size >= flat.size:
        results = jax.lax.cond(
            jnp.any(flat), lambda: _select(flat, function(samples), others), lambda: others
        )
    else:
        results = _apply_in_parts(flat, function, samples, others, part_size)
    return _reshape(results, 1, batch_shape)


def _apply_in_parts(
    needed: Bool[Array, " samples"],
    function: Callable[[PyTree], PyTree],
    samples: PyTree,
    others: PyTree,
    part_size: int,
) -> PyTree:
    # Put the samples that need it first. Sort: jnp.nonzero takes three times as long to compile.
    n_samples = needed.size
    order = jnp.sort(jnp.where(needed, jnp.arange(n_samples), n_samples))
    n_needed = jnp.sum(needed)

    def add_part(done: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
        start, results = done
        part = jax.lax.dynamic_slice_in_dim(order, start, part_size)
        computed = function(jax.tree.map(lambda leaf: leaf.at[part].get(mode="clip"), samples))

        def put(old: Array, new: Array) -> Array:
            return old.at[part].set(_cast_like(old, new), mode="drop")

        return start + part_size, jax.tree.map(put, results, computed)

    start = jnp.zeros((), n_needed.dtype)
    _, results = jax.lax.while_loop(lambda done: done[0] < n_needed, add_part, (start, others))
    return results


def _select(needed: Bool[Array, " samples"], results: PyTree, others: PyTree) -> PyTree:
    def select(result: Array, other: Array) -> Array:
        mask = needed.reshape(-1, *[1] * (other.ndim - 1))
        return _cast_like(other, jnp.where(mask, result, other))

    return jax.tree.map(select, results, others)


def _cast_like(old: Array, new: Array) -> Array:
    return new if is_key(old) else new.astype(old.dtype)  # outside of jit keys have no astype


def _reshape(tree: PyTree, n_axes: int, batch_shape: tuple[int, ...]) -> PyTree:
    return jax.tree.map(lambda leaf: leaf.reshape(*batch_shape, *leaf.shape[n_axes:]), tree)
