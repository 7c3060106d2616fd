"""The forms of sums, products and loops that suit a device, and the switch that turns them off."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax.custom_derivatives import CustomVJPPrimal
from jaxtyping import Array, Bool, Float, PyTree

_FEW_OUTPUTS = 8  # of a layer
_is_plain = os.environ.get("JAXAGENTS_PLAIN_JAX", "").lower() not in (
    "",
    "0",
    "false",
    "f",
    "no",
    "n",
    "off",
)


def is_plain() -> bool:
    """True if everything is compiled by plain `jax.jit` and computed by plain jax functions.

    This includes `jax.disable_jit()`, where each operation costs a millisecond: tuned forms have
    more operations, which rely on a compiler to fuse them.
    """
    return _is_plain or jax.config.jax_disable_jit  # pyright: ignore[reportAttributeAccessIssue]


def tunes_for_cpu() -> bool:
    """True if programs get the form that suits a CPU: it is jax's default backend.

    All code that only suits CPUs asks this function while it is traced. XLA's other backends
    compute plain sums and products at least as fast: a sum or a transpose is fused into its
    neighbours there, and every further kernel or condition costs a launch or a wait for the host.
    """
    return not is_plain() and jax.default_backend() == "cpu"


@contextlib.contextmanager
def plain_jax() -> Iterator[None]:
    """Run the package with plain `jax.jit` and plain jax functions, as JAXAGENTS_PLAIN_JAX=1 does.

    Results are the same up to rounding; training is slower. Use it to find out whether a fault
    lies in this package's tuning, in XLA, or elsewhere. The switch affects the whole process, not
    one thread. Entering and leaving drop all compiled programs, including those of other code.
    """
    global _is_plain
    before = _is_plain
    try:
        _is_plain = True
        jax.clear_caches()
        yield
    finally:
        _is_plain = before
        jax.clear_caches()


# Loops.

Carry = TypeVar("Carry")


def scan_over_time(
    step: Callable[[Carry, Any], tuple[Carry, Any]],
    carry: Carry,
    inputs: PyTree,
    reverse: bool = False,
    n_at_once: int = 16,
) -> tuple[Carry, PyTree]:
    """Scan over the steps of a rollout, ``[time, ...]``, as `jax.lax.scan` does.

    An accelerator computes several steps in an iteration, because each iteration copies the carry
    and launches a kernel per output, which takes as long as a step of a few environments.

    Args:
        step: Maps a carry and a step's inputs to the next carry and the step's outputs.
        carry: The carry before the first step.
        inputs: The inputs of all steps.
        reverse: Begin with the last step.
        n_at_once: Steps per iteration; each of them is compiled.
    """
    unroll = 1 if is_plain() or jax.default_backend() == "cpu" else n_at_once
    return jax.lax.scan(step, carry, inputs, reverse=reverse, unroll=unroll)


# Constants.


def opaque(array: Array) -> Array:
    """Return an array whose values the compiler does not look at.

    XLA evaluates what depends on constants alone, which takes seconds if there are many: for
    instance, which sample is the first with a nonzero weight, where all weights are 1.
    """
    return jax.lax.optimization_barrier(array)


# Sums.


def sum_last_axis(values: Float[Array, "*batch n"]) -> Float[Array, "*batch"]:
    """Sum over a short last axis.

    Computed as a matrix product: on a CPU, a plain sum over the few choices or dimensions of an
    action takes as long as a hidden layer.
    """
    if not tunes_for_cpu():
        return jnp.sum(values, axis=-1)
    return jnp.matmul(values, jnp.ones(values.shape[-1]), precision="highest")


def global_norm(gradients: PyTree) -> Float[Array, ""]:
    """Compute the Euclidean norm of all gradients together.

    Computed over one row: on a CPU, optax's norm has two or three kernels to compile per array.
    """
    leaves = jax.tree.leaves(gradients)
    if leaves and not tunes_for_cpu():
        return optax.tree.norm(gradients)
    row = jnp.concatenate([jnp.ravel(leaf) for leaf in leaves] or [jnp.zeros(0)])
    return jnp.sqrt(jnp.matmul(row, row, precision="highest"))


def nan_unless_finite(tree: PyTree) -> Float[Array, ""]:
    """Return 0 if all floats of a tree are finite, else NaN.

    Computed as the sum of one row of differences, which compiles to a fraction of the kernels that
    a test of each array takes.
    """
    floats = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    if not tunes_for_cpu():
        return jnp.where(_are_finite(floats), 0.0, jnp.nan)
    row = jnp.concatenate([jnp.ravel(leaf) for leaf in floats] or [jnp.zeros(0)])
    return jnp.sum(row - row)


def _are_finite(arrays: Sequence[Array]) -> Bool[Array, ""]:
    each = [jnp.all(jnp.isfinite(array)) for array in arrays]
    return jnp.all(jnp.stack(each)) if each else jnp.array(True)


# Products of samples and weights.


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
