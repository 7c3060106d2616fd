"""Renderers of JaxMARL's particles, battles, robots and coins."""

import math
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxagents.evaluation.episodes import Episode
from jaxagents.visual.renderers.canvas import Canvas, View, mixed
from jaxagents.visual.renderers.scene import DEAD, WIDTH, Actor, Scene, draw_badge, faded
from jaxagents.visual.style import COLOURS, FAINT_INK, GRID, INK

_TRAIL_STEPS = 8
_MIN_RADIUS = 7.0  # of an agent, pixels, so that its index is legible
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def mpe_scene(env: Any, episode: Episode, actors: list[Actor]) -> Scene:
    """Draw agents with trails and messages, and landmarks with a ring around each goal.

    Args:
        env: JaxMARL's environment.
        episode: An episode of it.
        actors: Names and colours of its agents.
    """
    positions = np.asarray(episode.states.p_pos)  # [time, entities, 2]
    radii: list[float] = np.asarray(env.rad, float).tolist()
    n_agents: int = env.num_agents
    # The view holds the whole episode, and at least the square of initial positions.
    reach = max(1.1, float(np.max(np.abs(positions) + np.array(radii)[:, None])) * 1.02)
    view = View(-reach, reach, -reach, reach)

    def draw(n_steps: int) -> Any:
        canvas = Canvas(WIDTH, WIDTH, view, "#FAFAF8")
        _draw_grid(canvas, reach)
        now = positions[n_steps]
        goals = _goals(episode, n_steps)
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
        _write_messages(canvas, env, episode, n_steps)
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
    """Return the library's colour: in some scenarios, colours distinguish landmarks."""
    colour = "#" + "".join(f"{int(channel):02x}" for channel in env.colour[index])
    return mixed(colour, "#ffffff", 0.5) if env.rad[index] > 0.15 else colour


def _goals(episode: Episode, n_steps: int) -> set[int]:
    """Return the indices of the landmarks that are goals."""
    goal = episode.states.goal
    return set() if goal is None else {int(each) for each in np.ravel(goal[n_steps])}


def _write_messages(canvas: Canvas, env: Any, episode: Episode, n_steps: int) -> None:
    """Write each agent's latest message next to it, as a letter."""
    silent, said = np.asarray(env.silent), np.asarray(episode.states.c[n_steps])
    pixel = 1 / canvas.length(1.0)
    for index in np.flatnonzero(silent == 0):
        if not said[index].any():
            continue
        corner = episode.states.p_pos[n_steps][index] + 0.7 * float(env.rad[index]) + 3 * pixel
        opposite = corner + np.array([16, 18]) * pixel
        canvas.rectangle(corner, opposite, "white", radius=4)
        letter = _LETTERS[int(np.argmax(said[index]))]
        canvas.text((corner + opposite) / 2, letter, 14, INK, "mm", bold=True)


_TEAM_COLOURS = COLOURS[:2]
_MIN_RADIUS_OF_UNIT = 8.0  # of a unit, pixels
_MIN_REACH, _MARGIN = 5.0, 1.5  # of the view, units of the world


def smax_scene(env: Any, episode: Episode, actors: list[Actor]) -> Scene:
    """Draw units in their team's colour with their health and shots, and dead ones as crosses.

    Units that are actors show their index. If there are several types of units, each also shows
    the letter of its type.

    Args:
        env: JaxMARL's environment.
        episode: An episode of it.
        actors: The actors; enemies played by the environment are not among them.
    """
    states = getattr(episode.states, "state", episode.states)
    view = _view(states.unit_positions)
    full_health = np.asarray(env.unit_type_health)[states.unit_types]  # [time, units]
    radius = np.asarray(env.unit_type_radiuses, float)[states.unit_types[0]]
    min_radius = _MIN_RADIUS_OF_UNIT * (view.right - view.left) / WIDTH
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


def jaxnav_scene(env: Any, episode: Episode, actors: list[Actor]) -> Scene:
    """Draw walls, robots with headings and paths, and each robot's goal as a ring.

    Robots that have collided are grey and crossed out.
    """
    states = episode.states
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


_SIZE = 3  # cells along either side


def coin_game_scene(env: Any, episode: Episode, actors: list[Actor]) -> Scene:
    """Draw the players as numbered discs, and each one's coin as a ring in the same colour."""
    del env
    states = episode.states
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
