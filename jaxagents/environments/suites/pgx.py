"""pgx's games: board games, card games and its own MinAtar."""

import importlib
import io
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxagents.environments.protocol import Environment, StepResult, without_weak_types
from jaxagents.environments.quiet_import import SILENCE
from jaxagents.environments.spaces import Discrete
from jaxagents.types import Observation, PyTree

pgx: Any = importlib.import_module("pgx")  # an extra


@final
class PgxEnvironment(Environment):
    """A game of pgx; its players are the actors, each a team of its own.

    The library draws who begins. A waiting player sees the state from its own side, and its only
    action has no effect (`Observation.has_turn`).

    Args:
        env: The library's game.
    """

    def __init__(self, env: Any):
        self.env = env
        self.name = env.id
        self.n_actors = env.num_players
        if self.n_actors > 1:
            self.teams = tuple(range(self.n_actors))
        self._space = Discrete(env.num_actions)

    @property
    def truncation_rule(self) -> str:
        """Description of when episodes are truncated."""
        return "none: games terminate"

    def action_space(self, params: PyTree = None) -> Discrete:
        """Return the actions of one player."""
        del params
        return self._space

    def reset_env(self, rng: PRNGKeyArray, params: PyTree) -> tuple[Observation, PyTree]:
        """Start a game; see `Environment.reset_env`."""
        del params
        state = without_weak_types(self.env.init(rng))
        return self._observe(state), state

    def step_env(
        self, rng: PRNGKeyArray, state: PyTree, action: Array, params: PyTree
    ) -> StepResult:
        """Step without a reset; see `Environment.step_env`."""
        del params
        # The library's step leaves an ended game as it is; constants tell it that none has ended.
        state = state.replace(terminated=jnp.array(False), truncated=jnp.array(False))
        state = without_weak_types(self.env.step(state, action[state.current_player], rng))
        terminated = jnp.broadcast_to(state.terminated, self.n_actors)
        return (
            self._observe(state),
            state,
            jnp.asarray(state.rewards, jnp.float32),
            terminated,
            jnp.broadcast_to(state.truncated, self.n_actors) & ~terminated,
            {},
        )

    def draw(self, state: PyTree, params: PyTree) -> np.ndarray:
        """Let the library draw a state, ``[height, width, 3]``."""
        del params
        from PIL import Image

        resvg: Any = importlib.import_module("resvg_py")
        png = resvg.svg_to_bytes(svg_string=state.to_svg(), background="white", dpi=96)
        return np.asarray(Image.open(io.BytesIO(bytes(png))).convert("RGB"))

    def _observe(self, state: PyTree) -> Observation:
        players = jnp.arange(self.n_actors)
        with SILENCE:
            features = jax.vmap(lambda player: self.env.observe(state, player))(players)
        turn = players == state.current_player
        waiting = jnp.arange(self._space.n) == 0
        return Observation(
            features=features.astype(jnp.float32),
            action_mask=jnp.where(turn[:, None], state.legal_action_mask, waiting),
            has_turn=turn if self.n_actors > 1 else None,
        )


def make_pgx(name: str) -> PgxEnvironment:
    """Construct a game by the library's name."""
    return PgxEnvironment(pgx.make(name))
