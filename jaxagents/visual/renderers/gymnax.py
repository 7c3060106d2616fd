"""Renderers of gymnax's classic control and mazes."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxagents.evaluation.episodes import Episode
from jaxagents.visual.renderers.canvas import Canvas, Number, Point, View
from jaxagents.visual.renderers.scene import WIDTH, Actor, Scene, draw_badge
from jaxagents.visual.style import COLOURS, FAINT_INK, GRID, INK

_BLUE, _ORANGE, _GREEN = COLOURS[:3]
_HEIGHT = 240
_SECONDS_PER_STEP = 0.04

Draw = Callable[[Episode, Any, int], Canvas]


def classic_control_scene(name: str, params: Any, episode: Episode, actors: list[Actor]) -> Scene:
    """Draw the system, and the force or torque applied to it.

    Args:
        name: The environment's name, one of `DRAWN`.
        params: Its parameters.
        episode: An episode of it.
        actors: Its only actor.
    """
    draw = DRAWN[name]
    return Scene(
        lambda n_steps: draw(episode, params, n_steps).finished(), actors, _SECONDS_PER_STEP
    )


def _cart_pole(episode: Episode, params: Any, n_steps: int) -> Canvas:
    states = episode.states
    x, angle = float(states.x[n_steps]), float(states.theta[n_steps])
    limit = float(params.x_threshold)
    reach = 1.15 * limit
    view = View(-reach, reach, -0.7, 2 * reach * _HEIGHT / WIDTH - 0.7)
    canvas = Canvas(WIDTH, _HEIGHT, view)
    canvas.line([(-reach, -0.18), (reach, -0.18)], FAINT_INK, 1.5)
    for side in (-limit, limit):  # the episode terminates beyond these marks
        canvas.line([(side, -0.28), (side, -0.08)], FAINT_INK, 1.5)
    canvas.rectangle((x - 0.3, -0.15), (x + 0.3, 0.15), INK, radius=3)
    for wheel in (x - 0.18, x + 0.18):
        canvas.circle((wheel, -0.16), 0.06, FAINT_INK)
    length = 4 * float(params.length)  # twice its true length, as Gym draws it
    tip = (x + length * math.sin(angle), length * math.cos(angle))
    canvas.line([(x, 0), tip], _ORANGE, 9)
    canvas.circle((x, 0), 0.05, "white")
    push = _action(episode, n_steps)
    if push is not None:
        _draw_arrow(canvas, (x, -0.42), (2 * float(push[0]) - 1) * 0.45)
    return canvas


def _pendulum(episode: Episode, params: Any, n_steps: int) -> Canvas:
    states = episode.states
    angle = float(states.theta[n_steps])
    length = float(params.l)
    reach = 1.3 * length
    canvas = Canvas(WIDTH, _HEIGHT, _square_view(reach))
    canvas.circle((0, 0), length, None, GRID, 1.0)
    canvas.line([(0, 0), (-length * math.sin(angle), length * math.cos(angle))], _ORANGE, 12)
    canvas.circle((0, 0), 0.05 * length, INK)
    torque = _action(episode, n_steps)
    if torque is not None:
        bound = float(params.max_torque)
        share = float(np.clip(torque.ravel()[0], -bound, bound)) / bound
        _draw_turn(canvas, (0.0, 0.0), 0.35 * length, share)
    return canvas


def _acrobot(episode: Episode, params: Any, n_steps: int) -> Canvas:
    states = episode.states
    first = float(states.joint_angle1[n_steps])
    both = first + float(states.joint_angle2[n_steps])
    upper, lower = float(params.link_length_1), float(params.link_length_2)
    reach = 1.1 * (upper + lower)
    canvas = Canvas(WIDTH, _HEIGHT, _square_view(reach))
    elbow = np.array([upper * math.sin(first), -upper * math.cos(first)])
    tip = elbow + lower * np.array([math.sin(both), -math.cos(both)])
    canvas.line([(-2 * reach, 1.0), (2 * reach, 1.0)], _GREEN, 1.5)  # the goal height of the tip
    canvas.line([(0, 0), elbow], _BLUE, 8)
    canvas.line([elbow, tip], _ORANGE, 8)
    for joint in ((0, 0), elbow):
        canvas.circle(joint, 0.07, INK)
    torque = _action(episode, n_steps)
    if torque is not None:
        _draw_turn(canvas, elbow, 0.3, float(torque[0]) - 1)
    return canvas


def _mountain_car(episode: Episode, params: Any, n_steps: int) -> Canvas:
    x = float(episode.states.position[n_steps])
    left, right = float(params.min_position), float(params.max_position)
    margin = 0.06 * (right - left)
    width = right - left + 2 * margin
    view = View(left - margin, right + margin, -0.15, width * _HEIGHT / WIDTH - 0.15)
    canvas = Canvas(WIDTH, _HEIGHT, view)
    ground = [(each, _height(each)) for each in np.linspace(left, right, 80)]
    canvas.polygon([(left, -1.0), *ground, (right, -1.0)], "#EFEFEA")
    canvas.line(ground, FAINT_INK, 1.5)
    goal = float(params.goal_position)
    canvas.line([(goal, _height(goal)), (goal, _height(goal) + 0.2)], INK, 1.5)
    flag = [(goal, _height(goal) + 0.2), (goal + 0.09, _height(goal) + 0.16)]
    canvas.polygon([*flag, (goal, _height(goal) + 0.12)], _GREEN)
    _draw_car(canvas, x)
    push = _action(episode, n_steps)
    if push is not None:
        centred = float(push.ravel()[0]) - (1 if push.dtype.kind == "i" else 0)
        _draw_arrow(canvas, (x, _height(x) + 0.2), 0.12 * float(np.clip(centred, -1, 1)))
    return canvas


DRAWN: dict[str, Draw] = {
    "CartPole-v1": _cart_pole,
    "Pendulum-v1": _pendulum,
    "Acrobot-v1": _acrobot,
    "MountainCar-v0": _mountain_car,
    "MountainCarContinuous-v0": _mountain_car,
}


def _action(episode: Episode, n_steps: int) -> np.ndarray | None:
    """Return the action taken in a state, or None in the last state."""
    return episode.action[n_steps][0:1] if n_steps < episode.n_steps else None


def _square_view(reach: float) -> View:
    across = reach * WIDTH / _HEIGHT
    return View(-across, across, -reach, reach)


def _height(x: float) -> float:
    """Return the height of the mountain at x."""
    return 0.45 * math.sin(3 * x) + 0.55


def _draw_car(canvas: Canvas, x: float) -> None:
    slope = 1.35 * math.cos(3 * x)
    ahead = np.array([1.0, slope]) / math.hypot(1.0, slope)
    upwards = np.array([-ahead[1], ahead[0]])
    ground = np.array([x, _height(x)])

    def at(along: float, above: float) -> np.ndarray:
        return ground + along * ahead + above * upwards

    canvas.polygon([at(-0.08, 0.03), at(0.08, 0.03), at(0.08, 0.09), at(-0.08, 0.09)], _ORANGE)
    for along in (-0.05, 0.05):
        canvas.circle(at(along, 0.025), 0.025, INK)


def _draw_arrow(canvas: Canvas, start: Point, length: Number) -> None:
    """Draw a horizontal arrow, or a dot if its length is zero."""
    x, y = start
    head = 6 / canvas.length(1.0)
    if abs(length) < head / 10:
        canvas.circle(start, head / 2, _BLUE)
        return
    side = math.copysign(head, length)
    end = x + length
    canvas.line([start, (end, y)], _BLUE, 3)
    canvas.polygon([(end + side, y), (end, y + head), (end, y - head)], _BLUE)


def _draw_turn(canvas: Canvas, centre: Point, radius: Number, share: Number) -> None:
    """Draw a torque as an arc around a joint.

    Args:
        canvas: Where to draw.
        centre: The joint.
        radius: Radius of the arc.
        share: Torque relative to its maximum; positive is anticlockwise from the top.
    """
    x, y = centre
    angles = np.linspace(0, share * 0.75 * math.pi, 24)
    arc = [(x - radius * math.sin(angle), y + radius * math.cos(angle)) for angle in angles]
    canvas.line(arc, INK, 2)
    canvas.circle(arc[-1], 4 / canvas.length(1.0), INK)


def maze_scene(env: Any, episode: Episode, actors: list[Actor]) -> Scene:
    """Draw the walls, the actor as a disc, and its goal as a ring."""
    occupied = np.asarray(env.occupied_map) != 0
    height, width = occupied.shape
    view = View(-0.5, width - 0.5, height - 0.5, -0.5)
    states, colour = episode.states, actors[0].colour

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
