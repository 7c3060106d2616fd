import inspect
from functools import cache, partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.config import Layers
from jaxagents.networks.network import MLP, Network, PolicyNetwork, ValueNetwork, make_torso
from jaxagents.networks.recurrent import RecurrentNetwork, make_module

N_FEATURES, N_ACTIONS = 5, 3
CELLS = ["gru", "lstm", "mingru"]
OBSERVATION = jax.ShapeDtypeStruct((N_FEATURES,), jnp.float32)  # of one actor


def check(module, output, observation=OBSERVATION, recurrent=False):
    Network(module, observation, recurrent).check("actor_network", output)


@pytest.fixture
def without_type_checks(monkeypatch):
    """Remove the runtime type checks of the annotation tests, which users run without."""
    for name in ("__init__", "__call__"):
        monkeypatch.setattr(Network, name, inspect.unwrap(getattr(Network, name)))


@pytest.mark.parametrize("shape", [(), (N_FEATURES,), (4, 4, 3)])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.int32])
def test_the_default_networks_fit_observations_of_any_shape(shape, dtype):
    observation = jax.ShapeDtypeStruct(shape, dtype)
    torso = MLP(observation_ndim=len(shape))
    check(PolicyNetwork(N_ACTIONS, torso), (N_ACTIONS,), observation)
    check(ValueNetwork(torso), (), observation)


def test_a_network_is_checked_without_running_it():
    class Unrunnable(nn.Module):
        @nn.compact
        def __call__(self, features):
            assert isinstance(features, jax.core.Tracer)
            return nn.Dense(N_ACTIONS)(features)

    check(Unrunnable(), (N_ACTIONS,))


class Keeping(nn.Module):
    """A value network that keeps its last axis."""

    @nn.compact
    def __call__(self, features):
        return nn.Dense(1)(features)


class Returning(nn.Module):
    @nn.compact
    def __call__(self, features):
        return features, features


class Image(nn.Module):
    """A network that accepts images only."""

    @nn.compact
    def __call__(self, features):
        _, _, height, width, channels = features.shape
        return features.sum(axis=(-3, -2, -1)) * height * width * channels


class Verbose(nn.Module):
    """A network that fails with a message of several lines."""

    @nn.compact
    def __call__(self, features):
        raise RuntimeError("out of order\n\nsee the manual")


@pytest.mark.usefixtures("without_type_checks")
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


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize(("network", "kind"), [(MLP, "type"), ("mlp", "str"), (None, "NoneType")])
def test_a_network_that_is_no_module_is_an_error(network, kind, recurrent):
    with pytest.raises(TypeError, match=f"^actor_network is {kind}; pass a flax.linen module.$"):
        check(network, (3,), recurrent=recurrent)


class Total(nn.Module):
    """Sums an episode's features, starting from ones."""

    @nn.compact
    def __call__(self, features, memory, begins):
        def add(total, step):
            features, begins = step
            total = {"seen": jnp.where(begins[..., None], 1.0, total["seen"]) + features}
            return total, total

        _, totals = jax.lax.scan(add, memory, (features, begins))
        return nn.Dense(N_ACTIONS)(totals["seen"]), totals

    def empty_memory(self, batch_shape):
        return {"seen": jnp.ones((*batch_shape, N_FEATURES))}


LAYERS = Layers(hidden_sizes=(7,), memory_size=6, sizes_after_memory=(4,))
make_policy_module = partial(
    make_module, (N_FEATURES,), LAYERS, make_head=partial(PolicyNetwork, N_ACTIONS)
)
MODULES = {"total": Total(), **{cell: make_policy_module(recurrent=cell) for cell in CELLS}}
every_memory = pytest.mark.parametrize("module", MODULES.values(), ids=MODULES.keys())
BATCH = (4, 2)
N_STEPS = 5

# Compiled once for all tests of a network.
init = jax.jit(Network.init, static_argnums=0)
apply = jax.jit(Network.__call__, static_argnums=0)
apply_step = jax.jit(Network.step, static_argnums=0)


@cache
def recurrent_network(module):
    network = Network(module, OBSERVATION, recurrent=True)
    return network, init(network, jax.random.key(0))


@cache
def features_of(*steps):
    return jax.random.normal(jax.random.key(1), (*steps, *BATCH, N_FEATURES))


def assert_close(actual, expected):
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), actual, expected)


@every_memory
def test_a_module_with_a_memory_fits(module):
    check(module, (N_ACTIONS,), recurrent=True)


