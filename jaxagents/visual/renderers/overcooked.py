"""Renderers of JaxMARL's overcooked, both versions, by the library's visualizers."""

from typing import Any

import numpy as np

from jaxagents.evaluation.trajectories import Trajectory
from jaxagents.visual.renderers.library_pictures import (
    as_frame,
    jax_state_at,
    state_at,
    with_colours,
)
from jaxagents.visual.renderers.scene import Actor, Scene

# The colours in which the visualizers draw the cooks.
_COOKS = ("#FF0000", "#0000FF", "#00FF00", "#A020F0", "#FFFF00", "#E6B400")


def overcooked_scene(env: Any, trajectory: Trajectory, actors: list[Actor]) -> Scene:
    """Let the library draw the kitchen."""
    from jaxmarl.viz.overcooked_visualizer import OvercookedVisualizer

    padding = env.agent_view_size - 2
    inside = slice(padding, -padding)

    def draw(n_steps: int) -> Any:
        state = state_at(trajectory, n_steps)
        pixels = OvercookedVisualizer._render_grid(
            state.maze_map[inside, inside],
            agent_dir_idx=state.agent_dir_idx,
            agent_inv=state.agent_inv,
        )
        return as_frame(pixels)

    return Scene(draw, with_colours(actors, _COOKS), seconds_per_step=0.15)


def overcooked_v2_scene(env: Any, trajectory: Trajectory, actors: list[Actor]) -> Scene:
    """Let the library draw the kitchen of version 2.

    Raises:
        ImportError: imageio, which the library's visualizer needs, is not installed.
    """
    from jaxmarl.viz.overcooked_v2_visualizer import OvercookedV2Visualizer

    del env
    visualizer = OvercookedV2Visualizer()

    def draw(n_steps: int) -> Any:
        pixels = visualizer._render_state(jax_state_at(trajectory, n_steps))
        return as_frame(np.asarray(pixels))

    return Scene(draw, with_colours(actors, _COOKS), seconds_per_step=0.15)
