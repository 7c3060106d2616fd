import jax
import numpy as np
import pytest
from gymnasium import spaces

import jaxagents as ja
from jaxagents.environments.host import WrongValueError
from jaxagents.environments.host.adapters import adapt
from jaxagents.environments.host.encodings import AS_THEY_ARE, ImageEncoding, ImageSettings
from jaxagents.environments.host.sharing import ArraySpec
from tests.environments.host.probes import Observed, Party


def pixels(*shape):
    return spaces.Box(0, 255, shape, np.uint8)


def counted(*shape):
    return np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)


def encoded(image, settings=AS_THEY_ARE):
    return ImageEncoding("Game", pixels(*image.shape), settings)(image)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((2, 3), [[[0], [1], [2]], [[3], [4], [5]]]),
        ((1, 2, 3), [[[0], [1], [2]], [[3], [4], [5]]]),  # channels first: the least
        ((2, 1, 2), [[[0, 1]], [[2, 3]]]),
        ((2, 2, 1, 2), [[[0, 1, 4, 5]], [[2, 3, 6, 7]]]),  # two images of 2 by 1, with two channels
        ((2, 1, 2, 3), [[[0, 6], [1, 7], [2, 8]], [[3, 9], [4, 10], [5, 11]]]),  # of 2 by 3
    ],
    ids=["grey", "channels first", "channels last", "stack", "stack, channels first"],
)
def test_images_get_their_channels_last_and_numbers_from_0_to_1(shape, expected):
    features = encoded(counted(*shape))
    assert features.dtype == np.float32
    np.testing.assert_allclose(features * 255, expected, rtol=1e-6)


@pytest.mark.parametrize("n_channels", [1, 2, 3])
def test_pixels_that_come_together_are_averaged(n_channels):
    image = np.zeros((4, 4, n_channels), np.uint8)
    image[:2, :2, 0], image[0, 2, -1], image[3, 3, 0] = 100, 200, 40
    expected = np.zeros((2, 2, n_channels))
    expected[0, 0, 0], expected[0, 1, -1], expected[1, 1, 0] = 100, 50, 10
    small = encoded(image, ImageSettings(size=(2, 2)))
    np.testing.assert_allclose(small * 255, expected, rtol=1e-6)


def test_grey_is_the_luminance_of_each_image_of_a_stack():
    image = np.zeros((2, 3, 4, 3), np.uint8)
    image[0, 0, 0, 0], image[1, 2, 1, 1], image[1, 2, 1, 2] = 100, 200, 50  # red; green and blue
    expected = np.zeros((3, 4, 2))
    expected[0, 0, 0], expected[2, 1, 1] = 0.299 * 100, 0.587 * 200 + 0.114 * 50
    gray = encoded(image, ImageSettings(is_gray=True))
    np.testing.assert_allclose(gray * 255, expected, rtol=1e-5)


def test_small_images_of_many_channels_have_them_last():
    assert encoded(np.zeros((7, 7, 12), np.uint8)).shape == (7, 7, 12)


@pytest.mark.parametrize("size", [(1, 5), (5, 1), (1, 1)])
def test_images_may_become_lines_and_points(size):
    small = encoded(np.full((10, 10, 3), 255, np.uint8), ImageSettings(size=size))
    np.testing.assert_array_equal(small, np.ones((*size, 3)))


def test_bytes_that_are_symbols_stay_bytes():
    symbols = counted(4, 4, 3)
    features = encoded(symbols, ImageSettings(is_scaled=False))
    assert features.dtype == np.uint8
    np.testing.assert_array_equal(features, symbols)


def test_the_image_of_a_dictionary_with_a_mask_is_encoded():
    space = spaces.Dict({"observation": pixels(4, 6, 3), "action_mask": spaces.MultiBinary(2)})
    value = {
        "observation": np.full((4, 6, 3), 255, np.uint8),
        "action_mask": np.array([1, 0], np.int8),
    }
    observation, _ = adapt(Observed(space, value), ImageSettings(size=(2, 3), is_gray=True)).reset(
        0
    )
    np.testing.assert_allclose(observation.features, np.ones((1, 2, 3, 1)), rtol=1e-6)


