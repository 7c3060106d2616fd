"""Advantage estimates, and what a policy learns from them. Time-major."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxagents.config import HyperParameters, ScalarLike
from jaxagents.statistics import explained_variance, standardize
from jaxagents.types import Batch, Transition


def generalized_advantages(
    reward: Float[Array, "time *batch"],
    value: Float[Array, "time *batch"],
    next_value: Float[Array, "time *batch"],
    terminated: Bool[Array, "time *batch"],
    truncated: Bool[Array, "time *batch"],
    discount: ScalarLike,
    gae_lambda: ScalarLike,
) -> Float[Array, "time *batch"]:
    """Estimate advantages, in units of reward.

    δₜ = rₜ + γ V(s′ₜ) - V(sₜ) and Aₜ = δₜ + γλ Aₜ₊₁. Termination zeroes V(s′ₜ);
    either kind of episode end cuts the trace.

    Args:
        reward: Received at each step.
        value: V of the observation that was acted on.
        next_value: V of the observation *before* any reset.
        terminated: The actor's episode ended in a state without a future.
        truncated: It was cut off; the future goes on unseen.
        discount: γ, per step.
        gae_lambda: λ.

    Source: Schulman et al. 2016, https://arxiv.org/abs/1506.02438, eq. 16; bootstrapping
    at truncations: Pardo et al. 2018, https://arxiv.org/abs/1712.00378.
    """
    delta = reward + discount * jnp.where(terminated, 0.0, next_value) - value
    decay = discount * gae_lambda

    def accumulate(advantage: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        delta, ends = step
        # Selected, not multiplied by 0: what follows an actor's death may hold anything.
        advantage = delta + jnp.where(ends, 0.0, decay * advantage)
        return advantage, advantage

    _, advantages = jax.lax.scan(
        accumulate, jnp.zeros_like(delta[0]), (delta, terminated | truncated), reverse=True
    )
    return advantages


def make_batch(
    step: Transition,
    value: Float[Array, "time envs actors"],
    next_value: Float[Array, "time envs actors"],
    membership: Float[Array, " actors"],
    hyperparams: HyperParameters,
    rewards_after_death: bool = False,
) -> tuple[Batch, Float[Array, ""]]:
    """Make of one policy's transitions what it learns from.

    The value targets are made of the advantages as estimated; the actor gets them normalised over
    the samples of active actors.

    Args:
        step: ``[time, envs, actors, ...]``.
        value: V of the observations that were acted on.
        next_value: V of the observations after each step, *before* any reset.
        membership: 0 for the padding of policies with fewer actors than others.
        hyperparams: One value each.
        rewards_after_death: Let the critic learn the values of the dead, who go on earning.

    Returns:
        The batch, and the share of the value targets' variance that the values explain.
    """
    advantage = generalized_advantages(
        reward=step.reward,
        value=value,
        next_value=next_value,
        terminated=step.terminated,
        truncated=step.truncated,
        discount=hyperparams.gamma,
        gae_lambda=hyperparams.gae_lambda,
    )
    value_target = advantage + value
    weight = step.active * membership
    value_weight = jnp.broadcast_to(membership, weight.shape) if rewards_after_death else weight
    # A network's gradient would be NaN for samples that hold NaN, though they weigh nothing.
    features = _where_weighty(step.observation.features, value_weight)
    batch = Batch(
        observation=step.observation._replace(features=features),
        action=_where_weighty(step.action, weight),
        log_prob=step.log_prob,
        advantage=standardize(advantage, weight),
        value_target=value_target,
        weight=weight,
        value_weight=value_weight,
    )
    return batch, explained_variance(value, value_target, value_weight)


def _where_weighty(values: Array, weight: Float[Array, "time envs actors"]) -> Array:
    """Keep ``[time, envs, actors, ...]`` of samples with weight; 0 stands for the others."""
    has_weight = (weight > 0).reshape(*weight.shape, *[1] * (values.ndim - weight.ndim))
    return jnp.where(has_weight, values, jnp.zeros_like(values))
