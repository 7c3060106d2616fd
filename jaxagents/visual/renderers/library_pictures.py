"""Helpers for the modules that call JaxMARL's own renderers: states in, pictures out."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import UInt8

from jaxagents.evaluation.trajectories import Trajectory
from jaxagents.visual.renderers.scene import WIDTH, Actor


def state_at(trajectory: Trajectory, n_steps: int) -> Any:
    """Return the state after this many steps, its leaves numpy arrays."""
    return jax.tree.map(lambda leaf: leaf[n_steps], trajectory.states)


def jax_state_at(trajectory: Trajectory, n_steps: int) -> Any:
    """Return the state after this many steps, its leaves jax arrays.

    Some renderers call methods that numpy arrays lack.
    """
    return jax.device_put(state_at(trajectory, n_steps))


def as_frame(pixels: UInt8[np.ndarray, "height width 3"]) -> Any:
    """Make a Pillow image of pixels, scaled to the width of all scenes."""
    from PIL import Image

    image = Image.fromarray(np.asarray(pixels, np.uint8))
    height = round(image.height * WIDTH / image.width)
    return image.resize((WIDTH, height), Image.Resampling.LANCZOS)


def with_colours(actors: Sequence[Actor], colours: Sequence[str]) -> list[Actor]:
    """Give the actors the colours in which the library draws them, in turn."""
    return [
        actor._replace(colour=colours[index % len(colours)]) for index, actor in enumerate(actors)
    ]
