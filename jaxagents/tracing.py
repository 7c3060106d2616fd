"""Values that have no number yet, and random keys, typed or raw, of one generator or another."""

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


def key_of(rng: Key[Array, ""], impl: str | None) -> Key[Array, ""]:
    """Give a generator's key, which another one's seeds; the same where it is that one's already.

    Args:
        rng: The key.
        impl: jax's name of the generator; None takes any.
    """
    if impl is None or jax.random.key_impl(rng) == impl:
        return rng
    size = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=impl))).shape
    return jax.random.wrap_key_data(jax.random.bits(rng, size, jnp.uint32), impl=impl)
