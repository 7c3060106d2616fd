"""The vectorised environment that an agent plays.

An agent depends on `EnvironmentBatch` alone, never on a single environment. Environments of JAX are
vmapped by ``jax_batch``; those of other libraries are in the package ``host``.
"""

import abc
import contextlib
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from jaxagents.entities import Entities, EntityKind
from jaxagents.environments.observation_features import (
    append_agent_id,
    append_time,
    for_each_actor,
    joint_features,
)
from jaxagents.environments.protocol import as_flat_observation, as_observation
from jaxagents.environments.spaces import ActionSpace, Discrete
from jaxagents.environments.success import Success
from jaxagents.environments.time_limits import TimeLimit
from jaxagents.types import Observation, PyTree, TimeStep


class BatchState(NamedTuple):
    """State of a batch of environments."""

    env_state: PyTree  # [envs, ...]
    active: Bool[Array, "envs actors"]  # the actor's episode has not ended
    episode_steps: Int[Array, "envs"]  # since the reset
    age: Int[Array, "envs actors"] | None = None  # steps of the actor's life, if observed

    def stepped(
        self,
        env_state: PyTree,
        ended: Bool[Array, "envs actors"],
        active: Bool[Array, "envs actors"],
        episode_over: Bool[Array, " envs"],
    ) -> tuple["BatchState", Bool[Array, "envs actors"]]:
        """Return the state after a step, and where a life of an actor begins.

        A life begins at a reset, and within an episode when an actor comes back or another takes
        its position.

        Args:
            env_state: After the step.
            ended: The actor's life ended in the step, or it is dead.
            active: Which actors act next.
            episode_over: For every actor.
        """
        begins = episode_over[:, None] | ((~self.active | ended) & active)
        age = None if self.age is None else jnp.where(begins, 0, self.age + 1)
        steps = jnp.where(episode_over, 0, self.episode_steps + 1)
        return BatchState(env_state, active, steps, age), begins


