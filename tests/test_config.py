import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.config import (
    AgentConfig,
    HyperParameters,
    OptimizerParams,
    adam,
    as_arrays,
    as_key,
    check_hyperparams,
    flat_items,
    is_traced,
    per_policy,
    scale_learning_rates,
)

NAMES = [
    "gamma",
    "gae_lambda",
    "eps_clip",
    "ent_coeff",
    "vf_coeff",
    "kl_threshold",
    "actor_optimizer_params.learning_rate",
    "actor_optimizer_params.eps",
    "actor_optimizer_params.grad_clip",
    "critic_optimizer_params.learning_rate",
    "critic_optimizer_params.eps",
    "critic_optimizer_params.grad_clip",
]


def hyperparams_with(name, value):
    """Make hyperparameters of which one, given by its dotted name, is not the default."""
    network, _, field = name.rpartition(".")
    if network:
        return HyperParameters(**{network: OptimizerParams(**{field: value})})
    return HyperParameters(**{name: value})


def test_the_defaults_of_a_configuration_are_the_documented_ones():
    config = AgentConfig(n_steps=500)
    documented = {
        "n_steps": 500,
        "batch_size": 16,
        "minibatch_size": 4,
        "rollout_length": 128,
        "actor_epochs": 4,
        "critic_epochs": 4,
        "minibatch_unit": "trajectory",
        "eval_frequency": 50,
        "n_evals": 32,
        "initial_evaluation": True,
        "checkpoint_dir": None,
        "parameter_sharing": "shared",
        "agent_id": False,
        "anneal_learning_rate": False,
        "shaped_reward_steps": None,
        "max_episode_steps": None,
        "squash": False,
        "actor_network": None,
        "critic_network": None,
        "optimizer": adam,
    }
    assert {name: getattr(config, name) for name in documented} == documented


def test_only_the_number_of_steps_has_no_default():
    with pytest.raises(TypeError, match="'n_steps'"):
        AgentConfig()


def test_the_default_hyperparameters_are_the_documented_ones():
    adam_of = {"learning_rate": 2.5e-4, "eps": 1e-5, "grad_clip": 0.5}
    assert flat_items(HyperParameters()) == {
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "eps_clip": 0.2,
        "ent_coeff": 0.01,
        "vf_coeff": 0.5,
        "kl_threshold": math.inf,
        **{f"actor_optimizer_params.{name}": value for name, value in adam_of.items()},
        **{f"critic_optimizer_params.{name}": value for name, value in adam_of.items()},
    }
    assert OptimizerParams(2.5e-4, 1e-5, 0.5) == OptimizerParams()


def test_minibatches_and_steps_follow_from_the_sizes():
    config = AgentConfig(n_steps=1, batch_size=12, minibatch_size=4, rollout_length=10)
    assert (config.n_minibatches, config.steps_per_update) == (3, 120)


