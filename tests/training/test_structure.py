"""What a run's checkpoints depend on, in words that every process and version shares."""

import functools
import json

import numpy as np
import optax
from flax import linen as nn

from jaxagents.config import AgentConfig, Layers
from jaxagents.training.saved_run import differences, structure_of


def descent(params, momentum):
    return optax.sgd(params.learning_rate, momentum)


def test_the_structure_that_checkpoints_depend_on_is_plain_data_equal_in_every_process():
    described = AgentConfig(
        n_steps=1,
        batch_size=np.int64(16),
        actor_layers=Layers(hidden_sizes=[np.int64(8)], memory_size=np.int64(32)),
        actor_network=nn.Sequential([nn.Dense(8), nn.tanh, nn.Dense(2)]),
        optimizer=functools.partial(descent, momentum=0.9),
    )
    structure = structure_of(described)
    assert json.loads(json.dumps(structure)) == structure
    assert structure["batch_size"] == 16
    assert structure["actor_layers"] == (
        "Layers(hidden_sizes=(8,), activation=None, layer_norm=False, channels=(16,), "
        "memory_size=32, sizes_after_memory=(), stride=1)"
    )
    strided = AgentConfig(n_steps=1, actor_layers=Layers(stride=12))
    assert structure_of(strided)["actor_layers"] == repr(Layers(stride=12))
    # Functions are not described by their addresses.
    assert "0x" not in json.dumps(structure)
    assert "tanh" in structure["actor_network"]
    assert structure["optimizer"] == "functools.partial(<function descent>, momentum=0.9)"


def test_of_layers_the_fields_differ_and_of_other_choices_the_values():
    before, now = Layers((8, 8)), Layers((9,), "relu", stride=2)
    structures = (structure_of(AgentConfig(n_steps=1, actor_layers=each)) for each in (before, now))
    old, new = (each["actor_layers"] for each in structures)
    assert differences("actor_layers", old, new) == {
        "actor_layers.hidden_sizes": ("(8, 8)", "(9,)"),
        "actor_layers.activation": ("None", "'relu'"),
        "actor_layers.stride": ("1", "2"),
    }
    assert differences("batch_size", 4, 8) == {"batch_size": (4, 8)}
