"""XLand-MiniGrid: MiniGrid's tasks, and worlds whose rules and goal are parameters."""

import importlib
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxagents.environments.protocol import Environment, StepResult, without_weak_types
from jaxagents.environments.spaces import Discrete
from jaxagents.environments.success import Success
from jaxagents.types import PyTree

xminigrid: Any = importlib.import_module("xminigrid")  # an extra
constants: Any = importlib.import_module("xminigrid.core.constants")


@final
class XMiniGridEnvironment(Environment):
    """A task of XLand-MiniGrid with one actor, who sees the cells in front of it.

    Tiles and colours become one-hot channels. Parameters are the library's own: rules and goals of
    an XLand world are their ``ruleset``.

    Args:
        env: The library's environment.
        params: Its default parameters.
        observe_rules: Append the world's goal and rules as channels of numbers.
    """

    n_actors = 1
    # Episodes terminate at the goal alone.
    success = Success("reached_goal", "goals reached")

    def __init__(self, env: Any, params: PyTree, observe_rules: bool = False):
        self.env = env
        self.name = type(env).__name__
        self._params = params
        self._observe_rules = observe_rules

    @property
    def default_params(self) -> PyTree:
        """The library's parameters for the id."""
        return self._params

    @property
    def truncation_rule(self) -> str:
        """Description of when episodes are truncated."""
        return f"time limit: max_steps = {self._params.max_steps} steps"

    def max_episode_steps(self, params: PyTree = None) -> int | None:
        """Return the time limit; see `Environment.max_episode_steps`."""
        return int((self._params if params is None else params).max_steps)

    def action_space(self, params: PyTree = None) -> Discrete:
        """Return the actions."""
        return Discrete(self.env.num_actions(self._params if params is None else params))

    def reset_env(self, rng: PRNGKeyArray, params: PyTree) -> tuple[Array, PyTree]:
        """Start an episode; see `Environment.reset_env`."""
        state = without_weak_types(self.env.reset(params, rng))
        return self._features(state), state

    def step_env(
        self, rng: PRNGKeyArray, state: PyTree, action: Array, params: PyTree
    ) -> StepResult:
        """Step without a reset; see `Environment.step_env`."""
        del rng
        state = without_weak_types(self.env.step(params, state, action[0]))
        terminated = state.last() & (state.discount == 0)
        return (
            self._features(state),
            state,
            jnp.asarray(state.reward, jnp.float32).reshape(1),
            terminated.reshape(1),
            (state.last() & ~terminated).reshape(1),
            {"reached_goal": terminated.astype(jnp.float32)},
        )

    def draw(self, state: PyTree, params: PyTree) -> np.ndarray:
        """Let the library draw a state, ``[height, width, 3]``."""
        return np.asarray(self.env.render(self._params if params is None else params, state))

    def _features(self, timestep: Any) -> Array:
        view = timestep.observation
        sizes = (constants.NUM_TILES, constants.NUM_COLORS)
        layers = [jax.nn.one_hot(view[..., i], n) for i, n in enumerate(sizes)]
        if self._observe_rules:
            state = timestep.state
            rules = jnp.concatenate([state.goal_encoding, state.rule_encoding.ravel()])
            layers.append(
                jnp.broadcast_to(rules.astype(jnp.float32), (*view.shape[:2], rules.size))
            )
        return jnp.concatenate(layers, axis=-1)[jnp.newaxis]


def make_xminigrid(
    name: str, observe_rules: bool = False, **env_kwargs: Any
) -> XMiniGridEnvironment:
    """Construct a task by the library's id.

    Args:
        name: The library's id.
        observe_rules: See `XMiniGridEnvironment`.
        env_kwargs: Parameters, such as ``max_steps`` and ``view_size``.
    """
    env, params = xminigrid.make(name, **env_kwargs)
    return XMiniGridEnvironment(env, params, observe_rules)
