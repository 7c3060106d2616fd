"""The checks of configurations, and the defaults."""

import dataclasses
import re

import numpy as np
import optax
import pytest

from jaxagents.config import AgentConfig, Layers


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
        "recurrent": None,
        "recurrent_chunk_length": None,
        "centralized_critic": False,
        "shared_torso": False,
        "update_order": "together",
        "normalize_observations": True,
        "normalize_values": True,
        "scale_rewards": False,
        "advantages": "gae",
        "critic_error": "squared",
        "clip_values": False,
        "learning_rate_schedule": "constant",
        "ent_coeff_schedule": "constant",
        "eps_clip_schedule": "constant",
        "anneal_learning_rate": False,
        "shaped_reward_steps": None,
        "max_episode_steps": None,
        "squash": False,
        "actor_layers": Layers(),
        "critic_layers": Layers(),
        "actor_network": None,
        "critic_network": None,
        "optimizer": "clipped_adam",
    }
    assert {name: getattr(config, name) for name in documented} == documented


def test_only_the_number_of_steps_has_no_default():
    with pytest.raises(TypeError, match="'n_steps'"):
        AgentConfig()


def test_minibatches_and_steps_follow_from_the_sizes():
    config = AgentConfig(n_steps=1, batch_size=12, minibatch_size=4, rollout_length=10)
    assert (config.minibatches_per_epoch, config.steps_per_update) == (3, 120)


def test_a_configuration_is_immutable_and_hashable():
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
    "recurrent_chunk_length",
]
COUNTS = ["n_evals", "eval_seed", "keep_best"]


@pytest.mark.parametrize("name", SIZES + COUNTS)
@pytest.mark.parametrize("value", [True, 4.0, "4", np.float32(4.0), [4]])
def test_a_size_that_is_not_an_integer_is_an_error_with_its_name_and_value(name, value):
    with pytest.raises(TypeError) as error:
        AgentConfig(**{"n_steps": 1, name: value})
    assert str(error.value) == f"{name}={value!r} is not an integer."


@pytest.mark.parametrize(
    ("name", "value", "minimum"),
    [(name, value, 1) for name in SIZES for value in (0, -1)] + [(name, -1, 0) for name in COUNTS],
)
def test_a_size_that_is_too_small_is_an_error_with_the_smallest_valid_one(name, value, minimum):
    with pytest.raises(ValueError, match=r"too small") as error:
        AgentConfig(**{"n_steps": 1, name: value})
    assert str(error.value) == f"{name}={value} is too small; it must be at least {minimum}."


def test_the_smallest_sizes_and_counts_are_valid():
    AgentConfig(
        recurrent="gru",
        **dict.fromkeys(SIZES, 1),
        **dict.fromkeys(COUNTS, 0),
    )


def test_numpy_integers_are_valid_sizes():
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
        "^rollout_length=10 time rows do not divide into batch_size / minibatch_size = 3 "
        "minibatches; choose a multiple of 3.$"
    )
    with pytest.raises(ValueError, match=message):
        AgentConfig(**sizes, minibatch_unit="time")
    # Other units do not divide the time rows.
    assert AgentConfig(**sizes, minibatch_unit="step").minibatches_per_epoch == 3
    assert AgentConfig(**sizes, minibatch_unit="trajectory").minibatches_per_epoch == 3


@pytest.mark.parametrize("value", [None, 3, (0.5, 1)])
def test_parameter_sharing_of_another_type_is_an_error(value):
    with pytest.raises(TypeError, match="nor a policy index per actor"):
        AgentConfig(n_steps=1, parameter_sharing=value)


CHOICES = {
    "minibatch_unit": ("trajectory", "time", "step"),
    "recurrent": ("gru", "lstm", "mingru", None),
    "update_order": ("together", "sequential"),
    "advantages": ("gae", "vtrace"),
    "critic_error": ("squared", "huber"),
    "learning_rate_schedule": ("constant", "linear", "cosine", "kl"),
    "ent_coeff_schedule": ("constant", "linear", "cosine"),
    "eps_clip_schedule": ("constant", "linear", "cosine"),
    "compute_dtype": ("bfloat16", None),
    "prng_impl": ("rbg", None),
}


