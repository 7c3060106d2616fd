"""Gradient descent over a policy's batch, for the actor and the critic alike."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from jaxagents.gradients import global_norm
from jaxagents.minibatches import count_microbatches, draw_minibatches, take_minibatch
from jaxagents.statistics import weighted_mean
from jaxagents.types import Batch, NetworkState

Loss = Callable[[PyTree, Batch], tuple[Float[Array, ""], tuple[PyTree, Float[Array, ""]]]]
"""From parameters and a minibatch to the loss; with it come statistics, as means over the samples,
and the samples' total weight. The loss is a mean by that weight too: a minibatch's may be computed
from those of its parts."""


def init_network(params: PyTree, optimizer: optax.GradientTransformation) -> NetworkState:
    """Pair parameters with the state of an optimizer that has seen no gradient."""
    return NetworkState(params=params, opt_state=optimizer.init(params))


def descend(
    network: NetworkState,
    gradients: PyTree,
    optimizer: optax.GradientTransformation,
    weight: Float[Array, ""],
) -> NetworkState:
    """Take one step, or none if the gradients come from samples without any weight.

    Without weight the gradients are 0, but an optimizer with momentum would move all the same.
    """
    updates, opt_state = optimizer.update(gradients, network.opt_state, network.params)
    stepped = NetworkState(optax.apply_updates(network.params, updates), opt_state)
    return jax.tree.map(lambda new, old: jnp.where(weight > 0, new, old), stepped, network)


def run_epoch(
    network: NetworkState,
    batch: Batch,
    loss: Loss,
    optimizer: optax.GradientTransformation,
    rng: PRNGKeyArray,
    n_minibatches: int,
    unit: str,
) -> tuple[NetworkState, PyTree, Float[Array, ""]]:
    """Pass once over a batch ``[time, envs, actors, ...]`` in freshly drawn minibatches.

    Returns:
        The network; the statistics of the loss and the gradients' global norm, as means over the
        epoch's samples, each minibatch taken before its own step.
    """

    def differentiate(
        params: PyTree, indices: Array
    ) -> tuple[PyTree, tuple[PyTree, Float[Array, ""]]]:
        return jax.grad(loss, has_aux=True)(params, take_minibatch(batch, indices, unit))

    rollout_length, batch_size, n_actors = batch.weight.shape
    indices = draw_minibatches(rng, rollout_length, batch_size, n_minibatches, unit)
    n_samples = rollout_length * batch_size * n_actors // n_minibatches
    n_microbatches = count_microbatches(n_samples, indices.shape[1])

    def run_minibatch(
        network: NetworkState, indices: Array
    ) -> tuple[NetworkState, tuple[PyTree, Array, Array]]:
        if n_microbatches == 1:
            gradients, (stats, weight) = differentiate(network.params, indices)
        else:
            microbatches = indices.reshape(n_microbatches, -1)
            gradients, (stats, weight) = jax.lax.platform_dependent(
                cpu=lambda: _accumulate(differentiate, network.params, microbatches),
                default=lambda: differentiate(network.params, indices),
            )
        network = descend(network, gradients, optimizer, weight)
        return network, (stats, global_norm(gradients), weight)

    network, (stats, norms, weights) = jax.lax.scan(run_minibatch, network, indices)
    stats, norm = jax.tree.map(lambda leaf: weighted_mean(leaf, weights), (stats, norms))
    return network, stats, norm


def _accumulate(
    differentiate: Callable[[PyTree, Array], tuple[PyTree, tuple[PyTree, Float[Array, ""]]]],
    params: PyTree,
    microbatches: Int[Array, "microbatches units"],
) -> tuple[PyTree, tuple[PyTree, Float[Array, ""]]]:
    """Compute a minibatch's gradients, statistics and weight part by part."""

    def add(total: PyTree, indices: Array) -> tuple[PyTree, tuple[PyTree, Array]]:
        gradients, (stats, weight) = differentiate(params, indices)
        total = jax.tree.map(lambda total, each: total + weight * each, total, gradients)
        return total, (stats, weight)

    def zeros_of(leaf: Array) -> Array:
        return jnp.zeros(leaf.shape, jnp.promote_types(leaf.dtype, jnp.float32))

    zeros = jax.tree.map(zeros_of, params)
    total, (stats, weights) = jax.lax.scan(add, zeros, microbatches)
    weight = jnp.sum(weights)
    divisor = jnp.where(weight > 0, weight, 1)
    gradients = jax.tree.map(
        lambda total, leaf: (total / divisor).astype(leaf.dtype), total, params
    )
    stats = jax.tree.map(lambda leaf: weighted_mean(leaf, weights).astype(leaf.dtype), stats)
    return gradients, (stats, weight)
