"""Craftax and Craftax-Classic, without their own resets."""

import importlib
from typing import Any, final

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxagents.environments.protocol import Environment, StepResult, without_weak_types
from jaxagents.environments.spaces import Discrete
from jaxagents.environments.success import Success
from jaxagents.types import PyTree

craftax_env: Any = importlib.import_module("craftax.craftax_env")  # an extra

_PIXELS_OF_A_BLOCK = 16


@final
class CraftaxEnvironment(Environment):
    """Craftax with one actor.

    Each achievement is an info, 100 in episodes that unlocked it, so that its mean is a percentage.
    The info ``achievements`` is how many an episode has unlocked so far.
    Parameters are the library's own.

    Args:
        env: An environment of the library that does not reset by itself.
    """

    n_actors = 1

    def __init__(self, env: Any):
        self.env = env
        self.name = env.name
        n_achievements = 22 if "Classic" in env.name else 67
        self.success = Success("achievements", f"achievements of {n_achievements}", "count")

    @property
    def default_params(self) -> PyTree:
        """The library's own default parameters."""
        return self.env.default_params

    @property
    def truncation_rule(self) -> str:
        """Description of when episodes are truncated."""
        return f"time limit: max_timesteps = {self.default_params.max_timesteps} steps"

    def max_episode_steps(self, params: PyTree) -> int | None:
        """Return the time limit; see `Environment.max_episode_steps`."""
        return int((self.default_params if params is None else params).max_timesteps)

    def action_space(self, params: PyTree = None) -> Discrete:
        """Return the actions."""
        del params
        return Discrete(self.env.num_actions)

    def reset_env(self, rng: PRNGKeyArray, params: PyTree) -> tuple[Array, PyTree]:
        """Start an episode; see `Environment.reset_env`."""
        observation, state = self.env.reset_env(rng, params)
        return observation[jnp.newaxis], without_weak_types(state)

    def step_env(
        self, rng: PRNGKeyArray, state: PyTree, action: Array, params: PyTree
    ) -> StepResult:
        """Step without a reset; see `Environment.step_env`."""
        observation, state, reward, over, info = self.env.step_env(rng, state, action[0], params)
        # The library does not distinguish the two ends; before the limit, only death ends an
        # episode.
        terminated = self.env.is_terminal(state.replace(timestep=0), params)
        infos = {name.partition("/")[2]: info[name] for name in info if "/" in name}
        infos["achievements"] = jnp.sum(state.achievements).astype(jnp.float32)
        return (
            observation[jnp.newaxis],
            without_weak_types(state),
            jnp.asarray(reward, jnp.float32).reshape(1),
            terminated.reshape(1),
            (over & ~terminated).reshape(1),
            infos,
        )

    def draw(self, state: PyTree, params: PyTree) -> np.ndarray:
        """Let the library draw a state, ``[height, width, 3]``."""
        del params
        package = type(self.env).__module__.rpartition(".envs.")[0]
        renderer: Any = importlib.import_module(f"{package}.renderer")
        draw = getattr(renderer, "render_craftax_pixels", None)
        if draw is None:
            draw = renderer.make_craftax_pixel_renderer(_PIXELS_OF_A_BLOCK)
            return np.asarray(draw(state)).clip(0, 255).astype(np.uint8)
        return np.asarray(draw(state, _PIXELS_OF_A_BLOCK)).clip(0, 255).astype(np.uint8)


def make_craftax(name: str) -> CraftaxEnvironment:
    """Construct an environment by the library's name."""
    return CraftaxEnvironment(craftax_env.make_craftax_env_from_name(name, auto_reset=False))
