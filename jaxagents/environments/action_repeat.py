"""Environments in which each action lasts for several steps."""

from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray

from jaxagents.environments.environment_wrapper import EnvironmentWrapper
from jaxagents.environments.protocol import ACTS_NEXT, Environment, StepResult, numbers_in
from jaxagents.environments.protocol_check import check_flags
from jaxagents.environments.spaces import Box, as_space
from jaxagents.types import Observation, PyTree


class _Last(NamedTuple):
    """What the latest step has returned; nobody has ended before the first."""

    observation: PyTree | Observation
    state: PyTree
    terminated: Bool[Array, " actors"]
    truncated: Bool[Array, " actors"]


@final
class ActionRepeat(EnvironmentWrapper):
    """Repeats each action for several steps of a JAX environment.

    Where a single step changes little, noise that is drawn anew at every step averages out: a
    sampled action hardly changes the return, so learning needs many samples to see its effect. An
    action that lasts explores farther.

    A step of this environment is ``n_steps`` steps of the other, or fewer if the episode is over
    sooner. Rewards are summed; those of an actor after its end only if ``env.rewards_after_death``.
    Everything else is counted in steps of this environment: γ, rollouts, environment steps, and
    ``max_episode_steps``, which is the environment's own divided by ``n_steps`` and rounded up.
    Infos are those of an actor's last step, with ``rewards_after_death`` of the episode's; those
    of `Success` are accumulated as it says, and a mean over an episode is one over its actions.

    Args:
        env: The environment.
        n_steps: Steps for which an action lasts, at least 1.

    Raises:
        TypeError: the environment is not an `Environment`, or overrides `step` or `reset`; or, once
            it is played, rewards or ends are not one per actor.
        ValueError: ``n_steps`` is not a whole number from 1 on; or, once it is played, actors take
            turns, come back within an episode, or have masked actions, which may be unavailable at
            the next step.
    """

    def __init__(self, env: Environment, n_steps: int):
        super().__init__(env)
        if not isinstance(n_steps, int) or isinstance(n_steps, bool) or n_steps < 1:
            raise ValueError(f"n_steps={n_steps!r}; it must be a whole number of at least 1.")
        self._env_name = getattr(env, "name", type(env).__name__)
        self.n_steps = n_steps

    def max_episode_steps(self, params: PyTree) -> int | None:
        """Return how many actions an episode has at most; see `Environment.max_episode_steps`."""
        limit = self.env.max_episode_steps(params)
        return None if limit is None else -(-limit // self.n_steps)

    def reset_env(self, rng: PRNGKeyArray, params: PyTree) -> tuple[PyTree | Observation, PyTree]:
        """Start an episode; see `Environment.reset_env`."""
        observation, state = self.env.reset_env(rng, params)
        self._check_can_repeat(observation)
        return self._count_actions(observation), state

    def step_env(
        self, rng: PRNGKeyArray, state: PyTree, action: Array, params: PyTree
    ) -> StepResult:
        """Repeat an action; see `Environment.step_env`."""

        def step(state: PyTree, rng: PRNGKeyArray) -> tuple[_Last, tuple[Array, dict[str, Any]]]:
            observation, state, reward, terminated, truncated, info = self.env.step_env(
                rng, state, action, params
            )
            earned = {"reward": reward, "terminated": terminated, "truncated": truncated}
            check_flags(f"{self._env_name}.step_env", {**earned, "info": info}, self.n_actors)
            if ACTS_NEXT in info:
                raise ValueError(
                    f"actors of {self._env_name} come back within an episode, so their "
                    "actions cannot be repeated."
                )
            ended = jnp.asarray(terminated, bool), jnp.asarray(truncated, bool)
            numbers = numbers_in(info, self.n_actors)
            return _Last(observation, state, *ended), (jnp.asarray(reward), numbers)

        def step_unless_over(last: _Last, rng: PRNGKeyArray) -> tuple[_Last, Any]:
            runs = ~(last.terminated | last.truncated)
            last, earned = jax.lax.cond(
                jnp.any(runs), lambda: step(last.state, rng), lambda: (last, nothing)
            )
            return last, (runs, *earned)

        shapes, nothing = jax.eval_shape(step, state, rng)
        none, nothing = jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (shapes._replace(state=None), nothing)
        )
        last, (runs, rewards, infos) = jax.lax.scan(
            step_unless_over, none._replace(state=state), jax.random.split(rng, self.n_steps)
        )
        return (
            self._count_actions(last.observation),
            last.state,
            self._sum(runs, rewards),
            last.terminated,
            last.truncated,
            {name: self._info(name, runs, values) for name, values in infos.items()},
        )

    def _check_can_repeat(self, observation: PyTree | Observation) -> None:
        if not isinstance(observation, Observation):
            return
        has_mask = observation.action_mask is not None and not isinstance(
            as_space(self.env.action_space(self.env.default_params)), Box
        )
        for is_there, what in (
            (observation.has_turn is not None, "actors take turns"),
            (has_mask, "actions are masked"),
        ):
            if is_there:
                raise ValueError(f"in {self._env_name} {what}, so its actions cannot be repeated.")

    def _sum(self, runs: Bool[Array, "steps actors"], rewards: Array) -> Array:
        earned = True if self.rewards_after_death else runs
        return jnp.sum(jnp.where(earned, rewards, 0), axis=0)

    def _info(self, name: str, runs: Bool[Array, "steps actors"], values: Array) -> Array:
        """Combine an info of all steps, ``[steps]`` or ``[steps, actors]``."""
        if name == "shaped_reward":
            return self._sum(runs, values)
        if self.rewards_after_death:  # as rewards are, infos are counted while the episode runs
            runs = jnp.broadcast_to(jnp.any(runs, axis=1, keepdims=True), runs.shape)
        counts = runs if values.shape == runs.shape else jnp.any(runs, axis=1)
        if self.success is not None and self.success.accumulates(name):
            has_one = counts & ~jnp.isnan(values)
            total = jnp.sum(jnp.where(has_one, values, 0), axis=0)
            n_steps = jnp.sum(has_one, axis=0)
            if self.success.of_episode == "mean":
                total /= n_steps
            return jnp.where(n_steps > 0, total, jnp.nan)
        latest = jnp.sum(counts, axis=0, keepdims=True) - 1
        return jnp.take_along_axis(values, latest, axis=0)[0]

    def _count_actions(self, observation: PyTree | Observation) -> PyTree | Observation:
        """Count the time since the reset in actions."""
        if not isinstance(observation, Observation) or observation.elapsed is None:
            return observation
        return observation._replace(elapsed=-(-observation.elapsed // self.n_steps))
