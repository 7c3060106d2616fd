"""Rollouts of earlier policies, kept on the device, from which updates learn again."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from jaxagents.config import AgentConfig
from jaxagents.errors import import_extra
from jaxagents.ippo.actor_critic import ActorCritic
from jaxagents.ippo.frozen import Frozen
from jaxagents.ppo.batches import Valuation, beside
from jaxagents.ppo.finiteness import Residues
from jaxagents.ppo.normalization import Normalizers, reward_divisor
from jaxagents.ppo.policy_map import PolicyMap, each_policy
from jaxagents.types import (
    Batch,
    Memory,
    Metrics,
    Observation,
    PyTree,
    Runner,
    Transition,
    UpdateKeys,
)

Estimate = Callable[[Runner, Transition, Valuation], tuple[Runner, Batch]]
Learnt = tuple[Runner, Metrics, Residues]


class Experience(NamedTuple):
    """A rollout, with everything that later updates need to learn from it."""

    transitions: Transition  # [time, envs, actors, ...]
    last_observation: Observation  # after the last step and any reset, [envs, actors, ...]
    memory: PyTree  # the critics' recurrent state before the first step, [envs, actors, ...]


@final
class Replay(Frozen):
    """The latest ``replay_updates`` rollouts before the current one; holds no arrays.

    They form a ring of whole rollouts in flashbax's item buffer, which is a part of the `Runner`.
    An update learns from all of them, not from a sample, so each rollout serves ``replay_updates +
    1`` updates.

    Values, normalised observations and scaled rewards are recomputed with the current networks and
    statistics. Statistics count each rollout once, when it is new, except that those of value
    targets count everything that the critic learns from. V-trace and PPO's clip take the ratio of
    the current policy to the one that acted. Recurrent networks start sequences with the states
    stored when the rollout was collected, as "stored state" in R2D2, and do not refresh them. Any
    shaped reward keeps the factor of its own update.

    The KL divergence that ``kl_threshold`` and ``kl_target`` refer to is that of the new samples.
    Only they were drawn by the policy with which the update started, so only they say how far the
    update has moved it; that of older samples exceeds 0 before the first step, and would end the
    epochs because of earlier updates.

    Source: V-trace with replay: Espeholt et al. 2018, https://arxiv.org/abs/1802.01561, section
    5.2.2; stored states: Kapturowski et al. 2019, https://openreview.net/forum?id=r1lyTjAqYX;
    flashbax: Toledo et al. 2023, https://github.com/instadeepai/flashbax.
    """

    def __init__(self, config: AgentConfig, networks: ActorCritic, policies: PolicyMap):
        n_rollouts = config.replay_updates
        flashbax = import_extra("flashbax", f"replay_updates={n_rollouts} needs", "replay")
        self._buffer: Any = flashbax.make_item_buffer(n_rollouts, n_rollouts, n_rollouts)
        self._warmup_updates = config.warmup_updates
        self._n_chunks = config.n_chunks
        self._networks = networks
        self._policies = policies
        self._freeze()

    def init(self, transitions: Transition, after: Runner) -> PyTree:
        """Return an empty buffer for rollouts of these shapes."""
        shapes = Experience(transitions, after.observation, after.memory.critic)
        return self._buffer.init(
            jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        )

    def has_begun(self, runner: Runner) -> Bool[Array, ""]:
        """True if the runner's next update learns from earlier rollouts."""
        is_warm = runner.n_updates_done >= self._warmup_updates
        return is_warm & self._buffer.can_sample(runner.replay)

    def learn(
        self,
        learn: Callable[..., Learnt],
        runner: Runner,
        transitions: Transition,
        keys: UpdateKeys,
    ) -> Learnt:
        """Learn from a new rollout, and from the earlier ones too once there are enough.

        Args:
            learn: `IPPOBase.learn`.
            runner: The runner after the new rollout, except for its critics' recurrent state.
            transitions: The new rollout, which is kept in place of the oldest.
            keys: Random keys of the update.
        """
        new = self.as_experience(runner, transitions)
        after, metrics, residues = jax.lax.cond(
            self.has_begun(runner),
            lambda: learn(runner, transitions, keys, replays=True),
            lambda: learn(runner, transitions, keys, replays=False),
        )
        return after.replace(replay=self._buffer.add(runner.replay, new)), metrics, residues

    def with_earlier(
        self, batch: Batch, before: Runner, normalizers: Normalizers, estimate: Estimate
    ) -> Batch:
        """Append the earlier rollouts to the new one.

        Args:
            batch: The new rollout's, ``[policies, ...]``.
            before: The runner before its networks and statistics learn from the new rollout.
            normalizers: The normalizers after the new rollout.
            estimate: Makes a batch of transitions: `IPPOBase.estimate_advantages`.
        """
        earlier = self._earlier(before.replay)
        transitions = earlier.transitions
        if normalizers.reward is not None:
            divisor = reward_divisor(normalizers.reward)[self._policies.policy_of_actor]
            transitions = transitions._replace(reward=transitions.reward / divisor)
        runner = before.replace(
            observation=earlier.last_observation,
            memory=Memory(critic=earlier.memory),
            normalizers=before.normalizers._replace(reward=None),
        )
        _, valuation = self._networks.value_rollout(runner, transitions)
        _, old = estimate(runner, transitions, valuation)
        return each_policy(partial(_beside, n_chunks=self._n_chunks))(batch, old)

    def as_experience(self, runner: Runner, transitions: Transition) -> Experience:
        """Return the parts of a new rollout that are kept.

        Args:
            runner: After the rollout, except for its critics' recurrent state.
            transitions: The rollout.

        Raises:
            ValueError: the runner has no buffer; or a rollout collected by hand has other parts
                than the environments' own.
        """
        if runner.replay is None:
            raise ValueError(
                "the runner holds no earlier rollouts, as an agent with replay_updates=0 made it; "
                "begin with this agent's init."
            )
        new = Experience(transitions, runner.observation, runner.memory.critic)
        stored = runner.replay.experience
        if jax.tree.structure(new) != jax.tree.structure(stored):
            raise ValueError(
                "the rollout has other parts (action masks, global state, final observations) than "
                "the agent's own rollouts, with which it would be replayed; give the "
                "observations as agent.environments returns them, or choose replay_updates=0."
            )
        return jax.tree.map(lambda leaf, kept: leaf.astype(kept.dtype), new, stored)

    def _earlier(self, replay: PyTree) -> Experience:
        """Return all rollouts of a full buffer, as one of more environments."""
        stored: Experience = jax.tree.map(lambda leaf: leaf[0], replay.experience)

        def widen(leaf: Array) -> Array:
            """Make ``[time, rollouts * envs, ...]`` from ``[rollouts, time, envs, ...]``."""
            rows = jnp.moveaxis(leaf, 0, 1)
            return rows.reshape(len(rows), -1, *rows.shape[3:])

        def flatten(leaf: Array) -> Array:
            return leaf.reshape(-1, *leaf.shape[2:])

        return Experience(
            transitions=jax.tree.map(widen, stored.transitions),
            last_observation=jax.tree.map(flatten, stored.last_observation),
            memory=jax.tree.map(flatten, stored.memory),
        )


def _beside(new: Batch, old: Batch, n_chunks: int) -> Batch:
    """Append one policy's old samples to its new ones, and measure the KL of the new."""
    total, n_new = jnp.sum(new.weight) + jnp.sum(old.weight), jnp.sum(new.weight)
    share = jnp.where(n_new > 0, total / jnp.where(n_new > 0, n_new, 1.0), 0.0)
    return beside(
        [
            new._replace(kl_weight=jnp.broadcast_to(share, new.weight.shape)),
            old._replace(kl_weight=jnp.zeros_like(old.weight)),
        ],
        n_chunks,
    )
