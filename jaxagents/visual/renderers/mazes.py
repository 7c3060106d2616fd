"""Renderer of gymnax's mazes: FourRooms and MetaMaze."""

from typing import Any

import numpy as np

from jaxagents.evaluation.trajectories import Trajectory
from jaxagents.visual.renderers.canvas import Canvas, View
from jaxagents.visual.renderers.scene import WIDTH, Actor, Scene, draw_badge
from jaxagents.visual.style import FAINT_INK


def maze_scene(env: Any, trajectory: Trajectory, actors: list[Actor]) -> Scene:
    """Draw the walls, the actor as a disc, and its goal as a ring."""
    occupied = np.asarray(env.occupied_map) != 0
    height, width = occupied.shape
    view = View(-0.5, width - 0.5, height - 0.5, -0.5)
    states, colour = trajectory.states, actors[0].colour

    def draw(n_steps: int) -> Any:
        canvas = Canvas(WIDTH, view.height_of(WIDTH), view, "#FAFAF8")
        for row, column in np.argwhere(occupied):
            corner, opposite = (column - 0.5, row - 0.5), (column + 0.5, row + 0.5)
            canvas.rectangle(corner, opposite, FAINT_INK)
        goal_row, goal_column = (int(each) for each in states.goal[n_steps])
        canvas.circle((goal_column, goal_row), 0.45, None, colour, 3.0)
        row, column = (int(each) for each in states.pos[n_steps])
        draw_badge(canvas, (column, row), 0.4, colour, 0)
        return canvas.finished()

    return Scene(draw, actors, seconds_per_step=0.1)
