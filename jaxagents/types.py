"""The types that packages share: pytrees that stages of training pass on, and the registry.

Axes: ``time`` is a rollout's steps, ``envs`` the parallel environments, ``actors`` the
environment's agents, ``policies`` the parameter sets. Leading axes are shown if a type always has
them; the same type serves single and stacked values.
"""

import difflib
from collections.abc import Callable, Iterable
from importlib import metadata
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, final

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from jaxagents.errors import EntryPointError

if TYPE_CHECKING:
    PyTree = Any  # jaxtyping's own is of unknown type to strict type checkers
else:
    from jaxtyping import PyTree

Metrics = dict[str, Array]
"""Metrics of training and evaluation by name."""

IMAGE_NDIM = 3
"""Observations of as many axes are images: height, width and channels."""


class Observation(NamedTuple):
    """The observations of all actors."""

    features: Array  # [*batch, actors, *obs]
    # True: the action may be chosen, or the actor has this dimension of a Box
    action_mask: Bool[Array, "*batch actors n_actions"] | None = None
    global_state: Array | None = None  # [*batch, *state], for centralised critics
    elapsed: Int[Array, "*batch"] | None = None  # steps since the reset, for agents that observe it


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
    info: dict[str, Array]  # the environment's scalar infos, [envs]
    final_state: PyTree = None  # before any reset, [envs, ...]; None: the environment hides it

    @property
    def episode_over_for_actors(self) -> Bool[Array, "*time envs actors"]:
        """The end of the environment's episode, repeated for each actor."""
        return jnp.broadcast_to(self.episode_over[..., None], self.active.shape)


class Memory(NamedTuple):
    """Recurrent states, ``[envs, actors, ...]``; empty for feed-forward networks."""

    actor: PyTree = ()
    critic: PyTree = ()


class Choice(NamedTuple):
    """The actions of all actors at a step of a rollout, ``[envs, actors, ...]``."""

    head: Any  # the distribution's parameters
    action: Array  # as sampled
    memory: PyTree  # the actors' recurrent state after it


class Move(NamedTuple):
    """What the scan of a rollout stacks: a step with its distribution, ``[envs, actors, ...]``."""

    observation: Observation  # before the step
    memory: PyTree  # the actor's recurrent state before the step
    head: PyTree  # parameters of the distribution that the action was sampled from
    action: Array  # as sampled
    step: TimeStep  # only the parts that learning reads


class Transition(NamedTuple):
    """One step of a rollout; stacked over time, ``[time, envs, actors, ...]``."""

    observation: Observation
    memory: PyTree  # the actor's recurrent state before the step
    action: Array  # as sampled: unclipped, before any squashing
    log_prob: Float[Array, "*batch"]
    reward: Float[Array, "*batch"]
    terminated: Bool[Array, "*batch"]
    truncated: Bool[Array, "*batch"]
    active: Bool[Array, "*batch"]
    episode_over: Bool[Array, "*batch"]  # for every actor
    final_observation: Observation | None  # before any reset; None: no value is taken from it


class Path(NamedTuple):
    """The inputs of an advantage estimate, ``[time, envs, actors]``."""

    reward: Float[Array, "time *batch"]
    value: Float[Array, "time *batch"]  # V of the observation before the step
    next_value: Float[Array, "time *batch"]  # V of the observation after it, *before* any reset
    terminated: Bool[Array, "time *batch"]
    truncated: Bool[Array, "time *batch"]


class Batch(NamedTuple):
    """One policy's samples of an update, ``[time, sequences, actors, ...]``, or a minibatch.

    A sequence is an environment's trajectory or, for recurrent networks, a chunk of one. The actors
    are the policy's own. Padding and inactive actors have zero weight, except that inactive actors
    keep their weight in the critic's loss if rewards go on after death.
    """

    observation: Observation
    critic_features: Array
    begins: Bool[Array, "*batch"]  # the step is an episode's first
    memory: Memory  # recurrent states at the start of sequences, [1, sequences, actors, ...]
    action: Array
    log_prob: Float[Array, "*batch"]
    path: Path
    advantage: Float[Array, "*batch"]  # standardised
    loss_scale: Float[Array, "*batch"]  # of the actor's loss; the same for all samples
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

    def __repr__(self) -> str:
        """Summarise: there are too many arrays to show."""
        return (
            f"Runner(n_updates_done={_shown(self.n_updates_done)}, "
            f"n_updates_skipped={_shown(self.n_updates_skipped)}, "
            f"actor: {_count(self.actor.params)} parameters in all, "
            f"critic: {_count(self.critic.params)} parameters in all, "
            f"environment state: {_count(self.env_state)} values)"
        )


class Inference(NamedTuple):
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


