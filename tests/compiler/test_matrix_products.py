"""Products of samples and weights have the gradients of a matrix product."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.compiler.program_costs import count_costs
from jaxagents.compiler.tuned_forms import product

SIZES = [(2, 3), (3, 2), (10, 9), (3, 3)]  # one for each order of the gradient's factors


def loss(multiply, inputs, kernel):
    return jnp.sum(jnp.sin(multiply(inputs, kernel)))


def draw(*shape):
    return jax.random.normal(jax.random.key(sum(shape)), shape)


def test_the_gradient_of_a_product_by_hand():
    # d/dW of the sum of x W is, for each input, its sum over the samples.
    inputs = jnp.array([[1.0, 2.0], [3.0, 5.0]])
    gradient = jax.grad(lambda kernel: jnp.sum(product(inputs, kernel)))(jnp.zeros((2, 3)))
    np.testing.assert_array_equal(gradient, [[4.0, 4.0, 4.0], [7.0, 7.0, 7.0]])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("batch", [(), (4, 5), pytest.param((5,), marks=pytest.mark.slow)])
def test_gradients_are_those_of_a_matrix_product(size, batch):
    arguments = draw(*batch, size[0]), draw(*size)
    for transform in (jax.value_and_grad, lambda f, **options: jax.jit(jax.grad(f, **options))):
        ours, theirs = (
            transform(lambda *arguments, f=f: loss(f, *arguments), argnums=(0, 1))(*arguments)
            for f in (product, jnp.matmul)
        )
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), ours, theirs
        )


@pytest.mark.parametrize("size", SIZES)
def test_several_policies_have_the_same_gradients(size):
    inputs, kernels = draw(2, 5, size[0]), draw(2, *size)
    ours, theirs = (
        jax.vmap(jax.grad(lambda kernel, inputs, f=f: loss(f, inputs, kernel)))(kernels, inputs)
        for f in (product, jnp.matmul)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_inputs_that_are_not_differentiated_cost_no_gradient():
    inputs, kernel = draw(5, 2), draw(2, 3)

    def of_kernel(inputs, kernel):
        return jax.grad(lambda kernel: loss(product, inputs, kernel))(kernel)

    counted = count_costs(of_kernel, inputs, kernel, n_iterations=1)
    assert counted.flops == 2 * (2 * 5 * 2 * 3)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="concerns XLA's CPU backend")
def test_the_transposed_inputs_of_several_policies_are_materialised():
    # Otherwise XLA would sum over the first axis of both factors, for which it has no fast product.
    inputs, kernels = draw(3, 512, 64), draw(3, 64, 64)
    gradient = jax.vmap(jax.grad(lambda kernel, inputs: loss(product, inputs, kernel)))
    program = jax.jit(gradient).lower(kernels, inputs).compile().as_text()
    contracted = re.findall(r" dot\(.*lhs_batch_dims=\{0\}, lhs_contracting_dims=\{(\d)\}", program)
    assert contracted == ["2", "2"]
