"""Hunting: a predator (actor 0) chases a prey (actor 1) across a walled square."""

import abc
import math
from typing import final

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxagents.entities import EntityKind
from jaxagents.environments.protocol import Environment, StepResult
from jaxagents.environments.spaces import Box, Discrete
from jaxagents.hyperparameters import ScalarLike

# Actions 0 to 3 of `DiscreteHunting`: right, up, left, down.
DIRECTIONS = ((1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -1.0))


@struct.dataclass
class HuntingParams:
    """The rules. Lengths are in an arbitrary unit, speeds in that unit per step.

    With the defaults, two random walkers meet in about 1 of 20 episodes. A predator that heads
    straight for its prey catches a random walker in about 20 steps, a fleeing prey in about 40.
    """

    arena_half_width: ScalarLike = 1.0  # the square is [-half width, half width]²
    predator_speed: ScalarLike = 0.06
    prey_speed: ScalarLike = 0.05
    capture_radius: ScalarLike = 0.1  # capture: closer than this at the end of a step
    minimum_separation: ScalarLike = 0.5  # at reset; above capture_radius, below arena_half_width
    capture_reward: ScalarLike = 10.0  # the predator's, once
    survival_reward: ScalarLike = 0.1  # the prey's, for every step without a capture
    max_steps_in_episode: int | Int[Array, ""] = 100


@struct.dataclass
class HuntingState:
    """Positions of both actors, and the time."""

    positions: Float[Array, "*batch actors 2"]  # x to the right, y upwards; predator, prey
    time: Int[Array, "*batch"]  # steps since the reset


class Hunting(Environment):
    """Base of both variants, which differ in how an action encodes a direction.

    In each step both actors move simultaneously, each at its own speed. Actors slide along walls.
    A capture terminates the episode for both; the time limit truncates it for both, unless the last
    step ends in a capture. After the end of the episode, the state does not change and rewards are
    0 until the reset.

    An actor observes six numbers in [-1, 1]: its own position, the vector to the other actor, their
    distance, and its role (predator 1, prey -1). It does not observe the time left: values
    bootstrap at the time limit, so they do not depend on the time left.
    """

    n_actors = 2

    @property
    def default_params(self) -> HuntingParams:
        """The defaults of `HuntingParams`."""
        return HuntingParams()

    @abc.abstractmethod
    def _directions(self, action: Array) -> Float[Array, "actors 2"]:
        """Convert actions to unit vectors."""

    def entities(self, params: HuntingParams) -> dict[str, EntityKind]:
        """Return the other actor; see `Environment.entities`."""
        del params
        return {"other": EntityKind(1, ((2, 3),))}

    def max_episode_steps(self, params: HuntingParams) -> int:
        """Return the time limit; see `Environment.max_episode_steps`."""
        return int(params.max_steps_in_episode)

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
        """Move both actors; ``info["captured"]`` is True if the predator caught the prey."""
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


@final
class DiscreteHunting(Hunting):
    """Hunting in four directions: 0 right, 1 up, 2 left, 3 down."""

    def action_space(self, params: HuntingParams) -> Discrete:
        """Return one actor's choice of `DIRECTIONS`."""
        return Discrete(len(DIRECTIONS))

    def _directions(self, action: Int[Array, "actors"]) -> Float[Array, "actors 2"]:
        return jnp.array(DIRECTIONS, jnp.float32)[action]


@final
class ContinuousHunting(Hunting):
    """Hunting in any direction: an action is a heading in radians, anticlockwise from right."""

    def action_space(self, params: HuntingParams) -> Box:
        """Return one actor's box: a single angle."""
        return Box(-math.pi, math.pi, (1,))

    def _directions(self, action: Float[Array, "actors 1"]) -> Float[Array, "actors 2"]:
        return jnp.concatenate([jnp.cos(action), jnp.sin(action)], axis=-1)


def _separated_positions(rng: PRNGKeyArray, params: HuntingParams) -> Float[Array, "actors 2"]:
    """Draw two positions, each uniform over the square, at least the minimum separation apart.

    The prey's offset from the predator is uniform over a square ring, whose inner and outer radius
    are the minimum separation and half the arena's width. A prey outside of the arena is wrapped
    around to the opposite side. Wrapping never brings it closer than its offset, as no offset
    exceeds half the arena's width.
    """
    rng_predator, rng_offset, rng_along, rng_side = jax.random.split(rng, 4)
    half_width = params.arena_half_width
    predator = jax.random.uniform(rng_predator, (2,), minval=-half_width, maxval=half_width)
    # The perimeter of a square is proportional to its radius r, so r² is uniform.
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
