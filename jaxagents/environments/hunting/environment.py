"""Hunting: a predator (actor 0) chases a prey (actor 1) across a walled square."""

import abc
import math
import os
from pathlib import Path
from typing import final

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxagents.environments.hunting.pictures import write_hunting_gif
from jaxagents.environments.protocol import Environment, StepResult
from jaxagents.environments.spaces import Box, Discrete
from jaxagents.hyperparameters import ScalarLike

# Actions 0 to 3 of `DiscreteHunting`: right, up, left, down.
DIRECTIONS = ((1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -1.0))


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

        Raises:
            ValueError: the states are not of one episode, or ``fps`` is out of range.
        """
        if states.positions.ndim != 3:
            raise ValueError(
                f"positions of shape {states.positions.shape} are not an episode; stack the states "
                "of one environment along time, [time, 2, 2]."
            )
        return write_hunting_gif(states.positions, states.time, params, Path(path), fps)


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
