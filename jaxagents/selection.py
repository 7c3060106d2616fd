"""Computing for the few samples that need it."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

_N_PARTS = 8


def apply_where(
    needed: Bool[Array, "*batch"], function: Callable[[PyTree], Array], samples: PyTree
) -> Array:
    """Apply a function to the samples that need it, an eighth of all at a time.

    It is called until all of them have had their turn: not at all where none needs it, once where
    few do.

    Args:
        needed: The samples whose results will be read.
        function: From samples ``[n, ...]`` to results ``[n, ...]``, each for itself.
        samples: ``[*batch, ...]``.

    Returns:
        The results, ``[*batch, ...]``; 0 for the other samples.
    """
    part_size = -(-needed.size // _N_PARTS)
    samples = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[needed.ndim :]), samples)
    # The needed ones first. By sorting, for jnp.nonzero takes thrice as long to compile.
    numbers, beyond = jnp.arange(needed.size), needed.size
    order = jnp.sort(jnp.where(needed.reshape(-1), numbers, beyond))

    def compute(start: Array) -> tuple[Array, Array]:
        part = jax.lax.dynamic_slice_in_dim(order, start, part_size)
        taken = jax.tree.map(lambda leaf: jnp.take(leaf, part, axis=0, mode="clip"), samples)
        return part, function(taken)

    def add_part(done: tuple[Array, Array]) -> tuple[Array, Array]:
        start, results = done
        part, computed = compute(start)
        return start + part_size, results.at[part].set(computed, mode="drop")

    start = jnp.zeros((), jnp.int32)
    _, example = jax.eval_shape(compute, start)
    results = jnp.zeros((needed.size, *example.shape[1:]), example.dtype)
    n_needed = jnp.sum(needed)
    _, results = jax.lax.while_loop(lambda done: done[0] < n_needed, add_part, (start, results))
    return results.reshape(*needed.shape, *results.shape[1:])
