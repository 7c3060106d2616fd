"""Renderers of existing pictures: those that environments draw, and images that actors observe."""

import contextlib
import io
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int, UInt8

from jaxagents.environments.host import WrongValueError
from jaxagents.environments.host.encodings import as_picture
from jaxagents.evaluation.episodes import Episode
from jaxagents.types import PyTree
from jaxagents.visual.renderers.canvas import Canvas, text_width
from jaxagents.visual.renderers.scene import WIDTH, Actor, Scene
from jaxagents.visual.style import COLOURS, INK

_SHORTEST = 0.02  # seconds; viewers of GIFs take longer for anything less
_PALETTE = ("#FAFAF8", *COLOURS, "#F0E442", "#767676", "#8C564B", "#B8DE6F")
_MAX_HEIGHT = 400  # pixels
# The colours in which JaxMARL's visualizers draw the cooks.
_COOKS = ("#FF0000", "#0000FF", "#00FF00", "#A020F0", "#FFFF00", "#E6B400")
_LINE_HEIGHT, _MARGIN, _TEXT_SIZE = 16, 10, 12  # pixels


def drawn_scene(env: Any, params: Any, episode: Episode, actors: list[Actor]) -> Scene:
    """Let the environment draw its states; see `Environment`.

    Frames that are not pictures raise a ValueError.
    """

    def draw(n_steps: int) -> Any:
        drawn = env.draw(_state_at(episode, n_steps), params)
        try:
            return _as_frame(as_picture(drawn))
        except WrongValueError as error:
            raise ValueError(f"{type(env).__name__}.draw {error}.") from None

    return Scene(draw, actors, max(1 / getattr(env, "frames_per_second", 10.0), _SHORTEST))


def recorded_scene(frames_per_second: float, episode: Episode, actors: list[Actor]) -> Scene:
    """Show the pictures that a host environment has drawn.

    Args:
        frames_per_second: Rate at which they are shown.
        episode: An episode whose states are pictures, ``[1 + time, height, width, 3]``.
        actors: The actors listed below the picture.
    """
    return Scene(
        lambda n_steps: _as_frame(episode.states[n_steps]),
        actors,
        max(1 / frames_per_second, _SHORTEST),
    )


