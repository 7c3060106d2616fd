"""Brax's environments, and those of MuJoCo Playground, which have the same interface."""

import importlib
import os
import sys
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray

from jaxagents.environments.protocol import Environment, StepResult, without_weak_types
from jaxagents.environments.quiet_import import SILENCE
from jaxagents.environments.spaces import Box
from jaxagents.types import Observation, PyTree

# The registry suppresses output while it imports this module: the library warns of its age.
envs: Any = importlib.import_module("brax.envs")  # an extra


class BraxState(NamedTuple):
    """The library's state and the time, which it leaves to wrappers."""

    state: PyTree
    n_steps: Int[Array, ""]


@final
class BraxEnvironment(Environment):
    """A robot of Brax or MuJoCo Playground with one actor, whose actions are between -1 and 1.

    Metrics become infos, those of an episode's last step. Where the library observes a dictionary,
    the actor sees its ``state``, and a centralised critic its ``privileged_state``.

    Args:
        env: The library's environment, without wrappers.
        episode_length: The time limit, in steps of the library.
        action_repeat: Steps of the library for each of the actor's; rewards are summed.

    Raises:
        ValueError: either of these is less than 1.
    """

    n_actors = 1

    def __init__(self, env: Any, episode_length: int, action_repeat: int = 1):
        if min(episode_length, action_repeat) < 1:
            raise ValueError(
                f"episode_length={episode_length} and action_repeat={action_repeat} must be at "
                "least 1"
            )
        self.env = env
        self.name = type(env).__name__
        self.episode_length = episode_length
        self.action_repeat = action_repeat
        self._n_steps_allowed = -(-episode_length // action_repeat)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of this class that `make_brax` takes."""
        return {"episode_length": self.episode_length, "action_repeat": self.action_repeat}

    @property
    def truncation_rule(self) -> str:
        """Description of when episodes are truncated."""
        return f"time limit: {self._n_steps_allowed} steps"

    def max_episode_steps(self, params: PyTree = None) -> int | None:
        """Return the time limit; see `Environment.max_episode_steps`."""
        del params
        return self._n_steps_allowed

    def action_space(self, params: PyTree = None) -> Box:
        """Return the actions."""
        del params
        return Box(-1.0, 1.0, (self.env.action_size,))

    def reset_env(self, rng: PRNGKeyArray, params: PyTree) -> tuple[Observation, BraxState]:
        """Start an episode; see `Environment.reset_env`."""
        del params
        with SILENCE:
            state = without_weak_types(self.env.reset(rng))
        return _observation(state.obs), BraxState(state, jnp.zeros((), jnp.int32))

    def step_env(
        self, rng: PRNGKeyArray, state: BraxState, action: Array, params: PyTree
    ) -> StepResult:
        """Step without a reset; see `Environment.step_env`."""
        del rng, params
        with SILENCE:
            after, reward = self._step_repeatedly(state.state, action[0])
        n_steps = state.n_steps + 1
        terminated = (after.done > 0).reshape(1)
        infos = {name.replace("/", "_"): value for name, value in after.metrics.items()}
        return (
            _observation(after.obs),
            BraxState(after, n_steps),
            jnp.asarray(reward, jnp.float32).reshape(1),
            terminated,
            (n_steps >= self._n_steps_allowed) & ~terminated,
            {name: value for name, value in infos.items() if value.ndim == 0},
        )

    def _step_repeatedly(self, state: PyTree, action: Array) -> tuple[PyTree, Array]:
        def step(state: PyTree, _: None) -> tuple[PyTree, Array]:
            after = without_weak_types(self.env.step(state, action))
            return after, after.reward

        if self.action_repeat == 1:
            return step(state, None)
        state, rewards = jax.lax.scan(step, state, length=self.action_repeat)
        return state, jnp.sum(rewards)

    def draw(self, state: BraxState, params: PyTree) -> np.ndarray:
        """Let MuJoCo draw a state, ``[height, width, 3]``.

        Raises:
            RuntimeError: there is no screen, and MuJoCo was not told to do without one.
        """
        del params
        if sys.platform == "linux" and not {"DISPLAY", "MUJOCO_GL"} & os.environ.keys():
            raise RuntimeError(
                "MuJoCo finds no screen to draw on; set the environment variable MUJOCO_GL=egl "
                "before Python starts."
            )
        frame = getattr(state.state, "pipeline_state", state.state)
        with SILENCE:
            return np.asarray(self.env.render([frame])[0])


def _observation(observation: Any) -> Observation:
    if not isinstance(observation, dict):
        return Observation(features=observation[jnp.newaxis])
    return Observation(
        features=observation["state"][jnp.newaxis],
        global_state=observation.get("privileged_state"),
    )


def make_brax(
    name: str, episode_length: int = 1000, action_repeat: int = 1, **env_kwargs: Any
) -> BraxEnvironment:
    """Construct a robot of Brax.

    Args:
        name: The library's name.
        episode_length: See `BraxEnvironment`.
        action_repeat: See `BraxEnvironment`.
        env_kwargs: Arguments of its constructor, such as ``backend``: "spring", "generalized",
            "positional" or "mjx".
    """
    with SILENCE:
        env = envs.get_environment(name, **env_kwargs)
    return BraxEnvironment(env, episode_length, action_repeat)
