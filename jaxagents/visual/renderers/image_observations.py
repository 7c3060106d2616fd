"""Renderer of environments whose single actor observes an image: draws the observation."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int

from jaxagents.evaluation.trajectories import Trajectory
from jaxagents.visual.renderers.canvas import Canvas
from jaxagents.visual.renderers.scene import WIDTH, Actor, Scene
from jaxagents.visual.style import COLOURS

_PALETTE = ("#FAFAF8", *COLOURS, "#F0E442", "#767676", "#8C564B", "#B8DE6F")
_MAX_HEIGHT = 400  # pixels


def shows_images(trajectory: Trajectory) -> bool:
    """Return True if there is one actor and it observes a grid of cells."""
    features = trajectory.observation.features
    return trajectory.n_actors == 1 and features.ndim in (4, 5) and min(features.shape[2:4]) > 3


def image_scene(trajectory: Trajectory, actors: list[Actor]) -> Scene:
    """Draw each cell in the colour of its last active channel."""
    features = np.asarray(trajectory.observation.features[:, 0], np.float32)
    channels = features if features.ndim == 4 else features[..., None]
    height, width = channels.shape[1:3]
    cell = max(1, min(WIDTH // width, _MAX_HEIGHT // height))

    def draw(n_steps: int) -> Any:
        return _draw_cells(last_active_channel(channels[n_steps]), cell)

    return Scene(draw, actors, seconds_per_step=0.1)


def last_active_channel(
    channels: Float[np.ndarray, "height width channels"],
) -> Int[np.ndarray, "height width"]:
    """Return each cell's last positive channel, counted from 1; 0 if there is none."""
    numbers = np.arange(1, channels.shape[-1] + 1)
    return np.max((channels > 0) * numbers, axis=-1)


def _draw_cells(cells: np.ndarray, size: int) -> Any:
    height, width = cells.shape
    canvas = Canvas(width * size, height * size, background=_PALETTE[0])
    gap = 1 if size > 12 else 0
    for row, column in np.argwhere(cells):
        corner = (column * size, row * size)
        opposite = ((column + 1) * size - gap - 0.3, (row + 1) * size - gap - 0.3)
        canvas.rectangle(corner, opposite, _PALETTE[1 + (cells[row, column] - 1) % 11])
    return canvas.finished()