class RolloutLoop(NamedTuple):
    """Carry of the scan over environment steps."""

    env_state: PyTree  # [envs, ...]
    observation: Observation  # [envs, actors, ...]
    memory: PyTree  # the actors' recurrent state, [envs, actors, ...]


class UpdateKeys(NamedTuple):
    """Random keys of an update, one for each consumer."""

    rollout: PRNGKeyArray
    actor: Key[Array, " policies"]
    critic: Key[Array, " policies"]
    next_update: PRNGKeyArray


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


def _shown(count: Any) -> str:
    """Write counts, or their dtype and shape if they are abstract."""
    if isinstance(count, np.ndarray | jax.Array) and not isinstance(count, Tracer):
        return str(np.asarray(count).tolist())
    return f"<{count.dtype}{list(count.shape)}>"


def _count(tree: PyTree) -> str:
    return f"{sum(int(np.prod(jnp.shape(leaf))) for leaf in jax.tree.leaves(tree)):,}"


T = TypeVar("T")


def check_callable(value: Any) -> None:
    """Check that a registered object can be called.

    Raises:
        TypeError: it cannot.
    """
    if not callable(value):
        raise TypeError(f"{value!r} cannot be called; give a class or a function.")


@final
class Registry(Generic[T]):
    """Objects by name: registered in this process, or brought by installed packages.

    The entry points of packages are read for names that are not registered, and a package is
    imported once its name is used.

    Args:
        kind: What the objects are, in error messages, such as "network".
        group: Group of the entry points.
        check: Raises TypeError for an object of another kind.
    """

    def __init__(self, kind: str, group: str, check: Callable[[Any], None] = check_callable):
        self._kind = kind
        self._group = group
        self._check = check
        self._registered: dict[str, T] = {}
        self._loaded: dict[str, T] = {}  # from entry points

    def __contains__(self, name: str) -> bool:
        """True if a name is registered in this process."""
        return name in self._registered

    def register(self, name: str, value: T) -> None:
        """Register an object; it takes the place of an installed package's of that name.

        Raises:
            TypeError: the name is no text, or the object is of another kind.
            ValueError: the name is taken by another object.
        """
        if not isinstance(name, str) or not name:
            raise TypeError(f"{name!r} cannot name a registered {self._kind}; give a text.")
        self._check(value)
        if self._registered.get(name, value) is not value:
            raise ValueError(f"the {self._kind} {name!r} is taken; choose another name.")
        self._registered[name] = value

    def names(self) -> list[str]:
        """List the names of registered objects, then those of installed packages."""
        installed = {each.name for each in metadata.entry_points(group=self._group)}
        return [*self._registered, *sorted(installed - self._registered.keys())]

    def find(self, name: str) -> T | None:
        """Return the object of a name, or None if it is unknown.

        Raises:
            EntryPointError: the package that brings it cannot be used, or two packages do.
        """
        if name in self._registered:
            return self._registered[name]
        if name not in self._loaded:
            entries = tuple(metadata.entry_points(group=self._group, name=name))
            if not entries:
                return None
            self._loaded[name] = self._load(entries)
        return self._loaded[name]

    def get(self, name: str) -> T:
        """Return the object of a name.

        Raises:
            ValueError: the name is unknown.
            EntryPointError: as for `find`.
        """
        value = self.find(name)
        if value is not None:
            return value
        names = self.names()
        known = (
            f"Known: {', '.join(names)}."
            if names
            else f"None is known: call jaxagents.register_{self._kind} first, or install the "
            "package that brings it."
        )
        raise ValueError(f"unknown {self._kind} {name!r}.{did_you_mean(name, names)} {known}")

    def _load(self, entries: tuple[metadata.EntryPoint, ...]) -> T:
        first, *others = entries
        if others:
            packages = " and ".join(sorted(_package_of(each) for each in entries))
            raise EntryPointError(
                f"the {self._kind} {first.name!r} is brought by the packages {packages}; "
                "uninstall one of them."
            )
        try:
            value = first.load()
            self._check(value)
        except Exception as error:  # a package may raise anything when it is imported
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise EntryPointError(
                f"the {self._kind} {first.name!r} of the package {_package_of(first)} cannot be "
                f"loaded by its entry point {first.value!r} in {self._group}: {reason}"
            ) from error
        return value


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Suggest similar names, ignoring case; what stands before a slash may be missing.

    Returns:
        A sentence with a space before it, or nothing.
    """
    names = list(names)
    by_spelling = {each.partition("/")[2].lower(): each for each in names}
    by_spelling |= {each.lower(): each for each in names}
    close = difflib.get_close_matches(name.lower(), by_spelling, n=3, cutoff=0.6)
    similar = list(dict.fromkeys(by_spelling[spelling] for spelling in close))
    return f" Did you mean {' or '.join(similar)}?" if similar else ""


def _package_of(entry: metadata.EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.module
