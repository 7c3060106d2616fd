"""Gradient descent over a policy's batch, for actors and critics alike.

An epoch divides a batch into minibatches, at random, and takes an optimizer's step on each. The
units that are divided are trajectories, time rows or single steps, never actors: a policy's actors
stay together. Recurrent networks learn from sequences: trajectories, or chunks of them.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxagents.compiler.devices import key_of_device, mean_over_devices
from jaxagents.compiler.tuned_forms import global_norm, tunes_for_cpu
from jaxagents.config import AgentConfig, MakeOptimizer
from jaxagents.hyperparameters import OptimizerParams, ScalarLike
from jaxagents.ppo.losses import weighted_mean
from jaxagents.ppo.statistics import standardize
from jaxagents.types import Batch, NetworkState, PyTree

# Samples of a part of a minibatch, whose gradients a CPU accumulates: fewer do not pay for another
# iteration, and more do not fit in the caches. Parts pay off where loops overlap, and with
# thousands of environments. Elsewhere they take a tenth longer, but the way a program is compiled
# should not change its results. See benchmarks/RESULTS.md.
_FEWEST_SAMPLES, _MOST_SAMPLES = 1_000, 4_000

# Minibatches.


def unit_of(config: AgentConfig, is_recurrent: bool) -> str:
    """Return what a network's minibatches are drawn over: whole sequences if it is recurrent."""
    return "sequence" if is_recurrent else config.minibatch_unit


def draw_minibatches(
    rng: PRNGKeyArray, rollout_length: int, batch_size: int, n_minibatches: int, unit: str
) -> Int[Array, "minibatches units"]:
    """Divide the units of a batch into minibatches of equal size, at random on each device."""
    n_units = {
        "sequence": batch_size,
        "trajectory": batch_size,
        "time": rollout_length,
        "step": rollout_length * batch_size,
    }[unit]
    return jax.random.permutation(key_of_device(rng), n_units).reshape(n_minibatches, -1)


def take_minibatch(batch: PyTree, indices: Int[Array, " units"], unit: str) -> PyTree:
    """Gather units of a batch ``[time, envs, actors, ...]`` as samples ``[samples, ...]``.

    Matrix products are a tenth faster on flat samples. Sequences keep their axes: ``[time, units,
    actors, ...]``. Scalars stay as they are.
    """
    units = take_units(batch, indices, unit)
    if unit == "sequence":
        return units
    n_axes = 2 if unit == "step" else 3
    return jax.tree.map(
        lambda leaf: leaf.reshape(-1, *leaf.shape[n_axes:]) if leaf.ndim else leaf, units
    )


def take_units(batch: PyTree, indices: Int[Array, " units"], unit: str) -> PyTree:
    """Gather units of a batch ``[time, envs, actors, ...]``; all but steps keep their axes."""

    def take(leaf: Array) -> Array:
        if not leaf.ndim:
            return leaf
        if unit in ("sequence", "trajectory"):
            return jnp.take(leaf, indices, axis=1, mode="clip")
        if unit == "step":
            leaf = leaf.reshape(-1, *leaf.shape[2:])
        return jnp.take(leaf, indices, axis=0, mode="clip")

    return jax.tree.map(take, batch)


def replace_units(leaf: Array, indices: Int[Array, " units"], values: Array, unit: str) -> Array:
    """Put values where `take_units` takes them from."""
    if unit in ("sequence", "trajectory"):
        return leaf.at[:, indices].set(values)
    if unit == "step":
        return leaf.reshape(-1, *leaf.shape[2:]).at[indices].set(values).reshape(leaf.shape)
    return leaf.at[indices].set(values)


def standardize_minibatches(
    batch: Batch, indices: Int[Array, "minibatches units"], unit: str
) -> Batch:
    """Standardise the advantages of a batch over each of its minibatches."""

    def standardize_minibatch(advantage: Array, units: Int[Array, " units"]) -> tuple[Array, None]:
        of_units, weight = take_units((batch.advantage, batch.weight), units, unit)
        return replace_units(advantage, units, standardize(of_units, weight), unit), None

    advantage, _ = jax.lax.scan(standardize_minibatch, batch.advantage, indices)
    return batch._replace(advantage=advantage)


# Optimizers.


def clip_by_global_norm(max_norm: ScalarLike) -> optax.GradientTransformation:
    """Scale gradients down to the global norm ``max_norm`` if they exceed it.

    Source: Pascanu et al. 2013, https://arxiv.org/abs/1211.5063.
    """
    return optax.stateless(lambda gradients, _: _within(gradients, max_norm))


