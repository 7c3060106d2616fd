"""PPO's losses: one formula, one function.

Means over samples are `weighted_mean` over one device, whose gradients are averaged later.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxagents.hyperparameters import ScalarLike

LARGEST_LOG_RATIO = 80.0  # its exponential is still a float32

ErrorCost = Callable[[Float[Array, "*batch"]], Float[Array, "*batch"]]


def weighted_mean(
    values: Float[Array, "*batch"], weight: Float[Array, "*batch"]
) -> Float[Array, ""]:
    """Average over the samples of positive weight; 0 if there are none.

    Samples of weight 0 may hold anything, infinities and NaN included.
    """
    total = jnp.sum(weight)
    return jnp.sum(weight * jnp.where(weight > 0, values, 0)) / jnp.where(total > 0, total, 1)


class ActorStats(NamedTuple):
    """Statistics of the actor's loss; means over active samples."""

    actor_loss: Float[Array, ""]
    entropy: Float[Array, ""]  # nats
    kl: Float[Array, ""]  # from the policy that collected the new samples, nats
    clip_fraction: Float[Array, ""]  # share of samples whose ratio lies outside the clip


def actor_loss(
    log_prob: Float[Array, "*batch"],
    old_log_prob: Float[Array, "*batch"],
    advantage: Float[Array, "*batch"],
    entropy: Float[Array, "*batch"],
    weight: Float[Array, "*batch"],
    eps_clip: ScalarLike,
    ent_coeff: ScalarLike,
    kl_weight: Float[Array, "*batch"] | None = None,
) -> tuple[Float[Array, ""], ActorStats]:
    """PPO's clipped surrogate with an entropy bonus, to be minimised.

    -mean(min(ρA, clip(ρ, 1 - ε, 1 + ε) A)) - c mean(H), with ρ the ratio of the new to the
    old probability.

    Args:
        log_prob: Log probability of the actions under the current policy.
        old_log_prob: Log probability of the actions under the policy that chose them.
        advantage: Advantage of the actions.
        entropy: Entropy of the current policy at each sample.
        weight: Weight of each sample.
        eps_clip: ε.
        ent_coeff: c.
        kl_weight: Factors of the samples' KL divergences, whose mean over a batch is 1; None: 1.

    Source: Schulman et al. 2017, https://arxiv.org/abs/1707.06347, eq. 7 and 9.
    """
    log_ratio = _zero_unweighted(log_prob - old_log_prob, weight)
    advantage = _zero_unweighted(advantage, weight)
    ratio = probability_ratio(log_ratio)
    clipped_ratio = jnp.clip(ratio, 1.0 - eps_clip, 1.0 + eps_clip)
    surrogate = jnp.minimum(ratio * advantage, clipped_ratio * advantage)
    outside = (jnp.abs(ratio - 1.0) > eps_clip).astype(weight.dtype)
    # A statistic without a gradient: its slope may be infinite, and 0 times that is NaN.
    divergence = kl_divergence(jax.lax.stop_gradient(log_ratio))
    if kl_weight is not None:
        # Selected, not multiplied by 0: the ratio to a much older policy may overflow.
        divergence = jnp.where(kl_weight > 0, kl_weight * divergence, 0.0)
    mean_entropy = weighted_mean(entropy, weight)
    loss = -weighted_mean(surrogate, weight) - ent_coeff * mean_entropy
    return loss, ActorStats(
        actor_loss=loss,
        entropy=mean_entropy,
        kl=weighted_mean(divergence, weight),
        clip_fraction=weighted_mean(outside, weight),
    )


def probability_ratio(log_ratio: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """Return the ratio, kept finite: the gradient of a clipped infinite ratio is NaN."""
    return jnp.exp(jnp.minimum(log_ratio, LARGEST_LOG_RATIO))


def kl_divergence(log_ratio: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """Estimate each sample's KL divergence of the new from the old policy, in nats.

    The k3 estimator (ρ - 1) - log ρ; with expm1 for its first term it is never negative.

    Source: Schulman 2020, "Approximating KL divergence", http://joschu.net/blog/kl-approx.html.
    """
    return jnp.expm1(log_ratio) - log_ratio


def squared_error(error: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """Square the error of a value."""
    return jnp.square(error)


def huber_error(error: Float[Array, "*batch"], delta: ScalarLike) -> Float[Array, "*batch"]:
    """Square the error of a value up to ``delta``, and continue linearly beyond.

    Source: Huber 1964, https://doi.org/10.1214/aoms/1177703732, times 2.
    """
    size = jnp.abs(error)
    # One formula, not a choice between two: the gradient would be NaN for an infinite delta.
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
    """Mean cost of the values' errors, times ``vf_coeff``.

    Args:
        value: V.
        value_target: The target of V.
        weight: Weight of each sample.
        vf_coeff: The coefficient.
        error_cost: The cost of an error.
        old_value: V before the update. If given, the cost is at least that of the value clipped to
            within ``eps_clip`` of it, so that moving farther gains nothing. Source: ``ppo2`` of
            OpenAI's baselines, https://github.com/openai/baselines.
        eps_clip: Largest change of a value; see ``old_value``.
    """
    cost = error_cost(_zero_unweighted(value - value_target, weight))
    if old_value is not None:
        clipped_value = old_value + jnp.clip(value - old_value, -eps_clip, eps_clip)
        cost = jnp.maximum(cost, error_cost(_zero_unweighted(clipped_value - value_target, weight)))
    return vf_coeff * weighted_mean(cost, weight)


def _zero_unweighted(
    values: Float[Array, "*batch"], weight: Float[Array, "*batch"]
) -> Float[Array, "*batch"]:
    """Zero the values of samples with zero weight: NaN there must not reach the gradient."""
    return jnp.where(weight > 0, values, 0.0)
