"""Uniformly random actions, a baseline for the returns of policies."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxagents.environments.spaces import ActionSpace, Box, Discrete
from jaxagents.types import Observation


def random_actions(rng: PRNGKeyArray, space: ActionSpace, observation: Observation) -> Array:
    """Draw each actor's action ``[envs, actors, ...]`` uniformly among those available.

    Dimensions of a `Box` without a lower or upper bound are drawn from the standard normal
    distribution, and clipped to any bound they have.

    Args:
        rng: Random key.
        space: One actor's action space.
        observation: ``[envs, actors, ...]``; its mask says which actions are available.
    """
    batch = observation.features.shape[:2]
    if isinstance(space, Box):
        shape = (*batch, *space.shape)
        rng_uniform, rng_normal = jax.random.split(rng)
        low, high = (jnp.broadcast_to(jnp.asarray(x), space.shape) for x in (space.low, space.high))
        is_bounded = jnp.isfinite(low) & jnp.isfinite(high)
        share = jax.random.uniform(rng_uniform, shape)
        between = jnp.where(is_bounded, low, 0.0), jnp.where(is_bounded, high, 0.0)
        uniform = between[0] * (1 - share) + between[1] * share
        normal = jax.random.normal(rng_normal, shape)
        return jnp.clip(jnp.where(is_bounded, uniform, normal), low, high)
    noise = jax.random.uniform(rng, (*batch, sum(space.n_choices)))
    if observation.action_mask is not None:
        noise = jnp.where(observation.action_mask, noise, -1.0)
    ends = np.cumsum(space.n_choices)[:-1]
    choices = [
        jnp.argmax(part, axis=-1).astype(jnp.int32) for part in jnp.split(noise, ends, axis=-1)
    ]
    return choices[0] if isinstance(space, Discrete) else jnp.stack(choices, axis=-1)
