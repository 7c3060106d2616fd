"""Renderers of host environments: their own pictures, or else the pixels that an actor observes."""

from typing import Any

import numpy as np

from jaxagents.evaluation.trajectories import Trajectory
from jaxagents.visual.renderers.scene import WIDTH, Actor, Scene

_SHORTEST = 0.02  # seconds; viewers of GIFs take longer for anything less


def picture_scene(frames_per_second: float, trajectory: Trajectory, actors: list[Actor]) -> Scene:
    """Show the recorded pictures.

    Args:
        frames_per_second: At which they are shown.
        trajectory: An episode whose states are pictures, ``[1 + time, height, width, 3]``.
        actors: Listed below.
    """
    from PIL import Image

    height, width = trajectory.states.shape[1:3]
    size = (WIDTH, round(height * WIDTH / width))

    def draw(n_steps: int) -> Any:
        return Image.fromarray(trajectory.states[n_steps]).resize(size)

    return Scene(draw, actors, max(1 / frames_per_second, _SHORTEST))


def pixel_scene(trajectory: Trajectory, actors: list[Actor]) -> Scene | None:
    """Show the pixels that the only actor observes; of several images, the latest.

    Return None if it observes no image of grey or colours.
    """
    from PIL import Image

    features = np.asarray(trajectory.observation.features)
    if trajectory.n_actors != 1 or features.ndim != 5:
        return None
    n_channels = 1 if features.shape[-1] % 3 else 3
    pixels = features[:, 0, ..., -n_channels:]
    if pixels.dtype != np.uint8:
        pixels = np.rint(255 * np.clip(pixels, 0.0, 1.0)).astype(np.uint8)
    pixels = np.repeat(pixels, 3 // n_channels, axis=-1)
    height, width = pixels.shape[1:3]
    size = (WIDTH, round(height * WIDTH / width))

    def draw(n_steps: int) -> Any:
        return Image.fromarray(pixels[n_steps]).resize(size, Image.Resampling.NEAREST)

    return Scene(draw, actors, seconds_per_step=0.1)
