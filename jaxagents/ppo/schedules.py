"""Schedules of hyperparameters over a training run."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxagents.config import AgentConfig
from jaxagents.hyperparameters import HyperParameters, OptimizerParams, PerPolicy, ScalarLike

_KL_FACTOR, _LEARNING_RATE_FACTOR = 2.0, 1.5
_LEARNING_RATE_BOUNDS = (1e-6, 1e-2)


def factor_at(schedule: str, progress: Float[Array, ""]) -> Float[Array, ""]:
    """Return a schedule's factor, which falls from 1 at progress 0 to 0 at progress 1.

    Source: cosine: Loshchilov and Hutter 2017, https://arxiv.org/abs/1608.03983, eq. 5.
    """
    progress = jnp.clip(progress, 0.0, 1.0)
    return {
        "constant": jnp.ones_like(progress),
        "linear": 1.0 - progress,
        "cosine": 0.5 * (1.0 + jnp.cos(jnp.pi * progress)),
    }[schedule]


def training_reward(
    reward: Float[Array, "*time envs actors"],
    shaped_reward: Float[Array, "*time envs actors"] | None,
    config: AgentConfig,
    n_updates_done: Int[Array, ""],
) -> Float[Array, "*time envs actors"]:
    """Return the reward plus the shaped reward times its annealed factor, if that is configured."""
    if shaped_reward is None or config.shaped_reward_steps is None:
        return reward
    # By updates, not by environment steps: these can be too many for an int32.
    n_updates = config.shaped_reward_steps / config.steps_per_update
    factor = jnp.maximum(0.0, 1.0 - n_updates_done / n_updates)
    return reward + factor * shaped_reward


def scheduled(
    hyperparams: HyperParameters,
    config: AgentConfig,
    progress: Float[Array, ""],
    actor_learning_rate: Float[Array, "*policies"] | None,
) -> HyperParameters:
    """Return the hyperparameters at a fraction ``progress`` of training.

    Args:
        hyperparams: The initial ones.
        config: Names the schedules.
        progress: From 0 to 1.
        actor_learning_rate: The adapted rate, with the schedule "kl".
    """
    learning_rate_schedule = config.learning_rate_schedule
    if config.anneal_learning_rate:
        learning_rate_schedule = "linear"
    if learning_rate_schedule == "kl":
        params = hyperparams.actor_optimizer_params.replace(learning_rate=actor_learning_rate)
        hyperparams = hyperparams.replace(actor_optimizer_params=params)
    elif learning_rate_schedule != "constant":
        hyperparams = scale_learning_rates(hyperparams, factor_at(learning_rate_schedule, progress))
    return hyperparams.replace(
        ent_coeff=hyperparams.ent_coeff * factor_at(config.ent_coeff_schedule, progress),
        eps_clip=hyperparams.eps_clip * factor_at(config.eps_clip_schedule, progress),
    )


def scale_learning_rates(hyperparams: HyperParameters, factor: ScalarLike) -> HyperParameters:
    """Multiply the learning rates of both networks."""

    def scale(params: OptimizerParams) -> OptimizerParams:
        return params.replace(learning_rate=params.learning_rate * factor)

    return hyperparams.replace(
        actor_optimizer_params=scale(hyperparams.actor_optimizer_params),
        critic_optimizer_params=scale(hyperparams.critic_optimizer_params),
    )


def adapt_learning_rate(
    learning_rate: Float[Array, " policies"] | None,
    kl: Float[Array, " policies"],
    kl_target: PerPolicy,
) -> Float[Array, " policies"] | None:
    """Adapt learning rates to the KL divergences that their updates led to.

    A rate is divided by 1.5 if the KL exceeds twice the target, multiplied by 1.5 if it is below
    half the target, and bounded to [1e-6, 1e-2]. A KL of 0 changes nothing: the policy had no
    samples, or had not changed when the KL was measured.

    Args:
        learning_rate: None if rates do not adapt.
        kl: KL divergence of the latest update, in nats.
        kl_target: In nats.

    Source: skrl's ``KLAdaptiveLR``,
    https://skrl.readthedocs.io/en/latest/api/resources/schedulers/kl_adaptive.html, after the
    adaptive KL coefficient of Schulman et al. 2017, https://arxiv.org/abs/1707.06347, section 4.
    """
    if learning_rate is None:
        return None
    slower, faster = learning_rate / _LEARNING_RATE_FACTOR, learning_rate * _LEARNING_RATE_FACTOR
    adapted = jnp.where(kl > _KL_FACTOR * kl_target, slower, learning_rate)
    adapted = jnp.where((kl > 0) & (kl < kl_target / _KL_FACTOR), faster, adapted)
    return jnp.clip(adapted, *_LEARNING_RATE_BOUNDS)
