"""Running statistics that normalise observations, value targets and rewards."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxagents.compiler.devices import max_over_devices, sum_over_devices
from jaxagents.compiler.tuned_forms import opaque, scan_over_time
from jaxagents.config import AgentConfig
from jaxagents.hyperparameters import ScalarLike
from jaxagents.types import IMAGE_NDIM

VALUE_DECAY = 0.99  # per update: targets move with the policy, so old ones are discounted
FEATURE_LIMIT = 10.0  # clips normalised features, in standard deviations
# Deviations up to these, relative to the mean, are rounding errors.
_OF_ONE_NUMBER = 2.0**-24  # as observations are: half a step between neighbours in float32
_OF_SUMS = 1e-6  # as value targets and returns are


class RunningStatistics(NamedTuple):
    """Mean and variance of all samples so far, elementwise."""

    weight: Float[Array, ""]  # of all samples together
    mean: Float[Array, "*shape"]
    variance: Float[Array, "*shape"]


class RewardScale(NamedTuple):
    """Running statistics of the discounted sums of rewards, which scale the rewards."""

    statistics: RunningStatistics
    discounted_return: Float[Array, "envs actors"]  # of the episodes so far


class Normalizers(NamedTuple):
    """Running statistics, ``[policies, ...]`` in a `Runner`; None: not normalised."""

    observation: RunningStatistics | None = None
    critic_features: RunningStatistics | None = None  # of centralised critics
    value: RunningStatistics | None = None
    reward: RewardScale | None = None

    def of_critic_features(self, is_centralized: bool) -> RunningStatistics | None:
        """Return the statistics of what critics observe: as actors do, or the global state."""
        return self.critic_features if is_centralized else self.observation


class Rescaling(NamedTuple):
    """A linear map of normalised values, ``scale * value + shift``."""

    scale: Float[Array, ""]
    shift: Float[Array, ""]

    def __call__(self, values: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        """Apply it."""
        return self.scale * values + self.shift


def empty_statistics(shape: tuple[int, ...]) -> RunningStatistics:
    """Return statistics that have seen no samples: they normalise everything to 0.

    Learning then does not depend on the unit of what is normalised, from the first update on.
    """
    return RunningStatistics(weight=jnp.zeros(()), mean=jnp.zeros(shape), variance=jnp.zeros(shape))


def init_normalizers(
    config: AgentConfig,
    observation_shape: tuple[int, ...],
    critic_shape: tuple[int, ...],
    policies_shape: tuple[int, int],
) -> Normalizers:
    """Return the initial statistics of everything that is configured to be normalised.

    Images are left as they are: pixels that are rarely on would dominate.

    Args:
        config: What is normalised.
        observation_shape: Shape of one actor's observation.
        critic_shape: Shape of what one actor's critic observes.
        policies_shape: ``(n_policies, n_members)``.
    """
    n_policies, n_members = policies_shape
    normalizers = Normalizers()
    if config.normalize_observations:
        normalizers = normalizers._replace(
            observation=_feature_statistics(observation_shape),
            critic_features=(
                _feature_statistics(critic_shape) if config.centralized_critic else None
            ),
        )
    if config.normalize_values:
        normalizers = normalizers._replace(value=empty_statistics(()))
    if config.scale_rewards:
        returns = jnp.zeros((config.batch_size, n_members))
        normalizers = normalizers._replace(reward=RewardScale(empty_statistics(()), returns))
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (n_policies, *leaf.shape)), normalizers)


def _feature_statistics(shape: tuple[int, ...]) -> RunningStatistics | None:
    return None if len(shape) == IMAGE_NDIM else empty_statistics(shape)


def update_statistics(
    statistics: RunningStatistics,
    values: Array,
    weight: Float[Array, "*batch"],
    decay: ScalarLike = 1.0,
) -> RunningStatistics:
    """Update with samples ``[*batch, *shape]``, those of all devices.

    Args:
        statistics: Statistics of the earlier samples.
        values: The samples; those of weight 0 may hold anything.
        weight: Weight of each sample.
        decay: Factor on the weight of all earlier samples. Below 1 the statistics are exponential
            moving averages, without bias towards their start.

    Samples are taken relative to the earlier mean, or at first to one of the samples, because
    float32 subtracts nearby numbers exactly. Small deviations thus survive far from 0, and those of
    constants are 0.

    Source: Chan et al. 1979, "Updating formulae and a pairwise algorithm for computing sample
    variances"; a debiased moving average of value targets: Yu et al. 2022,
    https://arxiv.org/abs/2103.01955.
    """
    axes = tuple(range(weight.ndim))
    wide_weight = weight.reshape(*weight.shape, *[1] * (values.ndim - weight.ndim))
    values = jnp.where(wide_weight > 0, values.astype(jnp.float32), 0.0)
    past, present = decay * statistics.weight, sum_over_devices(jnp.sum(weight))
    divisor = jnp.where(present > 0, present, 1.0)
    origin = jnp.where(past > 0, statistics.mean, _any_sample(values, weight))
    values = values - origin
    shift = sum_over_devices(jnp.sum(wide_weight * values, axes)) / divisor
    squares = jnp.sum(wide_weight * jnp.square(values - shift), axes)
    variance = sum_over_devices(squares) / divisor
    total = past + present
    share = present / jnp.where(total > 0, total, 1.0)
    return RunningStatistics(
        weight=total,
        mean=origin + share * shift,
        variance=(1 - share) * statistics.variance
        + share * variance
        + share * (1 - share) * jnp.square(shift),
    )


def _any_sample(values: Array, weight: Float[Array, "*batch"]) -> Float[Array, "*shape"]:
    """Return one of the samples with weight, elementwise; 0 if there is none."""
    samples = values.reshape(-1, *values.shape[weight.ndim :])
    index = jnp.argmax(opaque(weight.reshape(-1)) > 0)
    own = jnp.where(weight.reshape(-1)[index] > 0, samples[index], -jnp.inf)
    chosen = max_over_devices(own)
    return jnp.where(chosen > -jnp.inf, chosen, 0.0)


def normalize(
    statistics: RunningStatistics,
    values: Array,
    limit: ScalarLike = jnp.inf,
    rounding: float = _OF_SUMS,
) -> Float[Array, "..."]:
    """Shift and scale ``[*batch, *shape]`` to mean 0 and standard deviation 1, within ±limit.

    Values that have never varied become 0.
    """
    deviation = values.astype(jnp.float32) - statistics.mean
    std = standard_deviation(statistics, rounding)
    return jnp.clip(
        jnp.where(std > 0, deviation / jnp.where(std > 0, std, 1.0), 0.0), -limit, limit
    )


def normalize_features(statistics: RunningStatistics | None, features: Array) -> Array:
    """Normalise features ``[*batch, *obs]``; without statistics, return them as they are."""
    if statistics is None:
        return features
    return normalize(statistics, features, FEATURE_LIMIT, _OF_ONE_NUMBER)


def denormalize(
    statistics: RunningStatistics, values: Float[Array, "*batch"]
) -> Float[Array, "*batch"]:
    """Undo `normalize`."""
    return statistics.mean + standard_deviation(statistics, _OF_SUMS) * values


def rescaling(before: RunningStatistics, after: RunningStatistics) -> Rescaling:
    """Return the rescaling that keeps denormalised values as they are when the statistics change.

    Values do change with the first statistics, from 0 to an untrained critic's in the unit of the
    targets, and while all targets are equal, which normalise to 0.

    Source: PopArt, van Hasselt et al. 2016, https://arxiv.org/abs/1602.07714, eq. 2.
    """
    std_before = standard_deviation(before, _OF_SUMS)
    std_after = standard_deviation(after, _OF_SUMS)
    keeps = (std_before > 0) & (std_after > 0)
    divisor = jnp.where(keeps, std_after, 1.0)
    return Rescaling(
        scale=jnp.where(keeps, std_before / divisor, 1.0),
        shift=jnp.where(keeps, (before.mean - after.mean) / divisor, 0.0),
    )


def scale_rewards(
    scale: RewardScale,
    reward: Float[Array, "time envs actors"],
    begins: Bool[Array, "time envs actors"],
    weight: Float[Array, "time envs actors"],
    discount: ScalarLike,
    updates: bool = True,
) -> tuple[RewardScale, Float[Array, "time envs actors"]]:
    """Divide rewards by the standard deviation of their discounted sums Rₜ = γ Rₜ₋₁ + rₜ.

    Rewards are not shifted, so that none changes its sign. Without updates the statistics stay as
    they are.

    Source: Engstrom et al. 2020, https://arxiv.org/abs/2005.12729, section 3.
    """
    reward_or_0 = jnp.where(weight > 0, reward, 0.0)

    def accumulate(
        before: Array, step: tuple[Array, Array]
    ) -> tuple[Float[Array, "envs actors"], Float[Array, "envs actors"]]:
        reward, begins_next = step
        discounted_return = discount * before + reward
        return jnp.where(begins_next, 0.0, discounted_return), discounted_return

    last, returns = scan_over_time(accumulate, scale.discounted_return, (reward_or_0, begins))
    statistics = scale.statistics
    if updates:
        statistics = update_statistics(statistics, returns, weight)
    scale = RewardScale(statistics=statistics, discounted_return=last)
    return scale, reward / reward_divisor(scale)


def reward_divisor(scale: RewardScale) -> Float[Array, "*policies"]:
    """Return what rewards are divided by: 1 until discounted sums of them have differed."""
    std = standard_deviation(scale.statistics, _OF_SUMS)
    return jnp.where(std > 0, std, 1.0)


def standard_deviation(
    statistics: RunningStatistics, rounding: float = _OF_ONE_NUMBER
) -> Float[Array, "*shape"]:
    """Return the standard deviation, by default of observations; 0 if it is rounding error."""
    std = jnp.sqrt(statistics.variance)
    return jnp.where(std > rounding * jnp.abs(statistics.mean), std, 0.0)
