"""Hyperparameters: their checks, and what is made of them."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.hyperparameters import (
    OPTIMIZERS,
    OWN_RATES,
    HyperParameters,
    OptimizerParams,
    as_arrays,
    check_hyperparams,
    flat_items,
    per_policy,
    with_both_rates,
)
from jaxagents.ppo.optimization import adam, clip_by_global_norm
from jaxagents.ppo.schedules import scale_learning_rates

RATE = OptimizerParams(learning_rate=0.5)
NAMES = [
    "gamma",
    "gae_lambda",
    "eps_clip",
    "ent_coeff",
    "vf_coeff",
    "kl_threshold",
    "kl_target",
    "rho_clip",
    "c_clip",
    "huber_delta",
    "actor_optimizer_params.learning_rate",
    "actor_optimizer_params.eps",
    "actor_optimizer_params.grad_clip",
    "critic_optimizer_params.learning_rate",
    "critic_optimizer_params.eps",
    "critic_optimizer_params.grad_clip",
]


def hyperparams_with(name, value):
    """Replace one default, given by its dotted name."""
    network, _, field = name.rpartition(".")
    if network:
        return HyperParameters(**{network: OptimizerParams(**{field: value})})
    return HyperParameters(**{name: value})


def test_the_default_hyperparameters_are_the_documented_ones():
    adam_of = {"learning_rate": 1e-3, "eps": 1e-5, "grad_clip": 0.5}
    assert flat_items(HyperParameters()) == {
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "eps_clip": 0.2,
        "ent_coeff": 0.01,
        "vf_coeff": 0.5,
        "kl_threshold": math.inf,
        "kl_target": 0.008,
        "rho_clip": 1.0,
        "c_clip": 1.0,
        "huber_delta": 10.0,
        **{f"actor_optimizer_params.{name}": value for name, value in adam_of.items()},
        **{f"critic_optimizer_params.{name}": value for name, value in adam_of.items()},
    }
    assert OptimizerParams(1e-3, 1e-5, 0.5) == OptimizerParams()


def test_one_learning_rate_is_that_of_both_optimizers():
    both = OptimizerParams(learning_rate=[0.1, 0.2])
    expected = HyperParameters(0.9, actor_optimizer_params=both, critic_optimizer_params=both)
    assert HyperParameters(0.9, learning_rate=[0.1, 0.2]) == expected
    assert HyperParameters(learning_rate=0.1).replace(gamma=0.9).gamma == 0.9
    assert jax.tree.structure(HyperParameters(learning_rate=0.1)) == jax.tree.structure(
        HyperParameters()
    )


def test_a_learning_rate_of_both_optimizers_and_of_one_is_refused():
    message = "learning_rate=0.1 is that of both optimizers, but {} is given too; give one of them."
    for given, name in (
        (lambda: HyperParameters(learning_rate=0.1, actor_optimizer_params=RATE), OPTIMIZERS[0]),
        (lambda: HyperParameters(*range(10), RATE, learning_rate=0.1), OPTIMIZERS[0]),
        (lambda: with_both_rates({"learning_rate": 0.1, OWN_RATES[1]: 0.2}), OWN_RATES[1]),
    ):
        with pytest.raises(ValueError, match="both optimizers") as error:
            given()
        assert str(error.value) == message.format(name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [-0.1, math.nan, -math.inf, [0.5, -0.1], [0.5, math.nan]])
def test_a_negative_or_nan_hyperparameter_is_an_error_with_its_name(name, value):
    with pytest.raises(ValueError, match="is out of range; it must be") as error:
        check_hyperparams(hyperparams_with(name, value), n_policies=2)
    assert str(error.value).startswith(f"{name}={value} ")


BOUNDS = ["eps_clip", "kl_threshold", "rho_clip", "c_clip", "huber_delta"]
INFINITE = [*BOUNDS, *[name for name in NAMES if "grad_clip" in name]]
UNCHECKED = ".eps"  # an infinite one is useless, but harmless
ZERO = ["gamma", "gae_lambda", "ent_coeff", "vf_coeff", *[n for n in NAMES if "rate" in n]]


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith(UNCHECKED)])
def test_only_bounds_may_be_infinite(name):
    hyperparams = hyperparams_with(name, math.inf)
    if name in INFINITE:
        check_hyperparams(hyperparams, n_policies=1)
    else:
        with pytest.raises(ValueError, match=f"^{name}=inf is out of range"):
            check_hyperparams(hyperparams, n_policies=1)


@pytest.mark.parametrize("name", NAMES)
def test_only_fractions_coefficients_and_learning_rates_may_be_zero(name):
    hyperparams = hyperparams_with(name, 0.0)
    demand = "finite and positive" if name == "kl_target" else "positive"
    if name in ZERO:
        check_hyperparams(hyperparams, n_policies=1)
    else:
        with pytest.raises(ValueError, match=f"^{name}=0.0 is out of range; it must be {demand}.$"):
            check_hyperparams(hyperparams, n_policies=1)


@pytest.mark.parametrize("name", ["gamma", "gae_lambda"])
def test_the_discount_and_lambda_lie_between_zero_and_one(name):
    check_hyperparams(hyperparams_with(name, 1.0), n_policies=1)
    message = f"^{name}=1.01 is out of range; it must be between 0 and 1.$"
    with pytest.raises(ValueError, match=message):
        check_hyperparams(hyperparams_with(name, 1.01), n_policies=1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(3,), (1,), (2, 2), (0,)])
def test_a_shape_other_than_one_value_per_policy_is_an_error_with_both_shapes(name, shape):
    hyperparams = hyperparams_with(name, np.full(shape, 0.5))
    with pytest.raises(ValueError, match="scalar or one value") as error:
        check_hyperparams(hyperparams, n_policies=2)
    assert str(error.value).startswith(f"{name} has shape {shape};")
    assert "each of the 2 policies, shape (2,)." in str(error.value)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("make", [list, tuple, np.array, jnp.array])
def test_a_scalar_and_one_value_per_policy_are_valid(name, make):
    check_hyperparams(hyperparams_with(name, make([0.5, 0.25])), n_policies=2)
    check_hyperparams(hyperparams_with(name, np.array(0.5)), n_policies=2)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", ["high", {}, [0.5, "high"], [0.5, [0.5]]])
def test_a_value_that_is_not_a_number_is_an_error_with_its_name(name, value):
    with pytest.raises(TypeError) as error:
        check_hyperparams(hyperparams_with(name, value), n_policies=2)
    message = f"{name}={value!r} is not a number or one number per policy."
    assert str(error.value) == message


@pytest.mark.parametrize("value", [None, {"gamma": 0.9}, OptimizerParams(), 0.9])
def test_anything_but_hyperparameters_is_an_error_with_its_type(value):
    message = f"^hyperparams is {type(value).__name__}; pass jaxagents.HyperParameters.$"
    with pytest.raises(TypeError, match=message):
        check_hyperparams(value, n_policies=1)


def test_a_number_in_place_of_optimizer_parameters_is_an_error_that_names_the_class():
    with pytest.raises(TypeError, match=r"actor_optimizer_params=0.1 is not OptimizerParams"):
        check_hyperparams(HyperParameters(actor_optimizer_params=0.1), 1)


@pytest.mark.parametrize("value", ["0.9", True])
def test_strings_and_booleans_are_not_numbers(value):
    with pytest.raises(TypeError, match="is not a number"):
        check_hyperparams(HyperParameters(gamma=value), 1)


def test_flat_items_are_named_with_dots_and_keep_their_order():
    hyperparams = HyperParameters(
        gamma=0.5, critic_optimizer_params=OptimizerParams(learning_rate=[0.1, 0.2])
    )
    items = flat_items(hyperparams)
    assert list(items) == NAMES
    assert items["gamma"] == 0.5
    assert items["critic_optimizer_params.learning_rate"] == [0.1, 0.2]
    assert items["actor_optimizer_params.learning_rate"] == 1e-3


def test_as_arrays_gives_float32_arrays_of_the_same_shapes():
    hyperparams = HyperParameters(
        gamma=1, gae_lambda=[0.5, 1], eps_clip=(0.25, 0.5), ent_coeff=np.array([1.0, 2.0])
    )
    items = flat_items(as_arrays(hyperparams))
    assert all(isinstance(value, jax.Array) for value in items.values())
    assert {value.dtype for value in items.values()} == {jnp.dtype("float32")}
    np.testing.assert_array_equal(items["gamma"], 1.0)
    np.testing.assert_array_equal(items["gae_lambda"], [0.5, 1.0])
    np.testing.assert_array_equal(items["eps_clip"], [0.25, 0.5])
    np.testing.assert_array_equal(items["ent_coeff"], [1.0, 2.0])
    assert items["kl_threshold"] == jnp.inf
    assert items["actor_optimizer_params.grad_clip"] == 0.5


def test_changing_a_value_does_not_compile_again():
    n_traces = 0

    @jax.jit
    def read(hyperparams):
        nonlocal n_traces
        n_traces += 1
        return hyperparams.gamma

    for gamma in (1, 0.5, np.float64(0.5), jnp.array(0.25)):
        assert read(as_arrays(HyperParameters(gamma=gamma))) == gamma
    assert n_traces == 1


def test_per_policy_broadcasts_every_leaf_to_one_value_per_policy():
    hyperparams = per_policy(as_arrays(HyperParameters(gamma=0.5, vf_coeff=[1.0, 2.0])), 2)
    np.testing.assert_array_equal(hyperparams.gamma, [0.5, 0.5])
    np.testing.assert_array_equal(hyperparams.vf_coeff, [1.0, 2.0])
    assert {leaf.shape for leaf in jax.tree.leaves(hyperparams)} == {(2,)}


def test_hyperparameters_can_be_stacked_and_swept_by_vmap():
    settings = [
        as_arrays(hyperparams_with("gamma", 0.5)),
        as_arrays(hyperparams_with("actor_optimizer_params.learning_rate", 3.0)),
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *settings)
    assert isinstance(stacked, HyperParameters)
    assert isinstance(stacked.actor_optimizer_params, OptimizerParams)

    def product(hyperparams):
        check_hyperparams(hyperparams, n_policies=1)  # swept values are not concrete
        return hyperparams.gamma * hyperparams.actor_optimizer_params.learning_rate

    np.testing.assert_allclose(jax.vmap(product)(stacked), [0.5 * 1e-3, 0.99 * 3.0], rtol=1e-6)


def test_values_that_are_not_swept_are_checked_under_vmap():
    def check(gamma):
        check_hyperparams(HyperParameters(gamma=gamma, eps_clip=-1.0), n_policies=1)
        return gamma

    with pytest.raises(ValueError, match=r"^eps_clip=-1.0 is out of range"):
        jax.vmap(check)(jnp.array([0.5, 0.9]))


def clip(gradients, max_norm):
    transformation = clip_by_global_norm(max_norm)
    clipped, state = transformation.update(gradients, transformation.init(gradients))
    assert state == optax.EmptyState()
    return clipped


def test_longer_gradients_are_scaled_down_to_the_largest_norm():
    # Of norm 5, the root of 1 + 4 + 4 + 16.
    gradients = {"kernel": jnp.array([[1.0, -2.0], [2.0, 0.0]]), "bias": jnp.array(-4.0)}
    clipped = clip(gradients, 2.5)
    np.testing.assert_array_equal(clipped["kernel"], [[0.5, -1.0], [1.0, 0.0]])
    assert clipped["bias"] == -2.0


@pytest.mark.parametrize("max_norm", [5.0, 6.0, np.inf])
def test_shorter_gradients_are_not_clipped(max_norm):
    np.testing.assert_array_equal(clip(jnp.array([3.0, 4.0]), max_norm), [3.0, 4.0])


def test_gradients_of_zero_stay_zero():
    np.testing.assert_array_equal(clip(jnp.zeros(3), 0.5), np.zeros(3))
    assert clip({}, 0.5) == {}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_clipping_does_not_hide_nan_and_infinity(bad):
    assert np.isnan(clip(jnp.array([1.0, bad]), 0.5)).any()


@pytest.mark.parametrize("max_norm", [0.1, 1.0, 30.0, 100.0])
def test_clipping_equals_that_of_optax_up_to_rounding(max_norm):
    rngs = jax.random.split(jax.random.key(0), 3)
    shapes = [(), (7,), (30, 50)]
    gradients = [jax.random.normal(*each) for each in zip(rngs, shapes, strict=True)]
    of_optax = optax.clip_by_global_norm(max_norm)
    expected, _ = of_optax.update(gradients, of_optax.init(gradients))
    jax.tree.map(
        lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=1e-6),
        clip(gradients, max_norm),
        expected,
    )


def test_clipped_gradients_keep_their_types():
    clipped = clip([jnp.ones(2, jnp.bfloat16), jnp.ones(2)], 1.0)  # of norm 2
    assert [leaf.dtype for leaf in clipped] == [jnp.bfloat16, jnp.float32]
    np.testing.assert_array_equal(jnp.concatenate(clipped), np.full(4, 0.5))


def test_the_default_optimizer_is_adam_behind_a_clip_of_the_global_norm():
    # (3, 4) is clipped to (0.6, 0.8); Adam's first step is g / (|g| + eps) times the rate.
    optimizer = adam(OptimizerParams(learning_rate=2.0, eps=1.0, grad_clip=1.0))
    params = {"w": jnp.zeros(1), "b": jnp.zeros(1)}
    gradients = {"w": jnp.array([3.0]), "b": jnp.array([4.0])}
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    np.testing.assert_allclose(updates["w"], [-2.0 * 0.6 / 1.6], rtol=1e-5)
    np.testing.assert_allclose(updates["b"], [-2.0 * 0.8 / 1.8], rtol=1e-5)


def test_scaling_changes_the_learning_rates_of_both_networks_and_nothing_else():
    hyperparams = as_arrays(
        HyperParameters(
            actor_optimizer_params=OptimizerParams(learning_rate=1.0),
            critic_optimizer_params=OptimizerParams(learning_rate=[2.0, 4.0]),
        )
    )
    before, after = flat_items(hyperparams), flat_items(scale_learning_rates(hyperparams, 0.25))
    assert after["actor_optimizer_params.learning_rate"] == 0.25
    np.testing.assert_array_equal(after["critic_optimizer_params.learning_rate"], [0.5, 1.0])
    for name in set(NAMES) - {name for name in NAMES if name.endswith("learning_rate")}:
        assert after[name] == before[name]
