"""PPO's losses: one formula, one function."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxagents.hyperparameters import ScalarLike
from jaxagents.ppo.statistics import weighted_mean, weighted_means

LARGEST_LOG_RATIO = 80.0  # its exponential is still a float32

ErrorCost = Callable[[Float[Array, "*batch"]], Float[Array, "*batch"]]


class ActorStats(NamedTuple):
    """What is worth knowing of an actor's minibatch; means over its active samples."""

    loss: Float[Array, ""]
    entropy: Float[Array, ""]  # nats
    kl: Float[Array, ""]  # from the policy that collected the samples, nats
    clip_fraction: Float[Array, ""]  # share of samples whose ratio lies outside the clip


def actor_loss(
    log_prob: Float[Array, "*batch"],
    old_log_prob: Float[Array, "*batch"],
    advantage: Float[Array, "*batch"],
    entropy: Float[Array, "*batch"],
    weight: Float[Array, "*batch"],
    eps_clip: ScalarLike,
    ent_coeff: ScalarLike,
) -> tuple[Float[Array, ""], ActorStats]:
    """PPO's clipped surrogate with an entropy bonus, to be minimised.

    -mean(min(ρA, clip(ρ, 1 - ε, 1 + ε) A)) - c mean(H), with ρ the ratio of the new to the
    old probability.

    Source: Schulman et al. 2017, https://arxiv.org/abs/1707.06347, eq. 7 and 9.
    """
    log_ratio = _where_weighty(log_prob - old_log_prob, weight)
    advantage = _where_weighty(advantage, weight)
    ratio = probability_ratio(log_ratio)
    clipped_ratio = jnp.clip(ratio, 1.0 - eps_clip, 1.0 + eps_clip)
    surrogate = jnp.minimum(ratio * advantage, clipped_ratio * advantage)
    outside = (jnp.abs(ratio - 1.0) > eps_clip).astype(weight.dtype)
    # In one product with the loss its gradient would be 0 times its slope, which may be infinite.
    divergence = kl_divergence(jax.lax.stop_gradient(log_ratio))
    mean_surrogate, mean_entropy, kl, clip_fraction = weighted_means(
        (surrogate, entropy, divergence, outside), weight
    )
    loss = -mean_surrogate - ent_coeff * mean_entropy
    return loss, ActorStats(loss=loss, entropy=mean_entropy, kl=kl, clip_fraction=clip_fraction)


def probability_ratio(log_ratio: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """Give the ratio itself, always finite: the gradient of an infinite one's clip is NaN."""
    return jnp.exp(jnp.minimum(log_ratio, LARGEST_LOG_RATIO))


def kl_divergence(log_ratio: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """Estimate each sample's KL divergence of the new from the old policy, in nats.

    The k3 estimator (ρ - 1) - log ρ, never negative when its first term is an expm1.

    Source: Schulman 2020, "Approximating KL divergence", http://joschu.net/blog/kl-approx.html.
    """
    return jnp.expm1(log_ratio) - log_ratio


def squared_error(error: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """Square the error of a value."""
    return jnp.square(error)


def huber_error(error: Float[Array, "*batch"], delta: ScalarLike) -> Float[Array, "*batch"]:
    """Square the error of a value up to ``delta``; beyond it, go on along the tangent.

    Source: Huber 1964, https://doi.org/10.1214/aoms/1177703732, times 2.
    """
    size = jnp.abs(error)
    # Not selected between two formulas: the gradient would be NaN where delta is infinite.
    squared = jnp.minimum(size, delta)
    return squared * (2.0 * size - squared)


def error_cost(name: str, huber_delta: ScalarLike) -> ErrorCost:
    """Choose the cost of a value's error by `AgentConfig.critic_error`."""
    return partial(huber_error, delta=huber_delta) if name == "huber" else squared_error


def critic_loss(
    value: Float[Array, "*batch"],
    value_target: Float[Array, "*batch"],
    weight: Float[Array, "*batch"],
    vf_coeff: ScalarLike,
    error_cost: ErrorCost = squared_error,
    old_value: Float[Array, "*batch"] | None = None,
    eps_clip: ScalarLike = jnp.inf,
) -> Float[Array, ""]:
    """Mean cost of the values' errors, times its coefficient.

    Args:
        value: V.
        value_target: What it should be.
        weight: Of each sample.
        vf_coeff: The coefficient.
        error_cost: What an error costs.
        old_value: V before the update. If given, a value farther from it than ``eps_clip`` costs
            at least what the value clipped to that distance does: nothing is gained by going
            farther. Source: the `ppo2` of OpenAI's baselines, https://github.com/openai/baselines.
        eps_clip: See ``old_value``.
    """
    cost = error_cost(_where_weighty(value - value_target, weight))
    if old_value is not None:
        clipped_value = old_value + jnp.clip(value - old_value, -eps_clip, eps_clip)
        cost = jnp.maximum(cost, error_cost(_where_weighty(clipped_value - value_target, weight)))
    return vf_coeff * weighted_mean(cost, weight)


def _where_weighty(
    values: Float[Array, "*batch"], weight: Float[Array, "*batch"]
) -> Float[Array, "*batch"]:
    """Keep what samples without weight hold, NaN included, out of the gradient."""
    return jnp.where(weight > 0, values, 0.0)
