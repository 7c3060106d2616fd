"""Values that have no number yet, and random keys of either kind."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Key, PyTree


def is_traced(tree: PyTree) -> bool:
    """Whether anything in a tree has no concrete value, as under `jax.vmap`."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))


def is_key(leaf: Any) -> bool:
    """Whether an array, or what has the shape of one, is of typed random keys."""
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)


def as_key(rng: Any) -> Key[Array, "*batch"]:
    """Accept typed random keys, and the raw arrays of `jax.random.PRNGKey`."""
    if is_key(rng):
        return rng
    if getattr(rng, "dtype", None) == jnp.uint32:
        return jax.random.wrap_key_data(rng)
    raise TypeError(f"rng={rng!r} is not a random key; pass jax.random.key(seed).")


def key_of_kind(rng: Key[Array, ""], impl: str) -> Key[Array, ""]:
    """Give a key of a generator that another one's key seeds; the same where it is that one's."""
    if jax.random.key_impl(rng) == impl:
        return rng
    size = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=impl))).shape
    return jax.random.wrap_key_data(jax.random.bits(rng, size, jnp.uint32), impl=impl)
