import inspect

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.networks import (
    CNN,
    MLP,
    PolicyNetwork,
    ValueNetwork,
    check_network,
    default_torso,
    orthogonal,
)

N_FEATURES, N_HIDDEN, N_ACTIONS = 5, 16, 3


def layers(network, *observation_shape):
    """Initialise a network; list its layers' weights ``[inputs, outputs]`` and biases."""
    features = jnp.zeros((1, *observation_shape))
    params = network.init(jax.random.key(0), features)["params"]
    torso = [params["torso"][name] for name in sorted(params["torso"])]
    return [(layer["kernel"], layer["bias"]) for layer in (*torso, params["Dense_0"])]


def assert_orthogonal(weights, scale):
    """Check W^T W = scale² I, or W W^T where there are more outputs than inputs."""
    tall = weights if weights.shape[0] >= weights.shape[1] else weights.T
    np.testing.assert_allclose(
        tall.T @ tall, scale**2 * np.eye(tall.shape[1]), atol=1e-5 * scale**2
    )


@pytest.mark.parametrize(
    ("network", "last_scale"),
    [
        (PolicyNetwork(N_ACTIONS, MLP(hidden_sizes=(N_HIDDEN, 8))), 0.01),
        (ValueNetwork(MLP(hidden_sizes=(N_HIDDEN, 8))), 1.0),
    ],
)
def test_weights_start_orthogonal_at_the_scale_of_their_layer_and_biases_at_zero(
    network, last_scale
):
    first, second, last = layers(network, N_FEATURES)
    for (weights, bias), scale in ((first, 2**0.5), (second, 2**0.5), (last, last_scale)):
        assert_orthogonal(np.asarray(weights, np.float64), scale)
        np.testing.assert_array_equal(bias, np.zeros(weights.shape[1]))
    assert [weights.shape for weights, _ in (first, second)] == [(5, 16), (16, 8)]


def test_the_default_torso_has_two_hidden_layers_of_64_tanh_units():
    torso = MLP()
    params = jax.eval_shape(torso.init, jax.random.key(0), jnp.zeros((1, N_FEATURES)))["params"]
    assert {name: layer["kernel"].shape for name, layer in params.items()} == {
        "Dense_0": (N_FEATURES, 64),
        "Dense_1": (64, 64),
    }
    params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), params)
    params["Dense_1"]["bias"] = jnp.full(64, 0.5)
    hidden = torso.apply({"params": params}, jnp.ones((2, N_FEATURES)))
    np.testing.assert_allclose(hidden, np.full((2, 64), np.tanh(0.5)), rtol=1e-6)


def test_hidden_sizes_and_activation_may_be_chosen():
    torso = MLP(hidden_sizes=(7,), activation=nn.relu)
    hidden, variables = torso.init_with_output(jax.random.key(0), jnp.ones((2, N_FEATURES)))
    assert (hidden.shape, list(variables["params"])) == ((2, 7), ["Dense_0"])
    weights = variables["params"]["Dense_0"]["kernel"]
    np.testing.assert_allclose(hidden[0], np.maximum(np.sum(weights, axis=0), 0.0), atol=1e-6)


def outputs(network, features):
    """Initialise a network and apply it."""
    returned, _ = network.init_with_output(jax.random.key(0), features)
    return np.asarray(returned)


@pytest.mark.parametrize("batch", [(), (2,), (4, 2, 3)])
def test_networks_keep_all_axes_before_the_observations(batch):
    features = jnp.ones((*batch, N_FEATURES))
    torso = MLP(hidden_sizes=(4,))
    assert outputs(PolicyNetwork(N_ACTIONS, torso), features).shape == (*batch, N_ACTIONS)
    assert outputs(ValueNetwork(torso), features).shape == batch


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.uint8, jnp.bool_])
def test_observations_that_are_no_floats_are_read_as_numbers(dtype):
    features = jnp.array([[0, 1, 1], [1, 0, 1]], dtype)
    network = ValueNetwork(MLP(hidden_sizes=(4,)))
    values = outputs(network, features)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, outputs(network, features.astype(jnp.float32)))


def test_scalar_observations_are_one_feature_each():
    scalars = jnp.array([[1, 2, 3], [4, 5, 6]])
    network, vectors = (ValueNetwork(MLP(ndim, hidden_sizes=(4,))) for ndim in (0, 1))
    values = outputs(network, scalars)
    assert values.shape == (2, 3)
    np.testing.assert_array_equal(values, outputs(vectors, scalars[..., None]))


