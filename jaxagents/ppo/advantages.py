"""Advantage estimates. Time-major."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxagents.compiler.tuned_forms import scan_over_time
from jaxagents.hyperparameters import ScalarLike


class Estimates(NamedTuple):
    """Advantages for the actor and value targets for the critic, in units of reward."""

    advantage: Float[Array, "time *batch"]
    value_target: Float[Array, "time *batch"]


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
        next_value: V of the next observation. At a truncation, that of the episode's final
            observation, from before the reset. Unused at a termination.
        terminated: The actor's episode ended in a terminal state.
        truncated: The episode was cut off; the state has a future.
        discount: γ, per step.
        gae_lambda: λ.

    Source: Schulman et al. 2016, https://arxiv.org/abs/1506.02438, eq. 16; bootstrapping
    at truncations: Pardo et al. 2018, https://arxiv.org/abs/1712.00378.
    """
    delta = _temporal_difference(reward, value, next_value, terminated, discount)
    decay = discount * gae_lambda

    def accumulate(advantage: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        delta, ends = step
        # Selected, not multiplied by 0: values after an actor's death may be NaN.
        advantage = delta + jnp.where(ends, 0.0, decay * advantage)
        return advantage, advantage

    _, advantages = scan_over_time(
        accumulate, jnp.zeros_like(delta[0]), (delta, terminated | truncated), reverse=True
    )
    return advantages


def vtrace(
    reward: Float[Array, "time *batch"],
    value: Float[Array, "time *batch"],
    next_value: Float[Array, "time *batch"],
    terminated: Bool[Array, "time *batch"],
    truncated: Bool[Array, "time *batch"],
    ratio: Float[Array, "time *batch"],
    discount: ScalarLike,
    gae_lambda: ScalarLike,
    rho_clip: ScalarLike,
    c_clip: ScalarLike,
) -> Estimates:
    """Estimate values and advantages of one policy from the actions of another.

    With δₜ as in `generalized_advantages`, and ρₜ and cₜ the ratio clipped from above,
    vₜ - V(sₜ) = ρₜ δₜ + γλ cₜ (vₜ₊₁ - V(sₜ₊₁)), where either kind of end cuts the trace, and
    Aₜ = rₜ + γ (λ vₜ₊₁ + (1 - λ) V(s′ₜ)) - V(sₜ), where termination zeroes what follows, and
    vₜ₊₁ is V(s′ₜ) at a truncation and after the last step. The advantage has no factor ρₜ: PPO's
    ratio supplies it. With ratios of 1 and clips of at least 1, the estimates equal those of GAE.

    Args:
        reward: Received at each step.
        value: V of the observation that was acted on.
        next_value: V of the next observation; at a truncation, of the final one, from before the
            reset. Unused at a termination.
        terminated: The actor's episode ended in a terminal state.
        truncated: The episode was cut off; the state has a future.
        ratio: Ratio of the current to the behaviour policy's probability of each action.
        discount: γ, per step.
        gae_lambda: λ.
        rho_clip: Upper bound of the weight of a step's own δ.
        c_clip: Upper bound of the weight of the δ that follow.

    Source: Espeholt et al. 2018, https://arxiv.org/abs/1802.01561, section 4.1 and remark 2.
    """
    delta = _temporal_difference(reward, value, next_value, terminated, discount)
    own = jnp.minimum(ratio, rho_clip) * delta
    decay = discount * gae_lambda
    decays = decay * jnp.minimum(ratio, c_clip)

    def accumulate(excess: Array, step: tuple[Array, ...]) -> tuple[Array, tuple[Array, Array]]:
        own, decay, ends = step
        # Selected, not multiplied by 0: values after an actor's death may be NaN.
        next_excess = jnp.where(ends, 0.0, excess)
        excess = own + decay * next_excess
        return excess, (excess, next_excess)

    _, (excess, next_excess) = scan_over_time(
        accumulate, jnp.zeros_like(own[0]), (own, decays, terminated | truncated), reverse=True
    )
    # λ vₜ₊₁ + (1 - λ) V(s′ₜ) is V(s′ₜ) + λ (vₜ₊₁ - V(s′ₜ)).
    return Estimates(advantage=delta + decay * next_excess, value_target=value + excess)


def _temporal_difference(
    reward: Float[Array, "time *batch"],
    value: Float[Array, "time *batch"],
    next_value: Float[Array, "time *batch"],
    terminated: Bool[Array, "time *batch"],
    discount: ScalarLike,
) -> Float[Array, "time *batch"]:
    """Return δₜ = rₜ + γ V(s′ₜ) - V(sₜ), where termination zeroes V(s′ₜ)."""
    return reward + discount * jnp.where(terminated, 0.0, next_value) - value