@pytest.mark.parametrize(
    ("name", "choice"), [(name, choice) for name in CHOICES for choice in CHOICES[name]]
)
def test_every_documented_choice_is_valid(name, choice):
    assert getattr(AgentConfig(**{"n_steps": 1, name: choice}), name) == choice


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("value", ["Linear", "transformer", "", 1, True, ["gae"]])
def test_an_unknown_choice_is_an_error_that_lists_the_known_ones(name, value):
    *others, last = map(repr, CHOICES[name])
    with pytest.raises(ValueError, match="is unknown; choose") as error:
        AgentConfig(**{"n_steps": 1, name: value})
    known = f"{', '.join(others)} or {last}"
    assert str(error.value) == f"{name}={value!r} is unknown; choose {known}."


@pytest.mark.parametrize("name", [name for name in CHOICES if None not in CHOICES[name]])
def test_none_is_valid_only_where_it_is_a_choice(name):
    with pytest.raises(ValueError, match=f"^{name}=None is unknown"):
        AgentConfig(**{"n_steps": 1, name: None})


@pytest.mark.parametrize("recurrent", ["gru", "lstm", "mingru"])
def test_trajectories_stay_whole_unless_they_are_cut_into_chunks(recurrent):
    sizes = {"n_steps": 1, "rollout_length": 12, "recurrent": recurrent}
    whole = AgentConfig(**sizes)
    assert (whole.chunk_length, whole.n_chunks) == (12, 1)
    chunks = AgentConfig(**sizes, recurrent_chunk_length=4)
    assert (chunks.chunk_length, chunks.n_chunks) == (4, 3)


@pytest.mark.parametrize("unit", ["trajectory", "time", "step"])
def test_feed_forward_networks_have_one_chunk_per_trajectory(unit):
    config = AgentConfig(n_steps=1, rollout_length=12, minibatch_unit=unit)
    assert (config.chunk_length, config.n_chunks) == (12, 1)


@pytest.mark.parametrize("length", [5, 8, 24])
def test_chunks_that_do_not_divide_the_rollout_are_an_error(length):
    message = (
        f"^rollout_length=12 steps do not divide into chunks of recurrent_chunk_length={length}; "
        "choose a divisor of 12.$"
    )
    with pytest.raises(ValueError, match=message):
        AgentConfig(n_steps=1, rollout_length=12, recurrent="gru", recurrent_chunk_length=length)


def test_chunks_without_a_recurrent_cell_are_an_error_with_both_remedies():
    with pytest.raises(ValueError, match="leave it None or choose a recurrent cell") as error:
        AgentConfig(n_steps=1, recurrent_chunk_length=4)
    assert str(error.value).startswith("recurrent_chunk_length=4, but recurrent=None: ")
    assert "\n" not in str(error.value)


def test_an_adaptive_learning_rate_needs_more_than_one_gradient_step():
    sizes = {"n_steps": 1, "batch_size": 4, "actor_epochs": 1, "learning_rate_schedule": "kl"}
    with pytest.raises(ValueError, match="choose more epochs or smaller minibatches") as error:
        AgentConfig(**sizes, minibatch_size=4)
    assert "\n" not in str(error.value)
    assert AgentConfig(**sizes, minibatch_size=2).minibatches_per_epoch == 2


@pytest.mark.parametrize("unit", ["time", "step"])
@pytest.mark.parametrize("recurrent", ["gru", "lstm", "mingru"])
def test_a_recurrent_network_cannot_learn_from_single_steps_or_time_rows(unit, recurrent):
    with pytest.raises(ValueError, match="choose 'trajectory'") as error:
        AgentConfig(n_steps=1, minibatch_unit=unit, recurrent=recurrent)
    assert f"minibatch_unit={unit!r} " in str(error.value)
    assert f"recurrent={recurrent!r} " in str(error.value)


@pytest.mark.parametrize("schedule", ["cosine", "kl"])
def test_annealing_the_learning_rate_by_two_schedules_is_an_error(schedule):
    message = (
        "^anneal_learning_rate=True means learning_rate_schedule='linear', but "
        f"learning_rate_schedule={schedule!r}; remove one.$"
    )
    with pytest.raises(ValueError, match=message):
        AgentConfig(n_steps=1, anneal_learning_rate=True, learning_rate_schedule=schedule)