def test_images_are_flattened_and_their_batch_axes_kept():
    images = jnp.arange(2.0 * 3 * 4 * 2 * 3).reshape(2, 3, 4, 2, 3) / 144
    network, vectors = (ValueNetwork(MLP(ndim, hidden_sizes=(4,))) for ndim in (3, 1))
    values = outputs(network, images)
    assert values.shape == (2, 3)
    np.testing.assert_array_equal(values, outputs(vectors, images.reshape(2, 3, 4 * 2 * 3)))


def patch_sums(size):
    """Sum every patch that a CNN sees of an image of ones: one channel, all weights 1."""
    torso, image = CNN(channels=(1,), hidden_sizes=()), jnp.ones((size, size, 1))
    params = jax.eval_shape(torso.init, jax.random.key(0), image)
    params = jax.tree.map(lambda leaf: jnp.full(leaf.shape, float(leaf.ndim > 1)), params)
    return torso.apply(params, image)


@pytest.mark.parametrize(
    ("size", "sums"),
    [
        (1, [1]),
        (2, [4] * 4),
        (3, [4, 6, 4, 6, 9, 6, 4, 6, 4]),  # as large as the patch: padded with zeros
        (4, [9] * 4),
        (5, [9] * 9),
    ],
)
def test_convolutions_see_patches_of_3_by_3_and_pad_only_images_that_are_no_larger(size, sums):
    np.testing.assert_array_equal(patch_sums(size), sums)


@pytest.mark.parametrize(("size", "padding"), [((7, 5), "VALID"), ((3, 5), "SAME")])
def test_convolutions_are_those_of_xla(size, padding):
    images = jax.random.normal(jax.random.key(1), (4, *size, 2))
    torso = CNN(channels=(5,), hidden_sizes=(), activation=lambda hidden: hidden)
    hidden, variables = torso.init_with_output(jax.random.key(0), images)
    kernel = variables["params"]["Dense_0"]["kernel"].reshape(3, 3, 2, 5)
    expected = jax.lax.conv_general_dilated(
        images, kernel, (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    np.testing.assert_allclose(hidden, expected.reshape(4, -1), atol=1e-5)


@pytest.mark.parametrize("size", [(2, 2), (3, 3), (2, 9), (4, 4), (10, 7)])
@pytest.mark.parametrize("batch", [(), (2,), (4, 2, 3)])
def test_images_of_any_size_keep_their_batch_axes(size, batch):
    images = jax.random.normal(jax.random.key(1), (*batch, *size, 3))
    network = PolicyNetwork(N_ACTIONS, CNN(channels=(4, 5), hidden_sizes=(6,)))
    actions, variables = network.init_with_output(jax.random.key(0), images)
    assert actions.shape == (*batch, N_ACTIONS)
    one_by_one = [network.apply(variables, image) for image in images.reshape(-1, *size, 3)]
    np.testing.assert_allclose(actions.reshape(-1, N_ACTIONS), one_by_one, atol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.int8, jnp.uint8, jnp.bool_])
def test_images_that_are_no_floats_are_read_as_numbers(dtype):
    images = jax.random.bernoulli(jax.random.key(1), 0.5, (2, 4, 4, 3)).astype(dtype)
    network = ValueNetwork(CNN(channels=(4,), hidden_sizes=(4,)))
    values = outputs(network, images)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, outputs(network, images.astype(jnp.float32)))
    assert values[0] != values[1]


def test_convolutions_start_orthogonal_and_unbiased_like_all_hidden_layers():
    params = ValueNetwork(CNN(channels=(8, 40))).init(jax.random.key(0), jnp.zeros((6, 7, 2)))
    first, second = (params["params"]["torso"][f"Dense_{i}"] for i in (0, 1))
    assert (first["kernel"].shape, second["kernel"].shape) == ((9 * 2, 8), (9 * 8, 40))
    for layer in (first, second):
        assert_orthogonal(np.asarray(layer["kernel"], np.float64), 2**0.5)
        np.testing.assert_array_equal(layer["bias"], np.zeros(layer["kernel"].shape[1]))


def test_the_default_convolution_has_16_channels_before_two_hidden_layers_of_64_units():
    params = jax.eval_shape(CNN().init, jax.random.key(0), jnp.zeros((5, 6, 2)))["params"]
    kernels = jax.tree.map(lambda leaf: leaf.shape, params)
    assert kernels["Dense_0"]["kernel"] == (9 * 2, 16)
    assert kernels["MLP_0"]["Dense_0"]["kernel"] == (3 * 4 * 16, 64)
    assert kernels["MLP_0"]["Dense_1"]["kernel"] == (64, 64)
    assert (len(kernels), len(kernels["MLP_0"])) == (2, 2)