@every_memory
def test_a_step_is_a_sequence_of_one_step(module):
    network, params = recurrent_network(module)
    features, memory = features_of(), network.empty_memory(*BATCH)
    # One step first, as an empty memory hides errors.
    _, memory = apply_step(network, params, 1 - features, memory)
    output, after = apply_step(network, params, features, memory)
    outputs, memories = apply(network, params, features[None], memory, jnp.zeros((1, *BATCH), bool))
    assert outputs.shape == (1, *BATCH, N_ACTIONS)
    assert_close(output, outputs[0])
    assert_close(after, jax.tree.map(lambda leaf: leaf[0], memories))


@every_memory
def test_a_sequence_equals_its_single_steps_with_a_memory_after_each(module):
    network, params = recurrent_network(module)
    features = features_of(N_STEPS)
    begins = jax.random.bernoulli(jax.random.key(2), 0.3, (N_STEPS, *BATCH))
    assert begins[1:].any()
    _, memory = apply_step(network, params, features_of(), network.empty_memory(*BATCH))
    outputs, memories = apply(network, params, features, memory, begins)
    for step in range(N_STEPS):
        memory = network.reset_memory(memory, begins[step])
        output, memory = apply_step(network, params, features[step], memory)
        assert_close(outputs[step], output)
        assert_close(jax.tree.map(lambda leaf, step=step: leaf[step], memories), memory)


@every_memory
def test_outputs_do_not_depend_on_earlier_episodes(module):
    network, params = recurrent_network(module)
    begins = jnp.zeros((N_STEPS, *BATCH), bool).at[1].set(True)
    empty = network.empty_memory(*BATCH)
    features = features_of(N_STEPS)
    outputs, _ = apply(network, params, features, empty, begins)
    changed, _ = apply(network, params, features.at[0].multiply(-2.0), empty, begins)
    assert_close(outputs[1:], changed[1:])
    continued, _ = apply(network, params, features, empty, jnp.zeros_like(begins))
    assert np.abs(continued[1:] - outputs[1:]).max() > 1e-5


@every_memory
def test_the_memory_is_reset_only_where_an_episode_begins_even_if_it_is_nan(module):
    network, _ = recurrent_network(module)
    empty = network.empty_memory(*BATCH)
    unknown = jax.tree.map(lambda leaf: jnp.full(leaf.shape, jnp.nan), empty)
    begins = jnp.zeros(BATCH, bool).at[3, 1].set(True).at[0].set(True)
    reset = network.reset_memory(unknown, begins)
    wanted = np.asarray(begins)
    for leaf, empty_leaf in zip(jax.tree.leaves(reset), jax.tree.leaves(empty), strict=True):
        np.testing.assert_array_equal(leaf[wanted], empty_leaf[wanted])
        assert np.isnan(leaf[~wanted]).all()


@every_memory
@pytest.mark.parametrize("batch", [(), (3,), (4, 2)])
def test_an_empty_memory_has_the_requested_batch_axes(module, batch):
    network, _ = recurrent_network(module)
    shapes = {leaf.shape[: len(batch)] for leaf in jax.tree.leaves(network.empty_memory(*batch))}
    assert shapes == {batch}


def test_the_memory_of_a_feed_forward_network_is_an_empty_tuple():
    network = Network(make_policy_module(recurrent=None), OBSERVATION, recurrent=False)
    params = init(network, jax.random.key(0))
    assert network.empty_memory(*BATCH) == ()
    assert network.reset_memory((), jnp.ones(BATCH, bool)) == ()
    features, begins = features_of(5), jnp.ones((5, *BATCH), bool)
    outputs, memories = network(params, features, (), begins)
    output, memory = network.step(params, features[2], ())
    assert (memories, memory) == ((), ())
    assert_close(outputs, network.module.apply(params, features))
    assert_close(output, outputs[2])
    # Minibatches may come as flat samples too.
    flat, _ = network(params, features.reshape(-1, N_FEATURES), (), begins.ravel())
    assert_close(flat, outputs.reshape(-1, N_ACTIONS))


@pytest.mark.parametrize("recurrent", [None, *CELLS])
def test_different_keys_draw_different_parameters_and_equal_keys_the_same(recurrent):
    network = Network(make_policy_module(recurrent=recurrent), OBSERVATION, bool(recurrent))
    one, same, other = (init(network, jax.random.key(seed)) for seed in (0, 0, 1))
    jax.tree.map(np.testing.assert_array_equal, one, same)
    kernels = (jax.tree.leaves(params)[1] for params in (one, other))
    assert not np.array_equal(*kernels)


