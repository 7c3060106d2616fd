"""Hunting: a predator (actor 0) chases a prey (actor 1) across a walled square."""

import abc
import math
import os
from pathlib import Path
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxagents.environments.protocol import Environment, StepResult
from jaxagents.environments.spaces import Box, Discrete
from jaxagents.hyperparameters import ScalarLike

# Actions 0 to 3 of `DiscreteHunting`: right, up, left, down.
DIRECTIONS = ((1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -1.0))

# Of the colours of Okabe and Ito, which colour-blind readers tell apart as well.
_COLORS = {"predator": "#D55E00", "prey": "#0072B2", "capture": "#000000"}
_TRAIL_STEPS = 20
_LAST_FRAME_SECONDS = 1.5
_MAX_FPS = 50.0  # GIF viewers slow down what is faster


@struct.dataclass
class HuntingParams:
    """The rules. Lengths are in one arbitrary unit, speeds in that unit per step.

    By default two wanderers seldom meet (in about 1 of 20 episodes), whereas a pursuer that heads
    straight for its prey catches it: a wandering one in some 20 steps, a fleeing one in some 40.
    """

    arena_half_width: ScalarLike = 1.0  # the square is [-half width, half width]²
    predator_speed: ScalarLike = 0.06
    prey_speed: ScalarLike = 0.05
    capture_radius: ScalarLike = 0.1  # capture: closer than this at the end of a step
    minimum_separation: ScalarLike = 0.5  # at reset; above capture_radius, below arena_half_width
    capture_reward: ScalarLike = 10.0  # the predator's, once
    survival_reward: ScalarLike = 0.1  # the prey's, for every step that does not end in capture
    max_steps_in_episode: int | Int[Array, ""] = 100


@struct.dataclass
class HuntingState:
    """Where both are, and when."""

    positions: Float[Array, "*batch actors 2"]  # x to the right, y upwards; predator, prey
    time: Int[Array, "*batch"]  # steps since the reset


class Hunting(Environment):
    """What the variants share: all but how an action names a direction.

    Each step both actors move at once, each at its own speed. Walls stop only the part of a
    move that crosses them, so that an actor slides along. Capture terminates the episode for
    both; the time limit truncates it for both, unless the last step brings the capture. A state
    in which the episode has ended stays as it is, unrewarded, until the reset.

    An actor observes six numbers in [-1, 1]: its own position, the vector to the other, their
    distance, and its role (predator 1, prey -1). The time left is not among them: as the end by
    time limit is a truncation, which value estimates look beyond, it has no bearing on the value.
    """

    n_actors = 2

    @property
    def default_params(self) -> HuntingParams:
        """The rules as they stand in `HuntingParams`."""
        return HuntingParams()

    @abc.abstractmethod
    def _directions(self, action: Array) -> Float[Array, "actors 2"]:
        """Translate the actors' actions to unit vectors."""

    def reset_env(
        self, rng: PRNGKeyArray, params: HuntingParams
    ) -> tuple[Float[Array, "actors obs"], HuntingState]:
        """Place the actors uniformly, at least the minimum separation apart."""
        state = HuntingState(
            positions=_separated_positions(rng, params), time=jnp.zeros((), jnp.int32)
        )
        return _observe(state, params), state

    def step_env(
        self, rng: PRNGKeyArray, state: HuntingState, action: Array, params: HuntingParams
    ) -> StepResult:
        """Move both actors; ``info["captured"]`` tells whether the predator has the prey."""
        was_over = _captured(state, params) | _out_of_time(state, params)
        speeds = jnp.array([params.predator_speed, params.prey_speed], jnp.float32)
        positions = jnp.clip(
            state.positions + speeds[:, None] * self._directions(action),
            -params.arena_half_width,
            params.arena_half_width,
        )
        state = HuntingState(
            positions=jnp.where(was_over, state.positions, positions),
            time=jnp.where(was_over, state.time, state.time + 1),
        )
        captured = _captured(state, params)
        truncated = _out_of_time(state, params) & ~captured
        reward = jnp.where(
            captured,
            jnp.array([params.capture_reward, 0.0], jnp.float32),
            jnp.array([0.0, params.survival_reward], jnp.float32),
        )
        return (
            _observe(state, params),
            state,
            jnp.where(was_over, 0.0, reward),
            jnp.full(self.n_actors, captured),
            jnp.full(self.n_actors, truncated),
            {"captured": captured},
        )

    def render(
        self,
        states: HuntingState,
        params: HuntingParams,
        path: str | os.PathLike[str],
        fps: float = 20.0,
    ) -> Path:
        """Write an episode as an animated GIF.

        Args:
            states: stacked along time, the one after the reset first; of `step_env`, as `step`
                replaces an episode's last state by the next one's first. Whatever follows the
                first episode, whether repetitions of its last state or the next, is left out.
            params: the rules of the episode.
            path: of the file to write, in a folder that exists.
            fps: steps shown per second, at most 50. The last one stays on for longer.

        Returns:
            The path of the file, as many frames long as the episode has states.
        """
        if not 0 < fps <= _MAX_FPS:
            raise ValueError(f"fps={fps} is not in (0, {_MAX_FPS:g}], which GIF viewers can show.")
        if np.ndim(states.positions) != 3:
            raise ValueError(
                f"positions of shape {np.shape(states.positions)} are not an episode; stack the "
                "states of one environment along time, [time, 2, 2]."
            )
        positions, time = _first_episode(states)
        picture = _Picture(positions, time, params)
        frames = [picture.draw(index) for index in range(len(time))]
        return _write_gif(frames, Path(path), fps)