def pixel_scene(episode: Episode, actors: list[Actor]) -> Scene | None:
    """Show the pixels that the only actor observes; of several images, the latest.

    Return None if it observes no image of grey or colours.
    """
    from PIL import Image

    features = np.asarray(episode.observation.features)
    if episode.n_actors != 1 or features.ndim != 5:
        return None
    n_channels = 1 if features.shape[-1] % 3 else 3
    pixels = features[:, 0, ..., -n_channels:]
    if pixels.dtype != np.uint8:
        pixels = np.rint(255 * np.clip(pixels, 0.0, 1.0)).astype(np.uint8)
    pixels = np.repeat(pixels, 3 // n_channels, axis=-1)
    nearest = Image.Resampling.NEAREST
    return Scene(lambda n_steps: _as_frame(pixels[n_steps], nearest), actors, seconds_per_step=0.1)


def shows_cells(episode: Episode) -> bool:
    """Return True if there is one actor and it observes a grid of cells."""
    features = episode.observation.features
    return episode.n_actors == 1 and features.ndim in (4, 5) and min(features.shape[2:4]) > 3


def cell_scene(episode: Episode, actors: list[Actor]) -> Scene:
    """Draw each cell that the only actor observes in the colour of its last active channel."""
    features = np.asarray(episode.observation.features[:, 0], np.float32)
    channels = features if features.ndim == 4 else features[..., None]
    height, width = channels.shape[1:3]
    size = max(1, min(WIDTH // width, _MAX_HEIGHT // height))
    gap = 1 if size > 12 else 0

    def draw(n_steps: int) -> Any:
        canvas = Canvas(width * size, height * size, background=_PALETTE[0])
        cells = last_active_channel(channels[n_steps])
        for row, column in np.argwhere(cells):
            corner = (column * size, row * size)
            opposite = ((column + 1) * size - gap - 0.3, (row + 1) * size - gap - 0.3)
            canvas.rectangle(corner, opposite, _PALETTE[1 + (cells[row, column] - 1) % 11])
        return canvas.finished()

    return Scene(draw, actors, seconds_per_step=0.1)


def last_active_channel(
    channels: Float[np.ndarray, "height width channels"],
) -> Int[np.ndarray, "height width"]:
    """Return each cell's last positive channel, counted from 1; 0 if there is none."""
    numbers = np.arange(1, channels.shape[-1] + 1)
    return np.max((channels > 0) * numbers, axis=-1)


def overcooked_scene(env: Any, episode: Episode, actors: list[Actor]) -> Scene:
    """Let JaxMARL draw the kitchen."""
    from jaxmarl.viz.overcooked_visualizer import OvercookedVisualizer

    def show(visualizer: Any, state: PyTree) -> None:
        visualizer.render(env.agent_view_size, jax.device_get(state), highlight=False)

    return _kitchen_scene(OvercookedVisualizer(), show, episode, actors)


def overcooked_v2_scene(env: Any, episode: Episode, actors: list[Actor]) -> Scene:
    """Let JaxMARL draw the kitchen of version 2.

    Raises:
        ImportError: imageio, which the library's visualizer needs, is not installed.
    """
    from jaxmarl.viz.overcooked_v2_visualizer import OvercookedV2Visualizer

    del env
    return _kitchen_scene(OvercookedV2Visualizer(), OvercookedV2Visualizer.render, episode, actors)


class _Window:
    """Keeps the picture that a visualizer of JaxMARL would show on a screen."""

    def show_img(self, pixels: Any) -> None:
        self.pixels = np.asarray(pixels)


def _kitchen_scene(
    visualizer: Any,
    show: Callable[[Any, PyTree], None],
    episode: Episode,
    actors: list[Actor],
) -> Scene:
    window = visualizer.window = _Window()

    def draw(n_steps: int) -> Any:
        show(visualizer, _state_at(episode, n_steps))
        return _as_frame(window.pixels)

    return Scene(draw, _with_colours(actors, _COOKS), seconds_per_step=0.15)


def storm_scene(env: Any, episode: Episode, actors: list[Actor]) -> Scene:
    """Let JaxMARL draw the grid of its storm, and cut off the bars that it draws below."""

    def draw(n_steps: int) -> Any:
        # The library renders the time too, which fails under numpy 2 unless it is zero.
        state = _state_at(episode, n_steps).replace(step=0, outer_t=0)
        pixels = np.asarray(env.render(state))
        return _as_frame(pixels[: pixels.shape[1]])

    module = sys.modules[type(env).__module__]
    colours = getattr(env, "PLAYER_COLOURS", None) or [
        getattr(module, f"PLAYER{number}_COLOUR") for number in range(1, len(actors) + 1)
    ]
    names = ["#" + "".join(f"{int(channel):02x}" for channel in colour) for colour in colours]
    return Scene(draw, _with_colours(actors, names), seconds_per_step=0.15)


def printed_scene(env: Any, episode: Episode, actors: list[Actor]) -> Scene:
    """Show what JaxMARL prints for each state of Hanabi or the switch riddle."""
    texts = [
        _printed_lines(env, _state_at(episode, n_steps)) for n_steps in range(episode.n_steps + 1)
    ]
    height = max(len(lines) for lines in texts) * _LINE_HEIGHT + 2 * _MARGIN

    def draw(n_steps: int) -> Any:
        canvas = Canvas(WIDTH, height, background="#FAFAF8")
        for row, line in enumerate(texts[n_steps]):
            canvas.text((_MARGIN, _MARGIN + (row + 0.5) * _LINE_HEIGHT), line, _TEXT_SIZE, INK)
        return canvas.finished()

    return Scene(draw, actors, seconds_per_step=0.5)


def _printed_lines(env: Any, state: PyTree) -> list[str]:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        env.render(state)
    return [part for line in output.getvalue().strip().splitlines() for part in wrapped(line)]


def wrapped(line: str) -> list[str]:
    """Break a line between words into lines that fit the picture."""
    first, *words = line.rstrip().split(" ")
    lines = [first]
    for word in words:
        longer = f"{lines[-1]} {word}"
        if text_width(longer, _TEXT_SIZE) <= WIDTH - 2 * _MARGIN:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _state_at(episode: Episode, n_steps: int) -> Any:
    """Return the state after this many steps, its leaves jax arrays, as libraries draw them."""
    return jax.device_put(jax.tree.map(lambda leaf: leaf[n_steps], episode.states))


def _as_frame(pixels: UInt8[np.ndarray, "height width 3"], resampling: Any = None) -> Any:
    """Make a Pillow image of pixels, scaled to the width of all scenes."""
    from PIL import Image

    image = Image.fromarray(np.asarray(pixels, np.uint8))
    size = (WIDTH, round(image.height * WIDTH / image.width))
    return image.resize(size, Image.Resampling.LANCZOS if resampling is None else resampling)


def _with_colours(actors: Sequence[Actor], colours: Sequence[str]) -> list[Actor]:
    """Give the actors the colours in which the library draws them, in turn."""
    return [
        actor._replace(colour=colours[index % len(colours)]) for index, actor in enumerate(actors)
    ]
