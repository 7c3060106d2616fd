"""Renderer of JaxMARL's multi-particle environments (MPE)."""

from typing import Any

import numpy as np

from jaxagents.evaluation.trajectories import Trajectory
from jaxagents.visual.renderers.canvas import Canvas, View, mixed
from jaxagents.visual.renderers.scene import WIDTH, Actor, Scene, draw_badge, faded
from jaxagents.visual.style import GRID, INK

_TRAIL_STEPS = 8
_MIN_RADIUS = 7.0  # of an agent, pixels, so that its index is legible
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def mpe_scene(env: Any, trajectory: Trajectory, actors: list[Actor]) -> Scene:
    """Draw agents with trails and messages, and landmarks with a ring around each goal.

    Args:
        env: JaxMARL's environment.
        trajectory: An episode of it.
        actors: Names and colours of its agents.
    """
    positions = np.asarray(trajectory.states.p_pos)  # [time, entities, 2]
    radii: list[float] = np.asarray(env.rad, float).tolist()
    n_agents: int = env.num_agents
    # The view holds the whole episode, and at least the square of initial positions.
    reach = max(1.1, float(np.max(np.abs(positions) + np.array(radii)[:, None])) * 1.02)
    view = View(-reach, reach, -reach, reach)

    def draw(n_steps: int) -> Any:
        canvas = Canvas(WIDTH, WIDTH, view, "#FAFAF8")
        _draw_grid(canvas, reach)
        now = positions[n_steps]
        goals = _goals(trajectory, n_steps)
        for index in _large_first(radii[n_agents:]):
            radius, colour = radii[n_agents + index], _landmark_colour(env, n_agents + index)
            if index in goals:
                canvas.circle(now[n_agents + index], radius + 0.03 * reach, None, INK, 1.5)
            canvas.circle(now[n_agents + index], radius, colour)
        past = positions[max(0, n_steps - _TRAIL_STEPS) : n_steps + 1, :n_agents]
        for index, actor in enumerate(actors):
            _draw_trail(canvas, past[:, index], actor.colour)
        for index, actor in enumerate(actors):
            radius = max(radii[index], _MIN_RADIUS * 2 * reach / WIDTH)
            canvas.circle(now[index], radius + 2 * reach / WIDTH, "white")
            draw_badge(canvas, now[index], radius, actor.colour, index)
        for index in _large_first(radii[n_agents:]):
            # Outline small landmarks again: agents may cover them.
            if radii[n_agents + index] < max(radii[:n_agents]):
                canvas.circle(now[n_agents + index], radii[n_agents + index], None, INK, 1.2)
        _write_messages(canvas, env, trajectory, n_steps)
        return canvas.finished()

    return Scene(draw, actors, seconds_per_step=0.15)


def _draw_grid(canvas: Canvas, reach: float) -> None:
    for unit in range(-int(reach), int(reach) + 1):
        canvas.line([(unit, -reach), (unit, reach)], GRID, 0.7)
        canvas.line([(-reach, unit), (reach, unit)], GRID, 0.7)


def _draw_trail(canvas: Canvas, past: np.ndarray, colour: str) -> None:
    for age, (start, end) in enumerate(zip(past[-2::-1], past[:0:-1], strict=True)):
        canvas.line([start, end], faded(colour, age / _TRAIL_STEPS), 2.0)


def _large_first(radii: list[float]) -> list[int]:
    return sorted(range(len(radii)), key=lambda index: -radii[index])


def _landmark_colour(env: Any, index: int) -> str:
    """Return the library's colour: in some scenarios, colours tell landmarks apart."""
    colour = "#" + "".join(f"{int(channel):02x}" for channel in env.colour[index])
    return mixed(colour, "#ffffff", 0.5) if env.rad[index] > 0.15 else colour


def _goals(trajectory: Trajectory, n_steps: int) -> set[int]:
    """Return the indices of the landmarks that are goals."""
    goal = trajectory.states.goal
    return set() if goal is None else {int(each) for each in np.ravel(goal[n_steps])}


def _write_messages(canvas: Canvas, env: Any, trajectory: Trajectory, n_steps: int) -> None:
    """Write each agent's latest message beside it, as a letter."""
    silent, said = np.asarray(env.silent), np.asarray(trajectory.states.c[n_steps])
    pixel = 1 / canvas.length(1.0)
    for index in np.flatnonzero(silent == 0):
        if not said[index].any():
            continue
        corner = trajectory.states.p_pos[n_steps][index] + 0.7 * float(env.rad[index]) + 3 * pixel
        opposite = corner + np.array([16, 18]) * pixel
        canvas.rectangle(corner, opposite, "white", radius=4)
        letter = _LETTERS[int(np.argmax(said[index]))]
        canvas.text((corner + opposite) / 2, letter, 14, INK, "mm", bold=True)
