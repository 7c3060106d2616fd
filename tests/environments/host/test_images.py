import jax
import numpy as np
import pytest
from gymnasium import spaces

import jaxagents as ja
from jaxagents.environments.host.adapters import adapt
from jaxagents.environments.host.errors import WrongValueError
from jaxagents.environments.host.images import AS_THEY_ARE, ImageEncoding, ImageSettings
from tests.environments.host.probes import Observed


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
        ((1, 2, 3), [[[0], [1], [2]], [[3], [4], [5]]]),  # channels first: fewer than the width
        ((2, 1, 2), [[[0, 1]], [[2, 3]]]),
        ((2, 1, 2, 2), [[[0, 1, 4, 5], [2, 3, 6, 7]]]),  # two images of 1 by 2, with two channels
    ],
    ids=["grey", "channels first", "channels last", "stack"],
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
    image = np.zeros((2, 1, 2, 3), np.uint8)
    image[0, 0, 0, 0], image[1, 0, 1, 1], image[1, 0, 1, 2] = 100, 200, 50  # red; green and blue
    gray = encoded(image, ImageSettings(is_gray=True))
    expected = [[[29.9, 0], [0, 0.587 * 200 + 0.114 * 50]]]
    np.testing.assert_allclose(gray * 255, expected, rtol=1e-5)


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
    sight = adapt(Observed(space, value)).reset(0)[0]
    np.testing.assert_array_equal(sight.features, value[None])
    assert sight.features.dtype == space.dtype
    with pytest.raises(ValueError, match=r"not as images .* leave out image_size"):
        adapt(Observed(space, value), ImageSettings(is_gray=True))


def test_grey_needs_three_channels():
    with pytest.raises(ValueError, match=r"images of 4 channels, of which grayscale=True needs"):
        ImageEncoding("Game", pixels(8, 8, 4), ImageSettings(is_gray=True))


@pytest.mark.parametrize("size", [(0, 4), (4,), "84", 84, (2.5, 4)])
def test_sizes_are_a_height_and_a_width(size):
    with pytest.raises(ValueError, match=r"image_size=.*; give a height and a width"):
        ja.HostEnvironment(lambda: Observed(pixels(8, 8, 3), None), image_size=size)


def test_an_agent_learns_from_images_that_its_workers_make_smaller():
    image = np.zeros((8, 12, 3), np.uint8)
    image[:, 6:] = 255

    def make():
        return Observed(pixels(8, 12, 3), image)

    with ja.HostEnvironment(make, image_size=(4, 6), grayscale=True, n_workers=1) as env:
        assert env.sight["features"] == ((1, 4, 6, 1), "float32")
        config = ja.AgentConfig(
            n_steps=1, batch_size=2, minibatch_size=1, rollout_length=2, progress_bar=False
        )
        agent = ja.DiscreteIPPO(env, None, config)
        runner, metrics = agent.step(agent.init(jax.random.key(0), ja.HyperParameters()))
    np.testing.assert_allclose(
        runner.observation.features[0, 0, :, :, 0], [[0, 0, 0, 1, 1, 1]] * 4, rtol=1e-6
    )
    assert np.isfinite(metrics["actor_loss"]).all()
