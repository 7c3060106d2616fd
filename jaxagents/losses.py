"""PPO's losses: one formula, one function."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxagents.config import ScalarLike
from jaxagents.statistics import weighted_mean

LARGEST_LOG_RATIO = 80.0  # its exponential is still a float32


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
    # An infinite ratio would turn the gradient of its own clip into NaN.
    ratio = jnp.exp(jnp.minimum(log_ratio, LARGEST_LOG_RATIO))
    clipped_ratio = jnp.clip(ratio, 1.0 - eps_clip, 1.0 + eps_clip)
    surrogate = jnp.minimum(ratio * advantage, clipped_ratio * advantage)
    mean_entropy = weighted_mean(entropy, weight)
    loss = -weighted_mean(surrogate, weight) - ent_coeff * mean_entropy
    outside = (jnp.abs(ratio - 1.0) > eps_clip).astype(weight.dtype)
    stats = ActorStats(
        loss=loss,
        entropy=mean_entropy,
        kl=weighted_mean(kl_divergence(log_ratio), weight),
        clip_fraction=weighted_mean(outside, weight),
    )
    return loss, stats


def kl_divergence(log_ratio: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """Estimate each sample's KL divergence of the new from the old policy, in nats.

    The k3 estimator (ρ - 1) - log ρ, never negative when its first term is an expm1.

    Source: Schulman 2020, "Approximating KL divergence", http://joschu.net/blog/kl-approx.html.
    """
    return jnp.expm1(log_ratio) - log_ratio


def critic_loss(
    value: Float[Array, "*batch"],
    value_target: Float[Array, "*batch"],
    weight: Float[Array, "*batch"],
    vf_coeff: ScalarLike,
) -> Float[Array, ""]:
    """Mean squared error of the values, times its coefficient."""
    error = _where_weighty(value - value_target, weight)
    return vf_coeff * weighted_mean(jnp.square(error), weight)


def _where_weighty(
    values: Float[Array, "*batch"], weight: Float[Array, "*batch"]
) -> Float[Array, "*batch"]:
    """Keep what samples without weight hold, NaN included, out of the gradient."""
    return jnp.where(weight > 0, values, 0.0)
