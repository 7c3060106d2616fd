"""gymnax environments with an axis of one actor."""

import math
from typing import Any, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxagents.environments.protocol import Environment, StepResult, numbers_in
from jaxagents.environments.spaces import action_dtype, as_space, whole_numbers
from jaxagents.types import PyTree

# Their episodes terminate at the step of the limit, or at the first. (The library's own spelling.)
_NEVER_TRUNCATED = ("DeepSea-bsuite", "MNSITBandit-bsuite", "SimpleBandit-bsuite")


@final
class GymnaxEnvironment(Environment):
    """A gymnax environment of one actor.

    Observations are ``[1, *obs]`` with the library's shape and dtype; ``*obs`` is empty if the
    library observes a scalar. An episode that reaches a terminal state at the time limit is
    terminated, not truncated. Parameters are the library's own.

    Args:
        env: A gymnax (1.x) environment with a Discrete, MultiDiscrete or Box action space.

    Raises:
        TypeError: the action space is none of these.
    """

    n_actors = 1

    def __init__(self, env: Any):
        # Of default parameters: those of a traced step cannot be read.
        space = env.action_space(env.default_params)
        whole = whole_numbers(space)
        self._action_dtype = action_dtype(as_space(space)) if whole is None else whole
        self.env = env
        self.name = env.name

    @property
    def default_params(self) -> PyTree:
        """The library's own default parameters."""
        return self.env.default_params

    def max_episode_steps(self, params: PyTree) -> int | None:
        """Return the time limit; see `Environment.max_episode_steps`."""
        limit = getattr(params, "max_steps_in_episode", math.inf)
        return int(limit) if math.isfinite(limit) and self.name not in _NEVER_TRUNCATED else None

    @property
    def truncation_rule(self) -> str:
        """Description of when episodes are truncated."""
        limit = self.max_episode_steps(self.default_params)
        if self.name in _NEVER_TRUNCATED:
            return "none: episodes terminate"
        if limit is None:
            return "the library's is_truncated"
        return f"time limit: max_steps_in_episode = {limit:g}"

    def action_space(self, params: PyTree = None) -> Any:
        """Return the library's own action space."""
        return self.env.action_space(self.default_params if params is None else params)

    def reset_env(self, rng: PRNGKeyArray, params: PyTree) -> tuple[Array, PyTree]:
        """Start an episode; see `Environment.reset_env`."""
        observation, state = self.env.reset_env(rng, params)
        # The library's reset may return Python numbers and weak types where its step does not.
        later_state = jax.eval_shape(lambda: self._step_with_any_action(rng, state, params))
        state = jax.tree.map(
            lambda first, later: _cast(first, _wider(_dtype(first), later.dtype)),
            state,
            later_state,
        )
        return _with_actor(observation), state

    def step_env(
        self, rng: PRNGKeyArray, state: PyTree, action: Array, params: PyTree
    ) -> StepResult:
        """Step without a reset; see `Environment.step_env`."""
        observation, next_state, reward, terminated, info = self.env.step_env(
            rng, state, self._library_action(action, params), params
        )
        next_state = jax.tree.map(lambda now, before: _cast(now, _dtype(before)), next_state, state)
        terminated = jnp.asarray(terminated, bool).reshape(1)
        time_is_up = jnp.asarray(self.env.is_truncated(next_state, params), bool).reshape(1)
        return (
            _with_actor(observation),
            next_state,
            jnp.asarray(reward, jnp.float32).reshape(1),
            terminated,
            time_is_up & ~terminated,
            numbers_in(info, self.n_actors),
        )

    def _library_action(self, action: Array, params: PyTree) -> Array:
        return action[0].reshape(self.action_space(params).shape)

    def _step_with_any_action(self, rng: PRNGKeyArray, state: PyTree, params: PyTree) -> PyTree:
        space = self.action_space(params)
        action = jnp.zeros((1, *space.shape), self._action_dtype)
        return self.env.step_env(rng, state, self._library_action(action, params), params)[1]


def _with_actor(observation: Any) -> Array:
    observation = jnp.asarray(observation)
    return _cast(observation, observation.dtype)[jnp.newaxis]


def _dtype(value: Any) -> Any:
    return jax.typeof(value).dtype


def _wider(one: Any, other: Any) -> Any:
    return one if one == other else jnp.promote_types(one, other)  # which refuses random keys


def _cast(value: Any, dtype: Any) -> Array:
    """Convert to a strong dtype."""
    return jax.lax.convert_element_type(value, dtype)
