"""The pytrees that the stages of training pass to each other.

Axes: ``time`` is a rollout's steps, ``envs`` the parallel environments, ``actors`` the
environment's agents, ``policies`` the parameter sets. Leading axes are shown if a type always has
them; the same type serves single and stacked values.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

if TYPE_CHECKING:
    PyTree = Any  # jaxtyping's own is of unknown type to strict type checkers
else:
    from jaxtyping import PyTree

Metrics = dict[str, Array]
"""Metrics of training and evaluation by name."""

IMAGE_NDIM = 3
"""Observations with this many axes are images: height, width and channels."""


class Observation(NamedTuple):
    """The observations of all actors."""

    features: Array  # [*batch, actors, *obs]
    # True: the action may be chosen, or the actor has this dimension of a Box
    action_mask: Bool[Array, "*batch actors n_actions"] | None = None
    global_state: Array | None = None  # [*batch, *state], for centralised critics
    elapsed: Int[Array, "*batch"] | None = None  # steps since the reset, for agents that observe it
    # the same since each actor's life began; None: with the episode
    age: Int[Array, "*batch actors"] | None = None
    # False: the actor waits for others, and its action has zero weight; None: all act
    has_turn: Bool[Array, "*batch actors"] | None = None


def to_be_valued(observation: Observation) -> Observation:
    """Drop the fields that only acting needs."""
    return observation._replace(action_mask=None, has_turn=None)


class TimeStep(NamedTuple):
    """A step of a batch of environments."""

    observation: Observation  # after any reset
    final_observation: Observation  # before any reset
    reward: Float[Array, "envs actors"]
    shaped_reward: Float[Array, "envs actors"] | None  # for learning only
    terminated: Bool[Array, "envs actors"]  # the state is terminal
    truncated: Bool[Array, "envs actors"]  # cut off in a state that is not terminal
    active: Bool[Array, "envs actors"]  # the actor was alive before the step
    episode_over: Bool[Array, "envs"]  # for every actor: the environment was reset
    begins: Bool[Array, "envs actors"]  # a life of the actor begins with the next step
    info: dict[str, Array]  # the environment's scalar infos, [envs] or [envs, actors]
    final_state: PyTree = None  # before any reset, [envs, ...]; None: the environment hides it


class Memory(NamedTuple):
    """Recurrent states, ``[envs, actors, ...]``; empty for feed-forward networks."""

    actor: PyTree = ()
    critic: PyTree = ()


class Transition(NamedTuple):
    """One step of a rollout; stacked over time, ``[time, envs, actors, ...]``."""

    observation: Observation
    memory: PyTree  # the actor's recurrent state before the step
    action: Array  # as sampled: unclipped, before any squashing
    log_prob: Float[Array, "*batch"] | None  # None: not computed yet
    reward: Float[Array, "*batch"]
    terminated: Bool[Array, "*batch"]
    truncated: Bool[Array, "*batch"]
    active: Bool[Array, "*batch"]
    begins: Bool[Array, "*batch"]  # a life of the actor begins with the next step
    final_observation: Observation | None  # before any reset; None: no value is taken from it


class Trajectory(NamedTuple):
    """The inputs of an advantage estimate, ``[time, envs, actors]``."""

    reward: Float[Array, "time *batch"]
    value: Float[Array, "time *batch"]  # V of the observation before the step
    # V of the next observation; at a truncation, of the final one, from before the reset. After a
    # termination it has no meaning.
    next_value: Float[Array, "time *batch"]
    terminated: Bool[Array, "time *batch"]
    truncated: Bool[Array, "time *batch"]


class Batch(NamedTuple):
    """One policy's samples of an update, ``[time, sequences, actors, ...]``, or a minibatch.

    A sequence is an environment's trajectory or, for recurrent networks, a chunk of one. The actors
    are the policy's own. Padding and inactive actors have zero weight, except that inactive actors
    keep their weight in the critic's loss if rewards continue after death.
    """

    observation: Observation
    critic_features: Array
    actor: Int[Array, "*batch"]  # which of the policy's actors, counted from 0
    begins: Bool[Array, "*batch"]  # the step is the first of an actor's life
    memory: Memory  # recurrent states at the start of sequences, [1, sequences, actors, ...]
    action: Array
    log_prob: Float[Array, "*batch"]
    trajectory: Trajectory
    advantage: Float[Array, "*batch"]  # standardised, or in units of reward
    loss_scale: Float[Array, ""]  # of the actor's loss
    value: Float[Array, "*batch"]  # the critic's output at the rollout
    value_target: Float[Array, "*batch"]
    weight: Float[Array, "*batch"]
    value_weight: Float[Array, "*batch"]  # in the critic's loss
    # In the KL divergence, relative to `weight`; None: 1
    kl_weight: Float[Array, "*batch"] | None = None


class NetworkState(NamedTuple):
    """Parameters and optimizer state of one network, ``[policies, ...]`` in a `Runner`."""

    params: PyTree
    opt_state: PyTree


class Runner(struct.PyTreeNode):
    """The whole state of a training run: everything that is needed to continue it."""

    actor: NetworkState  # [policies, ...]
    critic: NetworkState  # [policies, ...]
    env_state: PyTree  # [envs, ...]
    observation: Observation  # [envs, actors, ...]
    memory: Memory  # [envs, actors, ...]
    normalizers: Any  # Normalizers, [policies, ...]
    learning_rate: Any  # the actor's, float32 [policies], if it adapts; else None
    rng: PRNGKeyArray
    hyperparams: Any  # HyperParameters
    n_updates_done: Int[Array, ""]
    n_updates_skipped: Int[Array, " policies"]  # because of NaN or infinity
    replay: Any = None  # earlier rollouts, if updates learn from them again; see `Replay`
    n_steps: Any = np.int32(1)  # updates of the whole run, over which schedules anneal

    def __repr__(self) -> str:
        """Summarise: there are too many arrays to show."""
        return (
            f"Runner(n_updates_done={_shown(self.n_updates_done)}, "
            f"n_updates_skipped={_shown(self.n_updates_skipped)}, "
            f"actor: {_count(self.actor.params)} parameters in all, "
            f"critic: {_count(self.critic.params)} parameters in all, "
            f"environment state: {_count(self.env_state)} values)"
        )


class NetworkParams(NamedTuple):
    """Parameters of a network and the statistics of its inputs, ``[policies, ...]``."""

    params: PyTree
    features: Any  # RunningStatistics that normalise observations; None: not normalised


class Training(NamedTuple):
    """Carry of the loop over blocks of updates."""

    runner: Runner
    stop: Bool[Array, ""]  # the host requests it, or a quantity is NaN or infinite
    nonfinite: Bool[Array, "policies quantities"]  # quantities found NaN or infinite


class Updates(NamedTuple):
    """Carry of the loop over a block's updates."""

    runner: Runner
    n_left: Int[Array, ""]
    nonfinite: Bool[Array, "policies quantities"]  # quantities found NaN or infinite
    n_finite: Int[Array, " policies"]
    # Sums of the training metrics over finite updates; of some, maxima
    total: dict[str, Float[Array, " policies"]]


