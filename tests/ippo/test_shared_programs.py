"""Equal agents: what they share, and what each keeps for itself."""

import gc
import sys
import weakref
from collections import OrderedDict, deque
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import jaxagents as ja
from tests.agents import FAST, TINY, assert_trees_equal
from tests.probes import Coordination, Walk

TRACED = Mock()  # data of the module would be compared


class Counting(ja.DiscreteIPPO):
    """Counts how often its loss is traced."""

    def actor_loss(self, params, minibatch, hyperparams):
        TRACED()
        return super().actor_loss(params, minibatch, hyperparams)


class Scaled(ja.DiscreteIPPO):
    """Has a loss of its own, and a number that it reads."""

    def __init__(self, *arguments, scale=1.0):
        self.scale = scale
        super().__init__(*arguments)

    def actor_loss(self, params, minibatch, hyperparams):
        loss, stats = super().actor_loss(params, minibatch, hyperparams)
        return self.scale * loss, stats


def share(one, other) -> bool:
    return one.program_owner is other.program_owner


def agent_of(env, env_params=None, config=TINY, agent_class=ja.DiscreteIPPO, **others):
    return agent_class(env, env_params, config, **others)


def test_an_updates_program_is_the_same_for_runs_of_any_length():
    # Otherwise a longer run would be compiled anew.
    def traced(n_steps):
        config = replace(TINY, n_steps=n_steps, learning_rate_schedule="cosine")
        agent = agent_of(Walk(), config=config)
        runner = agent.init(jax.random.key(0), FAST)
        assert int(runner.n_steps) == n_steps
        program = type(agent).step_and_check.__wrapped__
        return jax.jit(lambda runner: program(agent, runner)).lower(runner).as_text()

    assert traced(3) == traced(300)


def test_a_second_equal_agent_traces_nothing_and_trains_the_same():
    first = agent_of(Coordination(), agent_class=Counting)
    expected = first.train(jax.random.key(0), FAST)
    n_traced = TRACED.call_count
    second = agent_of(Coordination(), agent_class=Counting)
    assert_trees_equal(second.train(jax.random.key(0), FAST), expected)
    assert TRACED.call_count == n_traced > 0


def test_agents_of_environments_of_a_library_share():
    first, second = (
        agent_of(*ja.make("jaxmarl/MPE_simple_spread_v3"), config=TINY) for _ in range(2)
    )
    assert share(first, second)
    assert first.env is not second.env


@pytest.mark.parametrize(
    "other",
    [
        lambda: agent_of(Coordination(n_actions=4)),
        lambda: agent_of(Coordination(), config=replace(TINY, actor_epochs=3)),
        lambda: agent_of(Coordination(), {"unused": jnp.ones(2)}),
        lambda: agent_of(Coordination(), agent_class=Scaled),
        lambda: agent_of(Coordination(), agent_class=Counting),
    ],
    ids=["environment", "configuration", "parameters", "class", "another class"],
)
def test_agents_that_differ_do_not_share(other):
    agent, another = agent_of(Coordination()), other()
    assert not share(agent, another)
    assert share(another, other())


def test_parameters_are_compared_by_value_and_type():
    params = [{"size": np.float32(1)}, {"size": np.float32(1)}, {"size": np.int32(1)}]
    one, equal, integer = (agent_of(Coordination(), each) for each in params)
    assert share(one, equal)
    assert not share(one, integer)


def test_attributes_of_a_subclass_belong_to_what_is_compared():
    halves = [Scaled(Coordination(), None, TINY, scale=0.5) for _ in range(2)]
    assert share(*halves)
    assert not share(halves[0], Scaled(Coordination(), None, TINY, scale=2.0))


def test_networks_are_compared_by_their_fields():
    class Linear(nn.Module):
        width: int = 3

        @nn.compact
        def __call__(self, features):
            return nn.Dense(3)(nn.Dense(self.width)(features))

    one, equal, wide = (
        agent_of(Coordination(), config=replace(TINY, actor_network=Linear(width)))
        for width in (3, 3, 4)
    )
    assert share(one, equal)
    assert not share(one, wide)


class Locked(Coordination):
    """Has an attribute that equals nothing but itself."""

    def __init__(self):
        super().__init__()
        self._lock = object()


class Recording(Coordination):
    """Has a record that will be filled."""

    def __init__(self):
        super().__init__()
        self.calls = []


@pytest.mark.parametrize("kind", [Locked, Recording])
def test_an_environment_that_cannot_be_compared_is_equal_to_itself(kind):
    env = kind()
    agent = agent_of(env)
    assert share(agent, agent_of(env))
    assert not share(agent, agent_of(kind()))


class Cyclic(Coordination):
    """Contains itself."""

    def __init__(self):
        super().__init__()
        self.itself = {"env": [self]}


def test_an_environment_may_contain_itself():
    one, other = agent_of(Cyclic()), agent_of(Cyclic())
    assert share(one, other)


def test_an_environment_that_has_changed_is_another():
    env = Coordination(n_actors=4)
    before = agent_of(env)
    env._n_actions = 5
    after = agent_of(env)
    assert not share(before, after)
    assert after.environments.space.n == 5
    # This one equals what the first agent was built of.
    assert not share(before, agent_of(Coordination(n_actors=4)))


