"""Populations: several members trained together, with one checkpoint."""

import logging
import shutil
import signal
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.compiler.tuned_forms import plain_jax
from jaxagents.types import Metrics
from tests.agents import COORDINATION, FAST, assert_trees_equal, shared_agent, tiny
from tests.probes import Pennies

KEYS = jax.vmap(jax.random.key)(jnp.arange(3))
EVALUATED = {"n_steps": 4, "eval_frequency": 2, "n_evals": 3}


def saving(directory, callbacks=(), **changes):
    config = tiny(**{**EVALUATED, "checkpoint_dir": directory, **changes})
    return ja.DiscreteIPPO(COORDINATION, None, config, callbacks)


def assert_members_are_runs(agent, runner, metrics, hyperparams, keys=KEYS):
    for i, (key, each) in enumerate(zip(keys, hyperparams, strict=True)):
        assert_trees_equal(agent.member((runner, metrics), i), agent.train(key, each))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Train a population with checkpoints; return its agent and results."""
    agent = saving(tmp_path_factory.mktemp("saved"))
    return agent, agent.train(KEYS, FAST)


class Stopped(NamedTuple):
    """A population that a callback stopped after two updates."""

    directory: Path
    seen: list[ja.Evaluation]
    runner: ja.Runner
    metrics: Metrics


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    seen = []

    def look(evaluation):
        seen.append(evaluation)
        return evaluation.n_updates_done == 2

    directory = tmp_path_factory.mktemp("stopped")
    return Stopped(directory, seen, *saving(directory, [look]).train(KEYS, FAST))


def test_each_member_is_its_run_alone():
    agent = shared_agent(COORDINATION, **EVALUATED)
    runner, metrics = agent.train(KEYS, FAST)
    assert_members_are_runs(agent, runner, metrics, [FAST] * 3)


@pytest.mark.slow
@pytest.mark.parametrize("recurrent", [None, "gru"])
def test_members_are_runs_alone_and_may_differ_in_hyperparameters(recurrent):
    changes = {"recurrent": recurrent, "parameter_sharing": "independent"}
    agent = shared_agent(COORDINATION, **EVALUATED, **changes)
    rates, clips = [0.9, 0.95, 0.99], [[0.1, 0.2], [0.3, 0.4], [0.2, 0.2]]
    runner, metrics = agent.train(KEYS, FAST.replace(gamma=rates, eps_clip=clips))
    assert metrics["returns"].shape == (3, 3, 3, COORDINATION.n_actors)
    assert_members_are_runs(
        agent,
        runner,
        metrics,
        [FAST.replace(gamma=g, eps_clip=c) for g, c in zip(rates, clips, strict=True)],
    )


@pytest.mark.slow
def test_one_key_trains_stacked_hyperparameters():
    agent = shared_agent(COORDINATION, **EVALUATED)
    key, rates = jax.random.key(5), [[1e-2], [1e-3]]
    optimizer = ja.OptimizerParams(learning_rate=rates)
    runner, metrics = agent.train(key, FAST.replace(actor_optimizer_params=optimizer))
    each = [
        FAST.replace(actor_optimizer_params=ja.OptimizerParams(learning_rate=rate))
        for rate in rates
    ]
    assert_members_are_runs(agent, runner, metrics, each, [key, key])


@pytest.mark.slow
def test_members_do_not_depend_on_how_many_there_are():
    agent = shared_agent(COORDINATION, **EVALUATED)
    runner, metrics = agent.train(KEYS, FAST)
    few = agent.train(KEYS[:2], FAST)
    for i in range(2):
        assert_trees_equal(agent.member((runner, metrics), i), agent.member(few, i))


@pytest.mark.slow
def test_as_one_batch_members_are_the_same_but_for_rounding():
    config = tiny(**EVALUATED)
    runner, metrics = ja.DiscreteIPPO(COORDINATION, None, config).train(KEYS, FAST)
    with plain_jax():
        batched = ja.DiscreteIPPO(COORDINATION, None, config).train(KEYS, FAST)
    for mine, other in zip(
        jax.tree.leaves((runner.actor, metrics)),
        jax.tree.leaves((batched[0].actor, batched[1])),
        strict=True,
    ):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


def test_one_checkpoint_holds_all_and_each_members_best(saved):
    agent, (runner, metrics) = saved
    last, history = agent.restore("last")
    assert_trees_equal(last, runner)
    assert_trees_equal(history, metrics)

    best, _ = agent.restore("best")

    returns = np.asarray(metrics["returns"]).mean(axis=(2, 3))
    rows = [np.flatnonzero(each == each.max())[-1] for each in returns]  # of equals, the later
    expected = [metrics["n_updates_done"][i, row] for i, row in enumerate(rows)]
    np.testing.assert_array_equal(best.n_updates_done, expected)
    for i in range(3):
        alone, own = agent.restore("best", member=i)
        assert_trees_equal(alone, agent.member(best, i))
        assert_trees_equal(own, agent.member(metrics, i))
        agent.policy(None, COORDINATION.reset_env(KEYS[0], None)[0])
    overall, _ = agent.restore("best", member="best")
    assert_trees_equal(overall, agent.member(best, int(np.argmax(returns.max(axis=1)))))


def test_a_resumed_population_is_bit_identical(saved, stopped, tmp_path):
    whole, (expected, history) = saved
    agent = saving(shutil.copytree(stopped.directory, tmp_path / "run"))
    runner, metrics = agent.resume()

    assert_trees_equal(runner, expected)
    assert_trees_equal(metrics, history)
    assert_trees_equal(agent.restore("best")[0], whole.restore("best")[0])


@pytest.mark.slow
def test_an_interrupted_population_resumes_bit_for_bit(tmp_path):
    longer = {**EVALUATED, "n_steps": 40}  # the signal takes a while
    whole, expected = shared_agent(COORDINATION, **longer).train(KEYS, FAST)

    def interrupt(evaluation):
        if evaluation.n_updates_done == 2:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(ja.Interrupted):
        saving(tmp_path, [interrupt], **longer).train(KEYS, FAST)
    agent = saving(tmp_path, **longer)
    assert agent.restore("last")[0].n_updates_done[0] < 40
    runner, metrics = agent.resume()
    assert_trees_equal(runner, whole)
    assert_trees_equal(metrics, expected)


def test_a_population_goes_on_from_a_runner(saved, stopped):
    runner, _ = shared_agent(COORDINATION, **EVALUATED).train(None, FAST, stopped.runner)
    assert_trees_equal(runner, saved[1][0])


def test_a_population_of_another_environment_is_named_by_what_differs(saved):
    runner = saved[1][0].replace(n_updates_done=jnp.zeros(3, jnp.int32))
    agent = ja.DiscreteIPPO(Pennies(), None, tiny(**EVALUATED))
    message = (
        r"^the runner is of another agent: actor\.\S* is \[3, 1, .*\] there and \[3, 1, 2\] in"
    )
    with pytest.raises(ValueError, match=message):
        agent.train(None, FAST, runner)


DIVERGING = FAST.replace(vf_coeff=[0.5, 3e38, 0.5], gamma=[0.99, 0.5, 0.99])


def test_a_member_that_diverges_stops_alone(caplog):
    agent = shared_agent(COORDINATION, **EVALUATED)
    with caplog.at_level(logging.WARNING):
        runner, metrics = agent.train(KEYS, DIVERGING)

    assert "member 1 has stopped, the others continue: update 1 has NaN or infinity" in caplog.text
    assert np.isnan(metrics["returns"][1, 1:]).all()
    for i in (0, 2):
        alone = agent.train(KEYS[i], FAST.replace(gamma=0.99))
        assert_trees_equal(agent.member((runner, metrics), i), alone)


@pytest.mark.slow
def test_a_resumed_population_leaves_stopped_members_alone(tmp_path):
    whole = saving(tmp_path / "whole").train(KEYS, DIVERGING)
    saving(tmp_path / "part", n_steps=2).train(KEYS, DIVERGING)
    assert_trees_equal(saving(tmp_path / "part").resume(), whole)


def test_if_all_members_diverge_training_fails():
    agent = shared_agent(COORDINATION, **EVALUATED)
    with pytest.raises(ja.NonFiniteError, match="update 1 has NaN"):
        agent.train(KEYS[:2], FAST.replace(vf_coeff=3e38))


@pytest.mark.slow
def test_callbacks_see_all_members(stopped):
    _, seen, runner, metrics = stopped
    assert [each.n_updates_done for each in seen] == [0, 2]
    np.testing.assert_array_equal(seen[1].metrics["returns"], metrics["returns"][:, 1])
    np.testing.assert_array_equal(runner.n_updates_done, 2)
    agent, member = shared_agent(COORDINATION, **EVALUATED), seen[1].member(2)
    np.testing.assert_array_equal(member.metrics["kl"], metrics["kl"][2, 1])
    assert_trees_equal(member.runner, agent.member(runner, 2))
    assert np.isnan(metrics["returns"][:, 2]).all()


@pytest.mark.parametrize(
    ("keys", "changes", "message"),
    [
        (KEYS, {"gamma": [[0.9], [0.9]]}, "rng is for 3, gamma is for 2"),
        (KEYS, {"gamma": [0.9] * 4}, r"gamma has shape \(4,\); a population of 3 takes"),
        (KEYS, {"gamma": [0.9, 2.0, 0.9]}, "gamma=2.0 is out of range"),
        (KEYS[:0], {}, "no members"),
        (jnp.stack([KEYS, KEYS]), {}, r"rng has shape \(2, 3\)"),
    ],
    ids=["disagreeing", "another number", "out of range", "none", "matrix"],
)
def test_keys_and_hyperparameters_that_do_not_fit_are_refused(keys, changes, message):
    agent = shared_agent(COORDINATION, **EVALUATED)
    with pytest.raises(ValueError, match=message):
        agent.train(keys, FAST.replace(**changes))


def test_values_for_as_many_members_as_policies_are_refused():
    agent = shared_agent(COORDINATION, **EVALUATED, parameter_sharing="independent")
    with pytest.raises(ValueError, match=r"gamma has 2 values, for as many members and policies"):
        agent.train(KEYS[:2], FAST.replace(gamma=[0.9, 0.99]))


def test_a_population_is_not_played_as_one(saved):
    agent, (runner, metrics) = saved
    with pytest.raises(ValueError, match=r"population of 3; choose one by agent.member"):
        agent.eval(KEYS[0], 2, runner=runner)
    with pytest.raises(ValueError, match=r"population of 3; choose one by agent.member"):
        agent.diagnose(runner, metrics)
    with pytest.raises(IndexError, match="member 3 of a population of 3"):
        agent.member(runner, 3)
    with pytest.raises(ValueError, match="member='worst' is unknown"):
        agent.restore(member="worst")
    with pytest.raises(ValueError, match="only populations have members"):
        agent.member(agent.member(runner, 0), 0)
    with pytest.raises(ValueError, match="best_fn chooses among the checkpoints of a single run"):
        agent.restore(best_fn=lambda metrics: 0)


def test_a_single_run_has_no_members(tmp_path):
    agent = saving(tmp_path)
    agent.train(KEYS[0], FAST)
    with pytest.raises(ValueError, match="the run is not a population"):
        agent.restore(member=0)
