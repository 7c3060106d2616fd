"""Networks by name, as configurations give them to actors and critics."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import jaxagents as ja
from jaxagents.networks.network import MLP, PolicyNetwork, ValueNetwork
from jaxagents.training.saved_run import structure_of
from tests.agents import WALK, tiny
from tests.plugins import forget_registrations, install
from tests.probes import RealWalk


class Gated(nn.Module):
    """A module for actors and critics, as a user may write it."""

    n_outputs: int | None
    sizes: tuple[int, ...] = (4,)
    options: object = None

    @nn.compact
    def __call__(self, features):
        hidden = features
        for size in self.sizes:
            hidden = nn.tanh(nn.Dense(size)(hidden)) * nn.sigmoid(nn.Dense(size)(hidden))
        if self.n_outputs is None:
            return nn.Dense(1)(hidden)[..., 0]
        return nn.Dense(self.n_outputs)(hidden)


@pytest.fixture(autouse=True)
def _registrations(monkeypatch):
    forget_registrations(monkeypatch)
    ja.register_network("gated", Gated)


def modules(**choices):
    networks = ja.DiscreteIPPO(WALK, None, tiny(**choices)).networks
    return networks.actor.module, networks.critic.module


def test_an_actors_constructor_gets_the_number_of_logits_and_a_critics_none():
    actor, critic = modules(actor_network="gated", critic_network="gated")
    assert actor == Gated(3)
    assert critic == Gated(None)


def test_arguments_reach_the_constructor_with_tuples_for_lists():
    choice = {"name": "gated", "sizes": [8, 2], "options": {"b": [1.5, None], "a": True}}
    actor, critic = modules(actor_network=choice)
    assert (actor.n_outputs, actor.sizes) == (3, (8, 2))
    assert dict(actor.options) == {"a": True, "b": (1.5, None)}
    assert isinstance(critic, ValueNetwork)


def test_a_continuous_actors_network_outputs_means():
    agent = ja.ContinuousIPPO(RealWalk(), None, tiny(actor_network="gated"))
    assert agent.networks.actor.module == Gated(1)


def test_a_function_may_construct_a_recurrent_network():
    def remembering(n_outputs, size):
        torso, after = MLP(1, (4,)), MLP(1, (4,))
        head = ValueNetwork(after) if n_outputs is None else PolicyNetwork(n_outputs, after)
        return ja.RecurrentNetwork("gru", size, torso, head)

    ja.register_network("remembering", remembering)
    choice = {"name": "remembering", "size": 5}
    actor, critic = modules(actor_network=choice, critic_network=choice, recurrent="gru")
    assert (actor.size, critic.size) == (5, 5)
    with pytest.raises(TypeError, match=r"^actor_network is a Gated without empty_memory"):
        modules(actor_network="gated", recurrent="gru")


def test_a_configuration_with_named_networks_is_hashable_and_independent_of_the_order():
    one = tiny(actor_network={"name": "gated", "sizes": [8], "options": {"a": 1, "b": 2}})
    other = tiny(actor_network={"options": {"b": 2, "a": 1}, "sizes": (8,), "name": "gated"})
    assert (one, hash(one), structure_of(one)) == (other, hash(other), structure_of(other))
    assert dataclasses.replace(one) == one
    assert one != tiny(actor_network={"name": "gated", "sizes": [9]})
    assert tiny(actor_network={"name": "gated"}) == tiny(actor_network="gated")


def test_the_structure_of_checkpoints_holds_the_name_and_the_arguments():
    choice = {"name": "gated", "sizes": [np.int64(8)], "options": jnp.pi}
    config = tiny(actor_network=choice, critic_network="gated")
    assert structure_of(config)["actor_network"] == (
        f"{{'name': 'gated', 'options': {jnp.pi}, 'sizes': [8]}}"
    )
    assert structure_of(config)["critic_network"] == "'gated'"


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (
            "gatde",
            "actor_network: unknown network 'gatde'. Did you mean gated? Known: attention, "
            "deep_sets, gated, failing, "
            "valueless.",
        ),
        (
            {"name": "gated", "size": 3},
            "actor_network: gated cannot be constructed with n_outputs 3 and size=3: "
            "Gated.__init__() got an unexpected keyword argument 'size'",
        ),
        (
            {"sizes": [3]},
            "actor_network={'sizes': [3]} names no network; give its name and arguments, as in "
            "{name: mine, width: 64}.",
        ),
        (
            "",
            "actor_network={'name': ''} names no network; give its name and arguments, as in "
            "{name: mine, width: 64}.",
        ),
        (
            "valueless",
            "actor_network maps observations [2, 3, 2] to [2, 3]; the environment needs [2, 3, 3].",
        ),
        (
            "failing",
            "actor_network: failing cannot be constructed with n_outputs 3 and no arguments: "
            "KeyError",
        ),
    ],
)
def test_what_is_no_network_is_refused(choice, message):
    def fail(_):
        raise KeyError

    ja.register_network("failing", fail)
    ja.register_network("valueless", lambda n_outputs: Gated(None))
    with pytest.raises(ValueError, match="actor_network") as refusal:
        modules(actor_network=choice)
    assert str(refusal.value) == message


@pytest.mark.parametrize(("value", "kind"), [(3, "int"), (None, "NoneType")])
def test_a_constructor_that_returns_no_module_is_refused(value, kind):
    ja.register_network("number", lambda n_outputs: value)
    with pytest.raises(TypeError) as refusal:
        modules(critic_network="number")
    assert str(refusal.value) == (
        f"critic_network: number constructs a {kind}; its constructor should return a flax.linen "
        "module."
    )


def test_arguments_that_no_file_can_hold_are_refused():
    with pytest.raises(TypeError) as refusal:
        tiny(critic_network={"name": "gated", "sizes": nn.tanh})
    assert str(refusal.value) == (
        f"critic_network.sizes={nn.tanh!r} is no number, text, list or mapping, which files can "
        "hold."
    )


def test_the_network_of_an_installed_package_is_found_by_its_name(tmp_path, monkeypatch):
    code = "from tests.networks.test_registry import Gated\n"
    install(monkeypatch, tmp_path, "gate-pack", code, networks="gates = gate_pack:Gated")
    assert modules(critic_network={"name": "gates", "sizes": [2]})[1] == Gated(None, (2,))