class Slotted:
    """Has no dictionary of attributes."""

    __slots__ = ("__hidden", "bonus")

    def __init__(self):
        self.bonus, self.__hidden = 1.0, 2.0

    def hide(self, value):
        self.__hidden = value


class Holding(Coordination):
    """Reads its rewards from something that it holds."""

    def __init__(self, held):
        super().__init__()
        self.held = held


@pytest.mark.parametrize(
    ("held", "change"),
    [
        (SimpleNamespace(bonus=1.0), lambda held: setattr(held, "bonus", 2.0)),
        (OrderedDict(bonus=1.0), lambda held: held.update(bonus=2.0)),
        ({1, 2}, lambda held: held.add(3)),
        (deque([1.0]), lambda held: held.append(2.0)),
        (Slotted(), lambda held: setattr(held, "bonus", 2.0)),
        (Slotted(), lambda held: held.hide(3.0)),
    ],
    ids=["namespace", "ordered dictionary", "set", "deque", "slot", "hidden slot"],
)
def test_what_an_environment_holds_is_compared_by_its_contents(held, change):
    env = Holding(held)
    before = agent_of(env)
    assert share(before, agent_of(env))
    change(held)
    assert not share(before, agent_of(env))


BONUS = 1.0


def bonus():
    return BONUS


def closure(initial):
    values = [initial]

    def read(default=(1,)):
        return (lambda: values[0])(), default

    return read, values


class Reading(Coordination):
    """Reads a number of its module, through a function."""

    def __init__(self, read=bonus):
        super().__init__()
        self.read = read

    def reset_env(self, rng, params):
        return super().reset_env(rng, params) if bonus() else None


def test_data_of_the_module_that_methods_read_are_compared(monkeypatch):
    env = Reading()
    before = agent_of(env)
    assert share(before, agent_of(env))
    monkeypatch.setattr(sys.modules[__name__], "BONUS", 2.0)
    assert not share(before, agent_of(env))


class Table:
    bonus = 1.0


class Entry:
    def __init__(self):
        self.bonus = 1.0


ENTRY, OTHER = Entry(), ModuleType("other")
OTHER.bonus = 1.0


class ReadingAttributes(Coordination):
    """Reads attributes of a class, of an object and of another module."""

    def reset_env(self, rng, params):
        assert Table.bonus + ENTRY.bonus + OTHER.bonus
        return super().reset_env(rng, params)


@pytest.mark.parametrize("holder", [Table, ENTRY, OTHER], ids=["class", "object", "module"])
def test_attributes_of_the_modules_variables_are_compared(holder, monkeypatch):
    env = ReadingAttributes()
    before = agent_of(env)
    assert share(before, agent_of(env))
    monkeypatch.setattr(holder, "bonus", 2.0)
    assert not share(before, agent_of(env))


def test_functions_are_compared_by_what_they_close_over_and_by_their_defaults():
    read, values = closure(1.0)
    env = Reading(read)
    before = agent_of(env)
    assert share(before, agent_of(env))
    values[0] = 2.0
    changed = agent_of(env)
    assert not share(before, changed)
    read.__defaults__ = ((2,),)
    assert not share(changed, agent_of(env))


def test_an_environment_too_deep_to_compare_shares_nothing():
    deep = ()
    for _ in range(10_000):
        deep = (deep,)
    env = Holding(deep)
    assert not share(agent_of(env), agent_of(env))


def test_a_method_that_was_replaced_makes_another_agent(monkeypatch):
    before = agent_of(Coordination(), agent_class=Scaled)
    monkeypatch.setattr(Scaled, "actor_loss", ja.DiscreteIPPO.actor_loss)
    assert not share(before, agent_of(Coordination(), agent_class=Scaled))


def test_callbacks_and_checkpoints_go_to_their_own_agent(tmp_path):
    called = {"a": [], "b": []}
    agents = {
        name: agent_of(
            Coordination(),
            config=replace(TINY, checkpoint_dir=tmp_path / name),
            callbacks=[lambda evaluation, name=name: called[name].append(evaluation.agent)],
        )
        for name in called
    }
    silent = agent_of(Coordination())
    assert share(agents["a"], agents["b"])
    assert share(agents["a"], silent)
    for seed, (name, agent) in enumerate(agents.items()):
        runner, _ = agent.train(jax.random.key(seed), FAST)
        restored, _ = agent.restore("last")
        assert_trees_equal(restored.actor.params, runner.actor.params)
        assert set(map(id, called[name])) == {id(agent)}
    n_called = len(called["a"])
    silent.train(jax.random.key(2), FAST)
    assert len(called["a"]) == len(called["b"]) == n_called == 3
    assert agents["a"].config.checkpoint_dir != agents["b"].config.checkpoint_dir


def test_a_collected_training_is_the_agents_own():
    one, other = agent_of(Coordination()), agent_of(Coordination())
    one.collect_training(one.init(jax.random.key(0), FAST))
    with pytest.raises(ValueError, match="no training is collected"):
        other.eval(jax.random.key(0))


@pytest.mark.slow
def test_programs_are_freed_with_the_last_agent_that_uses_them():
    agents = [agent_of(Walk(), agent_class=Counting) for _ in range(2)]
    programs = weakref.ref(agents[0].program_owner)
    agents[0].init(jax.random.key(0), FAST)
    agents.pop()
    gc.collect()
    assert programs() is not None
    agents.pop()
    gc.collect()
    assert programs() is None
