"""The switch from tuned programs to plain jax."""

import runpy

import jax
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.compiler import tuned_forms
from jaxagents.compiler.tuned_forms import is_plain, plain_jax, tunes_for_cpu
from tests.agents import FAST, tiny
from tests.probes import Walk

TUNED_PRIMITIVES = ("optimization_barrier", "custom_vjp", "unrolled")
MORTAL_WALK = Walk((2, 100), limit=5)


def new_agent(**changes):
    return ja.DiscreteIPPO(MORTAL_WALK, None, tiny(**changes))


@pytest.mark.slow
@pytest.mark.parametrize("sharing", ["shared", "independent"])
def test_plain_jax_trains_as_the_tuned_programs_do_up_to_rounding(sharing):
    def train():
        agent = new_agent(parameter_sharing=sharing)
        runner, metrics = agent.train(jax.random.key(0), FAST.replace(kl_threshold=0.01))
        return runner.actor.params, runner.critic.params, metrics

    tuned = train()
    with plain_jax():
        plain = train()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4, rtol=1e-4), tuned, plain)


def primitives_of_an_update(**changes):
    agent = new_agent(**changes)
    runner = agent.runners.shapes()
    text = str(jax.make_jaxpr(agent.collect_and_learn)(runner))
    return {name for name in TUNED_PRIMITIVES if name in text}


@pytest.mark.parametrize(
    "changes",
    [{}, pytest.param({"recurrent": "gru", "normalize_values": True}, marks=pytest.mark.slow)],
)
def test_plain_jax_uses_no_tuned_form(changes):
    assert primitives_of_an_update(**changes)
    with plain_jax():
        assert not primitives_of_an_update(**changes)


def test_nothing_is_tuned_where_jax_compiles_nothing():
    assert tunes_for_cpu()
    with jax.disable_jit():
        assert is_plain()
        assert not tunes_for_cpu()
    assert tunes_for_cpu()


@pytest.fixture
def clearings(monkeypatch):
    """Record the switch whenever compiled programs are dropped, and keep them."""
    positions = []
    monkeypatch.setattr(jax, "clear_caches", lambda: positions.append(is_plain()))
    return positions


def test_compiled_programs_are_dropped_after_the_switch_has_turned(clearings):
    with plain_jax():
        assert clearings == [True]
        with plain_jax():
            assert is_plain()
        assert is_plain()
    assert clearings == [True, True, True, False]


def test_the_context_manager_switches_back_also_after_an_error(clearings):
    assert not is_plain()

    def fail():
        with plain_jax():
            assert is_plain()
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    assert not is_plain()


@pytest.mark.parametrize("value", ["", "0", "false", "No", "1", "true"])
def test_an_environment_variable_sets_the_switch(value, monkeypatch):
    monkeypatch.setenv("JAXAGENTS_PLAIN_JAX", value)
    assert runpy.run_path(tuned_forms.__file__)["is_plain"]() == (value in ("1", "true"))