def test_a_configuration_is_fixed_and_may_be_a_key():
    config = AgentConfig(n_steps=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.n_steps = 2
    same, other = AgentConfig(n_steps=1), AgentConfig(n_steps=2)
    assert (hash(same), same) == (hash(config), config)
    assert other != config


def test_a_list_of_policy_indices_becomes_a_tuple():
    config = AgentConfig(n_steps=1, parameter_sharing=[0, 0, 1])
    assert config.parameter_sharing == (0, 0, 1)
    assert hash(config) == hash(AgentConfig(n_steps=1, parameter_sharing=(0, 0, 1)))


SIZES = [
    "n_steps",
    "batch_size",
    "minibatch_size",
    "rollout_length",
    "actor_epochs",
    "critic_epochs",
    "eval_frequency",
    "keep_latest",
    "max_episode_steps",
    "shaped_reward_steps",
]
COUNTS = ["n_evals", "eval_seed", "keep_best"]


@pytest.mark.parametrize("name", SIZES + COUNTS)
@pytest.mark.parametrize("value", [True, 4.0, "4", np.float32(4.0), [4]])
def test_a_size_that_is_no_integer_is_an_error_with_its_name_and_value(name, value):
    with pytest.raises(TypeError) as error:
        AgentConfig(**{"n_steps": 1, name: value})
    assert str(error.value) == f"{name}={value!r} is not an integer."


@pytest.mark.parametrize(
    ("name", "value", "minimum"),
    [(name, value, 1) for name in SIZES for value in (0, -1)] + [(name, -1, 0) for name in COUNTS],
)
def test_a_size_that_is_too_small_is_an_error_with_the_least_one(name, value, minimum):
    with pytest.raises(ValueError, match=r"too small") as error:
        AgentConfig(**{"n_steps": 1, name: value})
    assert str(error.value) == f"{name}={value} is too small; it must be at least {minimum}."


def test_the_least_sizes_and_counts_are_valid():
    AgentConfig(
        **dict.fromkeys(SIZES, 1),
        **dict.fromkeys(COUNTS, 0),
    )


def test_integers_of_numpy_are_sizes_too():
    assert AgentConfig(n_steps=np.int64(3)).n_steps == 3


@pytest.mark.parametrize(("batch_size", "minibatch_size"), [(16, 5), (4, 16), (7, 2)])
def test_minibatches_that_do_not_divide_the_batch_are_an_error(batch_size, minibatch_size):
    with pytest.raises(ValueError, match=f"choose a divisor of {batch_size}\\.$") as error:
        AgentConfig(n_steps=1, batch_size=batch_size, minibatch_size=minibatch_size)
    assert f"batch_size={batch_size} trajectories" in str(error.value)
    assert f"minibatch_size={minibatch_size};" in str(error.value)


@pytest.mark.parametrize("unit", ["Time", "steps", "", None])
def test_an_unknown_minibatch_unit_is_an_error_that_lists_the_known_ones(unit):
    message = f"^minibatch_unit={unit!r} is unknown; choose 'trajectory', 'time' or 'step'.$"
    with pytest.raises(ValueError, match=message):
        AgentConfig(n_steps=1, minibatch_unit=unit)


def test_time_rows_that_do_not_divide_into_the_minibatches_are_an_error():
    sizes = {"n_steps": 1, "batch_size": 12, "minibatch_size": 4, "rollout_length": 10}
    message = (
        "^rollout_length=10 time rows do not divide into the 3 minibatches of batch_size=12 and "
        "minibatch_size=4; choose a multiple of 3.$"
    )
    with pytest.raises(ValueError, match=message):
        AgentConfig(**sizes, minibatch_unit="time")
    # The other units never cut the time rows apart.
    assert AgentConfig(**sizes, minibatch_unit="step").n_minibatches == 3
    assert AgentConfig(**sizes, minibatch_unit="trajectory").n_minibatches == 3


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [-0.1, math.nan, -math.inf, [0.5, -0.1], [0.5, math.nan]])
def test_a_negative_or_undefined_hyperparameter_is_an_error_with_its_name(name, value):
    with pytest.raises(ValueError, match="is out of range; it must be") as error:
        check_hyperparams(hyperparams_with(name, value), n_policies=2)
    assert str(error.value).startswith(f"{name}={value} ")


INFINITE = ["eps_clip", "kl_threshold", *[name for name in NAMES if "grad_clip" in name]]
ZERO = ["gamma", "gae_lambda", "ent_coeff", "vf_coeff", *[n for n in NAMES if "rate" in n]]


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith(".eps")])
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
    if name in ZERO:
        check_hyperparams(hyperparams, n_policies=1)
    else:
        with pytest.raises(ValueError, match=f"^{name}=0.0 is out of range; it must be positive.$"):
            check_hyperparams(hyperparams, n_policies=1)


@pytest.mark.parametrize("name", ["gamma", "gae_lambda"])
def test_the_discount_and_lambda_lie_between_zero_and_one(name):
    check_hyperparams(hyperparams_with(name, 1.0), n_policies=1)
    message = f"^{name}=1.01 is out of range; it must be between 0 and 1.$"
    with pytest.raises(ValueError, match=message):
        check_hyperparams(hyperparams_with(name, 1.01), n_policies=1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(3,), (1,), (2, 2), (0,)])
def test_values_that_are_not_one_per_policy_are_an_error_with_both_shapes(name, shape):
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
def test_a_value_that_is_no_number_is_an_error_with_its_name(name, value):
    with pytest.raises(TypeError) as error:
        check_hyperparams(hyperparams_with(name, value), n_policies=2)
    message = f"{name}={value!r} is not a number or one number per policy."
    assert str(error.value) == message


@pytest.mark.parametrize("value", [None, {"gamma": 0.9}, OptimizerParams(), 0.9])
def test_anything_but_hyperparameters_is_an_error_with_its_type(value):
    message = f"^hyperparams is {type(value).__name__}; pass jaxagents.HyperParameters.$"
    with pytest.raises(TypeError, match=message):
        check_hyperparams(value, n_policies=1)


def test_hyperparameters_are_named_with_dots_in_their_order():
    hyperparams = HyperParameters(
        gamma=0.5, critic_optimizer_params=OptimizerParams(learning_rate=[0.1, 0.2])
    )
    items = flat_items(hyperparams)
    assert list(items) == NAMES
    assert items["gamma"] == 0.5
    assert items["critic_optimizer_params.learning_rate"] == [0.1, 0.2]
    assert items["actor_optimizer_params.learning_rate"] == 2.5e-4