@pytest.mark.parametrize("module", [PolicyNetwork(N_ACTIONS, MLP()), Verbose()])
def test_a_module_without_a_memory_is_an_error_in_a_recurrent_agent(module):
    with pytest.raises(TypeError, match=r" without empty_memory\(batch_shape\); ") as error:
        check(module, (N_ACTIONS,), recurrent=True)
    assert str(error.value).startswith(f"actor_network is a {type(module).__name__} without ")
    assert "\n" not in str(error.value)


class KeepingOnlyTheLast(Total):
    """Returns the memory after the last step only."""

    @nn.compact
    def __call__(self, features, memory, begins):
        outputs, totals = super().__call__(features, memory, begins)
        return outputs, jax.tree.map(lambda leaf: leaf[-1], totals)


class KeepingTheFirst(Total):
    """Returns the memories before and after each step."""

    @nn.compact
    def __call__(self, features, memory, begins):
        outputs, totals = super().__call__(features, memory, begins)
        return outputs, jax.tree.map(lambda m, t: jnp.concatenate([m[None], t]), memory, totals)


class Unwrapping(Total):
    """Returns memories of another structure."""

    @nn.compact
    def __call__(self, features, memory, begins):
        outputs, totals = super().__call__(features, memory, begins)
        return outputs, totals["seen"]


class Forgetting(Total):
    """Returns no memories at all."""

    @nn.compact
    def __call__(self, features, memory, begins):
        return super().__call__(features, memory, begins)[0], None


class Rounding(Total):
    """Returns memories of another type."""

    @nn.compact
    def __call__(self, features, memory, begins):
        outputs, totals = super().__call__(features, memory, begins)
        return outputs, jax.tree.map(lambda leaf: leaf.astype(jnp.float16), totals)


@pytest.mark.parametrize(
    "module", [KeepingOnlyTheLast(), KeepingTheFirst(), Unwrapping(), Forgetting(), Rounding()]
)
def test_memories_other_than_one_per_step_are_an_error(module):
    message = (
        r"^actor_network must return one memory per step, \[2, '\*memory'\], "
        "with the shapes and dtypes of its empty_memory.$"
    )
    with pytest.raises(ValueError, match=message):
        check(module, (N_ACTIONS,), recurrent=True)


class WithoutMemories(Total):
    """Returns outputs alone, like a feed-forward module."""

    @nn.compact
    def __call__(self, features, memory, begins):
        return super().__call__(features, memory, begins)[0]


class Demanding(Total):
    """Has an empty memory that it cannot use."""

    def empty_memory(self, batch_shape):
        return ()


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize("module", [WithoutMemories(), Demanding()])
def test_a_module_that_fails_with_its_memory_is_an_error_of_one_line(module):
    message = r"^actor_network fails on observations of shape \(2, 3, 5\): ."
    with pytest.raises(ValueError, match=message) as error:
        check(module, (N_ACTIONS,), recurrent=True)
    assert "\n" not in str(error.value)


def test_a_recurrent_module_of_the_wrong_output_is_an_error_with_both_shapes():
    message = (
        r"^actor_network maps observations \[2, 3, 5\] to \[2, 3, 3\]; the environment needs "
        r"\[2, 3, 4\]\.$"
    )
    with pytest.raises(ValueError, match=message):
        check(Total(), (4,), recurrent=True)


@pytest.mark.parametrize("shape", [(), (5,), (5, 4), (5, 4, 3)])
@pytest.mark.parametrize("layers", [Layers(), Layers((8,), "elu", True, (2,), 9, (7,))])
def test_a_feed_forward_module_is_a_head_on_the_configured_torso(shape, layers):
    module = make_module(shape, layers, None, partial(PolicyNetwork, N_ACTIONS))
    assert module == PolicyNetwork(N_ACTIONS, make_torso(shape, layers))


@pytest.mark.parametrize(
    ("cell", "shape", "dtype"),
    [
        ("gru", (), jnp.int32),
        ("gru", (5,), jnp.float32),
        ("lstm", (5, 4), jnp.float32),
        ("lstm", (5,), jnp.int32),
        ("mingru", (5, 4, 3), jnp.int32),
        ("mingru", (), jnp.float32),
    ],
)
def test_recurrent_modules_fit_observations_of_any_shape(cell, shape, dtype):
    observation = jax.ShapeDtypeStruct(shape, dtype)
    make = partial(make_module, shape, LAYERS, cell)
    check(make(partial(PolicyNetwork, N_ACTIONS)), (N_ACTIONS,), observation, recurrent=True)
    check(make(ValueNetwork), (), observation, recurrent=True)


