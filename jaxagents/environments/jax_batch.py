"""The batch of an environment of JAX, which is vmapped."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Key, PRNGKeyArray

from jaxagents.compiler.batch_parts import apply_where
from jaxagents.compiler.devices import keys_of_environments, n_devices
from jaxagents.compiler.program_costs import count_costs
from jaxagents.compiler.random_keys import THREEFRY, is_key, key_of, to_draw, to_store
from jaxagents.compiler.tuned_forms import tunes_for_cpu
from jaxagents.environments.batch import BatchState, EnvironmentBatch
from jaxagents.environments.protocol import (
    ACTS_NEXT,
    FINAL_OBSERVATION,
    NO_INFOS,
    Environment,
    as_flat_observation,
    is_step_overridden,
)
from jaxagents.environments.protocol_check import examine
from jaxagents.environments.spaces import Box
from jaxagents.environments.time_limits import TimeLimit
from jaxagents.types import Observation, PyTree, TimeStep

# Resets at a time: at most this many, or fewer if they would compute more than this many numbers,
# but at least one; see benchmarks/RESULTS.md.
_MOST_RESETS, _MOST_NUMBERS = 32, 2**20
_VECTOR = 8  # floats that a CPU computes at once
_NO_LIMIT = TimeLimit(n_steps=None, is_terminal=False, is_observed=False)


class JaxEnvironmentBatch(EnvironmentBatch):
    """Copies of one JAX environment under `jax.vmap`.

    Subclasses of `Environment` that override neither `reset` nor `step` are reset as a batch. All
    others reset themselves in their ``step``.
    """

    can_be_divided = True

    def __init__(
        self,
        env: Any,
        env_params: PyTree,
        max_episode_steps: int | None = None,
        time_limit: TimeLimit = _NO_LIMIT,
        agent_id: bool = False,
        global_state: bool = False,
    ):
        """Check the environment without running it.

        Args:
            env: The environment.
            env_params: Its parameters.
            max_episode_steps: Truncate episodes at this length.
            time_limit: What truncation means, and whether the time is observed.
            agent_id: Append each actor's one-hot index to its observation.
            global_state: Add a global state to observations: the environment's own if it has one,
                otherwise the observations of all actors.

        Raises:
            TypeError: the environment does not follow the protocol.
        """
        self._env = env
        self._env_params = env_params
        self._max_episode_steps = max_episode_steps
        self._resets_as_batch = isinstance(env, Environment) and not is_step_overridden(env)
        interface = examine(env, env_params, resets_as_batch=self._resets_as_batch)
        self._keeps_keys = interface.keeps_keys
        self._whole_numbers = interface.whole_numbers
        self.has_shaped_reward = interface.has_shaped_reward
        self.returns_tuples = interface.returns_tuples
        self.rewards_after_death = getattr(env, "rewards_after_death", False)
        self.success = getattr(env, "success", None)
        if isinstance(env, Environment):
            self.entity_kinds = env.entities(env_params)
        super().__init__(
            interface.observation,
            interface.space,
            getattr(env, "teams", None),
            time_limit,
            agent_id,
            global_state,
        )

    def n_copies(self, n_envs: int) -> int:
        """Round up to CPU vectors: 100 environments take three times as long to compile as 104.

        Extra environments do not change the first ones, because each has a key of its own. Devices
        that divide environments number them consecutively, so there must be no extra ones.
        """
        if n_envs <= _VECTOR or n_devices() > 1 or not tunes_for_cpu():
            return n_envs
        return -(-n_envs // _VECTOR) * _VECTOR

    def reset(self, rng: PRNGKeyArray, n_envs: int) -> tuple[Observation, BatchState]:
        """Start an episode in each of ``n_envs`` environments."""
        observation, env_state = self._reset_each(keys_of_environments(self._fast(rng), n_envs))
        active = jnp.ones((n_envs, self.n_actors), bool)
        return observation, BatchState(
            env_state=env_state,
            active=active,
            episode_steps=jnp.zeros(n_envs, jnp.int32),
            age=self._first_age(active),
        )

    def step(
        self, rng: PRNGKeyArray, state: BatchState, action: Array
    ) -> tuple[TimeStep, BatchState]:
        """Step each environment, ``[envs, actors, ...]``, and reset where the episode is over."""
        n_envs = len(state.episode_steps)
        rng_step, rng_reset = jax.random.split(self._fast(rng))
        step = self._env.step_env if self._resets_as_batch else self._env.step
        observation, env_state, reward, terminated, truncated, info = jax.vmap(
            step, in_axes=(0, 0, 0, None)
        )(
            keys_of_environments(rng_step, n_envs),
            state.env_state,
            self._as_whole_numbers(action),
            self._env_params,
        )
        terminated = terminated.astype(bool)
        truncated = truncated.astype(bool) & ~terminated
        elapsed = state.episode_steps + 1
        acts_next = info.pop(ACTS_NEXT, state.active & ~terminated & ~truncated)
        terminated |= state.active & ~acts_next & ~truncated  # an actor that has left has ended
        if self._max_episode_steps is not None:
            timed_out = (elapsed >= self._max_episode_steps)[:, None]
            truncated |= timed_out & ~terminated
            acts_next &= ~timed_out
        ended, episode_over = terminated | truncated, ~jnp.any(acts_next, axis=1)
        active = episode_over[:, None] | acts_next
        following, begins = state.stepped(env_state, ended, active, episode_over)
        final_state = env_state if self._resets_as_batch else None
        observation = as_flat_observation(observation, n_batch_axes=2)
        final = observation
        if FINAL_OBSERVATION in info:
            final = as_flat_observation(info[FINAL_OBSERVATION], n_batch_axes=2)
        age = None if state.age is None else state.age + 1
        final_observation = self._prepare(final, elapsed, age)
        observation = self._prepare(observation, following.episode_steps, following.age)
        if self._resets_as_batch or self._max_episode_steps is not None:
            observation, env_state = self._reset_where(
                episode_over, rng_reset, (observation, env_state)
            )
        if self.rewards_after_death:
            # All actors earn until the episode is over, so it ends for all of them at once.
            is_truncated = jnp.any(truncated & state.active, axis=1)
            ends = jnp.broadcast_to(episode_over[:, None], truncated.shape)
            terminated, truncated = ends & ~is_truncated[:, None], ends & is_truncated[:, None]
        time_step = TimeStep(
            observation=observation,
            final_observation=final_observation,
            reward=reward.astype(jnp.float32),
            shaped_reward=info.get("shaped_reward"),
            terminated=terminated,
            truncated=truncated,
            active=state.active,
            episode_over=episode_over,
            begins=begins,
            info={
                name: value for name, value in info.items() if _is_info(name, value, self.n_actors)
            },
            final_state=final_state,
        )
        return time_step, following._replace(env_state=env_state)

    def _as_whole_numbers(self, action: Array) -> Array:
        """Round actions of a Box of integers to the nearest integer, halves to the even one."""
        dtype, space = self._whole_numbers, self.space
        if dtype is None or not isinstance(space, Box):
            return action
        return jnp.clip(jnp.rint(action), np.ceil(space.low), np.floor(space.high)).astype(dtype)

    def _fast(self, rng: PRNGKeyArray) -> PRNGKeyArray:
        """Return a key that draws fast, or a plain one if the environment's state holds keys."""
        # Under vmap, "rbg" draws for all environments from the first one's key; a key in a state
        # must draw for its own environment.
        return key_of(to_store(rng), THREEFRY) if self._keeps_keys else to_draw(rng)

    def _reset_where(
        self,
        episode_over: Bool[Array, " envs"],
        rng: PRNGKeyArray,
        others: tuple[Observation, PyTree],
    ) -> tuple[Observation, PyTree]:
        # Keys of "rbg" would draw all resets of a part from the first environment's key.
        rng = self._fast(key_of(to_store(rng), THREEFRY))
        n_envs = len(episode_over)
        return apply_where(
            episode_over,
            # Split only when needed: most steps reset no environment.
            lambda envs: self._reset_each(keys_of_environments(rng, n_envs)[envs]),
            jnp.arange(n_envs),
            others,
            part_size=self._resets_at_a_time(n_envs),
        )

    def _resets_at_a_time(self, n_envs: int) -> int:
        work = count_costs(self._reset, jax.random.key(0), self._env_params, n_iterations=1)
        part = min(_MOST_RESETS, max(1, _MOST_NUMBERS // max(1, work.n_numbers)))
        # Where resets cost little, two parts cost more than the whole batch.
        return n_envs if n_envs <= 2 * _MOST_RESETS and part == _MOST_RESETS else part

    @property
    def _reset(self) -> Callable[..., Any]:
        return self._env.reset_env if self._resets_as_batch else self._env.reset

    def _reset_each(self, rngs: Key[Array, " envs"]) -> tuple[Observation, PyTree]:
        observation, env_state = jax.vmap(self._reset, in_axes=(0, None))(rngs, self._env_params)
        observation = as_flat_observation(observation, n_batch_axes=2)
        return self._prepare(observation, jnp.zeros(len(rngs), jnp.int32)), env_state


def _is_info(name: str, value: Any, n_actors: int) -> bool:
    """Return True for a number of each environment, or of each of its actors."""
    if name in NO_INFOS or not isinstance(value, jax.Array) or is_key(value):
        return False
    return value.ndim == 1 or value.shape[1:] == (n_actors,)