def test_global_states_that_are_images_are_encoded_as_observations_are():
    party = Party([("host_0",)])
    party.state_space = pixels(4, 6, 3)
    party.state = lambda: np.full((4, 6, 3), 255, np.uint8)
    for settings, shape in ((ImageSettings(size=(2, 3)), (2, 3, 3)), (AS_THEY_ARE, (4, 6, 3))):
        state = adapt(party, settings).explore(32).global_state
        np.testing.assert_array_equal(state, np.ones(shape))
    party.state_space, party.state = pixels(4, 6), lambda: np.full((4, 6), 255, np.uint8)
    state = adapt(party, ImageSettings(is_gray=True)).explore(32).global_state
    assert state.shape == (4, 6, 1)


def test_large_images_are_warned_of_where_a_default_network_meets_them():
    env = ja.HostEnvironment(lambda: Observed(pixels(200, 100, 3), np.zeros((200, 100, 3), "u1")))
    with pytest.warns(UserWarning, match="critic_layers 20 million parameters; make them smaller"):
        ja.DiscreteIPPO(env, None, ja.AgentConfig(n_steps=1, actor_layers=ja.Layers(stride=2)))


def test_an_image_of_another_shape_or_dtype_is_a_fault():
    encode = ImageEncoding("Game", pixels(4, 4, 3), AS_THEY_ARE)
    for wrong in (np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3), np.float32)):
        with pytest.raises(WrongValueError, match="returned an image of shape"):
            encode(wrong)


@pytest.mark.parametrize(
    "space",
    [pixels(6), spaces.Box(0, 1, (4, 4), np.uint8), spaces.Box(0, 255, (4, 4, 3), np.float32)],
    ids=["bytes of a memory", "bits", "numbers"],
)
def test_other_spaces_are_left_as_they_are(space):
    value = np.ones(space.shape, space.dtype)
    observation = adapt(Observed(space, value)).reset(0)[0]
    np.testing.assert_array_equal(observation.features, value[None])
    assert observation.features.dtype == space.dtype
    with pytest.raises(ValueError, match=r"not of images .* leave out image_size"):
        adapt(Observed(space, value), ImageSettings(is_gray=True))


def test_grey_needs_three_channels():
    with pytest.raises(ValueError, match=r"images of 4 channels, of which grayscale=True needs"):
        ImageEncoding("Game", pixels(8, 8, 4), ImageSettings(is_gray=True))


@pytest.mark.parametrize("size", [(0, 4), (4,), "84", 84, (2.5, 4)])
def test_sizes_are_a_height_and_a_width(size):
    with pytest.raises(ValueError, match=r"image_size=.*; give a height and a width"):
        ja.HostEnvironment(lambda: Observed(pixels(8, 8, 3), None), image_size=size)


@pytest.mark.slow
def test_an_agent_learns_from_images_that_its_workers_make_smaller():
    image = np.zeros((8, 12, 3), np.uint8)
    image[:, 6:] = 255

    def make():
        return Observed(pixels(8, 12, 3), image)

    with ja.HostEnvironment(make, image_size=(4, 6), grayscale=True, n_workers=1) as env:
        assert env.observation["features"] == ArraySpec((1, 4, 6, 1), "float32")
        config = ja.AgentConfig(
            n_steps=1, batch_size=2, minibatch_size=1, rollout_length=2, progress_bar=False
        )
        agent = ja.DiscreteIPPO(env, None, config)
        runner, metrics = agent.step(agent.init(jax.random.key(0), ja.HyperParameters()))
    np.testing.assert_allclose(
        runner.observation.features[0, 0, :, :, 0], [[0, 0, 0, 1, 1, 1]] * 4, rtol=1e-6
    )
    assert np.isfinite(metrics["actor_loss"]).all()
