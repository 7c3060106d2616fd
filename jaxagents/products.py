"""Products of samples and weights, with gradients for the weights that suit a CPU."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import CustomVJPPrimal
from jaxtyping import Array, Float

_FEW_OUTPUTS = 8


@jax.custom_vjp
def product(
    inputs: Float[Array, "*batch inputs"], kernel: Float[Array, "inputs outputs"]
) -> Float[Array, "*batch outputs"]:
    """Multiply samples by weights.

    The gradient for the weights is a product of two long matrices, summed over the samples. In
    the order that jax's own gradient puts them, XLA's CPU backend takes up to twice as long.
    """
    return inputs @ kernel


def dot_general(
    inputs: Float[Array, "*batch inputs"],
    kernel: Float[Array, "inputs outputs"],
    *dimension_numbers: Any,
    **options: Any,
) -> Float[Array, "*batch outputs"]:
    """Stand in for `jax.lax.dot_general` in a layer of flax, which asks it for this only."""
    del dimension_numbers, options
    return product(inputs, kernel)


def _forward(
    inputs: CustomVJPPrimal, kernel: CustomVJPPrimal
) -> tuple[Array, tuple[Array, Array | None]]:
    # What enters a network needs no gradient.
    return inputs.value @ kernel.value, (inputs.value, kernel.value if inputs.perturbed else None)


def _backward(factors: tuple[Array, Array | None], gradient: Array) -> tuple[Array | None, Array]:
    inputs, kernel = factors
    of_kernel = _gradient_of_kernel(
        inputs.reshape(-1, inputs.shape[-1]), gradient.reshape(-1, gradient.shape[-1])
    )
    return None if kernel is None else gradient @ kernel.T, of_kernel


product.defvjp(_forward, _backward, symbolic_zeros=True)


def _gradient_of_kernel(
    inputs: Float[Array, "samples inputs"], gradient: Float[Array, "samples outputs"]
) -> Float[Array, "inputs outputs"]:
    n_inputs, n_outputs = inputs.shape[-1], gradient.shape[-1]
    if n_inputs == n_outputs:
        # With the transposed inputs written down, which a fast product soon pays for.
        return _written_down(inputs.T) @ gradient
    # Not where one matrix is narrow; but the narrow one should come first.
    if n_inputs < n_outputs:
        return _sum_over_samples(inputs, gradient)
    rows = _sum_over_samples(gradient, inputs)
    # Put together column by column, for a transpose would not last: of a batch of products, one for
    # each policy, XLA makes products that have the wide matrix first.
    return jnp.stack(list(rows), axis=1) if n_outputs <= _FEW_OUTPUTS else rows.T


def _written_down(matrix: Float[Array, "rows columns"]) -> Float[Array, "rows columns"]:
    """Keep XLA's CPU backend from making a transpose a part of the products of several policies."""
    return jax.lax.platform_dependent(
        matrix, cpu=jax.lax.optimization_barrier, default=lambda matrix: matrix
    )


def _sum_over_samples(
    left: Float[Array, "samples rows"], right: Float[Array, "samples columns"]
) -> Float[Array, "rows columns"]:
    return jax.lax.dot_general(left, right, (((0,), (0,)), ((), ())))
