"""The batch of environments that an agent plays.

An agent knows `EnvironmentBatch` only. It never sees a single environment, nor whether one can
be vmapped, so that batches which live outside JAX can stand here too.
"""

import abc
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree

from jaxagents.environments.protocol import Environment, as_observation
from jaxagents.environments.spaces import Box, Discrete, as_space
from jaxagents.types import Observation, TimeStep


class BatchState(NamedTuple):
    """State of a batch of environments."""

    env_state: PyTree  # [envs, ...]
    active: Bool[Array, "envs actors"]  # still alive in the current episode
    episode_steps: Int[Array, "envs"]  # taken in the current episode


class EnvironmentBatch(abc.ABC):
    """Environments stepped together, each reset when its episode is over for all actors.

    Attributes:
        n_actors: Actors in each environment.
        space: One actor's action space.
        observation: One environment's observation as shapes and dtypes, ``[actors, *obs]``.
    """

    n_actors: int
    space: Discrete | Box
    observation: Observation

    @abc.abstractmethod
    def reset(self, rng: PRNGKeyArray, n_envs: int) -> tuple[Observation, BatchState]:
        """Begin an episode in each of ``n_envs`` environments."""

    @abc.abstractmethod
    def step(
        self, rng: PRNGKeyArray, state: BatchState, action: Array
    ) -> tuple[TimeStep, BatchState]:
        """Act in every environment, ``[envs, actors, ...]``, and reset those that are over."""


class JaxEnvironmentBatch(EnvironmentBatch):
    """Copies of one JAX environment under `jax.vmap`.

    Subclasses of `Environment` are reset as a batch, and only on steps that end an episode; any
    other class resets itself in its own ``step``.
    """

    def __init__(self, env: Any, env_params: PyTree, max_episode_steps: int | None = None):
        """Examine the environment without running it.

        Raises:
            TypeError: the environment does not follow the protocol.
        """
        self._env = env
        self._env_params = env_params
        self._max_episode_steps = max_episode_steps
        # Overridden, `step` or `reset` may mean more than what the base class makes of the parts.
        self._resets_as_batch = (
            isinstance(env, Environment)
            and type(env).step is Environment.step
            and type(env).reset is Environment.reset
        )
        self.n_actors, self.space, self.observation = _examine(env, env_params)

    def reset(self, rng: PRNGKeyArray, n_envs: int) -> tuple[Observation, BatchState]:
        """Begin an episode in each of ``n_envs`` environments."""
        observation, env_state = self._reset_all(rng, n_envs)
        return observation, BatchState(
            env_state=env_state,
            active=jnp.ones((n_envs, self.n_actors), bool),
            episode_steps=jnp.zeros(n_envs, jnp.int32),
        )

    def step(
        self, rng: PRNGKeyArray, state: BatchState, action: Array
    ) -> tuple[TimeStep, BatchState]:
        """Act in every environment, ``[envs, actors, ...]``, and reset those that are over."""
        n_envs = len(state.episode_steps)
        rng_step, rng_reset = jax.random.split(rng)
        step = self._env.step_env if self._resets_as_batch else self._env.step
        observation, env_state, reward, terminated, truncated, info = jax.vmap(
            step, in_axes=(0, 0, 0, None)
        )(jax.random.split(rng_step, n_envs), state.env_state, action, self._env_params)
        observation = as_observation(observation)
        final_observation = (
            observation if self._resets_as_batch else as_observation(info["final_observation"])
        )

        terminated, truncated = terminated.astype(bool), truncated.astype(bool)
        needs_reset = self._resets_as_batch
        if self._max_episode_steps is not None:
            timed_out = state.episode_steps + 1 >= self._max_episode_steps
            # Whoever's episode has not ended by itself is cut off here.
            truncated |= timed_out[:, None] & ~terminated
            needs_reset = True
        finished = ~state.active | terminated | truncated
        episode_over = jnp.all(finished, axis=1)
        if needs_reset:
            observation, env_state = jax.lax.cond(
                jnp.any(episode_over),
                lambda: self._reset_where(episode_over, rng_reset, observation, env_state),
                lambda: (observation, env_state),
            )
        time_step = TimeStep(
            observation=observation,
            final_observation=final_observation,
            reward=reward.astype(jnp.float32),
            terminated=terminated,
            truncated=truncated,
            active=state.active,
            episode_over=episode_over,
            info={name: value for name, value in info.items() if _is_scalar(name, value)},
        )
        return time_step, BatchState(
            env_state=env_state,
            active=episode_over[:, None] | ~finished,
            episode_steps=jnp.where(episode_over, 0, state.episode_steps + 1),
        )

    def _reset_all(self, rng: PRNGKeyArray, n_envs: int) -> tuple[Observation, PyTree]:
        reset = self._env.reset_env if self._resets_as_batch else self._env.reset
        observation, env_state = jax.vmap(reset, in_axes=(0, None))(
            jax.random.split(rng, n_envs), self._env_params
        )
        return as_observation(observation), env_state

    def _reset_where(
        self,
        episode_over: Bool[Array, " envs"],
        rng: PRNGKeyArray,
        observation: Observation,
        env_state: PyTree,
    ) -> tuple[Observation, PyTree]:
        def select(fresh: Array, old: Array) -> Array:
            mask = episode_over.reshape(-1, *[1] * (old.ndim - 1))
            return jnp.where(mask, fresh, old).astype(old.dtype)

        fresh = self._reset_all(rng, len(episode_over))
        return jax.tree.map(select, fresh, (observation, env_state))


