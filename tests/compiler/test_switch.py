import subprocess
import sys

import jax
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.compiler.switch import is_plain, plain_jax

TUNED_PRIMITIVES = ("optimization_barrier", "custom_vjp", "platform_index", "unrolled")


def agent_on_simple_spread(**changes):
    config = ja.AgentConfig(
        n_steps=20, batch_size=4, minibatch_size=2, rollout_length=32, eval_frequency=20,
        n_evals=0, progress_bar=False, **changes,
    )  # fmt: skip
    return ja.DiscreteIPPO(*ja.make("jaxmarl/MPE_simple_spread_v3"), config)


@pytest.mark.parametrize("sharing", ["shared", pytest.param("independent", marks=pytest.mark.slow)])
def test_plain_jax_trains_as_the_tuned_programs_do_up_to_rounding(sharing):
    def train():
        agent = agent_on_simple_spread(parameter_sharing=sharing)
        runner, metrics = agent.train(jax.random.key(0), ja.HyperParameters(kl_threshold=0.01))
        return runner.actor.params, runner.critic.params, metrics

    tuned = train()
    with plain_jax():
        plain = train()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4, rtol=1e-4), tuned, plain)


def primitives_of_an_update(**changes):
    agent = agent_on_simple_spread(**changes)
    runner = jax.eval_shape(agent._init, jax.random.key(0), ja.HyperParameters())
    text = str(jax.make_jaxpr(agent._update)(runner))
    return {name for name in TUNED_PRIMITIVES if name in text}


@pytest.mark.parametrize("changes", [{}, {"recurrent": "gru", "normalize_values": True}])
def test_plain_jax_uses_no_tuned_form(changes):
    assert primitives_of_an_update(**changes)
    with plain_jax():
        assert not primitives_of_an_update(**changes)


def test_the_context_manager_switches_back_also_after_an_error():
    assert not is_plain()

    def fail():
        with plain_jax():
            assert is_plain()
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    assert not is_plain()


@pytest.mark.parametrize(("value", "expected"), [("1", "True"), ("0", "False")])
def test_an_environment_variable_sets_the_switch(value, expected, monkeypatch):
    monkeypatch.setenv("JAXAGENTS_PLAIN_JAX", value)
    code = "from jaxagents.compiler.switch import is_plain; print(is_plain())"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.stdout.strip() == expected
