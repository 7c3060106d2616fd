"""Random keys: typed and raw ones, their generators, and a faster form for drawing."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from jaxagents.compiler.threefry import from_unrolled, to_unrolled
from jaxagents.compiler.tuned_forms import tunes_for_cpu


def is_key(leaf: Any) -> bool:
    """True if an array, or its shape and dtype, holds typed random keys."""
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)


def as_key(rng: Any) -> Key[Array, "*batch"]:
    """Accept typed random keys and the raw arrays of `jax.random.PRNGKey`.

    Raises:
        TypeError: it is neither of them.
    """
    if is_key(rng):
        return rng
    if getattr(rng, "dtype", None) == jnp.uint32:
        return jax.random.wrap_key_data(rng)
    raise TypeError(f"rng={rng!r} is not a random key; pass jax.random.key(seed).")


def key_of(rng: Key[Array, ""], impl: str | None) -> Key[Array, ""]:
    """Seed another generator with a key, unless the key is that generator's already.

    Args:
        rng: The key.
        impl: jax's name of the generator; None accepts any.
    """
    if impl is None or jax.random.key_impl(rng) == impl:
        return rng
    size = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=impl))).shape
    return jax.random.wrap_key_data(jax.random.bits(rng, size, jnp.uint32), impl=impl)


def to_draw(rng: Key[Array, "*batch"]) -> Key[Array, "*batch"]:
    """Return keys that draw the same numbers faster on a CPU.

    Their type differs from that of ``rng``: they must not be stored in a state, nor in the carry
    of a loop that began with the other type. `to_store` converts them back.
    """
    return to_unrolled(rng) if tunes_for_cpu() else rng


def to_store(rng: Key[Array, "*batch"]) -> Key[Array, "*batch"]:
    """Undo `to_draw`."""
    return from_unrolled(rng)
