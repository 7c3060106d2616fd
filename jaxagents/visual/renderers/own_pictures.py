"""Renderer of environments that draw themselves: shows their pictures."""

from typing import Any

from jaxagents.evaluation.trajectories import Trajectory
from jaxagents.visual.renderers.scene import WIDTH, Actor, Scene


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

    return Scene(draw, actors, seconds_per_step=1 / frames_per_second)
