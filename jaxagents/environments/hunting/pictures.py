"""Animated pictures of hunting episodes, drawn with matplotlib."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Array, Float, Int

from jaxagents.environments.gif import write_gif

# Vermilion, blue and black of Okabe and Ito's palette, which colour-blind readers tell apart:
# https://jfly.uni-koeln.de/color/.
_COLOURS = {"predator": "#D55E00", "prey": "#0072B2", "capture": "#000000"}
_TRAIL_STEPS = 20
_MAX_FPS = 50.0  # GIF viewers slow down anything faster


def write_hunting_gif(
    positions: Float[Array, "time actors 2"],
    time: Int[Array, " time"],
    params: Any,
    path: Path,
    fps: float,
) -> Path:
    """Write an episode as an animated GIF.

    Args:
        positions: Of predator and prey in each state, starting with the state after the reset.
        time: Steps since the reset. The episode ends where the count stands still (the state is
            repeated) or falls back (the environment was reset); later states are left out.
        params: The rules, `HuntingParams`.
        path: Of the file to write, in an existing folder.
        fps: Steps shown per second.

    Returns:
        The path.

    Raises:
        ValueError: ``fps`` is out of the range that viewers can show.
    """
    from PIL import Image

    if not 0 < fps <= _MAX_FPS:
        raise ValueError(f"fps={fps} is not in (0, {_MAX_FPS:g}], which GIF viewers can show.")
    times = np.asarray(time)
    last_states = np.flatnonzero(np.diff(times) <= 0)
    length = last_states[0] + 1 if last_states.size else len(times)
    picture = _Picture(np.asarray(positions)[:length], times[:length], params)
    frames = [Image.fromarray(picture.draw(index)) for index in range(length)]
    write_gif(frames, path, 1 / fps)
    return path


def _predator_headings(positions: np.ndarray) -> list[float]:
    """Return the heading in radians at every state; it stays the same while a wall blocks."""
    x_to_prey, y_to_prey = positions[0, 1] - positions[0, 0]
    headings = [math.atan2(y_to_prey, x_to_prey)]
    for dx, dy in np.diff(positions[:, 0], axis=0):
        headings.append(math.atan2(dy, dx) if dx or dy else headings[-1])
    return headings


class _Picture:
    """The arena as a matplotlib figure outside of pyplot, redrawn for every state."""

    def __init__(self, positions: np.ndarray, time: np.ndarray, params: Any):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self._positions = positions
        self._time = time
        self._headings = _predator_headings(positions)
        self._params = params
        figure = Figure(figsize=(4.8, 5.2), dpi=100)
        self._canvas = FigureCanvasAgg(figure)
        self._axes = figure.add_axes((0.04, 0.095, 0.92, 0.85))
        self._prepare_arena()
        self._prepare_actors()

    def draw(self, index: int) -> np.ndarray:
        """Return the image of one state, ``[height, width, 3]`` of bytes."""
        from matplotlib.colors import to_rgba

        predator, prey = self._positions[index]
        self._predator.set_data([predator[0]], [predator[1]])
        self._predator.set_marker(_dart(self._headings[index]))
        self._prey.set_data([prey[0]], [prey[1]])
        self._reach.set_center(tuple(predator))
        trail = self._positions[max(0, index - _TRAIL_STEPS) : index + 1]
        starts, ends = trail[:-1], trail[1:]
        # The predator's trail is solid, the prey's has one dash per step.
        stops = {"predator": ends[:, 0], "prey": (starts[:, 1] + ends[:, 1]) / 2}
        opacity = np.linspace(0.1, 0.8, len(starts))
        for actor_index, (name, stop) in enumerate(stops.items()):
            line = self._trails[name]
            line.set_segments(list(np.stack([starts[:, actor_index], stop], axis=1)))
            line.set_color([to_rgba(_COLOURS[name], alpha) for alpha in opacity])
        captured = bool(np.linalg.norm(predator - prey) < self._params.capture_radius)
        self._capture.set_data([prey[0]], [prey[1]])
        self._capture.set_visible(captured)
        out_of_time = self._time[index] >= self._params.max_steps_in_episode
        self._outcome.set_text("captured" if captured else "escaped" if out_of_time else "")
        self._counter.set_text(f"step {self._time[index]} / {self._params.max_steps_in_episode}")
        self._canvas.draw()
        return np.asarray(self._canvas.buffer_rgba())[..., :3].copy()

    def _prepare_arena(self) -> None:
        # A margin of half a marker shows actors at the wall in full.
        reach = 1.05 * self._params.arena_half_width
        self._axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
        self._axes.set(xticks=[], yticks=[], facecolor="#F7F7F5")
        for spine in self._axes.spines.values():
            spine.set(color="#444444", linewidth=1.5)
        self._counter = self._axes.text(
            0.0, 1.015, "", transform=self._axes.transAxes, family="monospace"
        )
        self._outcome = self._axes.text(
            1.0, 1.015, "", transform=self._axes.transAxes, ha="right", weight="bold"
        )

    def _prepare_actors(self) -> None:
        from matplotlib.collections import LineCollection
        from matplotlib.lines import Line2D
        from matplotlib.patches import Circle

        self._trails = {name: LineCollection([], linewidths=2.5) for name in ("predator", "prey")}
        for line in self._trails.values():
            self._axes.add_collection(line, autolim=False)
        color = _COLOURS["predator"]
        self._reach = Circle(
            (0.0, 0.0),
            float(self._params.capture_radius),
            fc=color + "22",
            ec=color,
            linestyle="--",
        )
        self._axes.add_patch(self._reach)
        self._predator = Line2D([], [], marker=_dart(0.0), ms=17, color=color, mec="white", ls="")
        self._prey = Line2D([], [], marker="o", ms=11, color=_COLOURS["prey"], mec="white", ls="")
        self._capture = Line2D(
            [], [], marker=(8, 2, 0), ms=25, mew=2, color=_COLOURS["capture"], ls=""
        )
        for zorder, marker in enumerate((self._capture, self._prey, self._predator), start=3):
            marker.set_zorder(zorder)
            self._axes.add_line(marker)
        self._axes.legend(
            [self._predator, self._prey, self._capture],
            ["predator", "prey", "capture"],
            loc="upper center",
            bbox_to_anchor=(0.5, -0.01),
            ncols=3,
            markerscale=0.8,
            frameon=False,
        )


def _dart(heading: float) -> Any:
    """Return a marker that points in a direction, in radians."""
    from matplotlib.markers import MarkerStyle
    from matplotlib.path import Path as Outline
    from matplotlib.transforms import Affine2D

    outline = Outline([(1.0, 0.0), (-0.8, 0.75), (-0.4, 0.0), (-0.8, -0.75), (1.0, 0.0)])
    return MarkerStyle(outline, transform=Affine2D().rotate(heading))