class UpdateKeys(NamedTuple):
    """Random keys of an update, one for each consumer."""

    rollout: PRNGKeyArray
    actor: Key[Array, " policies"]
    critic: Key[Array, " policies"]
    next_update: PRNGKeyArray


class FitLoop(NamedTuple):
    """Carry of the epochs in which one policy's actor, its critic, or both are trained."""

    networks: dict[str, NetworkState]  # by name
    stats: Metrics  # means over the latest epoch's active samples
    gradient_norm: Float[Array, ""]  # before clipping
    epoch: Int[Array, ""]  # epochs completed
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


def leaf_name(path: Any) -> str:
    """Return the dotted name of a leaf's path in a tree."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def shapes_by_name(tree: PyTree) -> dict[str, str]:
    """Return each array's dtype and shape, as in ``float32[2, 3]``, by its name."""
    return {
        leaf_name(path): f"{leaf.dtype}{list(leaf.shape)}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _shown(count: Any) -> str:
    """Write counts, or their dtype and shape if they are abstract."""
    if isinstance(count, np.ndarray | jax.Array) and not isinstance(count, Tracer):
        return str(np.asarray(count).tolist())
    return f"<{count.dtype}{list(count.shape)}>"


def _count(tree: PyTree) -> str:
    return f"{sum(int(np.prod(jnp.shape(leaf))) for leaf in jax.tree.leaves(tree)):,}"
