import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.observation_features import (
    append_agent_id,
    append_time,
    for_each_actor,
    joint_features,
)

BATCHES = [(), (4, 3)]


def numbered(*shape):
    """Number an array from 1 on, so that no feature equals a 0 of an index."""
    return jnp.arange(1.0, 1.0 + np.prod(shape)).reshape(shape)


def copies(array, batch):
    return jnp.broadcast_to(array, (*batch, *array.shape))


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_an_index_follows_a_scalar(batch):
    features = append_agent_id(copies(jnp.array([5.0, 6.0, 7.0]), batch), 0)
    expected = jnp.array([[5.0, 1, 0, 0], [6, 0, 1, 0], [7, 0, 0, 1]])
    np.testing.assert_array_equal(features, copies(expected, batch))


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_an_index_follows_a_vector(batch):
    features = append_agent_id(copies(jnp.array([[5.0, 6.0], [7.0, 8.0]]), batch), 1)
    expected = jnp.array([[5.0, 6, 1, 0], [7, 8, 0, 1]])
    np.testing.assert_array_equal(features, copies(expected, batch))


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_an_index_is_additional_channels_of_an_image(batch):
    images = numbered(2, 5, 4, 3)  # [actors, height, width, channels]
    features = append_agent_id(copies(images, batch), 3)
    assert features.shape == (*batch, 2, 5, 4, 3 + 2)
    np.testing.assert_array_equal(features[..., :3], copies(images, batch))
    for actor in range(2):
        pixels = features[..., actor, :, :, 3:]
        np.testing.assert_array_equal(pixels, np.broadcast_to(np.eye(2)[actor], pixels.shape))


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_the_time_follows_a_scalar(batch):
    scalars = copies(jnp.array([5, 6, 7]), batch)  # of three actors
    features = append_time(scalars, copies(jnp.array(0.25), batch), 0)
    expected = jnp.array([[5.0, 0.25], [6.0, 0.25], [7.0, 0.25]])
    np.testing.assert_array_equal(features, copies(expected, batch))
    assert features.dtype == jnp.float32


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_joint_scalars_are_a_vector(batch):
    scalars = copies(jnp.array([5.0, 6.0, 7.0]), batch)
    np.testing.assert_array_equal(joint_features(scalars, 0), scalars)


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_joint_vectors_are_concatenated(batch):
    vectors = copies(jnp.array([[5.0, 6.0], [7.0, 8.0], [9.0, 10.0]]), batch)
    expected = copies(jnp.array([5.0, 6.0, 7.0, 8.0, 9.0, 10.0]), batch)
    np.testing.assert_array_equal(joint_features(vectors, 1), expected)


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_joint_images_are_one_image_with_all_channels(batch):
    images = numbered(2, 5, 4, 3)
    joint = joint_features(copies(images, batch), 3)
    expected = jnp.concatenate([images[0], images[1]], axis=-1)
    assert joint.shape == (*batch, 5, 4, 6)
    np.testing.assert_array_equal(joint, copies(expected, batch))


def test_joint_matrices_are_concatenated_along_their_last_axis():
    matrices = numbered(3, 2, 5, 4)  # [envs, actors, rows, columns]
    joint = joint_features(matrices, 2)
    np.testing.assert_array_equal(joint, jnp.concatenate([matrices[:, 0], matrices[:, 1]], -1))


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_every_actor_gets_a_scalar_state_and_its_index(batch):
    shown = for_each_actor(copies(jnp.array(5.0), batch), 0, n_actors=2)
    expected = jnp.array([[5.0, 1, 0], [5, 0, 1]])
    np.testing.assert_array_equal(shown, copies(expected, batch))


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_every_actor_gets_the_same_vector_and_its_index(batch):
    shown = for_each_actor(copies(jnp.array([5.0, 6.0]), batch), 1, n_actors=3)
    expected = jnp.array([[5.0, 6, 1, 0, 0], [5, 6, 0, 1, 0], [5, 6, 0, 0, 1]])
    np.testing.assert_array_equal(shown, copies(expected, batch))


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_every_actor_gets_the_same_image_and_a_channel_per_actor(batch):
    image = numbered(5, 4, 3)
    shown = for_each_actor(copies(image, batch), 3, n_actors=2)
    assert shown.shape == (*batch, 2, 5, 4, 3 + 2)
    for actor in range(2):
        np.testing.assert_array_equal(shown[..., actor, :, :, :3], copies(image, batch))
        for channel in range(2):
            np.testing.assert_array_equal(
                shown[..., actor, :, :, 3 + channel], np.full((*batch, 5, 4), actor == channel)
            )


@pytest.mark.parametrize("n_actors", [1, 4])
def test_every_environment_keeps_its_own_state_at_every_step(n_actors):
    states = numbered(7, 5, 2)  # [time, envs, *state]
    shown = for_each_actor(states, 1, n_actors)
    assert shown.shape == (7, 5, n_actors, 2 + n_actors)
    for actor in range(n_actors):
        np.testing.assert_array_equal(shown[:, :, actor, :2], states)
        index = np.broadcast_to(np.eye(n_actors)[actor], (7, 5, n_actors))
        np.testing.assert_array_equal(shown[:, :, actor, 2:], index)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.int32, jnp.int8, jnp.uint8, jnp.bool_])
def test_features_keep_their_dtype(dtype):
    vectors = jnp.ones((3, 2, 4), dtype)
    states = joint_features(vectors, 1)
    for features in (append_agent_id(vectors, 1), states, for_each_actor(states, 1, 2)):
        assert features.dtype == dtype
