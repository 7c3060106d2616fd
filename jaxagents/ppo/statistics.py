"""Weighted statistics of a policy's advantages and values, over the samples of all devices."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxagents.compiler.devices import max_over_devices, mean_over_devices
from jaxagents.ppo.losses import weighted_mean

_EPSILON = 1e-8  # added to a standard deviation before dividing by it


def _mean_of_all(
    values: Float[Array, "*batch"], weight: Float[Array, "*batch"]
) -> Float[Array, ""]:
    """Average as `weighted_mean` does, over the samples of all devices."""
    return mean_over_devices(weighted_mean(values, weight), jnp.sum(weight))[0]


def standardize(
    values: Float[Array, "*batch"], weight: Float[Array, "*batch"]
) -> Float[Array, "*batch"]:
    """Shift and scale to weighted mean 0 and (population) standard deviation 1.

    Samples of weight 0 become 0. If all samples are equal, or there is only one, all become 0.
    """
    deviation, variance = _deviation_and_variance(values, weight)
    return jnp.where(variance > 0, deviation / (jnp.sqrt(variance) + _EPSILON), 0)


def relative_deviation(
    advantage: Float[Array, "*batch"],
    reward: Float[Array, "*batch"],
    weight: Float[Array, "*batch"],
) -> Float[Array, ""]:
    """Return std(advantage) / std(reward), at most 1; 1 if all rewards are equal.

    As a factor of the actor's whole loss it does not move the optimum, and Adam cancels any
    constant factor. But when a task has just been solved and advantages become small, the
    optimizer's moments still hold the large gradients from before, and steps become small too.
    Measured in `benchmarks/RESULTS.md`.
    """
    both = jnp.stack([advantage, reward])
    _, variance = jax.vmap(_deviation_and_variance, (0, None))(both, weight)
    of_advantage, of_reward = jnp.sqrt(variance)
    is_small = of_reward > of_advantage
    return jnp.where(is_small, of_advantage / jnp.where(is_small, of_reward, 1.0), 1.0)


def explained_variance(
    value: Float[Array, "*batch"],
    value_target: Float[Array, "*batch"],
    weight: Float[Array, "*batch"],
) -> Float[Array, ""]:
    """Return the share of the targets' variance that the values explain.

    1 - Var(target - value) / Var(target): 1 is perfect, 0 is no better than a constant, and less
    is worse. It is 0 if all targets are equal.
    """
    both = jnp.stack([value_target - value, value_target])
    _, (residual, variance) = jax.vmap(_deviation_and_variance, (0, None))(both, weight)
    explained = 1 - residual / jnp.where(variance > 0, variance, 1)
    return jnp.where(variance > 0, explained, 0)


class ValueStats(NamedTuple):
    """A critic's values over a rollout, with their targets and the rewards that bound them."""

    value_mean: Float[Array, ""]
    value_std: Float[Array, ""]
    target_std: Float[Array, ""]
    largest_value: Float[Array, ""]  # by magnitude
    largest_reward: Float[Array, ""]  # by magnitude


def value_statistics(
    value: Float[Array, "*batch"],
    value_target: Float[Array, "*batch"],
    reward: Float[Array, "*batch"],
    weight: Float[Array, "*batch"],
) -> ValueStats:
    """Describe values, their targets and rewards, all in the same unit."""
    both = jnp.stack([value, value_target])
    _, (variance, target_variance) = jax.vmap(_deviation_and_variance, (0, None))(both, weight)
    sizes = jnp.where(weight > 0, jnp.abs(jnp.stack([value, reward])), 0.0)
    largest_value, largest_reward = max_over_devices(jnp.max(sizes.reshape(2, -1), axis=1))
    return ValueStats(
        value_mean=_mean_of_all(value, weight),
        value_std=jnp.sqrt(variance),
        target_std=jnp.sqrt(target_variance),
        largest_value=largest_value,
        largest_reward=largest_reward,
    )


def _deviation_and_variance(
    values: Float[Array, "*batch"], weight: Float[Array, "*batch"]
) -> tuple[Float[Array, "*batch"], Float[Array, ""]]:
    """Return ``values`` minus their mean, 0 at weight 0, and their population variance.

    The variance of equal samples is exactly 0: dividing by the rounding error of their mean would
    turn it into advantages of size 1.
    """
    mean = _mean_of_all(values, weight)
    rough = values - mean
    # The rough deviations share the mean's rounding error; their own mean removes it.
    deviation = jnp.where(weight > 0, rough - _mean_of_all(rough, weight), 0)
    variance = _mean_of_all(deviation**2, weight)
    smallest = jnp.square(jnp.finfo(mean.dtype).eps * mean)
    return deviation, jnp.where(variance > smallest, variance, 0)
