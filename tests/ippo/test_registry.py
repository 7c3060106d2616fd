"""Classes of agents by name."""

import pytest

import jaxagents as ja
from jaxagents.errors import EntryPointError
from jaxagents.ippo.agent_classes import AGENTS
from jaxagents.ippo.distributions import Categorical
from tests.plugins import forget_registrations, install


class Own(ja.IPPOBase):
    """A class of agents as a user may write it."""

    def _make_distribution(self, space):
        return Categorical(space)


@pytest.fixture(autouse=True)
def _registrations(monkeypatch):
    forget_registrations(monkeypatch)


def test_a_class_of_agents_is_found_by_its_name():
    ja.register_agent("own", Own)
    assert AGENTS.get("own") is Own
    with pytest.raises(ValueError, match=r"^the agent 'own' is taken; choose another name\.$"):
        ja.register_agent("own", ja.DiscreteIPPO)


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (dict, "<class 'dict'> is no class of agents; inherit from jaxagents.IPPOBase."),
        ("own", "'own' is no class of agents; inherit from jaxagents.IPPOBase."),
        (ja.IPPOBase, "IPPOBase is abstract; write its _make_distribution."),
    ],
)
def test_what_is_no_class_of_agents_is_refused(cls, message):
    with pytest.raises(TypeError) as refusal:
        ja.register_agent("own", cls)
    assert str(refusal.value) == message


def test_an_entry_point_that_is_no_class_of_agents_is_refused(tmp_path, monkeypatch):
    install(monkeypatch, tmp_path, "own-agents", "Own = dict\n", agents="own = own_agents:Own")
    with pytest.raises(EntryPointError) as refusal:
        AGENTS.get("own")
    assert str(refusal.value) == (
        "the agent 'own' of the package own-agents cannot be loaded by its entry point "
        "'own_agents:Own' in jaxagents.agents: TypeError: <class 'dict'> is no class of agents; "
        "inherit from jaxagents.IPPOBase."
    )