class EnvironmentBatch(abc.ABC):
    """Environments stepped together, each reset when its episode is over for all actors.

    Args:
        observation: Shapes and dtypes of one environment's own observation, ``[actors, *obs]``.
        space: One actor's action space.
        teams: Each actor's team, or None.
        time_limit: What truncation means, and whether the time is observed.
        agent_id: Append each actor's one-hot index to its observation.
        global_state: Add a global state to observations: the environment's own if it has one,
            otherwise the observations of all actors.

    Raises:
        ValueError: actors observe nothing.

    Attributes:
        n_actors: Number of actors in each environment.
        space: One actor's action space.
        observation: Shapes and dtypes of one environment's observation, ``[actors, *obs]``.
        own_observation: The observation before agent ids, the time and a global state are added.
        teams: Each actor's team, or None.
        rewards_after_death: True if dead actors earn rewards until the end of the episode.
        has_shaped_reward: True if steps return a shaped reward.
        returns_tuples: True if the environment's own observations are tuples of arrays.
        has_hidden_infos: True if episodes have infos that stay on the host.
        has_idle_steps: True if a reset can take a step of its own, in which no actor is active.
        time_limit: What truncation means, and whether the time is observed.
        success: The info that evaluations report as success, or None.
        entity_kinds: The environment's description of the entities in observations, or None.
        can_be_vmapped: True if `reset` and `step` can be a part of a `jax.vmap`.
        can_be_divided: True if environments can be divided among devices.
        one_device_per_process: True if only devices of different processes can divide them.
    """

    success: Success | None = None
    entity_kinds: Mapping[str, EntityKind] | None = None
    rewards_after_death: bool = False
    has_shaped_reward: bool = False
    returns_tuples: bool = False
    has_hidden_infos: bool = False
    has_idle_steps: bool = False
    can_be_vmapped: bool = True
    can_be_divided: bool = False
    one_device_per_process: bool = False

    def __init__(
        self,
        observation: Observation,
        space: ActionSpace,
        teams: Sequence[int] | None,
        time_limit: TimeLimit,
        agent_id: bool,
        global_state: bool,
    ):
        self.own_observation = observation
        self.n_actors: int = observation.features.shape[0]
        self.space = space
        self.teams = None if teams is None else _as_teams(teams, self.n_actors)
        self.time_limit = time_limit
        self._agent_id = agent_id
        self._global_state = global_state
        self._offers_global_state = observation.global_state is not None
        self._n_observation_axes = observation.features.ndim - 1
        self.observation: Observation = jax.eval_shape(
            lambda observation: self._prepare(observation, jnp.zeros((), jnp.int32)), observation
        )
        if 0 in self.observation.features.shape:
            raise ValueError(
                f"actors observe nothing: observations have shape {observation.features.shape}; "
                "observe at least one number, such as a constant 0, or set agent_id=True."
            )

    @property
    def entities(self) -> Entities | None:
        """The entities in prepared observations; None: unknown, or no vectors are observed.

        Raises:
            ValueError: the environment's description is wrong; see `Entities.of`.
        """
        if self.entity_kinds is None or self._n_observation_axes != 1:
            return None
        n_actions = self.space.n if isinstance(self.space, Discrete) else 0
        return Entities.of(self.entity_kinds, self.observation.features.shape[-1], n_actions)

    @property
    def has_rivals(self) -> bool:
        """True if one actor's gain may be another's loss."""
        return len(set(self.teams or ())) > 1

    @abc.abstractmethod
    def reset(self, rng: PRNGKeyArray, n_envs: int) -> tuple[Observation, BatchState]:
        """Start an episode in each of ``n_envs`` environments."""

    def reset_part(
        self, rng: PRNGKeyArray, n_envs: int, n_parts: int
    ) -> tuple[Observation, BatchState]:
        """Reset as `reset` does, outside of compiled code that is divided among devices.

        Args:
            rng: Random key.
            n_envs: Number of environments, of all processes.
            n_parts: Number of devices. Where `one_device_per_process`, a process resets only its
                own part, and returns zeros for the others.
        """
        del n_parts
        return self.reset(rng, n_envs)

    @abc.abstractmethod
    def step(
        self, rng: PRNGKeyArray, state: BatchState, action: Array
    ) -> tuple[TimeStep, BatchState]:
        """Step each environment, ``[envs, actors, ...]``, and reset where the episode is over."""

    def for_evaluation(self) -> "EnvironmentBatch":
        """Return a batch for evaluations, whose episodes do not disturb this one's."""
        return self

    def n_copies(self, n_envs: int) -> int:
        """Return how many environments to reset where ``n_envs`` are needed: at least as many."""
        return n_envs

    def for_recording(self, n_episodes: int) -> "EnvironmentBatch":
        """Return a batch that shows the states of its first environments, if this one hides them.

        If it is another batch than this one, close it after the recording.
        """
        del n_episodes
        return self

    def infos_of_episodes(
        self, actors: Sequence[int] | None = None, is_divided: bool = False
    ) -> dict[str, np.ndarray]:
        """Return scalar infos that stay on the host, by name, ``[episodes]``.

        They describe each environment's first episode since the latest reset: each actor's info at
        its own last step, averaged over the actors that have it.

        Args:
            actors: Those whose infos count; None: all.
            is_divided: Each process has played a part of the episodes.
        """
        del actors, is_divided
        return {}

    def close(self) -> None:  # noqa: B027 -- most have nothing to end
        """End worker processes, if there are any."""

    def can_continue(self, state: BatchState) -> bool:
        """Return True if `step` can continue from a state; otherwise `reset` first."""
        del state
        return True

    def environment_states(self, state: BatchState) -> PyTree:
        """Return the environments' own states, ``[envs, ...]``, as recordings show them."""
        return state.env_state

    def begin_anew(self, state: BatchState, earlier: BatchState) -> BatchState:
        """After a mid-training reset, carry over state that persists across episodes."""
        del earlier
        return state

    def bind_learner(self, learner: Any) -> None:
        """Receive the learner as an `Opponent`, so that it can play other actors."""
        del learner

    def after_update(self, state: BatchState, learner: PyTree, n_updates_done: Array) -> BatchState:
        """Receive the updated learner, the `NetworkParams` of its actors.

        Called before training, with 0, and after every update.
        """
        del learner, n_updates_done
        return state

    def keep_own_ends(self) -> None:
        """Return each actor's own end, also where dead actors earn rewards."""
        self.rewards_after_death = False

    def raising_faults(self) -> contextlib.AbstractContextManager[None]:
        """Enter a context that raises the environments' own errors, which compiled code hides."""
        return contextlib.nullcontext()

    def share_faults(self, results: PyTree) -> None:
        """Raise an environment's error in all processes.

        Args:
            results: The results of the programs that have called the environments.
        """
        del results

    def prepare(self, observation: PyTree | Observation) -> Observation:
        """Add the configured agent ids, global state and time to an observation.

        Args:
            observation: ``[*batch, actors, *obs]``, or a dictionary as the environment returned it,
                without batch axes; the time is read from ``elapsed`` and ``age``.

        Raises:
            ValueError: the observation has another shape; or the time is observed, and the
                observation does not hold it.
        """
        observation = self.as_flat(observation, n_batch_axes=1)
        self._check_shape(observation.features.shape)
        if observation.elapsed is None and self.time_limit.is_observed:
            raise ValueError(
                "the agent observes the time (observe_time), which this observation does not hold; "
                "give the Observation that the environment returned, or jaxagents.Observation("
                "features, elapsed=...) with the number of steps since the reset."
            )
        return self._prepare(observation, observation.elapsed, observation.age)

    def as_flat(self, observation: PyTree | Observation, n_batch_axes: int) -> Observation:
        """Flatten a dictionary, or a tuple if the environment returns them, to vectors.

        Args:
            observation: As the environment returns it.
            n_batch_axes: Axes before each actor's own: ``[*batch, actors]``.
        """
        features = observation.features if isinstance(observation, Observation) else observation
        if isinstance(features, (dict, tuple, list) if self.returns_tuples else dict):
            return as_flat_observation(observation, n_batch_axes)
        return as_observation(observation)

    def as_prepared(self, observation: Array | Observation) -> Observation:
        """Prepare an observation ``[*batch, actors, *obs]``, unless this batch returned it."""
        observation, template = as_observation(observation), self.observation
        is_prepared = self._is_prepared(observation.features.shape)
        if is_prepared and (observation.global_state is None) == (template.global_state is None):
            return observation._replace(elapsed=None, age=None)
        return self.prepare(observation)

    def check_mask(self, observation: Array | np.ndarray | Observation) -> None:
        """Raise `ValueError` if the environment has masks, and the observation has none like it."""
        if self.own_observation.action_mask is None:
            return
        features, mask, *_ = as_observation(observation)
        if mask is None:
            raise ValueError(
                "the observation has no action mask, which this environment's observations have; "
                "give jaxagents.Observation(features, action_mask) as the environment returned it."
            )
        shape = jnp.shape(features)
        like = self.observation if self._is_prepared(shape) else self.own_observation
        batch_shape = shape[: len(shape) - like.features.ndim + 1]
        expected = (*batch_shape, self.own_observation.action_mask.shape[-1])
        if jnp.shape(mask) != expected:
            raise ValueError(
                f"the action mask has shape {jnp.shape(mask)}, and the observation {shape}; give a "
                f"mask of shape {expected}: True where an actor may choose an action."
            )

    def check_shape(
        self, name: str, observation: Array | np.ndarray | Observation, batch_shape: tuple[int, ...]
    ) -> None:
        """Raise `ValueError` if an observation is not of all actors, in a batch of this shape.

        Args:
            name: The observation's name in the error.
            observation: As the environment or as this batch returns it.
            batch_shape: The axes before the actors.
        """
        shape = tuple(as_observation(observation).features.shape)
        own, prepared = self.own_observation.features.shape, self.observation.features.shape
        if shape not in ((*batch_shape, *own), (*batch_shape, *prepared)):
            raise ValueError(
                f"the {name} has shape {shape}; the agent was built for {(*batch_shape, *own)}: "
                f"{'environments, ' if batch_shape else ''}actors and the features of one."
            )

    def _is_prepared(self, shape: tuple[int, ...]) -> bool:
        prepared = self.observation.features.shape
        return shape[-len(prepared) :] == prepared

    def _check_shape(self, shape: tuple[int, ...]) -> None:
        # Policies may be applied to more or fewer actors, so only the features' axes must agree.
        own = self.own_observation.features.shape
        if len(shape) < len(own) or shape[len(shape) - len(own) + 1 :] != own[1:]:
            raise ValueError(
                f"the observation has shape {shape}; the agent was built for {own}, the "
                "environment's own observation: actors and the features of one."
            )

    def _first_age(self, active: Bool[Array, "envs actors"]) -> Int[Array, "envs actors"] | None:
        """Return the ages with which episodes begin, if they are observed."""
        return jnp.zeros(active.shape, jnp.int32) if self.time_limit.is_observed else None

    def _prepare(
        self,
        observation: Array | Observation,
        elapsed: Int[Array, "*batch"] | None,
        age: Int[Array, "*batch actors"] | None = None,
    ) -> Observation:
        observation = as_observation(observation)
        features, global_state = observation.features, observation.global_state
        if not self._global_state:
            global_state = None
        elif global_state is None and not self._offers_global_state:
            global_state = joint_features(features, self._n_observation_axes)
        if self._agent_id:
            features = append_agent_id(features, self._n_observation_axes)
        if self.time_limit.is_observed and elapsed is not None:
            share = self.time_limit.share(elapsed)
            n_axes = features.ndim - share.ndim - 1
            own_share = share if age is None else self.time_limit.share(age)
            features = append_time(features, own_share, n_axes)
            if global_state is not None:
                global_state = append_time(global_state, share, global_state.ndim - share.ndim)
        return Observation(
            features, observation.action_mask, global_state, has_turn=observation.has_turn
        )

    def global_features(self, observation: Observation) -> Array:
        """Return the global state with each actor's index, ``[*batch, actors, ...]``.

        Raises:
            ValueError: the observation has no global state.
        """
        template, state = self.observation.global_state, observation.global_state
        if template is None or state is None:
            raise ValueError(
                "critics that see the global state need the Observation that the environment "
                "returned, not its features alone."
            )
        return for_each_actor(state, template.ndim, self.n_actors)


def _as_teams(teams: Any, n_actors: int) -> list[int]:
    try:
        numbers = [operator.index(team) for team in teams]
    except TypeError as error:
        raise TypeError(f"teams={teams!r} is no list of whole numbers, one per actor.") from error
    if len(numbers) != n_actors:
        raise ValueError(f"teams={teams!r} names {len(numbers)} actors; there are {n_actors}.")
    return numbers
