"""Renderer of JaxMARL's coin game."""

from typing import Any

import numpy as np

from jaxagents.evaluation.trajectories import Trajectory
from jaxagents.visual.renderers.canvas import Canvas, View, mixed
from jaxagents.visual.renderers.scene import WIDTH, Actor, Scene, draw_badge
from jaxagents.visual.style import GRID

_SIZE = 3  # cells along either side


def coin_game_scene(env: Any, trajectory: Trajectory, actors: list[Actor]) -> Scene:
    """Draw the players as numbered discs, and each one's coin as a ring in the same colour."""
    del env
    states = trajectory.states
    view = View(-0.5, _SIZE - 0.5, -0.5, _SIZE - 0.5)

    def draw(n_steps: int) -> Any:
        canvas = Canvas(WIDTH, WIDTH, view, "#FAFAF8")
        for side in range(_SIZE + 1):
            canvas.line([(side - 0.5, -0.5), (side - 0.5, _SIZE - 0.5)], GRID, 1.5)
            canvas.line([(-0.5, side - 0.5), (_SIZE - 0.5, side - 0.5)], GRID, 1.5)
        coins = (states.red_coin_pos, states.blue_coin_pos)
        for actor, coin in zip(actors, coins, strict=True):
            centre = np.ravel(coin[n_steps]) + np.array([0.24, 0.24])
            canvas.circle(centre, 0.17, mixed(actor.colour, "#ffffff", 0.7), actor.colour, 3.0)
        players = (states.red_pos, states.blue_pos)
        for index, (actor, player) in enumerate(zip(actors, players, strict=True)):
            # Offset, so that players in the same cell stand side by side.
            centre = np.ravel(player[n_steps]) + np.array([-0.24 + 0.34 * index, -0.2])
            draw_badge(canvas, centre, 0.2, actor.colour, index)
        return canvas.finished()

    return Scene(draw, actors, seconds_per_step=0.25)
