"""Products of samples and weights, with gradients in the order that suits a CPU."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import CustomVJPPrimal
from jaxtyping import Array, Float

from jaxagents.compiler.switch import tunes_for_cpu

_FEW_OUTPUTS = 8


def product(
    inputs: Float[Array, "*batch inputs"], kernel: Float[Array, "inputs outputs"]
) -> Float[Array, "*batch outputs"]:
    """Multiply samples by weights.

    The gradient of the weights is a product of two long matrices, summed over the samples. XLA's
    CPU backend takes up to twice as long for it in the order of jax's own gradient.
    """
    return _product(inputs, kernel) if tunes_for_cpu() else inputs @ kernel


def dot_general(
    inputs: Float[Array, "*batch inputs"],
    kernel: Float[Array, "inputs outputs"],
    *dimension_numbers: Any,
    **options: Any,
) -> Float[Array, "*batch outputs"]:
    """Replace `jax.lax.dot_general` in a layer of flax, which uses it for this product only."""
    del dimension_numbers, options
    return product(inputs, kernel)


@jax.custom_vjp
def _product(
    inputs: Float[Array, "*batch inputs"], kernel: Float[Array, "inputs outputs"]
) -> Float[Array, "*batch outputs"]:
    return inputs @ kernel


def _forward(
    inputs: CustomVJPPrimal, kernel: CustomVJPPrimal
) -> tuple[Array, tuple[Array, Array | None]]:
    # The features that enter a network need no gradient.
    return inputs.value @ kernel.value, (inputs.value, kernel.value if inputs.perturbed else None)


def _backward(factors: tuple[Array, Array | None], gradient: Array) -> tuple[Array | None, Array]:
    inputs, kernel = factors
    of_kernel = _gradient_of_kernel(
        inputs.reshape(-1, inputs.shape[-1]), gradient.reshape(-1, gradient.shape[-1])
    )
    return None if kernel is None else gradient @ kernel.T, of_kernel


_product.defvjp(_forward, _backward, symbolic_zeros=True)


def _gradient_of_kernel(
    inputs: Float[Array, "samples inputs"], gradient: Float[Array, "samples outputs"]
) -> Float[Array, "inputs outputs"]:
    n_inputs, n_outputs = inputs.shape[-1], gradient.shape[-1]
    if n_inputs == n_outputs:
        # Materialise the transposed inputs, which XLA would otherwise fold into the products of
        # several policies: the faster product soon pays for it.
        return jax.lax.optimization_barrier(inputs.T) @ gradient
    # Not worth it if one matrix is narrow; then put the narrow one first.
    if n_inputs < n_outputs:
        return _sum_over_samples(inputs, gradient)
    rows = _sum_over_samples(gradient, inputs)
    # Stack the columns one by one: XLA would fold a transpose into the batched products of several
    # policies, and put the wide matrix first again.
    return jnp.stack(list(rows), axis=1) if n_outputs <= _FEW_OUTPUTS else rows.T


def _sum_over_samples(
    left: Float[Array, "samples rows"], right: Float[Array, "samples columns"]
) -> Float[Array, "rows columns"]:
    return jax.lax.dot_general(left, right, (((0,), (0,)), ((), ())))