@pytest.mark.parametrize(
    ("shape", "torso"),
    [
        ((), MLP(observation_ndim=0)),
        ((5,), MLP(observation_ndim=1)),
        ((5, 4), MLP(observation_ndim=2)),
        ((5, 4, 3), CNN()),
        ((2, 5, 4, 3), MLP(observation_ndim=4)),
    ],
)
def test_by_default_observations_of_three_axes_are_convolved_and_others_flattened(shape, torso):
    assert default_torso(shape) == torso
    check(ValueNetwork(torso), (), jax.ShapeDtypeStruct((2, *shape), jnp.float32))


OBSERVATION = jax.ShapeDtypeStruct((2, N_FEATURES), jnp.float32)  # [actors, *obs]


def check(network, output, observation=OBSERVATION):
    check_network("actor_network", network, observation, output)


@pytest.mark.parametrize("shape", [(), (N_FEATURES,), (4, 4, 3)])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.int32])
def test_the_default_networks_fit_observations_of_any_shape(shape, dtype):
    observation = jax.ShapeDtypeStruct((2, *shape), dtype)
    torso = MLP(observation_ndim=len(shape))
    check(PolicyNetwork(N_ACTIONS, torso), (N_ACTIONS,), observation)
    check(ValueNetwork(torso), (), observation)


def test_checking_a_network_does_not_run_it():
    class Unrunnable(nn.Module):
        @nn.compact
        def __call__(self, features):
            assert isinstance(features, jax.core.Tracer)
            return nn.Dense(N_ACTIONS)(features)

    check(Unrunnable(), (N_ACTIONS,))


class Keeping(nn.Module):
    """A value network that forgets to drop its last axis."""

    @nn.compact
    def __call__(self, features):
        return nn.Dense(1)(features)


class Returning(nn.Module):
    @nn.compact
    def __call__(self, features):
        return features, features


class Image(nn.Module):
    """A network that insists on images."""

    @nn.compact
    def __call__(self, features):
        _, _, height, width, channels = features.shape
        return features.sum(axis=(-3, -2, -1)) * height * width * channels


class Verbose(nn.Module):
    """A network that fails with many lines."""

    @nn.compact
    def __call__(self, features):
        raise RuntimeError("out of order\n\nsee the manual")


@pytest.mark.parametrize(
    ("network", "output", "maps_to"),
    [
        (PolicyNetwork(4, MLP()), (3,), r"\[2, 3, 4\]; the environment needs \[2, 3, 3\]"),
        (Keeping(), (), r"\[2, 3, 1\]; the environment needs \[2, 3\]"),
        (ValueNetwork(MLP()), (3,), r"\[2, 3\]; the environment needs \[2, 3, 3\]"),
        (Returning(), (3,), r"None; the environment needs \[2, 3, 3\]"),
    ],
)
def test_a_network_of_the_wrong_output_is_an_error_of_one_line_with_both_shapes(
    network, output, maps_to
):
    with pytest.raises(
        ValueError, match=rf"^actor_network maps observations \[2, 3, 5\] to {maps_to}\.$"
    ) as error:
        check(network, output)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("network", [Image(), Verbose()])
def test_a_network_that_fails_is_an_error_of_one_line_with_the_shape_and_the_cause(network):
    message = r"^actor_network fails on observations of shape \(2, 3, 5\): ."
    with pytest.raises(ValueError, match=message) as error:
        check(network, (3,))
    assert "\n" not in str(error.value)
    assert error.value.__cause__ is not None


@pytest.mark.parametrize(("network", "kind"), [(MLP, "type"), ("mlp", "str"), (None, "NoneType")])
def test_a_network_that_is_no_module_is_an_error(network, kind):
    # Users run without the type checks of these tests, which would come first here.
    check_network_of_users = inspect.unwrap(check_network)
    with pytest.raises(TypeError, match=f"^actor_network is {kind}; pass a flax.linen module.$"):
        check_network_of_users("actor_network", network, OBSERVATION, (3,))


def test_initialisation_calls_no_library_that_could_wait_for_itself():
    """Batched LAPACK calls can hang on two cores; see `networks.orthogonal`."""
    init = jax.jit(jax.vmap(lambda rng: ValueNetwork(MLP()).init(rng, jnp.zeros((1, 5)))))
    assert "lapack" not in init.lower(jax.random.split(jax.random.key(0), 3)).as_text()


@pytest.mark.parametrize("shape", [(3, 7), (7, 3), (5, 5), (1, 4), (2, 3, 4)])
def test_orthogonal_matrices_are_so_along_their_shorter_side(shape):
    matrix = orthogonal(2.0)(jax.random.key(0), shape).reshape(-1, shape[-1])
    gram = matrix.T @ matrix if matrix.shape[0] >= matrix.shape[1] else matrix @ matrix.T
    np.testing.assert_allclose(gram, 4.0 * np.eye(min(matrix.shape)), atol=1e-5)
