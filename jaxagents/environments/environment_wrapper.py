"""Environments that change a part of another."""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Array, PRNGKeyArray

from jaxagents.entities import EntityKind
from jaxagents.environments.protocol import (
    FINAL_OBSERVATION,
    Environment,
    StepResult,
    is_step_overridden,
)
from jaxagents.types import Observation, PyTree


class EnvironmentWrapper(Environment):
    """A JAX environment around another, the same in all that a subclass does not override.

    To change what actors observe, override `observe`.

    Args:
        env: The environment.

    Raises:
        TypeError: the environment is not an `Environment`, or overrides `step` or `reset`.
    """

    def __init__(self, env: Environment):
        name = type(self).__name__
        if not isinstance(env, Environment):
            raise TypeError(
                f"{name} needs a jaxagents.Environment, and {type(env).__name__} is none; "
                "outside of JAX, use a wrapper of the library."
            )
        if is_step_overridden(env):
            raise TypeError(
                f"{type(env).__name__} overrides step or reset, which {name} does not call; "
                "implement step_env and reset_env only."
            )
        self.env = env
        self.n_actors = env.n_actors
        self.teams = env.teams
        self.rewards_after_death = env.rewards_after_death
        self.time_limits = env.time_limits
        self.success = env.success

    def observe(self, observation: PyTree | Observation) -> PyTree | Observation:
        """Return what actors observe where the environment shows ``observation``; traceable.

        It sees one environment's observation, with the actors as the first axis of its features.
        """
        return observation

    @property
    def default_params(self) -> PyTree:
        """The environment's own."""
        return self.env.default_params

    def entities(self, params: PyTree) -> Mapping[str, EntityKind] | None:
        """Return the environment's own, or None if `observe` is overridden and may move them."""
        if type(self).observe is not EnvironmentWrapper.observe:
            return None
        return self.env.entities(params)

    def max_episode_steps(self, params: PyTree) -> int | None:
        """Return the environment's own; see `Environment.max_episode_steps`."""
        return self.env.max_episode_steps(params)

    def action_space(self, params: PyTree) -> Any:
        """Return the environment's own space."""
        return self.env.action_space(params)

    def reset_env(self, rng: PRNGKeyArray, params: PyTree) -> tuple[PyTree | Observation, PyTree]:
        """Start an episode; see `Environment.reset_env`."""
        observation, state = self.env.reset_env(rng, params)
        return self.observe(observation), state

    def step_env(
        self, rng: PRNGKeyArray, state: PyTree, action: Array, params: PyTree
    ) -> StepResult:
        """Step; see `Environment.step_env`."""
        observation, state, reward, terminated, truncated, info = self.env.step_env(
            rng, state, action, params
        )
        if FINAL_OBSERVATION in info:
            info = {**info, FINAL_OBSERVATION: self.observe(info[FINAL_OBSERVATION])}
        return self.observe(observation), state, reward, terminated, truncated, info
