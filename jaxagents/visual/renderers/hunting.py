"""Renderer of the built-in hunting environments."""

from typing import Any

import numpy as np

from jaxagents.evaluation.episodes import Episode
from jaxagents.visual.renderers.canvas import Canvas, View, mixed
from jaxagents.visual.renderers.scene import WIDTH, Actor, Scene, faded
from jaxagents.visual.style import COLOURS, INK

_TRAIL_STEPS = 20
_BODY = 8.0  # radius of an actor, pixels


def hunting_scene(params: Any, episode: Episode) -> Scene:
    """Draw the arena, the predator and its capture radius, the prey, both trails, and the capture.

    Args:
        params: The environment's `HuntingParams`.
        episode: An episode played with them.
    """
    actors = [Actor("predator", COLOURS[1]), Actor("prey", COLOURS[0])]
    positions = np.asarray(episode.states.positions)  # [time, actors, 2]
    half_width = float(params.arena_half_width)
    # Leave room for the whole body of an actor at the wall.
    reach = half_width * WIDTH / (WIDTH - 4 * _BODY)
    headings = _headings(positions[:, 0], positions[0, 1])
    body = _BODY * 2 * reach / WIDTH

    def draw(n_steps: int) -> Any:
        canvas = Canvas(WIDTH, WIDTH, View(-reach, reach, -reach, reach))
        canvas.rectangle(
            (-half_width - body, -half_width - body), (half_width + body, half_width + body), INK
        )
        inner = half_width + 0.85 * body
        canvas.rectangle((-inner, -inner), (inner, inner), "#FAFAF8")
        predator, prey = positions[n_steps]
        pale = mixed(actors[0].colour, "#ffffff", 0.8)
        canvas.circle(predator, float(params.capture_radius), pale, actors[0].colour)
        for index, actor in enumerate(actors):
            past = positions[max(0, n_steps - _TRAIL_STEPS) : n_steps + 1, index]
            for age, (start, end) in enumerate(zip(past[-2::-1], past[:0:-1], strict=True)):
                # The prey's trail is dashed, to differ without colour too.
                stop = start + (end - start) * (1.0 if index == 0 else 0.5)
                canvas.line([start, stop], faded(actor.colour, age / _TRAIL_STEPS), 2.0)
        canvas.circle(prey, 0.8 * body, actors[1].colour)
        canvas.polygon(_dart(predator, headings[n_steps], 1.2 * body), actors[0].colour)
        if n_steps == episode.n_steps and episode.terminated[-1].any():
            canvas.cross(prey, 2 * body, "#000000", 3.0)
        return canvas.finished()

    return Scene(draw, actors, seconds_per_step=0.08)


def _headings(positions: np.ndarray, first_target: np.ndarray) -> list[np.ndarray]:
    """Return the heading in every state: towards the first target, then that of the last move."""
    headings = [_unit(first_target - positions[0])]
    for move in np.diff(positions, axis=0):
        headings.append(_unit(move) if move.any() else headings[-1])
    return headings


def _unit(vector: np.ndarray) -> np.ndarray:
    return vector / max(float(np.linalg.norm(vector)), 1e-9)


def _dart(centre: np.ndarray, heading: np.ndarray, size: float) -> list[np.ndarray]:
    """Return the corners of a dart that points along the heading."""
    sideways = np.array([-heading[1], heading[0]])
    corners = [(1.0, 0.0), (-0.8, 0.75), (-0.4, 0.0), (-0.8, -0.75)]
    return [centre + size * (ahead * heading + aside * sideways) for ahead, aside in corners]
