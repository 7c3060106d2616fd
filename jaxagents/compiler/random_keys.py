"""Random keys: typed and raw ones, their generators, and a faster form for drawing.

On a CPU jax runs Threefry as a loop over its rounds, which compiles fast but takes a hundred
kernels for a handful of numbers, at every step of every environment. Unrolled, the rounds are fused
into whatever uses the numbers. For other devices jax unrolls them itself, or calls a kernel of its
own.

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3",
https://doi.org/10.1145/2063384.2063405.
"""

import contextlib
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl, threefry_prng_impl
from jaxtyping import Array, Key, UInt32

from jaxagents.compiler.tuned_forms import tunes_for_cpu

THREEFRY = "threefry2x32"  # jax's default generator
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_MOST_NUMBERS = 2**32


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
        with contextlib.suppress(TypeError):  # of another shape
            return jax.random.wrap_key_data(rng)
    raise TypeError(f"rng={rng!r} is not a random key; pass jax.random.key(seed).")


def key_of(rng: Key[Array, ""], impl: str | None) -> Key[Array, ""]:
    """Seed another generator with a key, unless the key already belongs to that generator.

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


def to_unrolled(rng: Key[Array, "*batch"]) -> Key[Array, "*batch"]:
    """Convert keys of jax's default generator to unrolled ones, which draw the same bits.

    Keys of other generators are returned unchanged, and so are all keys from jax 0.11 on: its XLA
    takes more than five minutes to compile the rounds into an evaluation of Pendulum.
    """
    is_default = jax.random.key_impl(rng) == THREEFRY and _is_partitionable()
    is_default &= jax.__version_info__ < (0, 11)
    return jax.random.wrap_key_data(jax.random.key_data(rng), impl=_UNROLLED) if is_default else rng


def from_unrolled(rng: Key[Array, "*batch"]) -> Key[Array, "*batch"]:
    """Undo `to_unrolled`."""
    is_unrolled = jax.random.key_impl(rng) == _UNROLLED
    return jax.random.wrap_key_data(jax.random.key_data(rng), impl=THREEFRY) if is_unrolled else rng


def _is_partitionable() -> bool:
    """True if jax draws each number from its own counter; otherwise the bits differ."""
    return jax.config.jax_threefry_partitionable  # pyright: ignore[reportAttributeAccessIssue]


def _threefry(
    key: UInt32[Array, "2"], high: UInt32[Array, "*batch"], low: UInt32[Array, "*batch"]
) -> tuple[UInt32[Array, "*batch"], UInt32[Array, "*batch"]]:
    keys = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    high, low = high + keys[0], low + keys[1]
    for i in range(5):
        for distance in _ROTATIONS[i % 2]:
            high = high + low
            low = (low << np.uint32(distance)) | (low >> np.uint32(32 - distance))
            low = high ^ low
        high = high + keys[(i + 1) % 3]
        low = low + keys[(i + 2) % 3] + np.uint32(i + 1)
    return high, low


def _numbered(
    key: UInt32[Array, "2"], shape: tuple[int, ...]
) -> tuple[UInt32[Array, "*shape"], UInt32[Array, "*shape"]]:
    """Encrypt the counters 0, 1, 2, ... as numbers of 64 bits."""
    number = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    return _threefry(key, jnp.zeros_like(number), number)


def _split(key: UInt32[Array, "2"], shape: tuple[int, ...]) -> UInt32[Array, "*shape 2"]:
    return jnp.stack(_numbered(key, shape), axis=-1)


def _random_bits(key: UInt32[Array, "2"], bit_width: int, shape: tuple[int, ...]) -> Array:
    if bit_width != 32 or math.prod(shape) >= _MOST_NUMBERS:
        return threefry_prng_impl.random_bits(key, bit_width, shape)
    high, low = _numbered(key, shape)
    return high ^ low


def _fold_in(key: UInt32[Array, "2"], data: Any) -> UInt32[Array, "2"]:
    return jnp.stack(_threefry(key, jnp.uint32(0), jnp.uint32(data)))


_UNROLLED = define_prng_impl(
    key_shape=(2,),
    seed=threefry_prng_impl.seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="threefry2x32_unrolled",
    tag="unrolled",
)
