"""Running means and variances, of what networks see, of what they estimate, and of rewards."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxagents.config import AgentConfig
from jaxagents.hyperparameters import ScalarLike

VALUE_DECAY = 0.99  # per update: targets move with the policy, so old ones are forgotten
FEATURE_LIMIT = 10.0  # in standard deviations; what is farther off is clipped
_SMALLEST_DEVIATION = 1e-6  # relative to the mean; what is smaller is rounding


class RunningStatistics(NamedTuple):
    """Mean and variance of all samples so far, elementwise."""

    weight: Float[Array, ""]  # of all samples together
    mean: Float[Array, "*shape"]
    variance: Float[Array, "*shape"]


class RewardScale(NamedTuple):
    """How large rewards are, by the discounted sums of them."""

    statistics: RunningStatistics
    discounted_return: Float[Array, "envs actors"]  # of the episodes so far


class Normalizers(NamedTuple):
    """What is normalised, ``[policies, ...]`` in a `Runner`; None: it is not."""

    observation: RunningStatistics | None = None
    critic_features: RunningStatistics | None = None  # if the critic sees something else
    value: RunningStatistics | None = None
    reward: RewardScale | None = None


def no_statistics(shape: tuple[int, ...]) -> RunningStatistics:
    """Begin without a sample: everything normalised by this is 0, and so is what it scales."""
    return RunningStatistics(weight=jnp.zeros(()), mean=jnp.zeros(shape), variance=jnp.zeros(shape))


def init_normalizers(
    config: AgentConfig,
    observation_shape: tuple[int, ...],
    critic_shape: tuple[int, ...],
    policies_shape: tuple[int, int],
) -> Normalizers:
    """Return the statistics of what is configured to be normalised, before any sample.

    Args:
        config: What is normalised.
        observation_shape: Of one actor's observation.
        critic_shape: Of what one actor's critic observes.
        policies_shape: Number of policies, and of the actors of the largest.
    """
    n_policies, n_members = policies_shape
    normalizers = Normalizers()
    if config.normalize_observations:
        normalizers = normalizers._replace(observation=no_statistics(observation_shape))
        if config.centralized_critic:
            normalizers = normalizers._replace(critic_features=no_statistics(critic_shape))
    if config.normalize_values:
        normalizers = normalizers._replace(value=no_statistics(()))
    if config.scale_rewards:
        returns = jnp.zeros((config.batch_size, n_members))
        normalizers = normalizers._replace(reward=RewardScale(no_statistics(()), returns))
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (n_policies, *leaf.shape)), normalizers)


def update_statistics(
    statistics: RunningStatistics,
    values: Array,
    weight: Float[Array, "*batch"],
    decay: ScalarLike = 1.0,
) -> RunningStatistics:
    """Take samples ``[*batch, *shape]`` into account.

    Args:
        statistics: Of the samples before.
        values: Those of weight 0 may hold anything.
        weight: Of each sample.
        decay: What the weight of all earlier samples is multiplied by. Below 1 this is an
            exponentially moving average; dividing by the sum of the weights, it has no bias
            towards its start.

    Source: Chan et al. 1979, "Updating formulae and a pairwise algorithm for computing sample
    variances"; a debiased moving average of value targets: Yu et al. 2022,
    https://arxiv.org/abs/2103.01955.
    """
    axes = tuple(range(weight.ndim))
    wide_weight = weight.reshape(*weight.shape, *[1] * (values.ndim - weight.ndim))
    values = jnp.where(wide_weight > 0, values.astype(jnp.float32), 0.0)
    past, present = decay * statistics.weight, jnp.sum(weight)
    divisor = jnp.where(present > 0, present, 1.0)
    mean = jnp.sum(wide_weight * values, axes) / divisor
    variance = jnp.sum(wide_weight * jnp.square(values - mean), axes) / divisor
    total = past + present
    share = present / jnp.where(total > 0, total, 1.0)
    shift = mean - statistics.mean
    return RunningStatistics(
        weight=total,
        mean=statistics.mean + share * shift,
        variance=(1 - share) * statistics.variance
        + share * variance
        + share * (1 - share) * jnp.square(shift),
    )


def normalize(
    statistics: RunningStatistics, values: Array, limit: ScalarLike = jnp.inf
) -> Float[Array, "..."]:
    """Shift and scale ``[*batch, *shape]`` to mean 0 and standard deviation 1, within ±limit.

    What has always been the same comes out as 0.
    """
    deviation = values.astype(jnp.float32) - statistics.mean
    std = standard_deviation(statistics)
    return jnp.clip(
        jnp.where(std > 0, deviation / jnp.where(std > 0, std, 1.0), 0.0), -limit, limit
    )


def normalize_features(statistics: RunningStatistics | None, features: Array) -> Array:
    """Make of features ``[*batch, *obs]`` what networks see; as they are without statistics."""
    if statistics is None:
        return features
    return normalize(statistics, features, FEATURE_LIMIT)


def denormalize(
    statistics: RunningStatistics, values: Float[Array, "*batch"]
) -> Float[Array, "*batch"]:
    """Undo `normalize`."""
    return statistics.mean + standard_deviation(statistics) * values


def scale_rewards(
    scale: RewardScale,
    reward: Float[Array, "time envs actors"],
    episode_over: Bool[Array, "time envs actors"],
    weight: Float[Array, "time envs actors"],
    discount: ScalarLike,
) -> tuple[RewardScale, Float[Array, "time envs actors"]]:
    """Divide rewards by the standard deviation of their discounted sums Rₜ = γ Rₜ₋₁ + rₜ.

    The mean stays, so that no reward changes its sign.

    Source: Engstrom et al. 2020, https://arxiv.org/abs/2005.12729, section 3.
    """
    reward_or_0 = jnp.where(weight > 0, reward, 0.0)

    def accumulate(
        before: Array, step: tuple[Array, Array]
    ) -> tuple[Float[Array, "envs actors"], Float[Array, "envs actors"]]:
        reward, over = step
        discounted_return = discount * before + reward
        return jnp.where(over, 0.0, discounted_return), discounted_return

    last, returns = jax.lax.scan(accumulate, scale.discounted_return, (reward_or_0, episode_over))
    statistics = update_statistics(scale.statistics, returns, weight)
    std = standard_deviation(statistics)
    scaled = reward / jnp.where(std > 0, std, 1.0)
    return RewardScale(statistics=statistics, discounted_return=last), scaled


def standard_deviation(statistics: RunningStatistics) -> Float[Array, "*shape"]:
    """Take the root of the variance, 0 where that is rounding."""
    std = jnp.sqrt(statistics.variance)
    return jnp.where(std > _SMALLEST_DEVIATION * jnp.abs(statistics.mean), std, 0.0)