@final
class DiscreteHunting(Hunting):
    """Hunting in four directions: 0 right, 1 up, 2 left, 3 down."""

    def action_space(self, params: HuntingParams) -> Discrete:
        """Return one actor's choice out of `DIRECTIONS`."""
        return Discrete(len(DIRECTIONS))

    def _directions(self, action: Int[Array, "actors"]) -> Float[Array, "actors 2"]:
        return jnp.array(DIRECTIONS, jnp.float32)[action]


@final
class ContinuousHunting(Hunting):
    """Hunting in any direction: an action is a heading in radians, anticlockwise from right."""

    def action_space(self, params: HuntingParams) -> Box:
        """Return one actor's box, of a single angle."""
        return Box(-math.pi, math.pi, (1,))

    def _directions(self, action: Float[Array, "actors 1"]) -> Float[Array, "actors 2"]:
        return jnp.concatenate([jnp.cos(action), jnp.sin(action)], axis=-1)


def _separated_positions(rng: PRNGKeyArray, params: HuntingParams) -> Float[Array, "actors 2"]:
    """Draw two positions, each uniform over the square, apart by the minimum separation.

    The prey is placed relative to the predator, and what leaves the square comes in again at the
    opposite side: its offset is uniform over the square around the predator without the smaller
    square of half the minimum separation's width. Distances across the joined sides are the
    shorter ones, so those within the square are no less than the offset.
    """
    rng_predator, rng_offset, rng_along, rng_side = jax.random.split(rng, 4)
    half_width = params.arena_half_width
    predator = jax.random.uniform(rng_predator, (2,), minval=-half_width, maxval=half_width)
    # A square ring of radius r is as long as r: it is r², not r, that is uniform.
    radius = jnp.sqrt(
        jax.random.uniform(rng_offset, minval=params.minimum_separation**2, maxval=half_width**2)
    )
    along = jax.random.uniform(rng_along, minval=-1.0, maxval=1.0)
    right, up, left, down = ((1.0, along), (along, 1.0), (-1.0, along), (along, -1.0))
    side = jax.random.choice(rng_side, jnp.array([right, up, left, down]))
    prey = jnp.mod(predator + radius * side + half_width, 2 * half_width) - half_width
    return jnp.stack([predator, prey])


def _captured(state: HuntingState, params: HuntingParams) -> Bool[Array, ""]:
    return jnp.linalg.norm(state.positions[1] - state.positions[0]) < params.capture_radius


def _out_of_time(state: HuntingState, params: HuntingParams) -> Bool[Array, ""]:
    return state.time >= params.max_steps_in_episode


def _observe(state: HuntingState, params: HuntingParams) -> Float[Array, "actors obs"]:
    width = 2 * params.arena_half_width
    to_other = state.positions[::-1] - state.positions
    distance = jnp.linalg.norm(to_other, axis=-1, keepdims=True)
    role = jnp.array([[1.0], [-1.0]])
    features = [
        state.positions / params.arena_half_width,
        to_other / width,
        distance / (math.sqrt(2.0) * width),
        role,
    ]
    return jnp.concatenate(features, axis=-1)


