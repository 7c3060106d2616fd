import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.config import Layers
from jaxagents.networks.network import (
    ACTIVATIONS,
    CNN,
    MLP,
    PolicyNetwork,
    ValueNetwork,
    make_torso,
    orthogonal,
)

N_FEATURES, N_HIDDEN, N_ACTIONS = 5, 16, 3


def drawn(network, features):
    """Draw parameters of the usual scale, without compiling their initialisation."""
    numbers = np.random.default_rng(0)

    def draw(path, leaf):
        if path[-1].key == "kernel":
            return numbers.normal(0.0, leaf.shape[0] ** -0.5, leaf.shape).astype(leaf.dtype)
        return jnp.full(leaf.shape, float(path[-1].key == "scale"), leaf.dtype)

    params = jax.eval_shape(network.init, jax.random.key(0), features)
    return jax.tree_util.tree_map_with_path(draw, params)


def outputs(network, features):
    """Apply a network with drawn parameters."""
    return np.asarray(jax.jit(network.apply)(drawn(network, features), features))


def layers(network, *observation_shape):
    """Initialise a network; list its layers' weights ``[inputs, outputs]`` and biases."""
    features = jnp.zeros((1, *observation_shape))
    params = jax.jit(network.init)(jax.random.key(0), features)["params"]
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
    features = jnp.ones((2, N_FEATURES))
    variables = drawn(torso, features)
    hidden = torso.apply(variables, features)
    assert (hidden.shape, list(variables["params"])) == ((2, 7), ["Dense_0"])
    weights = variables["params"]["Dense_0"]["kernel"]
    np.testing.assert_allclose(hidden[0], np.maximum(np.sum(weights, axis=0), 0.0), atol=1e-6)


def unactivated(hidden):
    return hidden


@pytest.mark.parametrize("batch", [(), (2,), (4, 2, 3)])
def test_networks_keep_all_axes_before_the_observations(batch):
    features = jnp.ones((*batch, N_FEATURES))
    torso = MLP(hidden_sizes=(4,))
    assert outputs(PolicyNetwork(N_ACTIONS, torso), features).shape == (*batch, N_ACTIONS)
    assert outputs(ValueNetwork(torso), features).shape == batch


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.uint8, jnp.bool_])
def test_observations_of_other_dtypes_are_converted_to_float(dtype):
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
    """Apply one convolution with weights of 1 to an image of ones."""
    torso, image = CNN(channels=(1,), hidden_sizes=()), jnp.ones((size, size, 1))
    params = jax.eval_shape(torso.init, jax.random.key(0), image)
    params = jax.tree.map(lambda leaf: jnp.full(leaf.shape, float(leaf.ndim > 1)), params)
    return torso.apply(params, image)


@pytest.mark.parametrize(
    ("size", "sums"),
    [
        (1, [1]),
        (2, [4] * 4),
        (3, [4, 6, 4, 6, 9, 6, 4, 6, 4]),  # the size of the patch: padded with zeros
        (4, [9] * 4),
        (5, [9] * 9),
    ],
)
def test_convolutions_have_patches_of_3_by_3_and_pad_only_images_that_are_not_larger(size, sums):
    np.testing.assert_array_equal(patch_sums(size), sums)


@pytest.mark.parametrize(
    ("size", "stride", "padding"),
    [((7, 5), 1, "VALID"), ((3, 5), 1, "SAME"), ((7, 6), 2, "VALID"), ((7, 9), 3, "VALID")],
)
def test_convolutions_equal_those_of_xla(size, stride, padding):
    images = jax.random.normal(jax.random.key(1), (4, *size, 2))
    torso = CNN((5,), hidden_sizes=(), activation=unactivated, stride=stride)
    variables = drawn(torso, images)
    hidden = torso.apply(variables, images)
    kernel = variables["params"]["Dense_0"]["kernel"].reshape(3, 3, 2, 5)
    expected = jax.lax.conv_general_dilated(
        images, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    np.testing.assert_allclose(hidden, expected.reshape(4, -1), atol=1e-5)


@pytest.mark.parametrize(
    ("size", "batch"),
    [
        ((2, 2), (4, 2, 3)),
        ((3, 3), (2,)),
        ((2, 9), (4, 2)),
        ((4, 4), ()),
        ((10, 7), (4, 2, 3)),
    ],
)
def test_images_of_any_size_keep_their_batch_axes(size, batch):
    images = jax.random.normal(jax.random.key(1), (*batch, *size, 3))
    network = PolicyNetwork(N_ACTIONS, CNN(channels=(4, 5), hidden_sizes=(6,)))
    apply, variables = jax.jit(network.apply), drawn(network, images)
    actions = apply(variables, images)
    assert actions.shape == (*batch, N_ACTIONS)
    one_by_one = [apply(variables, image) for image in images.reshape(-1, *size, 3)]
    np.testing.assert_allclose(actions.reshape(-1, N_ACTIONS), one_by_one, atol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.int8, jnp.uint8, jnp.bool_])
