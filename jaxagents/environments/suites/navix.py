"""NAVIX: MiniGrid's tasks in JAX."""

import importlib
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxagents.environments.protocol import Environment, StepResult, without_weak_types
from jaxagents.environments.quiet_import import SILENCE
from jaxagents.environments.spaces import Discrete
from jaxagents.environments.success import Success
from jaxagents.types import PyTree

navix: Any = importlib.import_module("navix")  # an extra

# How many kinds, colours and states (or directions) the symbols of the library have.
_N_SYMBOLS = (11, 6, 4)
# KeyCorridor's locked door is "open = 2", which the library observes as state -2 in 8 bits.
_LOCKED, _LOCKED_IN_KEY_CORRIDOR = 2, 254


@final
class NavixEnvironment(Environment):
    """A task of NAVIX with one actor.

    Symbols of a cell, its kind, colour and state, become one-hot channels. RGB becomes numbers from
    0 to 1.

    Args:
        env: The library's environment.
    """

    n_actors = 1
    # Tasks earn 1 at the goal; other ends earn nothing, or less.
    success = Success("reached_goal", "goals reached")

    def __init__(self, env: Any):
        self.env = env
        self.name = type(env).__name__

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments that tasks are most often made with."""
        return {"max_steps": int(self.env.max_steps)}

    @property
    def truncation_rule(self) -> str:
        """Description of when episodes are truncated."""
        return f"time limit: max_steps = {self.env.max_steps} steps"

    def max_episode_steps(self, params: PyTree = None) -> int | None:
        """Return the time limit; see `Environment.max_episode_steps`."""
        del params
        return int(self.env.max_steps)

    def action_space(self, params: PyTree = None) -> Discrete:
        """Return the actions."""
        del params
        return Discrete(len(self.env.action_set))

    def reset_env(self, rng: PRNGKeyArray, params: PyTree) -> tuple[Array, PyTree]:
        """Start an episode; see `Environment.reset_env`."""
        del params
        state = self.env.reset(rng)
        types = jax.eval_shape(self.env.step, state, jnp.int32(0))
        state = jax.tree.map(lambda leaf, later: jnp.asarray(leaf, later.dtype), state, types)
        return _features(self.env, state.observation), without_weak_types(state)

    def step_env(
        self, rng: PRNGKeyArray, state: PyTree, action: Array, params: PyTree
    ) -> StepResult:
        """Step without a reset; see `Environment.step_env`."""
        del rng, params
        # The library's step resets an ended episode; a constant tells it that none has ended.
        state = state.replace(step_type=jnp.zeros((), state.step_type.dtype))
        state = without_weak_types(self.env.step(state, action[0]))
        reached = state.is_termination() & (state.reward > 0)
        return (
            _features(self.env, state.observation),
            state,
            jnp.asarray(state.reward, jnp.float32).reshape(1),
            state.is_termination().reshape(1),
            state.is_truncation().reshape(1),
            {"reached_goal": reached.astype(jnp.float32)},
        )

    def draw(self, state: PyTree, params: PyTree) -> np.ndarray:
        """Let the library draw a state, ``[height, width, 3]``."""
        del params
        return np.asarray(navix.observations.rgb(state.state))


def _features(env: Any, observation: Array) -> Array:
    known = navix.observations
    if env.observation_fn in (known.rgb, known.rgb_first_person):
        return observation[jnp.newaxis].astype(jnp.float32) / 255
    if env.observation_fn in (known.symbolic, known.symbolic_first_person):
        states = observation[..., 2]
        states = jnp.where(states == _LOCKED_IN_KEY_CORRIDOR, _LOCKED, states)
        observation = observation.at[..., 2].set(states)
        layers = [jax.nn.one_hot(observation[..., i], n) for i, n in enumerate(_N_SYMBOLS)]
        return jnp.concatenate(layers, axis=-1)[jnp.newaxis]
    return observation[jnp.newaxis].astype(jnp.float32)


def make_navix(name: str, observation: str | None = None, **env_kwargs: Any) -> NavixEnvironment:
    """Construct a task by the library's id.

    Args:
        name: The library's id.
        observation: A function of ``navix.observations``, such as "symbolic_first_person", which is
            MiniGrid's; None: the task's own, usually the whole grid.
        env_kwargs: Arguments of ``navix.make``, such as ``max_steps``.

    Raises:
        ValueError: there is no such observation.
    """
    if observation is not None:
        function = getattr(navix.observations, observation, None)
        if not callable(function):
            raise ValueError(f"navix.observations has no function {observation!r}")
        env_kwargs["observation_fn"] = function
    with SILENCE:
        return NavixEnvironment(navix.make(name, **env_kwargs))
