"""Renderer of jaxnav, JaxMARL's robot navigation."""

import math
from typing import Any

import numpy as np

from jaxagents.evaluation.trajectories import Trajectory
from jaxagents.visual.renderers.canvas import Canvas, View
from jaxagents.visual.renderers.scene import DEAD, WIDTH, Actor, Scene, draw_badge, faded
from jaxagents.visual.style import FAINT_INK


def jaxnav_scene(env: Any, trajectory: Trajectory, actors: list[Actor]) -> Scene:
    """Draw walls, robots with headings and paths, and each robot's goal as a ring.

    Robots that have collided are grey and crossed out.
    """
    states = trajectory.states
    # An evaporated robot's flag is set in one state only. `done` holds at the time limit, too.
    collided = np.logical_or.accumulate(np.asarray(states.move_term, bool), axis=0)
    occupied = np.asarray(states.map_data[0]) != 0
    n_rows, n_columns = occupied.shape
    cell_width = float(env.map_obj.width) / n_columns
    cell_height = float(env.map_obj.height) / n_rows
    view = View(0, n_columns * cell_width, 0, n_rows * cell_height)
    radius = float(env.rad)

    def draw(n_steps: int) -> Any:
        canvas = Canvas(WIDTH, view.height_of(WIDTH), view)
        # Row 0 of the map is at the bottom.
        for row, column in np.argwhere(occupied):
            corner = (column * cell_width, row * cell_height)
            opposite = (corner[0] + cell_width, corner[1] + cell_height)
            canvas.rectangle(corner, opposite, FAINT_INK)
        for index, actor in enumerate(actors):
            canvas.circle(states.goal[n_steps][index], 0.9 * radius, None, actor.colour, 3.0)
            path = states.pos[: n_steps + 1, index]
            if len(path) > 1:
                canvas.line(list(path), faded(actor.colour, 0.3), 1.5)
        for index, actor in enumerate(actors):
            crossed = bool(collided[n_steps, index])
            _draw_robot(canvas, states, n_steps, index, radius, DEAD if crossed else actor.colour)
            if crossed:
                canvas.cross(states.pos[n_steps][index], radius, FAINT_INK)
        return canvas.finished()

    return Scene(draw, actors, seconds_per_step=0.06)


def _draw_robot(
    canvas: Canvas, states: Any, n_steps: int, index: int, radius: float, colour: str
) -> None:
    """Draw a numbered disc with a short line along its heading."""
    centre, angle = states.pos[n_steps][index], float(states.theta[n_steps][index])
    ahead = np.array([math.cos(angle), math.sin(angle)])
    draw_badge(canvas, centre, radius, colour, index)
    canvas.line([centre + radius * ahead, centre + 1.5 * radius * ahead], colour, 3.0)