def kernels_of(module, shape):
    """List the shapes of a recurrent module's matrices, except for the cell's."""
    network = Network(module, jax.ShapeDtypeStruct(shape, jnp.float32), recurrent=True)
    params = jax.eval_shape(network.init, jax.random.key(0))["params"]
    named = jax.tree_util.tree_leaves_with_path(params)
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf.shape
        for path, leaf in named
        if path[-1].key == "kernel"
    }


@pytest.mark.parametrize("cell", CELLS)
def test_the_cell_is_between_the_hidden_layers_and_those_before_the_head(cell):
    layers = Layers(hidden_sizes=(8, 7), memory_size=9, sizes_after_memory=(6, 4))
    module = make_module((N_FEATURES,), layers, cell, partial(PolicyNetwork, N_ACTIONS))
    kernels = kernels_of(module, (N_FEATURES,))
    # Each layer's inputs are as many as the outputs of the layer before it.
    assert sorted(kernels.values()) == sorted([(5, 8), (8, 7), (9, 6), (6, 4), (4, N_ACTIONS)])
    memory = module.empty_memory((2,))
    assert {leaf.shape for leaf in jax.tree.leaves(memory)} == {(2, 9)}


@pytest.mark.parametrize("cell", CELLS)
def test_by_default_the_head_follows_the_cell(cell):
    module = make_module((N_FEATURES,), Layers(), cell, ValueNetwork)
    kernels = kernels_of(module, (N_FEATURES,))
    assert sorted(kernels.values()) == [(5, 64), (64, 1), (64, 64)]


def test_a_cell_follows_the_configured_convolutions_of_images():
    layers = Layers(hidden_sizes=(8,), channels=(2,), memory_size=9)
    module = make_module((5, 4, 3), layers, "gru", ValueNetwork)
    kernels = kernels_of(module, (5, 4, 3))
    assert sorted(kernels.values()) == sorted([(9 * 3, 2), (3 * 2 * 2, 8), (9, 1)])


@pytest.mark.parametrize(
    ("activation", "shape", "of_minus_half"),
    [
        (None, (N_FEATURES,), -0.46212),
        (None, (5, 4, 3), 0.0),
        ("relu", (N_FEATURES,), 0.0),
        ("tanh", (5, 4, 3), -0.46212),
        ("elu", (5, 4, 3), -0.39347),
    ],
)
def test_layers_after_the_cell_have_the_configured_activation(activation, shape, of_minus_half):
    """With all weights 0 and all biases -1/2, the input of the last activation is -1/2."""
    layers = Layers(activation=activation, memory_size=4, sizes_after_memory=(2,))
    module = make_module(shape, layers, "mingru", lambda torso: torso)
    network = Network(module, jax.ShapeDtypeStruct(shape, jnp.float32), recurrent=True)
    params = jax.eval_shape(network.init, jax.random.key(0))
    params = jax.tree.map(lambda leaf: jnp.full(leaf.shape, -0.5 * (leaf.ndim == 1)), params)
    output, _ = apply_step(network, params, jnp.ones((1, *shape)), network.empty_memory(1))
    np.testing.assert_allclose(output, np.full((1, 2), of_minus_half), atol=2e-5)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_layers_after_the_cell_are_normalised_as_configured(layer_norm):
    """With mean 0 and variance 1, two units are 1 and -1, and relu turns -1 into 0."""
    layers = Layers((16,), "relu", layer_norm, memory_size=16, sizes_after_memory=(2,))
    module = make_module((N_FEATURES,), layers, "gru", lambda torso: torso)
    network, params = recurrent_network(module)
    output, _ = apply_step(network, params, 10 * features_of(), network.empty_memory(*BATCH))
    is_normalised = np.isclose(np.sort(output, axis=-1), [0.0, 1.0], atol=0.05).all()
    assert is_normalised == layer_norm


def test_values_of_a_users_own_network_cannot_be_rescaled():
    assert not Network(Keeping(), OBSERVATION, recurrent=False).can_rescale_values
    default = Network(ValueNetwork(MLP()), OBSERVATION, recurrent=False)
    assert default.can_rescale_values


class Halving(nn.Module):
    """Has a memory, and halves what its value network returns."""

    after: nn.Module

    def __call__(self, features, memory, begins):
        del memory, begins
        return 0.5 * self.after(features), ()

    def empty_memory(self, batch_shape):
        return ()


def test_nor_can_those_of_a_users_own_recurrent_network():
    last = ValueNetwork(MLP())
    assert not Network(Halving(last), OBSERVATION, recurrent=True).can_rescale_values
    default = RecurrentNetwork("gru", 4, MLP(), last)
    assert Network(default, OBSERVATION, recurrent=True).can_rescale_values