@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_annealing_the_learning_rate_is_compatible_with_the_linear_schedule(schedule):
    config = AgentConfig(n_steps=1, anneal_learning_rate=True, learning_rate_schedule=schedule)
    assert config.anneal_learning_rate


def test_the_defaults_of_layers_are_the_documented_ones():
    assert dataclasses.asdict(Layers()) == {
        "hidden_sizes": (64, 64),
        "activation": None,
        "layer_norm": False,
        "channels": (16,),
        "memory_size": 64,
        "sizes_after_memory": (),
        "stride": 1,
    }


SEQUENCES = ["hidden_sizes", "channels", "sizes_after_memory"]


@pytest.mark.parametrize("name", SEQUENCES)
@pytest.mark.parametrize("make", [list, tuple, iter, np.array])
def test_sizes_of_layers_become_tuples_and_the_configuration_remains_hashable(name, make):
    layers = Layers(**{name: make([32, 8])})
    assert getattr(layers, name) == (32, 8)
    assert isinstance(getattr(layers, name), tuple)
    assert layers == Layers(**{name: (32, 8)})
    config = AgentConfig(n_steps=1, actor_layers=layers)
    same = AgentConfig(n_steps=1, actor_layers=Layers(**{name: (32, 8)}))
    assert (hash(config), config) == (hash(same), same)
    assert config != AgentConfig(n_steps=1)


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_network_may_have_no_layers(name):
    assert getattr(Layers(**{name: []}), name) == ()


@pytest.mark.parametrize("name", SEQUENCES)
@pytest.mark.parametrize("value", [64, 64.0, np.int64(64), "64", "64, 64", "", None, True])
def test_sizes_of_layers_that_are_not_a_sequence_are_an_error(name, value):
    with pytest.raises(TypeError) as error:
        Layers(**{name: value})
    assert str(error.value) == f"{name}={value!r} is not a sequence of integers."


@pytest.mark.parametrize("name", SEQUENCES)
@pytest.mark.parametrize("value", [64.0, "64", True, None, (64,)])
def test_a_layer_whose_size_is_not_an_integer_is_an_error(name, value):
    with pytest.raises(TypeError) as error:
        Layers(**{name: (32, value)})
    assert str(error.value) == f"{name}={value!r} is not an integer."


@pytest.mark.parametrize("name", SEQUENCES)
@pytest.mark.parametrize("value", [0, -1])
def test_a_layer_without_units_is_an_error(name, value):
    with pytest.raises(ValueError, match=r"too small") as error:
        Layers(**{name: (32, value)})
    assert str(error.value) == f"{name}={value} is too small; it must be at least 1."


@pytest.mark.parametrize("name", ["memory_size", "stride"])
@pytest.mark.parametrize(
    ("value", "error"),
    [(0, ValueError), (-1, ValueError), (64.0, TypeError), ("64", TypeError), ((64,), TypeError)],
)
def test_a_recurrent_cell_without_units_or_a_convolution_without_a_stride_is_an_error(
    name, value, error
):
    with pytest.raises(error, match=rf"^{name}=.* is (too small|not an integer)"):
        Layers(**{name: value})


@pytest.mark.parametrize("name", ["tanh", "relu", "elu", "gelu", "silu", None])
def test_every_documented_activation_is_valid(name):
    assert Layers(activation=name).activation == name


@pytest.mark.parametrize("value", ["swish", "Tanh", "", 0])
def test_an_unknown_activation_is_an_error_that_lists_the_known_ones(value):
    with pytest.raises(ValueError, match="is unknown; choose") as error:
        Layers(activation=value)
    assert str(error.value) == (
        f"activation={value!r} is unknown; choose 'tanh', 'relu', 'elu', 'gelu' or 'silu'."
    )


