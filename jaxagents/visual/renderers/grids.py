"""Small worlds of cells: JaxMARL's coin game and jaxnav, and gymnax's mazes."""

import math
from typing import Any

import numpy as np

from jaxagents.evaluation.trajectories import Trajectory
from jaxagents.visual.renderers.canvas import Canvas, View, mixed
from jaxagents.visual.renderers.scene import DEAD, WIDTH, Actor, Scene, draw_badge, faded
from jaxagents.visual.style import FAINT_INK, GRID


def coin_game_scene(env: Any, trajectory: Trajectory, actors: list[Actor]) -> Scene:
    """Draw the players as discs with numbers, and their coins as rings in their colours."""
    del env
    states = trajectory.states
    size = 3
    view = View(-0.5, size - 0.5, -0.5, size - 0.5)

    def draw(n_steps: int) -> Any:
        canvas = Canvas(WIDTH, WIDTH, view, "#FAFAF8")
        for side in range(size + 1):
            canvas.line([(side - 0.5, -0.5), (side - 0.5, size - 0.5)], GRID, 1.5)
            canvas.line([(-0.5, side - 0.5), (size - 0.5, side - 0.5)], GRID, 1.5)
        coins = (states.red_coin_pos, states.blue_coin_pos)
        for actor, coin in zip(actors, coins, strict=True):
            centre = np.ravel(coin[n_steps]) + np.array([0.24, 0.24])
            canvas.circle(centre, 0.17, mixed(actor.colour, "#ffffff", 0.7), actor.colour, 3.0)
        players = (states.red_pos, states.blue_pos)
        for index, (actor, player) in enumerate(zip(actors, players, strict=True)):
            # Beside each other where they share a cell.
            centre = np.ravel(player[n_steps]) + np.array([-0.24 + 0.34 * index, -0.2])
            draw_badge(canvas, centre, 0.2, actor.colour, index)
        return canvas.finished()

    return Scene(draw, actors, seconds_per_step=0.25)


def maze_scene(env: Any, trajectory: Trajectory, actors: list[Actor]) -> Scene:
    """Draw walls, the actor and its goal as a ring."""
    occupied = np.asarray(env.occupied_map) != 0
    height, width = occupied.shape
    view = View(-0.5, width - 0.5, height - 0.5, -0.5)
    states = trajectory.states

    def draw(n_steps: int) -> Any:
        canvas = Canvas(WIDTH, view.height_of(WIDTH), view, "#FAFAF8")
        for row, column in np.argwhere(occupied):
            corner, opposite = (column - 0.5, row - 0.5), (column + 0.5, row + 0.5)
            canvas.rectangle(corner, opposite, FAINT_INK)
        for place, filled in ((states.goal, False), (states.pos, True)):
            row, column = (int(each) for each in place[n_steps])
            if filled:
                draw_badge(canvas, (column, row), 0.4, actors[0].colour, 0)
            else:
                canvas.circle((column, row), 0.45, None, actors[0].colour, 3.0)
        return canvas.finished()

    return Scene(draw, actors, seconds_per_step=0.1)


def jaxnav_scene(env: Any, trajectory: Trajectory, actors: list[Actor]) -> Scene:
    """Draw walls, robots with their headings and paths, and each robot's goal as a ring."""
    states = trajectory.states
    occupied = np.asarray(states.map_data[0]) != 0
    height, width = occupied.shape
    # The map's cells are numbered from its lower left corner.
    cell_width = float(env.map_obj.width) / width
    cell_height = float(env.map_obj.height) / height
    view = View(0, width * cell_width, 0, height * cell_height)
    radius = float(env.rad)

    def draw(n_steps: int) -> Any:
        canvas = Canvas(WIDTH, view.height_of(WIDTH), view)
        for row, column in np.argwhere(occupied):
            corner = (column * cell_width, row * cell_height)
            opposite = (corner[0] + cell_width, corner[1] + cell_height)
            canvas.rectangle(corner, opposite, FAINT_INK)
        done = states.done[n_steps]
        for index, actor in enumerate(actors):
            canvas.circle(states.goal[n_steps][index], 0.9 * radius, None, actor.colour, 3.0)
            path = states.pos[: n_steps + 1, index]
            if len(path) > 1:
                canvas.line(list(path), faded(actor.colour, 0.3), 1.5)
        for index, actor in enumerate(actors):
            centre = states.pos[n_steps][index]
            colour = DEAD if done[index] else actor.colour
            draw_badge(canvas, centre, radius, colour, index)
            angle = float(states.theta[n_steps][index])
            ahead = np.array([math.cos(angle), math.sin(angle)])
            canvas.line([centre + radius * ahead, centre + 1.5 * radius * ahead], colour, 3.0)
            if done[index]:
                canvas.cross(centre, radius, FAINT_INK)
        return canvas.finished()

    return Scene(draw, actors, seconds_per_step=0.06)
