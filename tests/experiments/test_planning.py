"""Plans of a training: how the work is divided, what is counted and what is measured."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest

import jaxagents as ja
from jaxagents.cli import main as cli
from jaxagents.cli.costs import plan_text
from jaxagents.compiler.program_costs import Costs, count_costs
from jaxagents.experiments.planning import (
    Links,
    MeasuredShare,
    Plan,
    communication_of_update,
    memory_of_update,
    plan,
    share_of,
)
from jaxagents.ippo.population import memory
from tests.agents import tiny
from tests.cli.test_main import TINY as TINY_YAML
from tests.probes import Walk

TINY = tiny(n_steps=6, actor_epochs=3, critic_epochs=2)
PLAN = Plan(
    device="cpu",
    n_devices=4,
    n_updates=100,
    n_evaluations=5,
    steps_per_update=200,
    estimated_memory=3e6,
    memory_limit=10**9,
    measured=MeasuredShare(
        start_seconds=4.0,
        update_seconds=0.03,
        evaluation_start_seconds=2.0,
        evaluation_seconds=0.2,
        memory=500_000_000,
    ),
    communication=Costs(n_calls=100, n_bytes=2_000_000),
    communication_seconds=0.01,
)


def test_calls_and_bytes_are_counted_once_per_iteration():
    def communicate(x):
        def step(total, _):
            return total + jax.lax.psum(x, "devices"), None

        scanned, _ = jax.lax.scan(step, jnp.zeros(5), None, length=3)  # 3 times 20 bytes

        def body(loop):
            i, total = loop
            total, _ = jax.lax.pmax((total, i), "devices")  # one exchange of 24 bytes
            return i + 1, total

        _, looped = jax.lax.while_loop(lambda loop: loop[0] < 100, body, (0, scanned))
        return looped

    counted = count_costs(communicate, jnp.zeros(5), axis=("devices", 4), n_iterations=7)
    assert (counted.n_calls, counted.n_bytes) == (3 + 7, 3 * 20 + 7 * 24)


def test_a_function_without_collectives_exchanges_nothing():
    counted = count_costs(
        lambda x: jax.lax.map(jnp.sin, x), jnp.zeros(5), axis=("d", 2), n_iterations=1
    )
    assert (counted.n_calls, counted.n_bytes) == (0, 0)


def test_the_numbers_that_a_function_writes_are_counted():
    def function(x):
        y = jnp.sin(x) + 1.0  # 5 and 5
        _, sums = jax.lax.scan(lambda total, each: (total + each, total * 2.0), jnp.zeros(()), y)
        return sums @ jnp.ones((5, 3))  # 15 of ones, 3 of the product

    counted = count_costs(function, jnp.zeros(5), n_iterations=1)
    assert counted.n_numbers == 5 + 5 + 5 * 2 + 15 + 3
    assert counted.flops == 2 * 5 * 3


def test_gradients_are_exchanged_in_every_step_of_the_optimizer():
    agent = ja.DiscreteIPPO(Walk(), None, TINY)
    share = ja.DiscreteIPPO(Walk(), None, share_of(TINY, 2))
    runner = share.runners.shapes()
    n_steps = {"actor": 3 * 2, "critic": 2 * 2}  # epochs times minibatches
    gradients = sum(
        4 * n * sum(leaf.size for leaf in jax.tree.leaves(getattr(runner, network).params))
        for network, n in n_steps.items()
    )
    communication = communication_of_update(agent, share, n_devices=2)
    assert gradients < communication.n_bytes < 1.2 * gradients  # statistics are small
    assert communication.n_calls >= 3 * 2 + 2 * 2


def test_a_share_is_the_work_of_one_device():
    share = share_of(TINY, 2)
    sizes = (share.devices, share.batch_size, share.minibatch_size, share.n_evals)
    assert sizes == (1, 2, 1, 1)
    assert share.minibatches_per_epoch == TINY.minibatches_per_epoch
    with pytest.raises(ValueError, match="minibatch_size=2 does not divide among devices=4"):
        share_of(TINY, 4)


def test_links_take_a_time_per_hop_and_per_byte():
    links = Links(bytes_per_second=1e9, seconds_per_hop=1e-5)
    # A tree of 4 has 2 levels; in a ring of 4 a device sends 2 * 3 / 4 of its bytes.
    assert links.seconds(Costs(n_calls=50, n_bytes=4_000_000), 4) == pytest.approx(2 * 50e-5 + 6e-3)
    assert links.seconds(Costs(), 1) == 0


def test_a_plan_adds_up():
    assert PLAN.fits
    assert PLAN.update_seconds == pytest.approx(0.04)
    assert PLAN.steps_per_second == pytest.approx(100 * 200 / (100 * 0.04 + 5 * 0.2))
    assert PLAN.seconds == pytest.approx(4 + 2 + 100 * 0.04 + 5 * 0.2)
    text = plan_text(PLAN, Links(1e9, 1e-4))
    for line in (
        "memory of each     500.00 MB of 1.00 GB",
        "an update          40.00 ms",
        "environment steps  4,000 per second",
        "exchanged          2.00 MB in 100 calls per update",
        "to finish          0:11",
        "Assumed of the links: 1 GB/s and 100 µs a hop, 10.00 ms per update.",
    ):
        assert line in text


@pytest.mark.slow
def test_what_does_not_fit_is_not_tried():
    agent = ja.DiscreteIPPO(Walk(), None, TINY)
    result = plan(agent, ja.HyperParameters(), memory_limit=1000)
    assert (result.fits, result.measured, result.seconds) == (False, None, math.inf)
    assert result.memory > 1000
    assert "DOES NOT FIT" in plan_text(result, Links())
    more = dataclasses.replace(PLAN, memory_limit=400_000_000)
    assert not more.fits  # tried, and it took more


@pytest.mark.slow  # compiles an update once more
def test_near_the_limit_memory_is_that_of_the_compiled_update():
    agent = ja.DiscreteIPPO(Walk(), None, TINY)
    needed = memory_of_update(agent)
    assert needed is not None
    assert plan(agent, ja.HyperParameters(), memory_limit=needed).fits is False  # the process
    assert plan(agent, ja.HyperParameters(), memory_limit=needed - 1).estimated_memory == needed


@pytest.mark.slow
def test_a_share_is_measured():
    agent = ja.DiscreteIPPO(Walk(), None, TINY)
    result = plan(agent, ja.HyperParameters())
    assert result.measured is not None
    assert 0 < result.measured.update_seconds < result.measured.start_seconds
    assert result.measured.evaluation_seconds > 0
    assert result.measured.memory > 100_000_000  # of the process
    assert result.n_evaluations == 4  # one before training
    assert not any(result.communication)


@pytest.mark.slow
def test_the_command_prints_a_plan(tmp_path, capsys):
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY_YAML)
    assert cli.main(["plan", str(path), "--agent.n_steps", "2"]) == 0
    assert "to finish" in capsys.readouterr().out
    assert cli.main(["plan", str(path), "--memory", "0.000001"]) == 1
    assert "DOES NOT FIT" in capsys.readouterr().out
    assert [each.name for each in tmp_path.iterdir()] == ["tiny.yaml"]


def test_a_share_that_this_machine_cannot_try_is_refused_in_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(memory, "memory_of_device", lambda: 1000)
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY_YAML)
    assert cli.main(["plan", str(path), "--memory", "100"]) == 2
    error = capsys.readouterr().err
    assert f"error: {path}: the state of training" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--memory", "inf"], "--memory inf is too large; give at most 1e+18"),
        (["--memory", "1e300"], "--memory 1e+300 is too large; give at most 1e+18"),
        (["--link-latency", "inf"], "--link-latency inf is too large; give at most 1e+18"),
        (["--memory", "nan"], "--memory nan is too small; give more than 0"),
    ],
)
def test_numbers_of_a_plan_that_overflow_are_refused_in_one_line(option, message, tmp_path, capsys):
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY_YAML)
    assert cli.main(["plan", str(path), *option]) == 2
    assert capsys.readouterr().err == f"jaxagents: error: {message}\n"


def test_a_share_that_was_tried_and_exhausted_the_memory_does_not_fit():
    untried = dataclasses.replace(PLAN, measured=None)
    assert untried.memory < 10**9
    assert not untried.fits
    assert not dataclasses.replace(untried, memory_limit=None).fits


@pytest.mark.parametrize("option", ["--devices", "--memory", "--link-latency"])
def test_wrong_options_are_refused_in_one_line(option, tmp_path, capsys):
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY_YAML)
    assert cli.main(["plan", str(path), option, "0"]) == 2
    assert f"error: {option} 0 is too small; give more than 0" in capsys.readouterr().err
