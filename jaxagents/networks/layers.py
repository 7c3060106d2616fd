"""Dense layers and their initialisation."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

from jaxagents.compiler.matrix_products import dot_general

# Initial scales of the weights.
HIDDEN_SCALE = 2.0**0.5
POLICY_SCALE = 0.01
VALUE_SCALE = 1.0


def dense(size: int, scale: float, dtype: DTypeLike = jnp.float32) -> nn.Dense:
    """Build a layer with orthogonal weights and zero biases.

    Args:
        size: Number of units.
        scale: Initial scale of the weights.
        dtype: Dtype of the computation; parameters are float32.

    Source: Andrychowicz et al. 2021, https://arxiv.org/abs/2006.05990.
    """
    return nn.Dense(
        size,
        dtype=dtype,
        kernel_init=orthogonal(scale),
        bias_init=jax.nn.initializers.zeros,
        dot_general=dot_general,
    )


def orthogonal(scale: float) -> Callable[..., Array]:
    """Build an initializer of matrices whose rows or columns are orthogonal, of norm ``scale``.

    Orthonormalising Gaussian columns one by one samples such matrices uniformly.
    `jax.nn.initializers.orthogonal` calls LAPACK instead, whose batched calls can deadlock on a
    CPU with two cores: independent policies, or seeds under `jax.vmap`, would never start.

    Source: Saxe et al. 2014, https://arxiv.org/abs/1312.6120.
    """

    def init(rng: PRNGKeyArray, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
        *leading, n_outputs = shape
        n_inputs = math.prod(leading)
        gaussian = jax.random.normal(rng, (max(n_inputs, n_outputs), min(n_inputs, n_outputs)))
        columns = _orthonormal_columns(gaussian)
        matrix = columns if n_inputs >= n_outputs else columns.T
        return (scale * matrix).reshape(shape).astype(dtype)

    return init


def _orthonormal_columns(matrix: Float[Array, "rows columns"]) -> Float[Array, "rows columns"]:
    """Orthonormalise columns by Gram-Schmidt, applied twice against rounding errors."""

    def add_column(i: Array, done: Array) -> Array:
        column = matrix[:, i]
        for _ in range(2):
            column = column - done @ (done.T @ column)
        return done.at[:, i].set(column / jnp.linalg.norm(column))

    return jax.lax.fori_loop(0, matrix.shape[1], add_column, jnp.zeros_like(matrix))