@pytest.mark.parametrize("name", ["actor_layers", "critic_layers"])
@pytest.mark.parametrize("value", [None, {"hidden_sizes": (64,)}, (64, 64)])
def test_layers_of_another_type_are_an_error_with_their_name(name, value):
    with pytest.raises(TypeError, match=f"^{name}=.* is not a jaxagents.Layers.$"):
        AgentConfig(n_steps=1, **{name: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"replay_updates": 2},
            "replay_updates=2 learns from the rollouts of earlier policies, which advantages='gae' "
            "does not correct for; choose advantages='vtrace', or replay_updates=0.",
        ),
        (
            {"warmup_updates": 3},
            "warmup_updates=3 delays a replay that replay_updates=0 switches off; leave it 0, or "
            "choose replay_updates.",
        ),
        (
            {"replay_updates": 2, "advantages": "vtrace", "minibatch_unit": "time"},
            "rollout_length=128 time rows do not divide into batch_size / minibatch_size * "
            "(1 + replay_updates) = 12 minibatches; choose a multiple of 12.",
        ),
        ({"replay_updates": -1}, "replay_updates=-1 is too small; it must be at least 0."),
    ],
)
def test_replay_needs_fitting_options(options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        AgentConfig(n_steps=1, **options)


def test_the_number_of_minibatches_may_be_given_in_place_of_their_size():
    # 8 environments of 128 steps in 32 minibatches: 32 steps each.
    sizes = {"n_steps": 1, "batch_size": 8, "rollout_length": 128, "n_minibatches": 32}
    assert AgentConfig(**sizes, minibatch_unit="step").minibatches_per_epoch == 32
    message = re.escape("batch_size=8 trajectories do not divide into n_minibatches = 32")
    with pytest.raises(ValueError, match=message):
        AgentConfig(**sizes)


def test_two_numbers_of_minibatches_are_an_error():
    sizes = {"n_steps": 1, "batch_size": 16, "minibatch_size": 8}
    assert AgentConfig(**sizes, n_minibatches=2).minibatches_per_epoch == 2
    with pytest.raises(ValueError, match="minibatch_size=8 and n_minibatches=4 contradict"):
        AgentConfig(**sizes, n_minibatches=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"advantages": "vtrace"}, "choose advantages='gae'"),
        ({"shared_torso": True}, "shared_torso=True the actor's loss alone trains"),
        ({"recurrent": "gru", "recurrent_critic": False}, "recurrent_critic=False draws others"),
    ],
)
def test_a_joint_update_needs_fitting_options(options, message):
    with pytest.raises(ValueError, match=message):
        AgentConfig(n_steps=1, joint_update=True, **options)


def test_an_unknown_optimizer_is_an_error_that_lists_the_known_ones():
    message = "^optimizer='sgd' is unknown; choose 'clipped_adam' or 'adam'.$"
    with pytest.raises(ValueError, match=message):
        AgentConfig(n_steps=1, optimizer="sgd")


def test_an_optimizer_that_is_built_already_is_an_error_with_the_remedy():
    with pytest.raises(TypeError, match="give a function that builds it from a network's Opt"):
        AgentConfig(n_steps=1, optimizer=optax.adam(1e-3))


@pytest.mark.parametrize("value", ["no", 1, None])
@pytest.mark.parametrize("name", ["normalize_values", "anneal_learning_rate", "progress_bar"])
def test_a_flag_is_true_or_false(name, value):
    with pytest.raises(TypeError, match=f"^{name}={value!r} is neither True nor False.$"):
        AgentConfig(**{"n_steps": 1, name: value})


def test_a_flag_of_numpy_becomes_one_of_python_which_files_hold():
    assert AgentConfig(n_steps=1, normalize_values=np.False_).normalize_values is False
    assert Layers(layer_norm=np.True_).layer_norm is True


def test_observing_the_time_is_a_flag_or_left_to_the_environment():
    assert AgentConfig(n_steps=1, observe_time=None).observe_time is None
    with pytest.raises(TypeError, match=r"^observe_time='yes' is neither True nor False.$"):
        AgentConfig(n_steps=1, observe_time="yes")


def test_a_directory_is_a_path():
    with pytest.raises(TypeError, match=r"^checkpoint_dir=3 is no path, and not None\.$"):
        AgentConfig(n_steps=1, checkpoint_dir=3)