def clip_by_root_mean_square(max_root_mean_square: ScalarLike) -> optax.GradientTransformation:
    """Scale an update of all parameters together down to a root mean square.

    Source: Shazeer and Stern 2018, https://arxiv.org/abs/1804.04235, section 6.
    """

    def clip(updates: PyTree, params: PyTree) -> PyTree:
        del params
        n_parameters = sum(leaf.size for leaf in jax.tree.leaves(updates))
        return _within(updates, max_root_mean_square * math.sqrt(n_parameters))

    return optax.stateless(clip)


def _within(tree: PyTree, max_norm: ScalarLike) -> PyTree:
    """Scale a tree down to a global norm if it exceeds it."""
    norm = global_norm(tree)
    scale = jnp.where(norm < max_norm, 1.0, max_norm / norm)
    return jax.tree.map(lambda leaf: (leaf * scale).astype(leaf.dtype), tree)


def adam(params: OptimizerParams) -> optax.GradientTransformation:
    """Build Adam with gradients clipped by their global norm."""
    return optax.chain(
        clip_by_global_norm(params.grad_clip), optax.adam(params.learning_rate, eps=params.eps)
    )


def clipped_adam(params: OptimizerParams) -> optax.GradientTransformation:
    """Build Adam with clipped gradients and clipped steps.

    The root mean square of a step is at most the learning rate: Adam's own would be several times
    larger when a large gradient follows many small ones, as when a policy that has solved its task
    fails once, and one update would destroy the policy.
    """
    return optax.chain(
        clip_by_global_norm(params.grad_clip),
        optax.chain(  # with the state of optax.adam
            optax.scale_by_adam(eps=params.eps),
            clip_by_root_mean_square(1.0),
            optax.scale_by_learning_rate(params.learning_rate),
        ),
    )


OPTIMIZERS = {"clipped_adam": clipped_adam, "adam": adam}
"""The optimizers that a configuration may name."""


def optimizer_of(config: AgentConfig) -> MakeOptimizer:
    """Return the function that builds the configured optimizer of a network.

    Raises:
        TypeError: it does not take a network's `OptimizerParams`, or returns no optimizer.
    """
    if not callable(config.optimizer):
        return OPTIMIZERS[config.optimizer]
    try:
        made = config.optimizer(OptimizerParams())
    except TypeError as error:
        raise TypeError(
            "optimizer is a function of a network's OptimizerParams, such as "
            f"lambda params: optax.adam(params.learning_rate); called so, it fails: {error}."
        ) from error
    if not isinstance(made, optax.GradientTransformation):
        raise TypeError(
            f"optimizer returns {made!r}, which is no optax.GradientTransformation; return one, "
            "such as optax.adam(params.learning_rate)."
        )
    return config.optimizer


# Steps and epochs.

Loss = Callable[[PyTree, Batch], tuple[Float[Array, ""], dict[str, Array]]]
"""Maps parameters and a minibatch to the loss and its statistics by name: means over samples."""
Epoch = tuple[dict[str, NetworkState], dict[str, Array], Float[Array, ""]]
"""The networks after an epoch, the statistics of their losses, and the gradients' norm."""


class Objective(NamedTuple):
    """What a network is trained for, and how."""

    loss: Loss
    weight: str  # the field of `Batch` that the means of loss and statistics are weighted by
    optimizer: optax.GradientTransformation
    within_bounds: Callable[[PyTree], PyTree] = lambda params: params  # after each step


def empty_stats(
    networks: dict[str, NetworkState], objectives: dict[str, Objective], batch: Batch
) -> dict[str, Array]:
    """Return zeros in the shapes of an epoch's statistics."""
    shapes: dict[str, Any] = {}
    for name, objective in objectives.items():
        shapes |= jax.eval_shape(objective.loss, networks[name].params, batch)[1]
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def init_network(params: PyTree, optimizer: optax.GradientTransformation) -> NetworkState:
    """Pair parameters with the optimizer's initial state."""
    return NetworkState(params=params, opt_state=optimizer.init(params))


def descend(
    network: NetworkState,
    gradients: PyTree,
    optimizer: optax.GradientTransformation,
    weight: Float[Array, ""],
    within_bounds: Callable[[PyTree], PyTree] = lambda params: params,
) -> NetworkState:
    """Take one step, or none if all samples have zero weight.

    Their gradients are 0, but an optimizer with momentum would still move.
    """
    updates, opt_state = optimizer.update(gradients, network.opt_state, network.params)
    params = within_bounds(optax.apply_updates(network.params, updates))
    stepped = NetworkState(params, opt_state)
    return jax.tree.map(lambda new, old: jnp.where(weight > 0, new, old), stepped, network)


