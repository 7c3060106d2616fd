"""Renderer of any environment: each actor's observations, actions and rewards over time."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxagents.evaluation.episodes import Episode
from jaxagents.visual.renderers.canvas import Canvas, Number
from jaxagents.visual.renderers.scene import DEAD, WIDTH, Actor, Scene, draw_badge
from jaxagents.visual.style import COLOURS, FAINT_INK, GRID, INK

# In pixels:
_LEFT, _RIGHT = 58, 10  # margins of the strips
_GAP, _TITLE_HEIGHT = 4, 18
_SPAN = WIDTH - _LEFT - _RIGHT
_PAPER = "#F4F4F2"
_GOOD, _BAD = COLOURS[2], COLOURS[1]
_MAX_ACTORS = 12  # with strips; the others only have an entry below the scene
_MAX_STEPS_WITH_GAPS = 100  # between the bars of rewards


class _Strip(NamedTuple):
    name: str
    height: int
    draw: Callable[[Canvas, Number, Number, int], None]  # canvas, top, height, actor index


def strip_scene(episode: Episode, actors: list[Actor], n_choices: Sequence[int] | None) -> Scene:
    """Draw the whole episode once, and cover the steps that are still to come.

    Each feature is scaled to its own range over the episode; white is its minimum. Unavailable
    actions are grey, as are all strips after an actor's death.

    Args:
        episode: An episode of any environment.
        actors: Names and colours of its actors.
        n_choices: Number of actions of each of an actor's choices; None if actions are real
            vectors.
    """
    chart = _Chart(episode, actors[:_MAX_ACTORS], n_choices)
    complete = chart.draw()

    def draw(n_steps: int) -> Any:
        from PIL import ImageDraw

        image = complete.copy()
        now = round(chart.x(n_steps))
        pen = ImageDraw.Draw(image)
        for top, height in chart.spans():
            pen.rectangle((now, top, _LEFT + _SPAN, top + height), _PAPER)
            pen.line((now, top, now, top + height), INK)
        return image

    return Scene(draw, actors, seconds_per_step=0.1)


class _Chart:
    """The strips of a whole episode."""

    def __init__(self, episode: Episode, actors: list[Actor], n_choices: Sequence[int] | None):
        self._episode = episode
        self._actors = actors
        self._n_choices = n_choices
        share = 1.0 if len(actors) <= 2 else 0.6 if len(actors) <= 4 else 0.35
        self._strips = [
            _Strip("observed", round(56 * share), self._draw_observations),
            _Strip("action", round(44 * share), self._draw_actions),
            _Strip("reward", round(36 * share), self._draw_rewards),
        ]
        self._features = _scaled(np.asarray(episode.observation.features, np.float32)[:-1])

    def x(self, n_steps: int) -> float:
        """Return the horizontal position of a step in pixels."""
        return _LEFT + _SPAN * n_steps / self._episode.n_steps

    def spans(self) -> list[tuple[int, int]]:
        """List top and height of every strip in pixels."""
        spans, top = [], 0
        for _ in self._actors:
            top += _TITLE_HEIGHT
            for strip in self._strips:
                spans.append((top, strip.height))
                top += strip.height + _GAP
        return spans

    def draw(self) -> Any:
        """Draw the strips of all actors over the whole episode."""
        spans = self.spans()
        canvas = Canvas(WIDTH, spans[-1][0] + spans[-1][1] + _GAP)
        for index, actor in enumerate(self._actors):
            own = spans[index * len(self._strips) : (index + 1) * len(self._strips)]
            middle = own[0][0] - _TITLE_HEIGHT / 2
            draw_badge(canvas, (18, middle), 7, actor.colour, index)
            canvas.text((30, middle), actor.name, 12, INK)
            for strip, (top, height) in zip(self._strips, own, strict=True):
                name_size = min(11.0, height)
                canvas.text((_LEFT - 5, top + height / 2), strip.name, name_size, FAINT_INK, "rm")
                canvas.rectangle((_LEFT, top), (_LEFT + _SPAN, top + height), _PAPER)
                strip.draw(canvas, top, height, index)
                self._cover_after_death(canvas, top, height, index)
        return canvas.finished()

    def _draw_observations(self, canvas: Canvas, top: Number, height: Number, index: int) -> None:
        from PIL import Image

        values = self._features[:, index].T[::-1]  # puts the first feature at the bottom
        low, high = np.array([244, 244, 242]), np.array([0, 68, 120])
        colours = low + (high - low) * values[..., None]
        image = Image.fromarray(colours.astype(np.uint8))
        size = (_SPAN, round(float(height)))
        shrinks = image.height > height or image.width > _SPAN
        resampling = Image.Resampling.BOX if shrinks else Image.Resampling.NEAREST
        canvas.paste(image.resize(size, resampling), (_LEFT, top))

    def _draw_actions(self, canvas: Canvas, top: Number, height: Number, index: int) -> None:
        action = self._episode.action[:, index]
        if self._n_choices is None:
            self._draw_lines(canvas, top, height, action)
        else:
            self._draw_choices(canvas, top, height, index, self._n_choices)

    def _draw_choices(
        self, canvas: Canvas, top: Number, height: Number, index: int, n_choices: Sequence[int]
    ) -> None:
        """Draw discrete actions: one row per action, the first choice's first at the bottom."""
        row, first_rows = height / sum(n_choices), np.cumsum([0, *n_choices[:-1]])
        mask = self._episode.observation.action_mask
        for time, action in enumerate(self._episode.action[:, index]):
            left, right = self.x(time), self.x(time + 1)
            if mask is not None:
                for unavailable in np.flatnonzero(~mask[time, index]):
                    bottom = top + height - unavailable * row
                    canvas.rectangle((left, bottom - row), (right, bottom), DEAD)
            thick = max(row - 1, 1.5)
            for taken in first_rows + np.atleast_1d(action):
                bottom = top + height - int(taken) * row
                corner = (left, bottom - thick)
                canvas.rectangle(corner, (right, bottom), self._actors[index].colour)

    def _draw_lines(self, canvas: Canvas, top: Number, height: Number, action: np.ndarray) -> None:
        """Draw vector actions: one line per dimension, on one scale for all dimensions."""
        flat = action.reshape(len(action), -1)
        low, high = float(flat.min()), float(flat.max())
        span = max(high - low, 1e-9)
        for dimension, values in enumerate(flat.T):
            points = []
            for time, value in enumerate(values):
                y = top + height - 2 - (height - 4) * (float(value) - low) / span
                points += [(self.x(time), y), (self.x(time + 1), y)]
            canvas.line(points, COLOURS[dimension % len(COLOURS)], 1.2)

    def _draw_rewards(self, canvas: Canvas, top: Number, height: Number, index: int) -> None:
        """Draw rewards as bars from zero, on one scale for all actors."""
        reward = self._episode.reward
        low, high = min(0.0, float(reward.min())), max(0.0, float(reward.max()))
        span = max(high - low, 1e-9)
        zero = top + 1 + (height - 2) * high / span
        canvas.line([(_LEFT, zero), (_LEFT + _SPAN, zero)], GRID, 1.0)
        for time in np.flatnonzero(reward[:, index]):
            value = float(reward[time, index])
            end = zero - (height - 2) * value / span
            left, right = self.x(int(time)), self.x(int(time) + 1)
            gap = 0.3 if len(reward) <= _MAX_STEPS_WITH_GAPS else 0.0
            colour = _GOOD if value > 0 else _BAD
            canvas.rectangle((left + gap, zero), (right - gap, end), colour)

    def _cover_after_death(self, canvas: Canvas, top: Number, height: Number, index: int) -> None:
        """Cover a strip after its actor's death with a crossed grey box."""
        dead = np.flatnonzero(~self._episode.active[:, index])
        if dead.size:
            left, right = self.x(int(dead[0])), _LEFT + _SPAN
            canvas.rectangle((left, top), (right, top + height), DEAD)
            canvas.line([(left, top), (right, top + height)], FAINT_INK, 0.7)
            canvas.line([(left, top + height), (right, top)], FAINT_INK, 0.7)


def _scaled(
    features: Float[np.ndarray, "time actors *obs"],
) -> Float[np.ndarray, "time actors features"]:
    """Scale each feature to [0, 1] by its range over time and actors."""
    flat = features.reshape(*features.shape[:2], -1)
    low, high = flat.min(axis=(0, 1)), flat.max(axis=(0, 1))
    return (flat - low) / np.maximum(high - low, 1e-9)
