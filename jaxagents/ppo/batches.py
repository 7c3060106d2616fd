"""One policy's batch: its transitions with values, advantages and targets. Time-major."""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxagents.config import AgentConfig
from jaxagents.hyperparameters import HyperParameters
from jaxagents.ppo.advantages import Estimates, generalized_advantages, vtrace
from jaxagents.ppo.losses import probability_ratio
from jaxagents.ppo.normalization import (
    VALUE_DECAY,
    Normalizers,
    Rescaling,
    RewardScale,
    RunningStatistics,
    denormalize,
    normalize,
    normalize_features,
    rescaling,
    scale_rewards,
    update_statistics,
)
from jaxagents.ppo.statistics import relative_deviation, standardize
from jaxagents.types import Batch, Memory, PyTree, Trajectory, Transition

Estimator = Callable[[Trajectory, HyperParameters], Float[Array, "time envs actors"]]
"""Estimates advantages, in units of reward."""


def by_gae(
    trajectory: Trajectory, hyperparams: HyperParameters
) -> Float[Array, "time envs actors"]:
    """Estimate advantages by GAE."""
    return generalized_advantages(
        **trajectory._asdict(), discount=hyperparams.gamma, gae_lambda=hyperparams.gae_lambda
    )


class Valuation(NamedTuple):
    """A critic's inputs and values over a rollout, ``[time, envs, actors, ...]``."""

    features: Array  # not normalised
    memory: PyTree  # the critic's recurrent state before each step
    value: Float[Array, "*batch"]  # of the observations that were acted on
    next_value: Float[Array, "*batch"]  # see `Trajectory`


def make_batch(
    step: Transition,
    valuation: Valuation,
    normalizers: Normalizers,
    membership: Float[Array, " actors"],
    hyperparams: HyperParameters,
    config: AgentConfig,
    advantages: Estimator = by_gae,
    rewards_after_death: bool = False,
    frozen: Collection[str] = (),
) -> tuple[Batch, Normalizers]:
    """Build one policy's batch from its transitions.

    Args:
        step: ``[time, envs, actors, ...]``.
        valuation: ``[time, envs, actors, ...]``.
        normalizers: Those in use during the rollout.
        membership: 1 for the policy's actors, 0 for padding.
        hyperparams: One value each.
        config: The agent's.
        advantages: As for `with_estimates`.
        rewards_after_death: Dead actors still earn rewards, so the critic learns their values.
        frozen: Names of the normalizers that keep their statistics.

    Returns:
        The batch, with value targets in units of reward, and the updated normalizers; the
        statistics of the value targets are updated later, by `normalize_targets`.
    """
    living = step.active * membership
    weight = living  # of actions: those of waiting actors have zero weight
    if step.observation.has_turn is not None:
        weight = living * step.observation.has_turn
    value_weight = jnp.broadcast_to(membership, living.shape) if rewards_after_death else living
    trajectory, reward_scale = _make_trajectory(
        step, valuation, normalizers, value_weight, hyperparams, updates="reward" not in frozen
    )
    own, critics = step.observation.features, valuation.features
    critic_statistics = normalizers.of_critic_features(config.centralized_critic)
    # NaN in a sample makes the network's gradient NaN even if the sample has zero weight.
    batch = Batch(
        observation=step.observation._replace(
            features=_zero_unweighted(normalize_features(normalizers.observation, own), living)
        ),
        critic_features=_zero_unweighted(
            normalize_features(critic_statistics, critics), value_weight
        ),
        actor=jnp.broadcast_to(jnp.arange(len(membership)), living.shape),
        begins=jnp.roll(step.begins, 1, axis=0).at[0].set(False),
        memory=Memory(
            actor=_zero_unweighted(step.memory, living),
            critic=_zero_unweighted(valuation.memory, value_weight),
        ),
        action=_zero_unweighted(step.action, weight),
        log_prob=_zero_unweighted(step.log_prob, weight),
        trajectory=trajectory,
        advantage=jnp.zeros_like(trajectory.value),
        loss_scale=jnp.ones(()),
        value=valuation.value,
        value_target=jnp.zeros_like(trajectory.value),
        weight=weight,
        value_weight=value_weight,
    )
    batch = cut(batch, config.chunk_length)
    batch = batch._replace(memory=jax.tree.map(lambda leaf: leaf[:1], batch.memory))
    updated = {
        "observation": _updated(normalizers.observation, own, living),
        "critic_features": _updated(normalizers.critic_features, critics, value_weight),
    }
    kept = {name: each for name, each in updated.items() if name not in frozen}
    normalizers = normalizers._replace(reward=reward_scale, **kept)
    return with_estimates(batch, hyperparams, config, advantages), normalizers