def test_images_of_other_dtypes_are_converted_to_float(dtype):
    images = jax.random.bernoulli(jax.random.key(1), 0.5, (2, 4, 4, 3)).astype(dtype)
    network = ValueNetwork(CNN(channels=(4,), hidden_sizes=(4,)))
    values = outputs(network, images)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, outputs(network, images.astype(jnp.float32)))
    assert values[0] != values[1]


def test_convolutions_start_orthogonal_and_unbiased_like_all_hidden_layers():
    network = ValueNetwork(CNN(channels=(8, 40), hidden_sizes=(4,)))
    params = jax.jit(network.init)(jax.random.key(0), jnp.zeros((6, 7, 2)))
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
    assert make_torso(shape, Layers()) == torso
    network, features = ValueNetwork(torso), jnp.zeros((2, 3, *shape))
    values, _ = jax.eval_shape(network.init_with_output, jax.random.key(0), features)
    assert values.shape == (2, 3)


# tanh(-1/2), max(-1/2, 0), exp(-1/2) - 1, -1/2 Φ(-1/2) and -1/2 σ(-1/2).
OF_MINUS_HALF = {"tanh": -0.46212, "relu": 0.0, "elu": -0.39347, "gelu": -0.1543, "silu": -0.18877}


def with_biases(torso, shape, bias):
    """Apply a torso with weights of 0 and equal biases to ones."""
    features = jnp.ones((1, *shape))
    params = jax.eval_shape(torso.init, jax.random.key(0), features)
    params = jax.tree.map(lambda leaf: jnp.full(leaf.shape, bias * (leaf.ndim == 1)), params)
    return torso.apply(params, features)


@pytest.mark.parametrize("shape", [(N_FEATURES,), (5, 4, 3)], ids=["vectors", "images"])
@pytest.mark.parametrize("name", [*OF_MINUS_HALF, None])
def test_layers_have_the_configured_activation(name, shape):
    assert OF_MINUS_HALF.keys() == ACTIVATIONS.keys()
    default = "relu" if len(shape) == 3 else "tanh"
    torso = make_torso(shape, Layers(hidden_sizes=(4,), activation=name))
    hidden = with_biases(torso, shape, -0.5)
    np.testing.assert_allclose(hidden, np.full((1, 4), OF_MINUS_HALF[name or default]), atol=2e-5)


@pytest.mark.parametrize("name", OF_MINUS_HALF)
def test_convolutions_have_the_configured_activation(name):
    torso = make_torso((5, 4, 3), Layers(hidden_sizes=(), activation=name))
    hidden = with_biases(torso, (5, 4, 3), -0.5)
    np.testing.assert_allclose(hidden, np.full((1, 3 * 2 * 16), OF_MINUS_HALF[name]), atol=2e-5)


def test_the_torso_of_vectors_has_the_configured_hidden_layers():
    torso = make_torso((N_FEATURES,), Layers(hidden_sizes=(7, 6, 2), channels=(9,)))
    params = jax.eval_shape(torso.init, jax.random.key(0), jnp.zeros((1, N_FEATURES)))["params"]
    assert {name: layer["kernel"].shape for name, layer in params.items()} == {
        "Dense_0": (N_FEATURES, 7),
        "Dense_1": (7, 6),
        "Dense_2": (6, 2),
    }


def test_the_torso_of_images_has_the_configured_convolutions_and_hidden_layers():
    torso = make_torso((6, 7, 2), Layers(hidden_sizes=(9,), channels=(4, 5)))
    params = jax.eval_shape(torso.init, jax.random.key(0), jnp.zeros((1, 6, 7, 2)))["params"]
    assert jax.tree.map(lambda leaf: leaf.shape, params) == {
        "Dense_0": {"kernel": (9 * 2, 4), "bias": (4,)},
        "Dense_1": {"kernel": (9 * 4, 5), "bias": (5,)},
        "MLP_0": {"Dense_0": {"kernel": (2 * 3 * 5, 9), "bias": (9,)}},
    }


def test_without_hidden_layers_a_torso_is_the_flattened_observation():
    features = jnp.arange(2.0 * 5 * 4).reshape(2, 5, 4)
    hidden = outputs(make_torso((5, 4), Layers(hidden_sizes=())), features)
    np.testing.assert_array_equal(hidden, features.reshape(2, 20))


