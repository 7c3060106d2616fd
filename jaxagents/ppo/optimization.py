"""Gradient descent over a policy's batch, for the actor and the critic alike."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxagents.compiler.batch_parts import weighted_means_of_units
from jaxagents.compiler.devices import mean_over_devices
from jaxagents.compiler.reductions import global_norm
from jaxagents.ppo.minibatches import draw_minibatches, take_minibatch
from jaxagents.ppo.statistics import weighted_mean
from jaxagents.types import Batch, NetworkState, PyTree

Loss = Callable[[PyTree, Batch], tuple[Float[Array, ""], tuple[PyTree, Float[Array, ""]]]]
"""From parameters and a minibatch to the loss, its statistics and the samples' total weight.

Loss and statistics are weighted means over the samples, so that a minibatch's can be computed from
those of its parts."""


def init_network(params: PyTree, optimizer: optax.GradientTransformation) -> NetworkState:
    """Pair parameters with the optimizer's initial state."""
    return NetworkState(params=params, opt_state=optimizer.init(params))


def descend(
    network: NetworkState,
    gradients: PyTree,
    optimizer: optax.GradientTransformation,
    weight: Float[Array, ""],
) -> NetworkState:
    """Take one step, or none if all samples have zero weight.

    Their gradients are 0, but an optimizer with momentum would move all the same.
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
        epoch's samples, each minibatch's computed before its own step.
    """
    rollout_length, batch_size, n_actors = batch.weight.shape
    indices = draw_minibatches(rng, rollout_length, batch_size, n_minibatches, unit)
    n_samples = rollout_length * batch_size * n_actors // n_minibatches

    def run_minibatch(
        network: NetworkState, units: Int[Array, " units"]
    ) -> tuple[NetworkState, tuple[PyTree, Array, Array]]:
        def differentiate(
            units: Int[Array, " units"],
        ) -> tuple[tuple[PyTree, PyTree], Float[Array, ""]]:
            minibatch = take_minibatch(batch, units, unit)
            gradients, (stats, weight) = jax.grad(loss, has_aux=True)(network.params, minibatch)
            return (gradients, stats), weight

        own = weighted_means_of_units(differentiate, units, n_samples)
        (gradients, stats), weight = mean_over_devices(*own)
        network = descend(network, gradients, optimizer, weight)
        return network, (stats, global_norm(gradients), weight)

    network, (stats, norms, weights) = jax.lax.scan(run_minibatch, network, indices)
    stats, norm = jax.tree.map(lambda leaf: weighted_mean(leaf, weights), (stats, norms))
    return network, stats, norm
