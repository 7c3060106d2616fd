"""What a renderer makes of an episode, and the frame around it."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool

from jaxagents.evaluation.trajectories import Trajectory
from jaxagents.visual.renderers.canvas import Canvas, Number, Point, mixed, text_width
from jaxagents.visual.style import COLOURS, FAINT_INK, INK

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


class _Entry(NamedTuple):
    """What is said of an actor in a state."""

    actor: Actor
    actor_index: int
    value: str  # of its rewards so far
    alive: bool
    has_choice: bool


def _actors(scene: Scene, trajectory: Trajectory, n_steps: int) -> Any:
    entries = _entries(scene, trajectory, n_steps)
    n_columns = min(len(entries), WIDTH // _COLUMN)
    n_rows = -(-len(entries) // n_columns)
    canvas = Canvas(WIDTH, n_rows * _ROW + _MARGIN)
    width = (WIDTH - 2 * _MARGIN + _GUTTER) / n_columns
    for entry in entries:
        column, row = divmod(entry.actor_index, n_rows)
        start = (_MARGIN + column * width, _MARGIN / 2 + (row + 0.5) * _ROW)
        _draw_entry(canvas, start, width - _GUTTER, entry)
    return canvas.finished()


def _entries(scene: Scene, trajectory: Trajectory, n_steps: int) -> list[_Entry]:
    returns = trajectory.reward[:n_steps].sum(axis=0)
    # What ends the episode kills nobody, as far as the trajectory says.
    alive = trajectory.active[[*range(trajectory.n_steps), -1]]
    alive = (alive if scene.alive is None else scene.alive)[n_steps]
    free = have_choices(trajectory)[n_steps]
    return [
        _Entry(actor, index, f"{returns[index]:.2f}", bool(alive[index]), bool(free[index]))
        for index, actor in enumerate(scene.actors)
    ]


def have_choices(trajectory: Trajectory) -> Bool[np.ndarray, "states actors"]:
    """Say which actors have more than one action to choose from."""
    mask = trajectory.observation.action_mask
    if mask is None or trajectory.action.ndim > 2:  # vectors, of which masks name the dimensions
        return np.ones((trajectory.n_steps + 1, trajectory.n_actors), bool)
    return np.sum(mask, axis=-1) > 1


def _draw_entry(canvas: Canvas, start: tuple[float, float], width: float, entry: _Entry) -> None:
    """Write name and rewards: pale without a choice, grey and crossed out after death."""
    (left, middle), colour = start, entry.actor.colour
    ink = INK if entry.alive and entry.has_choice else FAINT_INK
    if not entry.has_choice:
        colour = mixed(colour, "#ffffff", 0.6)
    draw_badge(canvas, (left + 8, middle), 8, colour if entry.alive else DEAD, entry.actor_index)
    name = _shortened(entry.actor.name, width - 30 - text_width(entry.value, _TEXT))
    canvas.text((left + 22, middle), name, _TEXT, ink)
    canvas.text((left + width, middle), entry.value, _TEXT, ink, anchor="rm")
    if not entry.alive:
        end = left + 24 + text_width(name, _TEXT)
        canvas.line([(left + 20, middle), (end, middle)], FAINT_INK)


def draw_badge(canvas: Canvas, centre: Point, radius: Number, colour: str, index: int) -> None:
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
