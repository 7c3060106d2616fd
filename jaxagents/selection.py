"""Computing for the few samples that need it."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

_MOST_PARTS = 8  # 16 are no faster


def apply_where(
    needed: Bool[Array, "*batch"],
    function: Callable[[PyTree], PyTree],
    samples: PyTree,
    others: PyTree,
    smallest_part: int,
) -> PyTree:
    """Apply a function to the samples that need it, if there are any.

    On a CPU they are gathered, and computed in parts of ``smallest_part`` samples or an eighth of
    the batch, whichever is more; elsewhere the function is applied to the whole batch.

    Args:
        needed: Which samples these are.
        function: From samples ``[n, ...]`` to results ``[n, ...]``, each of its own sample only. It
            sees samples without need too; what it makes of them is dropped.
        samples: ``[*batch, ...]``.
        others: What stands for the results of the other samples, ``[*batch, ...]``.
        smallest_part: How many samples are worth a turn of their own. Gathering them takes a
            fraction of a second to compile: a batch of no more is one part.

    Returns:
        The results ``[*batch, ...]``, of the shapes and types of ``others``.
    """
    batch_shape, flat = needed.shape, needed.reshape(-1)
    part_size = max(smallest_part, -(-flat.size // _MOST_PARTS))
    samples, others = _reshape((samples, others), needed.ndim, (flat.size,))

    def at_once() -> PyTree:
        return jax.lax.cond(
            jnp.any(flat), lambda: _select(flat, function(samples), others), lambda: others
        )

    def in_parts() -> PyTree:
        return _apply_in_parts(flat, function, samples, others, part_size)

    if part_size >= flat.size:
        results = at_once()
    else:
        results = jax.lax.platform_dependent(cpu=in_parts, default=at_once)
    return _reshape(results, 1, batch_shape)


def _apply_in_parts(
    needed: Bool[Array, " samples"],
    function: Callable[[PyTree], PyTree],
    samples: PyTree,
    others: PyTree,
    part_size: int,
) -> PyTree:
    # Those in need come first. By sorting, for jnp.nonzero takes thrice as long to compile.
    n_samples = needed.size
    order = jnp.sort(jnp.where(needed, jnp.arange(n_samples), n_samples))
    n_needed = jnp.sum(needed)

    def add_part(done: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
        start, results = done
        part = jax.lax.dynamic_slice_in_dim(order, start, part_size)
        computed = function(jax.tree.map(lambda leaf: leaf.at[part].get(mode="clip"), samples))

        def put(old: Array, new: Array) -> Array:
            return old.at[part].set(new.astype(old.dtype), mode="drop")

        return start + part_size, jax.tree.map(put, results, computed)

    start = jnp.zeros((), n_needed.dtype)
    _, results = jax.lax.while_loop(lambda done: done[0] < n_needed, add_part, (start, others))
    return results


def _select(needed: Bool[Array, " samples"], results: PyTree, others: PyTree) -> PyTree:
    def select(result: Array, other: Array) -> Array:
        mask = needed.reshape(-1, *[1] * (other.ndim - 1))
        return jnp.where(mask, result, other).astype(other.dtype)

    return jax.tree.map(select, results, others)


def _reshape(tree: PyTree, n_axes: int, batch_shape: tuple[int, ...]) -> PyTree:
    return jax.tree.map(lambda leaf: leaf.reshape(*batch_shape, *leaf.shape[n_axes:]), tree)
