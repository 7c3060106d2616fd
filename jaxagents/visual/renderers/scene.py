"""Scenes: episodes ready to be drawn, with the frame around them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool

from jaxagents.evaluation.episodes import Episode
from jaxagents.visual.renderers.canvas import Canvas, Number, Point, mixed, text_width
from jaxagents.visual.style import COLOURS, FAINT_INK, INK

WIDTH = 360  # of every picture, in pixels
DEAD = "#C8C8C8"
# In pixels:
_MARGIN, _PADDING, _HEADER_HEIGHT, _ROW_HEIGHT = 10, 7, 28, 20
_TEXT_SIZE = 13.0
_MIN_COLUMN_WIDTH, _GUTTER = 165, 20


class Scene(NamedTuple):
    """One episode, ready to be drawn."""

    draw: Callable[[int], Any]  # maps the number of steps taken to a Pillow image, WIDTH wide
    actors: Sequence["Actor"]
    seconds_per_step: float
    alive: Bool[np.ndarray, "states actors"] | None = None  # None: the episode's `active`
    below: Callable[[int], Any] | None = None  # like `draw`, below the actors


class Actor(NamedTuple):
    """An actor's name and colour."""

    name: str
    colour: str


def make_actors(names: Sequence[str], teams: Sequence[int] | None) -> list[Actor]:
    """Colour the actors by team, or each differently if there is only one team."""
    groups = teams if teams is not None and len(set(teams)) > 1 else range(len(names))
    return [
        Actor(name, COLOURS[group % len(COLOURS)])
        for name, group in zip(names, groups, strict=True)
    ]


def compose(scene: Scene, episode: Episode, n_steps: int) -> Any:
    """Draw a frame: the time above the scene, the actors and their returns so far below it."""
    from PIL import Image

    parts = [
        _draw_header(episode, n_steps),
        scene.draw(n_steps),
        _draw_actors(scene, episode, n_steps),
        *([] if scene.below is None else [scene.below(n_steps)]),
    ]
    frame = Image.new("RGB", (WIDTH, sum(part.height for part in parts)), "white")
    top = 0
    for part in parts:
        frame.paste(part, ((WIDTH - part.width) // 2, top))
        top += part.height
    return frame


def _draw_header(episode: Episode, n_steps: int) -> Any:
    """Write the step and, in the last frame, how the episode ended."""
    canvas = Canvas(WIDTH, _HEADER_HEIGHT)
    text = f"step {n_steps} of {episode.n_steps}"
    canvas.text((_MARGIN, _HEADER_HEIGHT / 2), text, _TEXT_SIZE)
    if n_steps == episode.n_steps:
        end, right = _kind_of_end(episode), WIDTH - _MARGIN
        left = right - text_width(end, _TEXT_SIZE) - 2 * _PADDING
        canvas.rectangle((left, 4), (right, _HEADER_HEIGHT - 4), INK, radius=4)
        canvas.text((left + _PADDING, _HEADER_HEIGHT / 2), end, _TEXT_SIZE, "white")
    return canvas.finished()


def _kind_of_end(episode: Episode) -> str:
    terminated, truncated = episode.terminated[-1], episode.truncated[-1]
    if not truncated.any():
        return "terminated"
    return "truncated and terminated" if terminated.any() else "truncated"


class _Entry(NamedTuple):
    """An actor's entry below the scene."""

    actor: Actor
    actor_index: int
    return_so_far: str
    alive: bool
    has_choice: bool


def _draw_actors(scene: Scene, episode: Episode, n_steps: int) -> Any:
    entries = _entries(scene, episode, n_steps)
    n_columns = min(len(entries), WIDTH // _MIN_COLUMN_WIDTH)
    n_rows = -(-len(entries) // n_columns)
    canvas = Canvas(WIDTH, n_rows * _ROW_HEIGHT + _MARGIN)
    width = (WIDTH - 2 * _MARGIN + _GUTTER) / n_columns
    for entry in entries:
        column, row = divmod(entry.actor_index, n_rows)
        start = (_MARGIN + column * width, _MARGIN / 2 + (row + 0.5) * _ROW_HEIGHT)
        _draw_entry(canvas, start, width - _GUTTER, entry)
    return canvas.finished()


def _entries(scene: Scene, episode: Episode, n_steps: int) -> list[_Entry]:
    returns = episode.reward[:n_steps].sum(axis=0)
    # `active` covers steps, not states: repeat its last row for the state after the last step.
    alive = episode.active[[*range(episode.n_steps), -1]]
    alive = (alive if scene.alive is None else scene.alive)[n_steps]
    has_choice = have_choices(episode)[n_steps]
    return [
        _Entry(actor, index, f"{returns[index]:.2f}", bool(alive[index]), bool(has_choice[index]))
        for index, actor in enumerate(scene.actors)
    ]


def have_choices(episode: Episode) -> Bool[np.ndarray, "states actors"]:
    """Return which actors have more than one available action."""
    mask = episode.observation.action_mask
    if mask is None or episode.action.ndim > 2:  # vectors: the mask marks their dimensions
        return np.ones((episode.n_steps + 1, episode.n_actors), bool)
    return np.sum(mask, axis=-1) > 1


def _draw_entry(canvas: Canvas, start: tuple[float, float], width: float, entry: _Entry) -> None:
    """Write name and return: pale if the actor has no choice, struck through after its death."""
    (left, middle), colour = start, entry.actor.colour
    ink = INK if entry.alive and entry.has_choice else FAINT_INK
    if not entry.has_choice:
        colour = mixed(colour, "#ffffff", 0.6)
    draw_badge(canvas, (left + 8, middle), 8, colour if entry.alive else DEAD, entry.actor_index)
    name = _shortened(entry.actor.name, width - 30 - text_width(entry.return_so_far, _TEXT_SIZE))
    canvas.text((left + 22, middle), name, _TEXT_SIZE, ink)
    canvas.text((left + width, middle), entry.return_so_far, _TEXT_SIZE, ink, anchor="rm")
    if not entry.alive:
        end = left + 24 + text_width(name, _TEXT_SIZE)
        canvas.line([(left + 20, middle), (end, middle)], FAINT_INK)


def draw_badge(canvas: Canvas, centre: Point, radius: Number, colour: str, index: int) -> None:
    """Draw a disc with an actor's index."""
    canvas.circle(centre, radius, colour)
    size = min(13.0, canvas.length(radius) * 1.25)
    if size >= 6:
        canvas.text(centre, str(index), size, "white", "mm", bold=True)


def _shortened(text: str, width: float) -> str:
    """Truncate the text to a width in pixels."""
    if text_width(text, _TEXT_SIZE) <= width:
        return text
    while text and text_width(text + "..", _TEXT_SIZE) > width:
        text = text[:-1]
    return text + ".."


def faded(colour: str, age: float) -> str:
    """Fade a trail's colour with its age, 0 (newest) to 1 (oldest)."""
    return mixed(colour, "#ffffff", 0.3 + 0.6 * age)