class _Episode(NamedTuple):
    positions: np.ndarray  # [time, actors, 2]
    time: np.ndarray  # [time]


def _first_episode(states: HuntingState) -> _Episode:
    """Cut where time stands still (the episode has ended) or falls back (it was reset)."""
    time = np.asarray(states.time)
    last_states = np.flatnonzero(np.diff(time) <= 0)
    length = last_states[0] + 1 if last_states.size else len(time)
    return _Episode(np.asarray(states.positions)[:length], time[:length])


def _predator_headings(positions: np.ndarray) -> list[float]:
    """Return the heading in radians at every state, kept through steps against a wall."""
    x_to_prey, y_to_prey = positions[0, 1] - positions[0, 0]
    headings = [math.atan2(y_to_prey, x_to_prey)]
    for dx, dy in np.diff(positions[:, 0], axis=0):
        headings.append(math.atan2(dy, dx) if dx or dy else headings[-1])
    return headings


class _Picture:
    """The arena as a figure of its own, apart from pyplot, redrawn for every state."""

    def __init__(self, positions: np.ndarray, time: np.ndarray, params: HuntingParams):
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
        # The predator's trail is drawn through, the prey's with one dash a step.
        stops = {"predator": ends[:, 0], "prey": (starts[:, 1] + ends[:, 1]) / 2}
        opacity = np.linspace(0.1, 0.8, len(starts))
        for actor_index, (name, stop) in enumerate(stops.items()):
            line = self._trails[name]
            line.set_segments(list(np.stack([starts[:, actor_index], stop], axis=1)))
            line.set_color([to_rgba(_COLORS[name], alpha) for alpha in opacity])
        captured = bool(np.linalg.norm(predator - prey) < self._params.capture_radius)
        self._capture.set_data([prey[0]], [prey[1]])
        self._capture.set_visible(captured)
        out_of_time = self._time[index] >= self._params.max_steps_in_episode
        self._outcome.set_text("captured" if captured else "escaped" if out_of_time else "")
        self._counter.set_text(f"step {self._time[index]} / {self._params.max_steps_in_episode}")
        self._canvas.draw()
        return np.asarray(self._canvas.buffer_rgba())[..., :3].copy()

    def _prepare_arena(self) -> None:
        # Half a marker's size more, so that an actor at the wall is seen in full.
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
        color = _COLORS["predator"]
        self._reach = Circle(
            (0.0, 0.0),
            float(self._params.capture_radius),
            fc=color + "22",
            ec=color,
            linestyle="--",
        )
        self._axes.add_patch(self._reach)
        self._predator = Line2D([], [], marker=_dart(0.0), ms=17, color=color, mec="white", ls="")
        self._prey = Line2D([], [], marker="o", ms=11, color=_COLORS["prey"], mec="white", ls="")
        self._capture = Line2D(
            [], [], marker=(8, 2, 0), ms=25, mew=2, color=_COLORS["capture"], ls=""
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
    """Return a marker that points to the heading, in radians."""
    from matplotlib.markers import MarkerStyle
    from matplotlib.path import Path as Outline
    from matplotlib.transforms import Affine2D

    outline = Outline([(1.0, 0.0), (-0.8, 0.75), (-0.4, 0.0), (-0.8, -0.75), (1.0, 0.0)])
    return MarkerStyle(outline, transform=Affine2D().rotate(heading))


def _write_gif(frames: list[np.ndarray], path: Path, fps: float) -> Path:
    from PIL import Image

    # One palette for all, or the colours would flicker; only the last frame can show a capture.
    palette = Image.fromarray(frames[-1]).quantize(64)
    images = [
        Image.fromarray(frame).quantize(palette=palette, dither=Image.Dither.NONE)
        for frame in frames
    ]
    milliseconds = [round(1000 / fps)] * (len(images) - 1) + [round(1000 * _LAST_FRAME_SECONDS)]
    images[0].save(
        path, format="GIF", save_all=True, append_images=images[1:], duration=milliseconds, loop=0
    )
    return path