@pytest.mark.parametrize(
    ("torso", "shape"),
    [
        (MLP(1, (8,), unactivated, layer_norm=True), (N_FEATURES,)),
        (CNN((8,), (), unactivated, layer_norm=True), (5, 4, 3)),
        (CNN((), (8,), unactivated, layer_norm=True), (5, 4, 3)),
    ],
    ids=["hidden layer", "convolution", "hidden layer of images"],
)
def test_layer_norm_normalises_the_units_of_each_layer_to_mean_0_and_variance_1(torso, shape):
    features = 1000 + 100 * jax.random.normal(jax.random.key(1), (2, *shape))
    units = outputs(torso, features).reshape(-1, 8)
    assert len(units) == (2 * 3 * 2 if torso == CNN((8,), (), unactivated, True) else 2)
    np.testing.assert_allclose(units.mean(axis=-1), 0.0, atol=1e-4)
    np.testing.assert_allclose(units.var(axis=-1), 1.0, rtol=1e-3)


@pytest.mark.parametrize("shape", [(N_FEATURES,), (5, 4, 3)], ids=["vectors", "images"])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_only_layer_norm_makes_the_scale_of_observations_irrelevant(layer_norm, shape):
    torso = make_torso(shape, Layers(hidden_sizes=(8, 8), layer_norm=layer_norm))
    features = 10 * jax.random.normal(jax.random.key(1), (2, *shape))
    small, large = outputs(torso, features), outputs(torso, 100 * features)
    assert np.allclose(small, large, atol=1e-3) == layer_norm


def test_every_layer_is_normalised_before_its_activation():
    """The inputs of the second layer are tanh(1) and tanh(-1) for any observation."""
    torso = make_torso((1,), Layers(hidden_sizes=(2, 2), layer_norm=True))
    features = jnp.array([[-7.0], [3.0], [50.0]])
    variables = drawn(torso, features)
    _, state = torso.apply(variables, features, capture_intermediates=True)
    normalized = state["intermediates"]["LayerNorm_0"]["__call__"][0]
    np.testing.assert_allclose(np.abs(normalized), 1.0, atol=1e-4)
    first_of_second, *_ = state["intermediates"]["Dense_1"]["__call__"]
    kernel = variables["params"]["Dense_1"]["kernel"]
    np.testing.assert_allclose(first_of_second, np.tanh(normalized) @ kernel, atol=1e-5)


def test_initialisation_does_not_call_lapack():
    """Its batched calls can deadlock on two cores; see `orthogonal`."""
    init = jax.jit(jax.vmap(lambda rng: ValueNetwork(MLP()).init(rng, jnp.zeros((1, 5)))))
    assert "lapack" not in init.lower(jax.random.split(jax.random.key(0), 3)).as_text()


@pytest.mark.parametrize("shape", [(3, 7), (7, 3), (5, 5), (1, 4), (2, 3, 4)])
def test_orthogonal_matrices_are_orthogonal_along_their_shorter_side(shape):
    matrix = orthogonal(2.0)(jax.random.key(0), shape).reshape(-1, shape[-1])
    gram = matrix.T @ matrix if matrix.shape[0] >= matrix.shape[1] else matrix @ matrix.T
    np.testing.assert_allclose(gram, 4.0 * np.eye(min(matrix.shape)), atol=1e-5)


# Between 1 and the next bfloat16, 1.0078125, and nearer to the latter.
BETWEEN = 1.005


@pytest.mark.parametrize(("dtype", "expected"), [("float32", BETWEEN), ("bfloat16", 1.0078125)])
def test_hidden_layers_compute_in_their_dtype_on_float32_parameters(dtype, expected):
    torso = MLP(hidden_sizes=(1,), activation=unactivated, dtype=dtype)
    params = torso.init(jax.random.key(0), jnp.ones((1, 1)))
    params = jax.tree.map(jnp.zeros_like, params)
    params["params"]["Dense_0"]["bias"] = jnp.full(1, BETWEEN)
    hidden = torso.apply(params, jnp.ones((1, 1)))
    assert hidden.dtype == dtype
    assert float(hidden[0, 0]) == np.float32(expected)
    gradients = jax.grad(lambda params: torso.apply(params, jnp.ones((1, 1))).sum())(params)
    assert {leaf.dtype.name for leaf in jax.tree.leaves((params, gradients))} == {"float32"}


@pytest.mark.parametrize("shape", [(N_FEATURES,), (5, 6, 2)])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_bfloat16_networks_approximate_float32_networks_and_return_float32(shape, layer_norm):
    features = jax.random.normal(jax.random.key(1), (3, *shape))
    layers = Layers(hidden_sizes=(16, 16), layer_norm=layer_norm)
    exact, rough = (
        outputs(ValueNetwork(make_torso(shape, layers, dtype)), features)
        for dtype in ("float32", "bfloat16")
    )
    assert rough.dtype == np.float32
    assert (rough != exact).any()
    np.testing.assert_allclose(rough, exact, atol=0.05)