def test_all_hyperparameters_become_float32_arrays_of_their_own_shape():
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


def test_changing_a_value_never_compiles_anew():
    n_traces = 0

    @jax.jit
    def read(hyperparams):
        nonlocal n_traces
        n_traces += 1
        return hyperparams.gamma

    for gamma in (1, 0.5, np.float64(0.5), jnp.array(0.25)):
        assert read(as_arrays(HyperParameters(gamma=gamma))) == gamma
    assert n_traces == 1


def test_every_hyperparameter_can_be_given_to_each_policy():
    hyperparams = per_policy(as_arrays(HyperParameters(gamma=0.5, vf_coeff=[1.0, 2.0])), 2)
    np.testing.assert_array_equal(hyperparams.gamma, [0.5, 0.5])
    np.testing.assert_array_equal(hyperparams.vf_coeff, [1.0, 2.0])
    assert {leaf.shape for leaf in jax.tree.leaves(hyperparams)} == {(2,)}


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


def test_hyperparameters_can_be_stacked_and_swept_by_vmap():
    settings = [
        as_arrays(hyperparams_with("gamma", 0.5)),
        as_arrays(hyperparams_with("actor_optimizer_params.learning_rate", 3.0)),
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *settings)
    assert isinstance(stacked, HyperParameters)
    assert isinstance(stacked.actor_optimizer_params, OptimizerParams)

    def product(hyperparams):
        check_hyperparams(hyperparams, n_policies=1)  # what is swept has no concrete value
        return hyperparams.gamma * hyperparams.actor_optimizer_params.learning_rate

    np.testing.assert_allclose(jax.vmap(product)(stacked), [0.5 * 2.5e-4, 0.99 * 3.0], rtol=1e-6)


def test_what_is_not_swept_is_checked_under_vmap_too():
    def check(gamma):
        check_hyperparams(HyperParameters(gamma=gamma, eps_clip=-1.0), n_policies=1)
        return gamma

    with pytest.raises(ValueError, match=r"^eps_clip=-1.0 is out of range"):
        jax.vmap(check)(jnp.array([0.5, 0.9]))


def test_a_tree_is_traced_as_soon_as_one_leaf_is():
    seen = []
    jax.vmap(lambda gamma: seen.append(is_traced(HyperParameters(gamma=gamma))))(jnp.ones(2))
    assert seen == [True]
    assert not is_traced(as_arrays(HyperParameters()))
    assert not is_traced(None)


def test_the_default_optimizer_is_adam_behind_a_clip_of_the_global_norm():
    # (3, 4) is clipped to (0.6, 0.8); Adam's first step is g / (|g| + eps) times the rate.
    optimizer = adam(OptimizerParams(learning_rate=2.0, eps=1.0, grad_clip=1.0))
    params = {"w": jnp.zeros(1), "b": jnp.zeros(1)}
    gradients = {"w": jnp.array([3.0]), "b": jnp.array([4.0])}
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    np.testing.assert_allclose(updates["w"], [-2.0 * 0.6 / 1.6], rtol=1e-5)
    np.testing.assert_allclose(updates["b"], [-2.0 * 0.8 / 1.8], rtol=1e-5)


def test_typed_keys_are_taken_as_they_are_and_raw_ones_wrapped():
    key = jax.random.key(3)
    assert as_key(key) is key
    for raw in (jax.random.PRNGKey(3), np.asarray(jax.random.PRNGKey(3))):
        assert as_key(raw) == key
    batch = as_key(jnp.stack([jax.random.PRNGKey(3), jax.random.PRNGKey(4)]))
    assert batch.shape == (2,)


@pytest.mark.parametrize("value", [0, None, np.zeros(2, np.int32), 1.5])
def test_what_is_no_key_is_an_error_with_the_remedy(value):
    with pytest.raises(TypeError, match=r"is not a random key; pass jax.random.key") as error:
        as_key(value)
    assert "\n" not in str(error.value)


def test_an_optimizer_given_as_a_number_is_an_error_that_names_the_class():
    with pytest.raises(TypeError, match=r"actor_optimizer_params=0.1 is no OptimizerParams"):
        check_hyperparams(HyperParameters(actor_optimizer_params=0.1), 1)


@pytest.mark.parametrize("value", ["0.9", True])
def test_strings_and_booleans_are_no_hyperparameters(value):
    with pytest.raises(TypeError, match="is not a number"):
        check_hyperparams(HyperParameters(gamma=value), 1)


@pytest.mark.parametrize("value", [None, 3, (0.5, 1)])
def test_parameter_sharing_of_another_type_is_an_error(value):
    with pytest.raises(TypeError, match="nor a policy index per actor"):
        AgentConfig(n_steps=1, parameter_sharing=value)
