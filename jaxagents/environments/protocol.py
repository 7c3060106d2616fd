"""The environment protocol: gymnax 1.x's signature with an axis of actors."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxagents.config import TimeLimits
from jaxagents.entities import EntityKind
from jaxagents.environments.success import Success
from jaxagents.types import Observation, PyTree

StepResult = tuple[
    PyTree | Observation,
    PyTree,
    Float[Array, " actors"],
    Bool[Array, " actors"],
    Bool[Array, " actors"],
    dict[str, Any],
]


ACTS_NEXT = "acts_next"
"""Info of environments whose actors come back: which actors are alive after a step."""
FINAL_OBSERVATION = "final_observation"
"""Info of environments whose actors are replaced or reset in the step in which they end."""
NO_INFOS = (FINAL_OBSERVATION, "shaped_reward")
"""Entries of an environment's infos that have a meaning of their own, and are not metrics."""


class Environment(abc.ABC):
    """A JAX environment of one or more actors.

    Subclasses set ``n_actors`` and implement `reset_env`, `step_env` and `action_space`. They
    inherit `reset` and `step`, and an agent resets whole batches of them at once. An agent also
    accepts any other class with ``n_actors``, ``action_space(params)``, ``reset(rng, params)`` and
    ``step(rng, state, action, params)`` as defined here.

    Replays show what an optional ``draw(state, params)`` returns for each state of an episode: a
    picture as bytes ``[height, width, 3]``, at ``frames_per_second``, by default 10.

    Attributes:
        n_actors: Number of actors, dead ones included.
        teams: Each actor's team, counted from 0, for ``parameter_sharing="team"``.
        rewards_after_death: True if an actor that has died earns rewards until the episode ends for
            all actors, as in team games.
        time_limits: "terminal" if the time limit is a part of the task, so that truncation ends the
            return; "bootstrap" if not. See ``AgentConfig.time_limits``.
        success: The info that evaluations report as success; None: the return alone.
    """

    n_actors: int
    teams: Sequence[int] | None = None
    rewards_after_death: bool = False
    time_limits: TimeLimits = "bootstrap"
    success: Success | None = None

    @property
    def default_params(self) -> PyTree:
        """The parameters that `jaxagents.make` returns with the environment."""
        return None

    def entities(self, params: PyTree) -> Mapping[str, EntityKind] | None:
        """Return the kinds of entities in each actor's observation vector; None: unknown.

        Networks over entities need them: see `EntityKind`.
        """
        del params
        return None

    def max_episode_steps(self, params: PyTree) -> int | None:
        """Return the time limit in steps, or None if it is unknown.

        Agents that observe the time need it, and ``Observation.elapsed`` for `policy` and `value`.
        """
        del params
        return None

    @abc.abstractmethod
    def action_space(self, params: PyTree) -> Any:
        """Return ONE actor's action space: `Discrete`, `MultiDiscrete` or `Box`."""

    @abc.abstractmethod
    def reset_env(self, rng: PRNGKeyArray, params: PyTree) -> tuple[PyTree | Observation, PyTree]:
        """Start an episode.

        Returns:
            The observation, ``[actors, *obs]`` or an `Observation`, and the state.
        """

    @abc.abstractmethod
    def step_env(
        self, rng: PRNGKeyArray, state: PyTree, action: Array, params: PyTree
    ) -> StepResult:
        """Step without a reset.

        Args:
            rng: Random key.
            state: From `reset_env` or the previous step.
            action: ``[actors]`` int32, ``[actors, choices]`` int32 for a `MultiDiscrete` space, or
                ``[actors, *shape]`` float32 for a `Box`.
            params: The environment's parameters.

        Returns:
            observation, state, reward, terminated, truncated and a dictionary of infos, which are
            scalars or have one entry per actor. Evaluations report those of the last step as
            ``info_<name>``. The dictionary may also hold a ``shaped_reward``, ``[actors]``, for
            training only. An actor's terminated or truncated stays True until the reset, or until
            the actor comes back.

            An environment whose actors come back within an episode also returns the info
            ``acts_next``, ``[actors]`` bool: which actors are alive after the step. It may be True
            for an actor that ended in this step, if another takes its position. The episode is over
            when no actor acts next. Where the observation after a truncation is already that of
            the next actor, also return the info ``final_observation``, like the observation but
            with what the actors that ended saw last: its value bootstraps the rest.
        """

    def reset(
        self, rng: PRNGKeyArray, params: PyTree = None
    ) -> tuple[PyTree | Observation, PyTree]:
        """Start an episode; see `reset_env`."""
        return self.reset_env(rng, self.default_params if params is None else params)

    def step(
        self, rng: PRNGKeyArray, state: PyTree, action: Array, params: PyTree = None
    ) -> StepResult:
        """Step, and reset once every actor's episode has ended.

        Returns:
            As `step_env`, but with the observation after any reset; the observation before it is
            ``info["final_observation"]``, unless `step_env` returns another there.
        """
        params = self.default_params if params is None else params
        rng_step, rng_reset = jax.random.split(rng)
        stepped, state, reward, terminated, truncated, info = self.step_env(
            rng_step, state, action, params
        )
        terminated, truncated = jnp.asarray(terminated, bool), jnp.asarray(truncated, bool)
        episode_over = jnp.all(~info[ACTS_NEXT] if ACTS_NEXT in info else terminated | truncated)
        observation, state = jax.lax.cond(
            episode_over,
            lambda: self.reset_env(rng_reset, params),
            lambda: (stepped, state),
        )
        info = {FINAL_OBSERVATION: stepped, **info}
        return observation, state, reward, terminated, truncated, info


def is_step_overridden(env: Environment) -> bool:
    """True if an environment has its own `step` or `reset`, which may do more than is inherited."""
    return type(env).step is not Environment.step or type(env).reset is not Environment.reset


def without_weak_types(tree: PyTree) -> PyTree:
    """Make all types strong, so that resets and steps return states of the same types."""
    return jax.tree.map(
        lambda leaf: jax.lax.convert_element_type(leaf, jax.typeof(leaf).dtype), tree
    )


def numbers_in(info: Mapping[str, Any], n_actors: int) -> dict[str, Any]:
    """Keep the infos that can be reported: numbers, and one number per actor."""
    arrays = {
        name: jnp.asarray(value) if isinstance(value, bool | int | float) else value
        for name, value in info.items()
    }
    shapes = ((), (n_actors,))
    return {name: each for name, each in arrays.items() if getattr(each, "shape", None) in shapes}


def as_observation(observation: PyTree | Observation) -> Observation:
    """Wrap a bare array of features in an `Observation`."""
    if isinstance(observation, Observation):
        return observation
    return Observation(features=jnp.asarray(observation))


def as_flat_observation(observation: Any, n_batch_axes: int) -> Observation:
    """Flatten a dictionary or tuple of observations to one vector per actor, in order of keys.

    Args:
        observation: What an environment returned; features may be a dictionary or tuple of arrays.
        n_batch_axes: Axes before each actor's own: ``[*batch, actors]``.
    """
    if not isinstance(observation, Observation):
        observation = Observation(features=observation)
    if not isinstance(observation.features, dict | tuple | list):
        return observation
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(observation.features)]
    if not leaves or any(leaf.ndim < n_batch_axes for leaf in leaves):
        return observation
    flat = [leaf.reshape(*leaf.shape[:n_batch_axes], -1) for leaf in leaves]
    return observation._replace(features=jnp.concatenate(flat, axis=-1))
