"""Features for networks: agent ids, the time, and global states."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def append_agent_id(features: Array, n_observation_axes: int) -> Array:
    """Append each actor's one-hot index to its features; images get it as additional channels.

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


def append_time(features: Array, share: Float[Array, "*batch"], n_feature_axes: int) -> Array:
    """Append the elapsed share of the time limit to features; images get it as a channel.

    Args:
        features: ``[*batch, *any, *features]``; integers become float32.
        share: The elapsed share of the time limit.
        n_feature_axes: Number of axes of ``*features``.
    """
    if n_feature_axes == 0:
        features = features[..., None]
    features = features.astype(jnp.promote_types(features.dtype, jnp.float32))
    share = share.reshape(*share.shape, *[1] * (features.ndim - share.ndim))
    column = jnp.broadcast_to(share, (*features.shape[:-1], 1)).astype(features.dtype)
    return jnp.concatenate([features, column], axis=-1)


def joint_features(features: Array, n_observation_axes: int) -> Array:
    """Concatenate all actors' features, ``[*batch, actors, *obs]`` to ``[*batch, *state]``.

    Features are concatenated along their last axis: vectors end to end, images by channel.
    """
    if n_observation_axes == 0:
        return features
    joint = jnp.moveaxis(features, -1 - n_observation_axes, -2)
    return joint.reshape(*joint.shape[:-2], -1)


def for_each_actor(state: Array, n_state_axes: int, n_actors: int) -> Array:
    """Copy the state ``[*batch, *state]`` for every actor and append the actor's one-hot index."""
    actors_axis = state.ndim - n_state_axes
    wide = jnp.expand_dims(state, actors_axis)
    shape = (*state.shape[:actors_axis], n_actors, *state.shape[actors_axis:])
    return append_agent_id(jnp.broadcast_to(wide, shape), n_state_axes)
