"""Renderer of JaxMARL's storm environments, by their own ``render``."""

import sys
from typing import Any

import numpy as np

from jaxagents.evaluation.trajectories import Trajectory
from jaxagents.visual.renderers.library_pictures import as_frame, jax_state_at, with_colours
from jaxagents.visual.renderers.scene import Actor, Scene


def storm_scene(env: Any, trajectory: Trajectory, actors: list[Actor]) -> Scene:
    """Let the library draw the grid, and cut off the bars that it draws below."""

    def draw(n_steps: int) -> Any:
        # The library renders the time too, which fails under numpy 2 unless it is zero.
        state = jax_state_at(trajectory, n_steps).replace(step=0, outer_t=0)
        pixels = np.asarray(env.render(state))
        return as_frame(pixels[: pixels.shape[1]])

    colours = _library_colours(env, len(actors))
    return Scene(draw, with_colours(actors, colours), seconds_per_step=0.15)


def _library_colours(env: Any, n_actors: int) -> list[str]:
    """Return the colours in which the library draws the actors."""
    module = sys.modules[type(env).__module__]
    colours = getattr(env, "PLAYER_COLOURS", None) or [
        getattr(module, f"PLAYER{number}_COLOUR") for number in range(1, n_actors + 1)
    ]
    return ["#" + "".join(f"{int(channel):02x}" for channel in colour) for colour in colours]
