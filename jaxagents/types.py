"""The pytrees that the stages of training pass to each other. No logic.

Axes: ``time`` is a rollout's steps, ``envs`` the parallel environments, ``actors`` the
environment's agents, ``policies`` the parameter sets. Leading axes are shown where a type
always has them; the same type serves single and stacked values.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

Metrics = dict[str, Array]
"""Metrics of training and evaluation by name."""


class Observation(NamedTuple):
    """What actors see."""

    features: Array  # [*batch, actors, *obs]
    # True: the action may be chosen, or the actor has this dimension of a Box
    action_mask: Bool[Array, "*batch actors n_actions"] | None = None
    global_state: Array | None = None  # [*batch, *state], for centralised critics


class TimeStep(NamedTuple):
    """What a batch of environments answers to a batch of actions."""

    observation: Observation  # after any reset
    final_observation: Observation  # before any reset
    reward: Float[Array, "envs actors"]
    shaped_reward: Float[Array, "envs actors"] | None  # for learning only
    terminated: Bool[Array, "envs actors"]  # no reward follows
    truncated: Bool[Array, "envs actors"]  # what follows goes unseen
    active: Bool[Array, "envs actors"]  # the actor was alive when it acted
    episode_over: Bool[Array, "envs"]  # for every actor: the environment was reset
    info: dict[str, Array]  # the environment's scalar infos, [envs]
    final_state: PyTree = None  # before any reset, [envs, ...]; None: the environment hides it

    @property
    def episode_over_for_actors(self) -> Bool[Array, "*time envs actors"]:
        """The end of the environment's episode, repeated for each actor."""
        return jnp.broadcast_to(self.episode_over[..., None], self.active.shape)


class Memory(NamedTuple):
    """What recurrent networks remember, ``[envs, actors, ...]``; empty for feed-forward ones."""

    actor: PyTree = ()
    critic: PyTree = ()


class Move(NamedTuple):
    """What one step of a rollout leaves, ``[envs, actors, ...]``."""

    observation: Observation  # that was acted on
    memory: PyTree  # the actor network's, before the step
    head: PyTree  # parameters of the distribution that the action was drawn from
    action: Array  # as the distribution drew it
    step: TimeStep


class Transition(NamedTuple):
    """One step of a rollout; stacked over time, ``[time, envs, actors, ...]``."""

    observation: Observation
    memory: PyTree  # the actor network's, before the step
    action: Array  # as the distribution drew it: unclipped, before any squashing
    log_prob: Float[Array, "*batch"]
    reward: Float[Array, "*batch"]
    terminated: Bool[Array, "*batch"]
    truncated: Bool[Array, "*batch"]
    active: Bool[Array, "*batch"]
    episode_over: Bool[Array, "*batch"]  # for every actor
    final_observation: Observation


class Path(NamedTuple):
    """What advantages are estimated from, ``[time, envs, actors]``."""

    reward: Float[Array, "time *batch"]
    value: Float[Array, "time *batch"]  # V of the observation that was acted on
    next_value: Float[Array, "time *batch"]  # V of the next one, *before* any reset
    terminated: Bool[Array, "time *batch"]
    truncated: Bool[Array, "time *batch"]


class Batch(NamedTuple):
    """What one policy learns from in an update, ``[time, sequences, actors, ...]`` or any subset.

    A sequence is an environment's trajectory or, for networks with memory, a chunk of one. The
    actors are the policy's own; padding actors weigh nothing, and neither do inactive ones, but
    for the critic where rewards go on after death.
    """

    observation: Observation
    critic_features: Array
    begins: Bool[Array, "*batch"]  # the step is an episode's first: memories are empty
    memory: Memory  # at the start of each sequence, [1, sequences, actors, ...]
    action: Array
    log_prob: Float[Array, "*batch"]
    path: Path
    advantage: Float[Array, "*batch"]  # normalised
    value: Float[Array, "*batch"]  # as the critic gave it
    value_target: Float[Array, "*batch"]
    weight: Float[Array, "*batch"]
    value_weight: Float[Array, "*batch"]  # in the critic's loss


class NetworkState(NamedTuple):
    """Parameters and optimizer state of one network, ``[policies, ...]`` in a `Runner`."""

    params: PyTree
    opt_state: PyTree


class Runner(struct.PyTreeNode):
    """Everything that continuing a training needs."""

    actor: NetworkState  # [policies, ...]
    critic: NetworkState  # [policies, ...]
    env_state: PyTree  # [envs, ...]
    observation: Observation  # [envs, actors, ...]
    memory: Memory  # [envs, actors, ...]
    normalizers: Any  # Normalizers, [policies, ...]
    learning_rate: Any  # the actor's, float32 [policies], where it adapts itself; else None
    rng: PRNGKeyArray
    hyperparams: Any  # HyperParameters
    n_updates_done: Int[Array, ""]
    n_updates_skipped: Int[Array, " policies"]  # for numbers that were not finite


class Inference(NamedTuple):
    """What it takes to apply a network that is not being trained, ``[policies, ...]``."""

    params: PyTree
    features: Any  # RunningStatistics to normalise what it sees; None: it sees it as it is


class Training(NamedTuple):
    """What training blocks hand on to each other."""

    runner: Runner
    stop: Bool[Array, ""]  # the host has asked to end here, or numbers are not finite any more
    nonfinite: Bool[Array, "policies quantities"]  # what updates have found


class Updates(NamedTuple):
    """Carry of the loop over a block's updates."""

    runner: Runner
    n_left: Int[Array, ""]
    nonfinite: Bool[Array, "policies quantities"]  # what updates have found
    n_finite: Int[Array, " policies"]
    total: dict[str, Float[Array, " policies"]]  # of the training metrics, over finite updates


class Rollout(NamedTuple):
    """Carry of the scan over environment steps."""

    env_state: PyTree  # [envs, ...]
    observation: Observation  # [envs, actors, ...]
    memory: PyTree  # the actor network's, [envs, actors, ...]


class ActorLoop(NamedTuple):
    """Carry of the early-stopped actor epochs of one policy."""

    actor: NetworkState
    stats: Any  # ActorStats, means over the latest epoch's active samples
    gradient_norm: Float[Array, ""]  # before clipping
    epoch: Int[Array, ""]  # epochs completed
    rng: PRNGKeyArray


class CriticLoop(NamedTuple):
    """Carry of the critic epochs of one policy."""

    critic: NetworkState
    loss: Float[Array, ""]  # mean over the latest epoch's active samples
    gradient_norm: Float[Array, ""]  # before clipping
    rng: PRNGKeyArray


class MetricStats(NamedTuple):
    """Statistics of a metric over episodes, ``[*evaluations, actors]``; see `summarize`."""

    mean: Any
    std: Any
    var: Any
    min: Any
    max: Any
    median: Any
    iqm: Any  # interquartile mean: of the middle half of the episodes
    ci_low: Any  # bounds of the mean's 95 % bootstrap interval
    ci_high: Any
    has_nans: Any
    episodes: Any  # the values themselves, [*evaluations, episodes, actors]
