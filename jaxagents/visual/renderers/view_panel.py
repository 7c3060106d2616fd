"""What an agent made of each step, below the scene: values, and likely actions."""

from typing import Any, Protocol, final

import numpy as np
from jaxtyping import Float

from jaxagents.environments.spaces import ActionSpace, Box
from jaxagents.evaluation.episodes import Episode, EpisodeView
from jaxagents.visual.renderers.canvas import Canvas, mixed
from jaxagents.visual.renderers.scene import WIDTH, Scene, draw_badge
from jaxagents.visual.style import FAINT_INK, GRID, INK

# In pixels:
_TITLE_HEIGHT, _ROW_HEIGHT, _HEIGHT = 18, 30, 22  # of the title, a row, and the actions in it
_VALUE_RIGHT, _LEFT, _RIGHT = 86, 96, 350  # where values end; sides of the actions
_MAX_ACTORS = 12


def with_view(scene: Scene, view: EpisodeView, episode: Episode, space: ActionSpace) -> Scene:
    """Add a row per actor to a scene: its value, and its likely actions.

    A discrete action has a bar as high as its probability; a dimension of a real action has a scale
    with a band of one standard deviation. What was done has the actor's colour.

    Args:
        scene: The episode's scene.
        view: What the agent made of the episode.
        episode: The episode.
        space: The space of an actor's actions.

    Raises:
        ValueError: the view is another episode's.
    """
    if view.value.shape != episode.reward.shape:
        viewed, played = (
            " steps of ".join(map(str, each.shape)) for each in (view.value, episode.reward)
        )
        raise ValueError(
            f"the view has {viewed} actors, and the episode {played}; pass the agent's view of "
            "this episode."
        )
    actions = episode.action.reshape(*episode.reward.shape, -1)
    likely: _Likely | None = None  # None: the agent's distribution tells none
    if isinstance(space, Box):
        if view.quantiles is not None:
            likely = _Bands(view.quantiles, actions, space)
    elif view.probabilities is not None:
        likely = _Bars(view.probabilities, actions, space.n_choices)

    def draw(n_steps: int) -> Any:
        actors = scene.actors[:_MAX_ACTORS]
        canvas = Canvas(WIDTH, _TITLE_HEIGHT + _ROW_HEIGHT * len(actors))
        canvas.text((_VALUE_RIGHT, _TITLE_HEIGHT / 2), "value", 11, FAINT_INK, "rm")
        if likely is not None:
            canvas.text((_LEFT, _TITLE_HEIGHT / 2), likely.title, 11, FAINT_INK)
        for index, actor in enumerate(actors):
            bottom = _TITLE_HEIGHT + _ROW_HEIGHT * (index + 1) - 4
            middle = bottom - _HEIGHT / 2
            draw_badge(canvas, (18, middle), 8, actor.colour, index)
            canvas.line([(_LEFT, bottom), (_RIGHT, bottom)], GRID)
            if n_steps < episode.n_steps and episode.active[n_steps, index]:
                value = f"{view.value[n_steps, index]:.2f}"
                canvas.text((_VALUE_RIGHT, middle), value, 13, INK, "rm")
                if likely is not None:
                    likely.draw(canvas, bottom, actor.colour, (n_steps, index))
        return canvas.finished()

    return scene._replace(below=draw)


class _Likely(Protocol):
    """Likely actions, to be drawn above a line."""

    title: str

    def draw(self, canvas: Canvas, bottom: float, colour: str, at: tuple[int, int]) -> None:
        """Draw those of a step and an actor."""


@final
class _Bars(_Likely):
    """A bar per discrete action."""

    title = "probability of each action"

    def __init__(
        self,
        probabilities: Float[np.ndarray, "time actors actions"],
        actions: np.ndarray,
        n_choices: tuple[int, ...],
    ):
        self._probabilities = probabilities
        self._taken = actions + np.cumsum([0, *n_choices[:-1]])  # positions in the row
        # Between two choices is a gap as wide as a bar.
        self._positions = np.arange(sum(n_choices)) + np.repeat(range(len(n_choices)), n_choices)

    def draw(self, canvas: Canvas, bottom: float, colour: str, at: tuple[int, int]) -> None:
        width = (_RIGHT - _LEFT) / (self._positions[-1] + 1)
        for action, probability in enumerate(self._probabilities[at]):
            left = _LEFT + width * self._positions[action]
            top = bottom - max(1.0, _HEIGHT * probability)
            fill = colour if action in self._taken[at] else mixed(FAINT_INK, "#ffffff", 0.5)
            canvas.rectangle((left + width * 0.1, top), (left + width * 0.9, bottom), fill)


@final
class _Bands(_Likely):
    """A scale per dimension of a real action, from its lower to its upper bound."""

    title = "likely actions, by dimension"

    def __init__(
        self,
        quantiles: Float[np.ndarray, "time actors dimensions 3"],
        actions: Float[np.ndarray, "time actors dimensions"],
        space: Box,
    ):
        shown = np.concatenate([quantiles, actions[..., None]], axis=-1)
        low, high = np.ravel(space.low), np.ravel(space.high)
        low = np.where(np.isfinite(low), low, np.nanmin(shown, axis=(0, 1, 3)))[:, None]
        high = np.where(np.isfinite(high), high, np.nanmax(shown, axis=(0, 1, 3)))[:, None]
        share = (shown - low) / np.where(high > low, high - low, 1.0)
        self._heights = _HEIGHT * np.clip(share, 0.0, 1.0)

    def draw(self, canvas: Canvas, bottom: float, colour: str, at: tuple[int, int]) -> None:
        heights = self._heights[at]
        width = (_RIGHT - _LEFT) / len(heights)
        for dimension, (low, _, high, taken) in enumerate(bottom - heights):
            if np.isnan(low):  # the actor lacks it
                continue
            left, right = _LEFT + width * (dimension + 0.1), _LEFT + width * (dimension + 0.9)
            canvas.rectangle((left, bottom - _HEIGHT), (right, bottom), mixed(GRID, "#ffffff", 0.5))
            canvas.rectangle((left, low), (right, high), mixed(colour, "#ffffff", 0.6))
            canvas.line([(left, taken), (right, taken)], colour, 2)