def count_parts(n_samples: int, n_units: int) -> int:
    """Choose the number of parts in which a CPU computes a minibatch's gradient.

    Args:
        n_samples: Samples of the minibatch.
        n_units: Its units, which are not divided.
    """
    largest = max(1, min(n_units, n_samples // _FEWEST_SAMPLES))
    divisors = [n for n in range(1, largest + 1) if n_units % n == 0]
    return next((n for n in divisors if n_samples <= n * _MOST_SAMPLES), divisors[-1])


def accumulate(
    differentiate: Callable[[Int[Array, " units"]], tuple[PyTree, Float[Array, ""]]],
    units: Int[Array, " units"],
    n_parts: int,
) -> tuple[PyTree, Float[Array, ""]]:
    """Accumulate gradients over parts of a minibatch whose activations fit in the caches.

    Args:
        differentiate: Maps some units to weighted means over their samples, and the total weight.
        units: The indices of all units.
        n_parts: Number of parts.

    Returns:
        What ``differentiate`` returns for all units.
    """
    differentiate = jax.jit(differentiate)  # to be traced once for all uses
    parts = units.reshape(n_parts, -1)
    means, weight = jax.eval_shape(differentiate, parts[0])

    def add(
        total: tuple[PyTree, Float[Array, ""]], part: Int[Array, " units"]
    ) -> tuple[tuple[PyTree, Float[Array, ""]], None]:
        means, weight = differentiate(part)
        sums = jax.tree.map(lambda sum_, mean: sum_ + weight * mean, total[0], means)
        return (sums, total[1] + weight), None

    def zeros_of(leaf: jax.ShapeDtypeStruct) -> Array:
        return jnp.zeros(leaf.shape, jnp.promote_types(leaf.dtype, jnp.float32))

    zeros = jax.tree.map(zeros_of, means), jnp.zeros(weight.shape, weight.dtype)
    (sums, weight), _ = jax.lax.scan(add, zeros, parts)
    divisor = jnp.where(weight > 0, weight, 1)
    return jax.tree.map(lambda sum_, leaf: (sum_ / divisor).astype(leaf.dtype), sums, means), weight


def run_epoch(
    networks: dict[str, NetworkState],
    batch: Batch,
    objectives: dict[str, Objective],
    rng: PRNGKeyArray,
    n_minibatches: int,
    unit: str,
    standardizes: bool = False,
    grad_clip: ScalarLike | None = None,
) -> Epoch:
    """Pass once over a batch ``[time, envs, actors, ...]`` in freshly drawn minibatches.

    Args:
        networks: By name: one network, or several that learn from the same minibatches.
        batch: The samples.
        objectives: The objective of each network.
        rng: Draws the minibatches.
        n_minibatches: Their number; the optimizers take a step for each.
        unit: What they are drawn from.
        standardizes: Standardise the advantages of each minibatch.
        grad_clip: Clip the gradients of all networks by their common norm.

    Returns:
        The networks; the statistics of the losses and the gradients' common norm, as means over the
        epoch's samples, where each minibatch's are computed before its own step.
    """
    rollout_length, batch_size, n_actors = batch.weight.shape
    indices = draw_minibatches(rng, rollout_length, batch_size, n_minibatches, unit)
    n_samples = rollout_length * batch_size * n_actors // n_minibatches
    if standardizes:
        batch = standardize_minibatches(batch, indices, unit)

    n_parts = count_parts(n_samples, indices.shape[1]) if tunes_for_cpu() else 1

    def differentiate(name: str, params: PyTree, units: Int[Array, " units"]) -> Any:
        """Return the gradients and statistics of some units, means, and the units' weight."""
        minibatch, objective = take_minibatch(batch, units, unit), objectives[name]
        gradients, stats = jax.grad(objective.loss, has_aux=True)(params, minibatch)
        return (gradients, stats), jnp.sum(getattr(minibatch, objective.weight))

    def run_minibatch(networks: dict[str, NetworkState], units: Int[Array, " units"]) -> Any:
        gradients, stats, weights = {}, {}, {}
        for name, network in networks.items():
            if n_parts == 1:
                means = differentiate(name, network.params, units)
            else:
                means = accumulate(partial(differentiate, name, network.params), units, n_parts)
            (gradients[name], stats[name]), weights[name] = mean_over_devices(*means)
        norm = global_norm(gradients)
        if grad_clip is not None:
            gradients = _within(gradients, grad_clip)
        stepped = {
            name: descend(
                network,
                gradients[name],
                objectives[name].optimizer,
                weights[name],
                objectives[name].within_bounds,
            )
            for name, network in networks.items()
        }
        return stepped, (stats, norm, weights)

    after, (stats, norms, weights) = jax.lax.scan(run_minibatch, networks, indices)
    means = {
        statistic: weighted_mean(values, weights[name])
        for name in networks
        for statistic, values in stats[name].items()
    }
    return after, means, weighted_mean(norms, weights[next(iter(networks))])
