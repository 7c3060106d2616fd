"""Random actions in one environment, and where two plays of the same steps differ."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from jaxagents.environments.batch import BatchState, EnvironmentBatch
from jaxagents.environments.sides.opponents import random_actions
from jaxagents.environments.spaces import Box
from jaxagents.types import Observation, TimeStep


class RandomPlay(NamedTuple):
    """Steps of one environment, ``[time, ...]``."""

    observation: Observation  # before the action
    step: TimeStep
    elapsed: Int[Array, " time"]  # steps since the reset; one in which nobody acts is none


def play_randomly(
    batch: EnvironmentBatch,
    n_steps: int,
    rng_env: PRNGKeyArray,
    rng_action: PRNGKeyArray,
    at_bounds: bool | Bool[Array, ""],
) -> RandomPlay:
    """Play one environment; a shorter play is the beginning of a longer one."""
    rng_reset, rng_step = jax.random.split(rng_env)

    def advance(
        carry: tuple[Observation, BatchState], i: Int[Array, ""]
    ) -> tuple[tuple[Observation, BatchState], RandomPlay]:
        observation, state = carry
        action = random_actions(jax.random.fold_in(rng_action, i), batch.space, observation)
        if isinstance(batch.space, Box):
            action = jnp.where(at_bounds, _nearest_bound(action, batch.space), action)
        step, following = batch.step(jax.random.fold_in(rng_step, i), state, action)
        kept = step._replace(info={}, final_state=None)
        elapsed = state.episode_steps + state.active.any(axis=1)
        return (step.observation, following), RandomPlay(observation, kept, elapsed)

    _, play = jax.lax.scan(advance, batch.reset(rng_reset, 1), jnp.arange(n_steps))
    return jax.tree.map(lambda leaf: leaf[:, 0], play)


def _nearest_bound(action: Array, space: Box) -> Array:
    """Move each dimension to its nearer bound; unbounded ones stay."""
    low, high = (jnp.broadcast_to(jnp.asarray(x), space.shape) for x in (space.low, space.high))
    bound = jnp.where(action - low < high - action, low, high)
    return jnp.where(jnp.isfinite(bound), bound, action)


def first_difference(one: RandomPlay, other: RandomPlay, tolerance: float = 0.0) -> str | None:
    """Name the first step that differs, and how, over the steps of the first play."""
    values = {
        "the observation": (one.observation.features, other.observation.features),
        "the reward": (one.step.reward, other.step.reward),
        "terminated": (one.step.terminated, other.step.terminated),
        "truncated": (one.step.truncated, other.step.truncated),
    }
    for i in range(len(one.elapsed)):
        for name, pair in values.items():
            first, second = (np.asarray(value[i], np.float64) for value in pair)
            if not np.allclose(first, second, 10 * tolerance, tolerance, equal_nan=True):
                return f"step {i + 1}: {name}"
    return None
