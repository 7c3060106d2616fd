"""From one policy's transitions to what it learns from. Time-major."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxagents.hyperparameters import HyperParameters
from jaxagents.ppo.advantages import Estimates, generalized_advantages, vtrace
from jaxagents.ppo.losses import probability_ratio
from jaxagents.ppo.minibatches import cut, join
from jaxagents.ppo.normalization import (
    VALUE_DECAY,
    Normalizers,
    RewardScale,
    RunningStatistics,
    denormalize,
    normalize,
    normalize_features,
    scale_rewards,
    update_statistics,
)
from jaxagents.ppo.statistics import standardize
from jaxagents.types import Batch, Memory, Path, Transition


class Valuation(NamedTuple):
    """What a critic makes of a rollout, ``[time, envs, actors, ...]``."""

    features: Array  # what it sees, not normalised
    memory: PyTree  # its own, before each step
    value: Float[Array, "*batch"]  # of the observations that were acted on
    next_value: Float[Array, "*batch"]  # after each step, *before* any reset


def make_batch(
    step: Transition,
    valuation: Valuation,
    normalizers: Normalizers,
    membership: Float[Array, " actors"],
    hyperparams: HyperParameters,
    chunk_length: int,
    rewards_after_death: bool = False,
) -> tuple[Batch, Normalizers]:
    """Make of one policy's transitions what it learns from.

    Advantages are estimated by GAE.

    Args:
        step: ``[time, envs, actors, ...]``.
        valuation: Likewise.
        normalizers: Those in use during the rollout.
        membership: 0 for the padding of policies with fewer actors than others.
        hyperparams: One value each.
        chunk_length: Steps of each sequence.
        rewards_after_death: Let the critic learn the values of the dead, who go on earning.

    Returns:
        The batch, its value targets in units of reward, and the normalizers brought up to date,
        but for that of the values.
    """
    weight = step.active * membership
    value_weight = jnp.broadcast_to(membership, weight.shape) if rewards_after_death else weight
    path, reward_scale = _make_path(step, valuation, normalizers, value_weight, hyperparams)
    own, seen_by_critic = step.observation.features, valuation.features
    critic_statistics = normalizers.critic_features or normalizers.observation
    # A network's gradient would be NaN for samples that hold NaN, though they weigh nothing.
    batch = Batch(
        observation=step.observation._replace(
            features=_where_weighty(normalize_features(normalizers.observation, own), weight)
        ),
        critic_features=_where_weighty(
            normalize_features(critic_statistics, seen_by_critic), value_weight
        ),
        begins=jnp.roll(step.episode_over, 1, axis=0).at[0].set(False),
        memory=Memory(
            actor=_where_weighty(step.memory, weight),
            critic=_where_weighty(valuation.memory, value_weight),
        ),
        action=_where_weighty(step.action, weight),
        log_prob=step.log_prob,
        path=path,
        advantage=jnp.zeros_like(path.value),
        value=valuation.value,
        value_target=jnp.zeros_like(path.value),
        weight=weight,
        value_weight=value_weight,
    )
    batch = cut(batch, chunk_length)
    batch = batch._replace(memory=jax.tree.map(lambda leaf: leaf[:1], batch.memory))
    updated = normalizers._replace(
        observation=_updated(normalizers.observation, own, weight),
        critic_features=_updated(normalizers.critic_features, seen_by_critic, value_weight),
        reward=reward_scale,
    )
    return with_estimates(batch, hyperparams, len(weight) // chunk_length), updated


def with_estimates(
    batch: Batch,
    hyperparams: HyperParameters,
    n_chunks: int,
    log_ratio: Float[Array, "time sequences actors"] | None = None,
) -> Batch:
    """Estimate advantages and value targets: by V-trace if ratios are given, else by GAE."""
    path = join(batch.path, n_chunks)
    if log_ratio is None:
        advantage = generalized_advantages(
            **path._asdict(), discount=hyperparams.gamma, gae_lambda=hyperparams.gae_lambda
        )
        estimates = Estimates(advantage=advantage, value_target=advantage + path.value)
    else:
        # The dead do nothing that could be more or less likely.
        log_ratio = jnp.where(batch.weight > 0, log_ratio, 0.0)
        estimates = vtrace(
            **path._asdict(),
            ratio=probability_ratio(join(log_ratio, n_chunks)),
            discount=hyperparams.gamma,
            gae_lambda=hyperparams.gae_lambda,
            rho_clip=hyperparams.rho_clip,
            c_clip=hyperparams.c_clip,
        )
    advantage, value_target = cut(estimates, len(batch.weight))
    return batch._replace(advantage=standardize(advantage, batch.weight), value_target=value_target)


def normalize_targets(
    batch: Batch, statistics: RunningStatistics | None
) -> tuple[Batch, RunningStatistics | None]:
    """Bring value targets to the scale of the critic's outputs, by statistics that know them."""
    if statistics is None:
        return batch, None
    statistics = update_statistics(statistics, batch.value_target, batch.value_weight, VALUE_DECAY)
    return batch._replace(value_target=normalize(statistics, batch.value_target)), statistics


def _make_path(
    step: Transition,
    valuation: Valuation,
    normalizers: Normalizers,
    weight: Float[Array, "time envs actors"],
    hyperparams: HyperParameters,
) -> tuple[Path, RewardScale | None]:
    """Give what advantages are estimated from, and how large rewards are, where that counts."""
    path = Path(
        reward=step.reward,
        value=valuation.value,
        next_value=valuation.next_value,
        terminated=step.terminated,
        truncated=step.truncated,
    )
    if normalizers.value is not None:
        path = path._replace(
            value=denormalize(normalizers.value, path.value),
            next_value=denormalize(normalizers.value, path.next_value),
        )
    if normalizers.reward is None:
        return path, None
    scale, reward = scale_rewards(
        normalizers.reward, path.reward, step.episode_over, weight, hyperparams.gamma
    )
    return path._replace(reward=reward), scale


def _updated(
    statistics: RunningStatistics | None, values: Array, weight: Array
) -> RunningStatistics | None:
    return None if statistics is None else update_statistics(statistics, values, weight)


def _where_weighty(tree: PyTree, weight: Float[Array, "time envs actors"]) -> PyTree:
    """Keep ``[time, envs, actors, ...]`` of samples with weight; 0 stands for the others."""

    def keep(leaf: Array) -> Array:
        has_weight = (weight > 0).reshape(*weight.shape, *[1] * (leaf.ndim - weight.ndim))
        return jnp.where(has_weight, leaf, jnp.zeros_like(leaf))

    return jax.tree.map(keep, tree)
