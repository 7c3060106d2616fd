"""Renderer of SMAX, JaxMARL's StarCraft-like battles."""

from typing import Any

import numpy as np
from jaxtyping import Float

from jaxagents.evaluation.trajectories import Trajectory
from jaxagents.visual.renderers.canvas import Canvas, View, mixed
from jaxagents.visual.renderers.scene import DEAD, WIDTH, Actor, Scene
from jaxagents.visual.style import COLOURS, FAINT_INK, INK

_TEAM_COLOURS = COLOURS[:2]
_MIN_RADIUS = 8.0  # of a unit, pixels
_MIN_REACH, _MARGIN = 5.0, 1.5  # of the view, units of the world


def smax_scene(env: Any, trajectory: Trajectory, actors: list[Actor]) -> Scene:
    """Draw units in their team's colour with their health and shots, and dead ones as crosses.

    Units that are actors show their index. If there are several types of units, each also shows
    the letter of its type.

    Args:
        env: JaxMARL's environment.
        trajectory: An episode of it.
        actors: The actors; enemies played by the environment are not among them.
    """
    states = getattr(trajectory.states, "state", trajectory.states)
    view = _view(states.unit_positions)
    full_health = np.asarray(env.unit_type_health)[states.unit_types]  # [time, units]
    radius = np.asarray(env.unit_type_radiuses, float)[states.unit_types[0]]
    min_radius = _MIN_RADIUS * (view.right - view.left) / WIDTH
    radii: list[float] = np.maximum(radius, min_radius).tolist()
    colours = [_TEAM_COLOURS[int(unit >= env.num_allies)] for unit in range(len(radii))]
    actors = [actor._replace(colour=colours[unit]) for unit, actor in enumerate(actors)]

    def draw(n_steps: int) -> Any:
        canvas = Canvas(WIDTH, WIDTH, view, "#FAFAF8")
        positions, alive = states.unit_positions[n_steps], states.unit_alive[n_steps]
        for unit in np.flatnonzero(~alive):
            canvas.cross(positions[unit], radii[unit], DEAD, 3.0)
        for shooter, target in shots(env, states, n_steps):
            shot = [positions[shooter], positions[target]]
            canvas.line(shot, mixed(colours[shooter], "#ffffff", 0.4), 1.2)
        for unit in np.flatnonzero(alive):
            canvas.circle(positions[unit], radii[unit], colours[unit])
            label = _label(env, states.unit_types[n_steps], int(unit), bool(unit < len(actors)))
            size = min(12.0, canvas.length(radii[unit]) * 1.2)
            canvas.text(positions[unit], label, size, "white", "mm", bold=True)
            health = states.unit_health[n_steps][unit] / full_health[n_steps][unit]
            _draw_health(canvas, positions[unit], radii[unit], float(health))
        return canvas.finished()

    alive = np.asarray(states.unit_alive)[:, : len(actors)]
    return Scene(draw, actors, seconds_per_step=0.15, alive=alive)


def _view(positions: Float[np.ndarray, "time units 2"]) -> View:
    """Return the smallest square view that holds all positions, with a margin."""
    low, high = positions.min(axis=(0, 1)), positions.max(axis=(0, 1))
    x, y = ((low + high) / 2).tolist()
    reach = max(_MIN_REACH, float(np.max(high - low)) / 2) + _MARGIN
    return View(x - reach, x + reach, y - reach, y + reach)


def _label(env: Any, unit_types: np.ndarray, unit: int, is_actor: bool) -> str:
    """Return a unit's index, if it is an actor, and the letter of its type, if types differ."""
    number = str(unit) if is_actor else ""
    types_differ = len(np.unique(unit_types)) > 1
    return number + (env.unit_type_shorthands[int(unit_types[unit])] if types_differ else "")


def shots(env: Any, states: Any, n_steps: int) -> list[tuple[int, int]]:
    """List shooter and target of the latest step's shots, if both are still alive."""
    if n_steps == 0:
        return []
    n_allies, n_moves = env.num_allies, env.num_movement_actions
    targets = states.prev_attack_actions[n_steps] - n_moves
    alive = states.unit_alive[n_steps]
    shots = []
    for shooter, target in enumerate(targets):
        # Enemies number the allies in reverse.
        unit = int(n_allies + target if shooter < n_allies else n_allies - 1 - target)
        if target >= 0 and alive[shooter] and alive[unit]:
            shots.append((shooter, unit))
    return shots


def _draw_health(canvas: Canvas, position: np.ndarray, radius: float, health: float) -> None:
    x, y = float(position[0]), float(position[1]) + 1.5 * radius
    thick = 0.3 * radius
    canvas.rectangle((x - radius, y), (x + radius, y + thick), mixed(FAINT_INK, "#ffffff", 0.6))
    end = x - radius + 2 * radius * min(1.0, health)
    canvas.rectangle((x - radius, y), (end, y + thick), INK)