def _is_scalar(name: str, value: Any) -> bool:
    return name != "final_observation" and isinstance(value, jax.Array) and value.ndim == 1


def _examine(env: Any, env_params: PyTree) -> tuple[int, Discrete | Box, Observation]:
    """Read an environment's shapes from a traced reset and step, and check them."""
    name = type(env).__name__
    for attribute in ("n_actors", "action_space", "reset", "step"):
        if not hasattr(env, attribute):
            raise TypeError(
                f"{name} has no {attribute}; an environment has n_actors, action_space(params), "
                "reset and step (see jaxagents.Environment), and jaxagents.make builds those of "
                "gymnax and JaxMARL."
            )
    n_actors, space = int(env.n_actors), as_space(env.action_space(env_params))
    rng = jax.random.key(0)
    reset = _expect(f"{name}.reset", jax.eval_shape(env.reset, rng, env_params), 2)
    observation, state = as_observation_shape(reset[0]), reset[1]
    _check_observation(f"{name}.reset", observation, n_actors, space)
    action = (
        jax.ShapeDtypeStruct((n_actors,), jnp.int32)
        if isinstance(space, Discrete)
        else jax.ShapeDtypeStruct((n_actors, *space.shape), jnp.float32)
    )
    stepped = _expect(f"{name}.step", jax.eval_shape(env.step, rng, state, action, env_params), 6)
    _check_observation(f"{name}.step", as_observation_shape(stepped[0]), n_actors, space)
    for field, value in zip(("reward", "terminated", "truncated"), stepped[2:5], strict=True):
        if value.shape != (n_actors,):
            raise TypeError(
                f"{name}.step returns {field} of shape {value.shape}; it must be ({n_actors},), "
                "one value per actor."
            )
    if "final_observation" not in stepped[5]:
        raise TypeError(
            f'{name}.step returns an info without "final_observation"; put the observation '
            "before any reset there."
        )
    return n_actors, space, observation


def _expect(source: str, returned: Any, n_values: int) -> tuple:
    if not isinstance(returned, tuple) or len(returned) != n_values:
        count = len(returned) if isinstance(returned, tuple) else 1
        raise TypeError(
            f"{source} returns {count} values; the protocol has {n_values}: "
            + (
                "observation, state."
                if n_values == 2
                else "observation, state, reward, terminated, truncated, info."
            )
        )
    return returned


def as_observation_shape(observation: Any) -> Observation:
    """Give the shapes of a bare array of features the form of an `Observation`."""
    return observation if isinstance(observation, Observation) else Observation(observation)


def _check_observation(
    source: str, observation: Observation, n_actors: int, space: Discrete | Box
) -> None:
    shape = getattr(observation.features, "shape", None)
    if not shape or shape[0] != n_actors:
        raise TypeError(
            f"{source} returns observations of shape {shape}; the first axis must be the "
            f"{n_actors} actors."
        )
    mask = observation.action_mask
    if mask is None:
        return
    if not isinstance(space, Discrete):
        raise TypeError(f"{source} returns an action_mask, but its actions are not discrete.")
    if mask.shape != (n_actors, space.n):
        raise TypeError(
            f"{source} returns an action_mask of shape {mask.shape}; it must be "
            f"({n_actors}, {space.n}), actors by actions."
        )
