"""What networks see, made of what environments show."""

import jax.numpy as jnp
from jaxtyping import Array


def append_agent_id(features: Array, n_observation_axes: int) -> Array:
    """Append one-hot indices of the actors to vectors, or as further channels to images.

    Args:
        features: ``[*batch, actors, *obs]``.
        n_observation_axes: Number of axes of ``*obs``.
    """
    if n_observation_axes == 0:
        features, n_observation_axes = features[..., None], 1
    actors_axis = features.ndim - n_observation_axes - 1
    n_actors = features.shape[actors_axis]
    identity = jnp.eye(n_actors, dtype=features.dtype)
    identity = identity.reshape(n_actors, *[1] * (n_observation_axes - 1), n_actors)
    identity = jnp.broadcast_to(identity, (*features.shape[:-1], n_actors))
    return jnp.concatenate([features, identity], axis=-1)


def joint_features(features: Array, n_observation_axes: int) -> Array:
    """Put what all actors see side by side: ``[*batch, actors, *obs]`` to ``[*batch, *state]``.

    Vectors are appended to each other, and so are the channels of images.
    """
    if n_observation_axes == 0:
        return features
    joint = jnp.moveaxis(features, -1 - n_observation_axes, -2)
    return joint.reshape(*joint.shape[:-2], -1)


def for_each_actor(state: Array, n_state_axes: int, n_actors: int) -> Array:
    """Show the state ``[*batch, *state]`` to every actor, with its index behind it."""
    actors_axis = state.ndim - n_state_axes
    wide = jnp.expand_dims(state, actors_axis)
    shape = (*state.shape[:actors_axis], n_actors, *state.shape[actors_axis:])
    return append_agent_id(jnp.broadcast_to(wide, shape), n_state_axes)
