"""Profiles of an update: what is counted, what is timed, and the printed table."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.cli import main as cli
from jaxagents.cli.costs import profile_text
from jaxagents.compiler.program_costs import count_costs
from jaxagents.experiments import profiling
from jaxagents.experiments.profiling import (
    PARTS,
    Profile,
    Stage,
    programs_of_block,
    programs_of_update,
)
from jaxagents.networks.network import MLP, PolicyNetwork
from tests.cli.test_main import TINY as TINY_YAML
from tests.probes import Aim, Walk

TINY = ja.AgentConfig(
    n_steps=3,
    batch_size=4,
    minibatch_size=2,
    rollout_length=6,
    actor_epochs=3,
    critic_epochs=2,
    eval_frequency=2,
    n_evals=2,
    actor_layers=ja.Layers(hidden_sizes=(8,)),
    critic_layers=ja.Layers(hidden_sizes=(8,)),
    progress_bar=False,
)
MULTIPLIED = 18 * 64 + 64 * 64 + 64 * 5  # weights of an 18-64-64-5 network
MULTIPLIED_BACK = 64 * 64 + 64 * 5  # without the first layer, whose input needs no gradient


def count_flops(function, *arguments, n_iterations: int = 1) -> int:
    return count_costs(function, *arguments, n_iterations=n_iterations).flops


def network_and_inputs(n_samples: int):
    network = PolicyNetwork(5, MLP(1, (64, 64)))
    inputs = jnp.ones((n_samples, 18))
    return network, network.init(jax.random.key(0), inputs), inputs


def test_a_forward_pass_multiplies_and_adds_each_weight_once_a_sample():
    network, params, inputs = network_and_inputs(7)
    assert count_flops(network.apply, params, inputs) == 2 * 7 * MULTIPLIED


def test_a_backward_pass_computes_gradients_of_all_weights_and_inner_layers():
    network, params, inputs = network_and_inputs(7)
    gradient = jax.grad(lambda params: network.apply(params, inputs).sum())
    assert count_flops(gradient, params) == 2 * 7 * (2 * MULTIPLIED + MULTIPLIED_BACK)


def test_products_count_once_per_iteration_and_in_the_costliest_branch():
    matrix = jnp.ones((3, 3))
    once = 2 * 3**3

    def loop(matrix):
        return jax.lax.fori_loop(0, 5, lambda _, product: product @ matrix, matrix)

    def loop_without_known_end(matrix):
        return jax.lax.while_loop(lambda x: x.sum() < 9, lambda x: x @ x, matrix)

    def choose(matrix):
        return jax.lax.cond(matrix.sum() > 0, lambda x: x @ x @ x, lambda x: x @ x, matrix)

    assert count_flops(loop, matrix) == 5 * once
    assert count_flops(jax.vmap(loop), jnp.ones((4, 3, 3))) == 4 * 5 * once
    assert count_flops(jnp.vdot, jnp.ones(7), jnp.ones(7)) == 0
    assert count_flops(jax.vmap(jnp.vdot), jnp.ones((4, 7)), jnp.ones((4, 7))) == 0
    assert count_flops(jnp.matmul, jnp.ones((1, 7)), jnp.ones(7)) == 2 * 7
    assert count_flops(loop_without_known_end, matrix, n_iterations=3) == 3 * once
    assert count_flops(choose, matrix) == 2 * once
    assert count_flops(jax.jit(loop), matrix) == 5 * once


def make_simple() -> ja.IPPOBase:
    config = dataclasses.replace(TINY, parameter_sharing="independent")
    return ja.DiscreteIPPO(Walk((2, 100)), None, config)


def make_intricate() -> ja.IPPOBase:
    config = dataclasses.replace(
        TINY,
        parameter_sharing=(0, 1, 0),
        recurrent="mingru",
        recurrent_chunk_length=3,
        advantages="vtrace",
        shared_torso=True,
        normalize_observations=True,
        normalize_values=True,
    )
    return ja.ContinuousIPPO(Aim(3), None, config)


def with_stages(agent: ja.IPPOBase):
    runner = agent.init(jax.random.key(0), ja.HyperParameters())
    return agent, runner, programs_of_update(agent, runner)


@pytest.fixture(scope="module")
def simple():
    return with_stages(make_simple())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["simple", "intricate"])
def test_the_stages_do_what_the_update_does(kind, simple):
    agent, runner, programs = simple if kind == "simple" else with_stages(make_intricate())
    after, transitions = jax.jit(agent.collector.collect)(runner, agent.split_key(runner).rollout)
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)

    state, step = programs["environment"]()
    jax.tree.map(close, state, after.env_state)
    close(step.reward, transitions.reward)
    _, rollout = programs["rollout"]()
    close(rollout.log_prob, transitions.log_prob)
    _, metrics = programs["actor"]()
    np.testing.assert_array_equal(metrics["actor_epochs"], TINY.actor_epochs)
    assert programs.keys() == {*PARTS, "environment"}


def test_the_matrix_products_of_all_epochs_are_counted(simple):
    _, _, programs = simple
    n_samples = 2 * 4 * 6  # of two policies
    # Forward, gradients of weights, gradients of one layer.
    actor = 2 * (2 * 8 + 8 * 3) + 8 * 3
    critic = 2 * (2 * 8 + 8 * 1) + 8 * 1
    # Log probability and entropy are products with ones, forward and backward.
    actor += 2 * (3 + 3)
    assert programs["actor"].flops == 2 * n_samples * actor * TINY.actor_epochs
    assert programs["critic"].flops == 2 * n_samples * critic * TINY.critic_epochs


def test_stages_that_are_not_configured_are_not_timed(simple):
    agent = ja.DiscreteIPPO(Walk(), None, dataclasses.replace(TINY, n_evals=0))
    assert not programs_of_block(agent, simple[1])


def test_a_profile_of_no_rounds_is_refused(simple):
    with pytest.raises(ValueError, match="n_rounds=0 is too small"):
        ja.profile(simple[0], ja.HyperParameters(), n_rounds=0)


MEASURED = Profile(
    stages={
        **{part: Stage(seconds=0.001, compile_seconds=0.5) for part in PARTS},
        "actor": Stage(seconds=0.004, compile_seconds=2.0, flops=2 * 10**8),
        "environment": Stage(seconds=0.0005, compile_seconds=0.25),
        "update": Stage(seconds=0.010, compile_seconds=3.0),
        "evaluation": Stage(seconds=0.020, compile_seconds=1.0, every=10),
    },
    n_envs=4,
    rollout_length=100,
    actor_epochs=1,
    critic_epochs=2,
    product_size=2048,
    product_flops_per_second=1e11,
    device="cpu",
)


def test_a_profile_has_shares_rates_and_a_remainder():
    assert MEASURED.remainder == pytest.approx(0.002)
    assert MEASURED.share("actor") == pytest.approx(0.4)
    assert MEASURED.share("evaluation") == pytest.approx(0.2)
    assert MEASURED.share_of_limit("actor") == pytest.approx(0.5)
    assert MEASURED.steps_per_second == pytest.approx(40_000)
    assert MEASURED.steps_per_second_of_training == pytest.approx(400 / 0.012)


def test_a_profile_is_printed_as_a_table():
    text = profile_text(MEASURED)
    rows = {line.split("  ")[0]: line.split()[-5:] for line in text.splitlines() if line}
    assert rows["actor, 1 epoch"][-5:] == ["4.00", "40.0", "%", "50.0", "%", "2.0"][-5:]
    assert rows["critic, 2 epochs"][-4:] == ["1.00", "10.0", "%", "0.5"]
    assert rows["remainder"][-3:] == ["2.00", "20.0", "%"]
    assert rows["whole update"][-4:] == ["10.00", "100.0", "%", "3.0"]
    assert rows["evaluation, 20.00 ms every 10 updates"][-4:] == ["2.00", "20.0", "%", "1.0"]
    assert "40,000 environment steps/s" in text
    assert "100 GFLOP/s" in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(profiling, "_PRODUCT_SIZES", (64,))
    (tmp_path / "tiny.yaml").write_text(TINY_YAML)
    return tmp_path


@pytest.mark.slow
def test_the_command_prints_a_profile_of_the_overridden_configuration(folder, capsys, monkeypatch):
    kept = {"profile": [], "programs_of_update": []}

    def keep(name):
        function = getattr(profiling, name)

        def call(*arguments):
            result = function(*arguments)
            kept[name].append((arguments, result))
            return result

        monkeypatch.setattr(profiling, name, call)

    keep("profile")
    keep("programs_of_update")
    overrides = ["--agent.actor_epochs", "3", "--hyperparams.kl_threshold", "1e-9"]
    assert cli.main(["profile", "tiny.yaml", "--rounds", "1", *overrides]) == 0

    (((_, runner), _),) = kept["programs_of_update"]
    assert np.isinf(runner.hyperparams.kl_threshold)
    assert runner.n_updates_done == 3
    ((_, profile),) = kept["profile"]
    assert list(profile.stages) == [*PARTS, "environment", "update", "evaluation", "transfer"]
    assert all(min(stage[:2]) > 0 for stage in profile.stages.values())
    assert (profile.n_envs, profile.rollout_length, profile.actor_epochs) == (4, 4, 3)
    assert profile.stages["evaluation"].every == profile.stages["transfer"].every == 2
    assert profile.share_of_limit("environment") is None
    assert profile.share_of_limit("critic") > 0
    output = capsys.readouterr().out
    assert output == f"tiny: hunting/discrete\n\n{profile_text(profile)}\n"
    assert [each.name for each in folder.iterdir()] == ["tiny.yaml"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["other.yaml"], "other.yaml"),
        (["tiny.yaml", "--agent.actor_epoch", "3"], "agent.actor_epoch"),
        (["tiny.yaml", "--agent.batch_size", "5"], "minibatch"),
        (["tiny.yaml", "--rounds", "0"], "--rounds 0 times nothing"),
        (["tiny.yaml", "--env", "hunting/nothing"], "hunting/nothing"),
    ],
)
def test_a_wrong_profile_command_is_refused_in_one_line(arguments, message, folder, capsys):
    assert cli.main(["profile", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert message in output.err