def with_estimates(
    batch: Batch,
    hyperparams: HyperParameters,
    config: AgentConfig,
    advantages: Estimator = by_gae,
    log_ratio: Float[Array, "time sequences actors"] | None = None,
) -> Batch:
    """Estimate advantages and value targets: by V-trace if there are ratios, else ``advantages``.

    Standardised advantages are mostly the critic's errors once a task is solved, and would disturb
    a good policy; `relative_deviation` therefore scales the actor's loss.
    """
    trajectory = join_chunks(batch.trajectory, config.n_chunks)
    if log_ratio is None:
        advantage = advantages(trajectory, hyperparams)
        estimates = Estimates(advantage=advantage, value_target=advantage + trajectory.value)
    else:
        # Dead and waiting actors choose nothing: their ratio is 1.
        log_ratio = jnp.where(batch.weight > 0, log_ratio, 0.0)
        estimates = vtrace(
            **trajectory._asdict(),
            ratio=probability_ratio(join_chunks(log_ratio, config.n_chunks)),
            discount=hyperparams.gamma,
            gae_lambda=hyperparams.gae_lambda,
            rho_clip=hyperparams.rho_clip,
            c_clip=hyperparams.c_clip,
        )
    advantage, value_target = cut(estimates, len(batch.weight))
    scale = jnp.ones(())
    if config.scale_actor_loss:
        scale = relative_deviation(advantage, batch.trajectory.reward, batch.weight)
    if config.normalize_advantages == "batch":
        advantage = standardize(advantage, batch.weight)
    else:
        advantage = jnp.where(batch.weight > 0, advantage, 0.0)
    return batch._replace(advantage=advantage, loss_scale=scale, value_target=value_target)


def normalize_targets(
    batch: Batch, statistics: RunningStatistics
) -> tuple[Batch, RunningStatistics, Rescaling]:
    """Normalise value targets by running statistics that include them.

    Returns:
        The batch; the statistics; and the rescaling of the critic's outputs that leaves its values
        unchanged.
    """
    updated = update_statistics(statistics, batch.value_target, batch.value_weight, VALUE_DECAY)
    batch = batch._replace(value_target=normalize(updated, batch.value_target))
    return batch, updated, rescaling(statistics, updated)


def cut(tree: PyTree, chunk_length: int) -> PyTree:
    """Cut trajectories ``[time, envs, ...]`` into chunks ``[chunk_length, chunks * envs, ...]``.

    Scalars stay as they are.
    """

    def cut_leaf(leaf: Array) -> Array:
        if not leaf.ndim:
            return leaf
        chunks = leaf.reshape(-1, chunk_length, *leaf.shape[1:])
        return jnp.moveaxis(chunks, 1, 0).reshape(chunk_length, -1, *leaf.shape[2:])

    return jax.tree.map(cut_leaf, tree)


def join_chunks(tree: PyTree, n_chunks: int) -> PyTree:
    """Undo `cut`."""

    def join_leaf(leaf: Array) -> Array:
        chunks = leaf.reshape(len(leaf), n_chunks, -1, *leaf.shape[2:])
        joined = jnp.moveaxis(chunks, 1, 0)
        return joined.reshape(-1, *joined.shape[2:])

    return jax.tree.map(join_leaf, tree)


def beside(batches: Sequence[PyTree], n_chunks: int) -> PyTree:
    """Join batches ``[time, chunks * envs, ...]`` along their environments.

    Scalars are the first batch's.
    """

    def join_envs(*leaves: Array) -> Array:
        if not leaves[0].ndim:
            return leaves[0]
        parts = [leaf.reshape(len(leaf), n_chunks, -1, *leaf.shape[2:]) for leaf in leaves]
        joined = jnp.concatenate(parts, axis=2)
        return joined.reshape(len(joined), -1, *joined.shape[3:])

    return jax.tree.map(join_envs, *batches)


def _make_trajectory(
    step: Transition,
    valuation: Valuation,
    normalizers: Normalizers,
    weight: Float[Array, "time envs actors"],
    hyperparams: HyperParameters,
    updates: bool,
) -> tuple[Trajectory, RewardScale | None]:
    """Collect the inputs of the advantage estimate, in units of reward; scale the rewards."""
    trajectory = Trajectory(
        reward=step.reward,
        value=valuation.value,
        next_value=valuation.next_value,
        terminated=step.terminated,
        truncated=step.truncated,
    )
    if normalizers.value is not None:
        trajectory = trajectory._replace(
            value=denormalize(normalizers.value, trajectory.value),
            next_value=denormalize(normalizers.value, trajectory.next_value),
        )
    if normalizers.reward is None:
        return trajectory, None
    scale, reward = scale_rewards(
        normalizers.reward, trajectory.reward, step.begins, weight, hyperparams.gamma, updates
    )
    return trajectory._replace(reward=reward), scale


def _updated(
    statistics: RunningStatistics | None, values: Array, weight: Array
) -> RunningStatistics | None:
    return None if statistics is None else update_statistics(statistics, values, weight)


def _zero_unweighted(tree: PyTree, weight: Float[Array, "time envs actors"]) -> PyTree:
    """Zero the samples ``[time, envs, actors, ...]`` of zero weight."""

    def keep(leaf: Array) -> Array:
        has_weight = (weight > 0).reshape(*weight.shape, *[1] * (leaf.ndim - weight.ndim))
        return jnp.where(has_weight, leaf, jnp.zeros_like(leaf))

    return jax.tree.map(keep, tree)
