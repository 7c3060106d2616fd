"""Gradient descent over a policy's batch, for the actor and the critic alike."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxagents.compiler.batch_parts import weighted_means_of_units
from jaxagents.compiler.devices import mean_over_devices
from jaxagents.compiler.reductions import global_norm
from jaxagents.hyperparameters import ScalarLike, clip_by_global_norm
from jaxagents.ppo.minibatches import draw_minibatches, replace_units, take_minibatch, take_units
from jaxagents.ppo.statistics import standardize, weighted_mean
from jaxagents.types import Batch, NetworkState, PyTree

Loss = Callable[[PyTree, Batch], tuple[Float[Array, ""], tuple[PyTree, Float[Array, ""]]]]
"""From parameters and a minibatch to the loss, its statistics and the samples' total weight.

Loss and statistics are weighted means over the samples, so that a minibatch's can be computed from
those of its parts."""


def weighed(
    loss: Callable[..., tuple[Float[Array, ""], PyTree]], weight: str, scale: ScalarLike = 1.0
) -> Loss:
    """Make a `Loss` of a loss of parameters and minibatch.

    Args:
        loss: Returns the loss and its statistics, means over the samples.
        weight: The field of `Batch` that the means are weighted by.
        scale: Multiplies the loss.
    """

    def weighed_loss(params: PyTree, minibatch: Batch) -> Any:
        value, stats = loss(params, minibatch)
        return value * scale, (stats, jnp.sum(getattr(minibatch, weight)))

    return weighed_loss


Epoch = tuple[Any, Any, Float[Array, ""]]
"""The network after an epoch, the statistics of its loss, and the gradients' norm."""


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


def standardize_minibatches(
    batch: Batch, indices: Int[Array, "minibatches units"], unit: str
) -> Batch:
    """Standardise the advantages of a batch over each of its minibatches."""

    def standardize_minibatch(advantage: Array, units: Int[Array, " units"]) -> tuple[Array, None]:
        of_units, weight = take_units((batch.advantage, batch.weight), units, unit)
        return replace_units(advantage, units, standardize(of_units, weight), unit), None

    advantage, _ = jax.lax.scan(standardize_minibatch, batch.advantage, indices)
    return batch._replace(advantage=advantage)


def run_epoch(
    network: NetworkState,
    batch: Batch,
    loss: Loss,
    optimizer: optax.GradientTransformation,
    rng: PRNGKeyArray,
    n_minibatches: int,
    unit: str,
    standardizes: bool = False,
) -> Epoch:
    """Pass once over a batch ``[time, envs, actors, ...]`` in freshly drawn minibatches.

    Args:
        network: Its parameters and the optimizer's state.
        batch: The samples.
        loss: Of a minibatch.
        optimizer: Takes a step per minibatch.
        rng: Draws the minibatches.
        n_minibatches: Their number.
        unit: What they are drawn over.
        standardizes: Standardise the advantages of each minibatch.

    Returns:
        The network; the statistics of the loss and the gradients' global norm, as means over the
        epoch's samples, each minibatch's computed before its own step.
    """
    (network,), stats, norm = _run_epoch(
        (network,), rng, batch, (loss,), (optimizer,), n_minibatches, unit, standardizes
    )
    return network, stats, norm


def run_joint_epoch(
    networks: Sequence[NetworkState],
    rng: PRNGKeyArray,
    batch: Batch,
    losses: Sequence[Loss],
    optimizers: Sequence[optax.GradientTransformation],
    grad_clip: ScalarLike,
    n_minibatches: int,
    unit: str,
    standardizes: bool,
) -> Epoch:
    """Do as `run_epoch`, for several networks in the same minibatches.

    Their gradients are clipped by their common norm, as those of one network with the sum of the
    losses. The norm returned is the common one.
    """
    clip = clip_by_global_norm(grad_clip)
    return _run_epoch(
        networks, rng, batch, losses, optimizers, n_minibatches, unit, standardizes, clip
    )


def _run_epoch(
    networks: Sequence[NetworkState],
    rng: PRNGKeyArray,
    batch: Batch,
    losses: Sequence[Loss],
    optimizers: Sequence[optax.GradientTransformation],
    n_minibatches: int,
    unit: str,
    standardizes: bool,
    clip: optax.GradientTransformation | None = None,
) -> Epoch:
    rollout_length, batch_size, n_actors = batch.weight.shape
    indices = draw_minibatches(rng, rollout_length, batch_size, n_minibatches, unit)
    n_samples = rollout_length * batch_size * n_actors // n_minibatches
    if standardizes:
        batch = standardize_minibatches(batch, indices, unit)

    def differentiate(
        loss: Loss, params: PyTree, units: Int[Array, " units"]
    ) -> tuple[tuple[PyTree, PyTree], Float[Array, ""]]:
        minibatch = take_minibatch(batch, units, unit)
        gradients, (stats, weight) = jax.grad(loss, has_aux=True)(params, minibatch)
        return (gradients, stats), weight

    def run_minibatch(
        networks: tuple[NetworkState, ...], units: Int[Array, " units"]
    ) -> tuple[tuple[NetworkState, ...], Any]:
        gradients, stats, weights = [], [], []
        for network, loss in zip(networks, losses, strict=True):
            own = weighted_means_of_units(
                partial(differentiate, loss, network.params), units, n_samples
            )
            (gradient, statistics), weight = mean_over_devices(*own)
            gradients.append(gradient)
            stats.append(statistics)
            weights.append(weight)
        norm = global_norm(gradients)
        if clip is not None:
            clipped, _ = clip.update(gradients, clip.init(gradients))
            gradients = cast(list[PyTree], clipped)
        steps = zip(networks, gradients, optimizers, weights, strict=True)
        return tuple(descend(*step) for step in steps), (stats, norm, weights)

    networks, (stats, norms, weights) = jax.lax.scan(run_minibatch, tuple(networks), indices)
    pairs = zip(stats, weights, strict=True)
    means = [
        jax.tree.map(partial(weighted_mean, weight=weight), statistics)
        for statistics, weight in pairs
    ]
    if len(means) == 1:
        return networks, means[0], weighted_mean(norms, weights[0])
    merged = {name: value for each in means for name, value in each.items()}
    return networks, merged, weighted_mean(norms, weights[0])
