"""JaxMARL's and gymnax's own renderers, where they draw without a display."""

import contextlib
import io
import sys
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree, UInt8

from jaxagents.evaluation.trajectories import Trajectory
from jaxagents.visual.renderers.canvas import Canvas
from jaxagents.visual.renderers.scene import WIDTH, Actor, Scene
from jaxagents.visual.style import INK

_LINE, _MARGIN = 16, 10
_COOKS = ("#FF0000", "#0000FF", "#00FF00", "#A020F0", "#FFFF00", "#E6B400")  # as they are drawn


def overcooked_scene(env: Any, trajectory: Trajectory, actors: list[Actor]) -> Scene:
    """Let JaxMARL's visualizer of overcooked draw the kitchen."""
    from jaxmarl.viz.overcooked_visualizer import OvercookedVisualizer

    padding = env.agent_view_size - 2
    inside = slice(padding, -padding)

    def draw(n_steps: int) -> Any:
        state = _at(trajectory.states, n_steps)
        pixels = OvercookedVisualizer._render_grid(
            state.maze_map[inside, inside],
            agent_dir_idx=state.agent_dir_idx,
            agent_inv=state.agent_inv,
        )
        return _as_wide_as_others(pixels)

    return Scene(draw, _coloured(actors, _COOKS), seconds_per_step=0.15)


def overcooked_v2_scene(env: Any, trajectory: Trajectory, actors: list[Actor]) -> Scene:
    """Let JaxMARL's visualizer of overcooked v2 draw the kitchen.

    Raises:
        ImportError: imageio, which it imports, is not installed.
    """
    from jaxmarl.viz.overcooked_v2_visualizer import OvercookedV2Visualizer

    del env
    visualizer = OvercookedV2Visualizer()
    return Scene(
        lambda n_steps: _as_wide_as_others(
            np.asarray(visualizer._render_state(_on_device(trajectory.states, n_steps)))
        ),
        _coloured(actors, _COOKS),
        seconds_per_step=0.15,
    )


def storm_scene(env: Any, trajectory: Trajectory, actors: list[Actor]) -> Scene:
    """Let JaxMARL draw a storm, but for the time, with which it fails under numpy 2.

    Of its picture the square is shown, without the bars below it.
    """

    def draw(n_steps: int) -> Any:
        state = _on_device(trajectory.states, n_steps).replace(step=0, outer_t=0)
        pixels = np.asarray(env.render(state))
        return _as_wide_as_others(pixels[: pixels.shape[1]])

    return Scene(draw, _coloured(actors, _storm_colours(env, len(actors))), seconds_per_step=0.15)


def text_scene(env: Any, trajectory: Trajectory, actors: list[Actor]) -> Scene:
    """Show what JaxMARL prints of a state."""
    texts = [
        _printed(env, _on_device(trajectory.states, n_steps))
        for n_steps in range(trajectory.n_steps + 1)
    ]
    height = max(len(lines) for lines in texts) * _LINE + 2 * _MARGIN

    def draw(n_steps: int) -> Any:
        canvas = Canvas(WIDTH, height, background="#FAFAF8")
        for row, line in enumerate(texts[n_steps]):
            canvas.text((_MARGIN, _MARGIN + (row + 0.5) * _LINE), line, 12, INK)
        return canvas.finished()

    return Scene(draw, actors, seconds_per_step=0.5)


def _storm_colours(env: Any, n_actors: int) -> list[str]:
    """Find the colours in which the library draws the actors."""
    module = sys.modules[type(env).__module__]
    colours = getattr(env, "PLAYER_COLOURS", None) or [
        getattr(module, f"PLAYER{number}_COLOUR") for number in range(1, n_actors + 1)
    ]
    return ["#" + "".join(f"{int(channel):02x}" for channel in colour) for colour in colours]


def _coloured(actors: list[Actor], colours: Sequence[str]) -> list[Actor]:
    return [
        actor._replace(colour=colours[index % len(colours)]) for index, actor in enumerate(actors)
    ]


def _printed(env: Any, state: PyTree) -> list[str]:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        env.render(state)
    return output.getvalue().strip().splitlines()


def _at(states: PyTree, n_steps: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[n_steps], states)


def _on_device(states: PyTree, n_steps: int) -> Any:
    """Give a state as the library knows it: its code calls methods that only jax's arrays have."""
    return jax.device_put(_at(states, n_steps))


def _as_wide_as_others(pixels: UInt8[np.ndarray, "height width 3"]) -> Any:
    from PIL import Image

    image = Image.fromarray(np.asarray(pixels, np.uint8))
    height = round(image.height * WIDTH / image.width)
    return image.resize((WIDTH, height), Image.Resampling.LANCZOS)
