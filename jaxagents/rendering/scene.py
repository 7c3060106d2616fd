"""What a renderer makes of an episode, and the frame around it."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool

from jaxagents.palette import COLOURS, FAINT_INK, INK
from jaxagents.rendering.canvas import Canvas, Point, mixed, text_width
from jaxagents.trajectories import Trajectory

WIDTH = 360  # of every picture, in pixels
DEAD = "#C8C8C8"
_MARGIN, _PADDING, _HEADER, _ROW = 10, 7, 28, 20
_TEXT = 13.0
_COLUMN, _GUTTER = 165, 20  # the least width of an actor's entry, and of what is between


class Scene(NamedTuple):
    """How to draw the states of one episode."""

    draw: Callable[[int], Any]  # from the number of steps taken to Pillow's image, WIDTH wide
    actors: Sequence["Actor"]
    seconds_per_step: float
    alive: Bool[np.ndarray, "states actors"] | None = None  # None: as the trajectory says


class Actor(NamedTuple):
    """How an actor is called, and what its colour is."""

    name: str
    colour: str


def make_actors(names: Sequence[str], teams: Sequence[int] | None) -> list[Actor]:
    """Give actors colours: one for each team or, of a single team, one for each actor."""
    several = teams is not None and len(set(teams)) > 1
    groups = teams if several and teams is not None else range(len(names))
    return [
        Actor(name, COLOURS[group % len(COLOURS)])
        for name, group in zip(names, groups, strict=True)
    ]


def compose(scene: Scene, trajectory: Trajectory, n_steps: int) -> Any:
    """Draw a state, with the time above it and the actors' rewards so far below."""
    from PIL import Image

    parts = [
        _header(trajectory, n_steps),
        scene.draw(n_steps),
        _actors(scene, trajectory, n_steps),
    ]
    frame = Image.new("RGB", (WIDTH, sum(part.height for part in parts)), "white")
    top = 0
    for part in parts:
        frame.paste(part, ((WIDTH - part.width) // 2, top))
        top += part.height
    return frame


def _header(trajectory: Trajectory, n_steps: int) -> Any:
    canvas = Canvas(WIDTH, _HEADER)
    text = f"step {n_steps} of {trajectory.n_steps}"
    canvas.text((_MARGIN, _HEADER / 2), text, _TEXT)
    if n_steps == trajectory.n_steps:
        end, right = _how_it_ended(trajectory), WIDTH - _MARGIN
        left = right - text_width(end, _TEXT) - 2 * _PADDING
        canvas.rectangle((left, 4), (right, _HEADER - 4), INK, radius=4)
        canvas.text((left + _PADDING, _HEADER / 2), end, _TEXT, "white")
    return canvas.finished()


def _how_it_ended(trajectory: Trajectory) -> str:
    terminated, truncated = trajectory.terminated[-1], trajectory.truncated[-1]
    if not truncated.any():
        return "terminated"
    return "truncated and terminated" if terminated.any() else "truncated"


def _actors(scene: Scene, trajectory: Trajectory, n_steps: int) -> Any:
    actors = scene.actors
    n_columns = min(len(actors), WIDTH // _COLUMN)
    n_rows = -(-len(actors) // n_columns)
    canvas = Canvas(WIDTH, n_rows * _ROW + _MARGIN)
    width = (WIDTH - 2 * _MARGIN + _GUTTER) / n_columns
    returns = trajectory.reward[:n_steps].sum(axis=0)
    # What ends the episode kills nobody, as far as the trajectory says.
    alive = trajectory.active[[*range(trajectory.n_steps), -1]]
    alive = (alive if scene.alive is None else scene.alive)[n_steps]
    for index, actor in enumerate(actors):
        column, row = divmod(index, n_rows)
        corner = (_MARGIN + column * width, _MARGIN / 2 + row * _ROW)
        value = f"{returns[index]:.2f}"
        _entry(canvas, corner, width - _GUTTER, actor, index, value, bool(alive[index]))
    return canvas.finished()


def _entry(
    canvas: Canvas,
    corner: tuple[float, float],
    width: float,
    actor: Actor,
    index: int,
    value: str,
    alive: bool,
) -> None:
    left, middle = corner[0], corner[1] + _ROW / 2
    draw_badge(canvas, (left + 8, middle), 8, actor.colour if alive else DEAD, index)
    name = _shortened(actor.name, width - 30 - text_width(value, _TEXT))
    colour = INK if alive else FAINT_INK
    canvas.text((left + 22, middle), name, _TEXT, colour)
    if not alive:
        end = left + 22 + text_width(name, _TEXT)
        canvas.line([(left + 20, middle), (end + 2, middle)], FAINT_INK)
    canvas.text((left + width, middle), value, _TEXT, colour, anchor="rm")


def draw_badge(canvas: Canvas, centre: Point, radius: float, colour: str, index: int) -> None:
    """Draw a disc with an actor's number."""
    canvas.circle(centre, radius, colour)
    size = min(13.0, canvas.length(radius) * 1.25)
    if size >= 6:
        canvas.text(centre, str(index), size, "white", "mm", bold=True)


def _shortened(text: str, width: float) -> str:
    """Cut off what is too long for the width in pixels."""
    if text_width(text, _TEXT) <= width:
        return text
    while text and text_width(text + "..", _TEXT) > width:
        text = text[:-1]
    return text + ".."


def faded(colour: str, age: float) -> str:
    """Fade a trail's colour with its age, from 0 to 1."""
    return mixed(colour, "#ffffff", 0.3 + 0.6 * age)
