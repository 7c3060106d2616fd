"""Callbacks: what they get, what they may do, and the one that is shipped."""

import contextlib
import dataclasses
import logging
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.cli import main as cli
from jaxagents.training.checkpoints import Checkpoints
from jaxagents.training.trackers import read_json_lines
from tests.cli.test_main import TINY as TINY_YAML
from tests.ippo.test_training import FAST, TINY, assert_trees_equal
from tests.probes import Walk
from tests.training.test_json_lines import evaluation


def returning(value: float, n_updates_done: int = 0) -> ja.Evaluation:
    """Make an evaluation whose mean over episodes and actors is a value, as no single one is."""
    return evaluation(n_updates_done, returns=np.array([[value - 2, value + 2]] * 2))


def stops(callback, values) -> list[bool]:
    return [callback(returning(value, i)) for i, value in enumerate(values)]


def test_training_stops_at_the_first_mean_return_that_reaches_the_target():
    assert stops(ja.StopAtReturn(5.0), [4.9, np.nan, 5.0]) == [False, False, True]


def test_patience_waits_for_evaluations_in_a_row():
    values = [5.0, 4.0, 5.0, 6.0]
    assert stops(ja.StopAtReturn(5.0, patience=2), values) == [False, False, False, True]


def test_another_training_is_waited_for_anew():
    callback = ja.StopAtReturn(5.0, patience=2)
    assert stops(callback, [4.0, 5.0]) == [False, False]
    assert stops(callback, [5.0, 5.0]) == [False, True]


def test_what_cannot_be_reached_is_refused():
    with pytest.raises(ValueError, match="patience=0 is too small"):
        ja.StopAtReturn(5.0, patience=0)
    without_returns = evaluation()._replace(metrics={})
    with pytest.raises(ValueError, match="choose n_evals > 0"):
        ja.StopAtReturn(5.0)(without_returns)


@contextlib.contextmanager
def compilations_counted():
    """Count how often jax compiles functions, by their names."""
    logger, handler, messages = logging.getLogger("jax"), logging.Handler(), []
    handler.emit = lambda record: messages.append(record.getMessage())
    logger.addHandler(handler)
    jax.config.update("jax_log_compiles", True)  # other threads do not see jax's context managers
    try:
        yield lambda name: sum(f"Finished XLA compilation of jit({name})" in m for m in messages)
    finally:
        jax.config.update("jax_log_compiles", False)
        logger.removeHandler(handler)


@pytest.fixture(scope="module")
def observed():
    """A training whose callbacks used jax, and what they saw."""
    seen, programs, rng = [], [], jax.random.key(7)
    observation, _ = Walk().reset(rng, None)

    def look(event: ja.Evaluation) -> None:
        own = event.agent.eval(rng, n_evals=2, runner=event.runner)
        seen.append((event, np.asarray(event.policy(observation)), np.asarray(own["returns"])))
        programs.append(n_compiled("_update_repeatedly"))

    agent = ja.DiscreteIPPO(Walk(), None, TINY, callbacks=[look])
    with compilations_counted() as n_compiled:
        runner, metrics = agent.train(jax.random.key(0), FAST)
    assert programs == [1, 1, 1]  # the block after a callback is the same compiled program
    return agent, runner, metrics, seen, (rng, observation)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The same training, recorded, but without callbacks; and its directory."""
    config = dataclasses.replace(TINY, checkpoint_dir=tmp_path_factory.mktemp("run"))
    agent = ja.DiscreteIPPO(Walk(), None, config)
    return agent, *agent.train(jax.random.key(0), FAST)


def test_a_callback_may_act_and_play_by_the_policies_of_the_moment(observed):
    agent, runner, _, seen, (rng, observation) = observed
    assert [event.n_updates_done for event, *_ in seen] == [0, 2, 3]
    event, actions, returns = seen[-1]
    assert_trees_equal(event.runner.actor.params, runner.actor.params)
    np.testing.assert_array_equal(actions, agent.policy(runner, observation))
    np.testing.assert_array_equal(returns, agent.eval(rng, n_evals=2, runner=runner)["returns"])


def test_callbacks_change_no_bit_and_no_row(observed, straight):
    _, runner, metrics, seen, _ = observed
    _, plain, plain_metrics = straight
    assert_trees_equal((runner.actor, runner.critic), (plain.actor, plain.critic))
    assert_trees_equal(metrics, plain_metrics)
    for i, (event, *_) in enumerate(seen):
        for name, values in event.metrics.items():
            np.testing.assert_array_equal(values, metrics[name][i])


def test_what_callbacks_get_is_numpy_and_tells_the_speed(observed):
    events = [event for event, *_ in observed[3]]
    assert all(type(each) is np.ndarray for event in events for each in event.metrics.values())
    assert np.isnan(events[0].steps_per_second)
    steps = events[1].n_environment_steps / (events[1].seconds - events[0].seconds)
    assert events[1].steps_per_second == pytest.approx(steps)


def test_a_training_that_a_callback_ended_is_resumed_to_the_same_bits(tmp_path, straight):
    config = dataclasses.replace(TINY, checkpoint_dir=tmp_path / "run")
    ends = [True]

    def end_once(event: ja.Evaluation) -> bool:
        return event.n_updates_done == 2 and ends.pop()

    agent = ja.DiscreteIPPO(Walk(), None, config, callbacks=[end_once])
    stopped, _ = agent.train(jax.random.key(0), FAST)
    assert int(stopped.n_updates_done) == 2
    resumed, metrics = agent.resume()
    assert_trees_equal((resumed.actor, resumed.critic), (straight[1].actor, straight[1].critic))
    assert_trees_equal(metrics, straight[2])


@pytest.mark.parametrize(
    ("answer", "n_updates"),
    [
        (np.bool_(True), 0),
        (jnp.array(True), 0),
        (np.bool_(False), 3),
        (1, 3),
        ([True], 3),
        (np.array([True]), 3),
        ((np.zeros(3), 2), 3),
        (jax.random.key(0), 3),
    ],
    ids=repr,
)
def test_a_callback_ends_a_training_by_a_true_of_any_library_and_by_nothing_else(answer, n_updates):
    agent = ja.DiscreteIPPO(Walk(), None, TINY, callbacks=[lambda _: answer])
    runner, _ = agent.train(jax.random.key(0), FAST)
    assert int(runner.n_updates_done) == n_updates


def test_a_run_from_before_a_metric_existed_is_resumed_with_nan_for_it(tmp_path, straight):
    directory = shutil.copytree(straight[0].config.checkpoint_dir, tmp_path / "run")
    checkpoints = Checkpoints(directory)
    config = dataclasses.replace(TINY, n_steps=4, checkpoint_dir=directory)
    agent = ja.DiscreteIPPO(Walk(), None, config)
    read = checkpoints.read_history(checkpoints.last_step())
    del read["learning_rate"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "read_history", lambda *_: read)
        _, metrics = agent.resume()
    rates = np.asarray(metrics["learning_rate"])[:, 0]
    np.testing.assert_array_equal(np.isfinite(rates), [False, False, False, True])
    np.testing.assert_array_equal(metrics["kl"][:3], straight[2]["kl"])
    _, history = agent.restore("last")
    np.testing.assert_array_equal(history["learning_rate"], metrics["learning_rate"])


def test_the_learning_rate_that_is_tracked_is_the_mean_of_those_used():
    hyperparams = FAST.replace(actor_optimizer_params=ja.OptimizerParams(learning_rate=0.01))
    config = dataclasses.replace(TINY, learning_rate_schedule="linear")
    _, metrics = ja.DiscreteIPPO(Walk(), None, config).train(jax.random.key(0), hyperparams)
    expected = [np.nan, 0.01 * (1 + 2 / 3) / 2, 0.01 / 3]  # updates 0 and 1, then 2, of 3
    np.testing.assert_allclose(metrics["learning_rate"][:, 0], expected, rtol=1e-6)


def test_the_learning_rate_that_adapts_is_tracked_update_by_update():
    config = dataclasses.replace(TINY, learning_rate_schedule="kl", eval_frequency=1)
    used = []
    agent = ja.DiscreteIPPO(
        Walk(), None, config, callbacks=[lambda e: used.append(e.runner.learning_rate)]
    )
    _, metrics = agent.train(jax.random.key(0), FAST.replace(kl_target=1e-9))
    np.testing.assert_array_equal(metrics["learning_rate"][1:], np.stack(used)[:-1])
    assert metrics["learning_rate"][3, 0] < metrics["learning_rate"][1, 0]


def test_a_run_ends_at_the_return_of_its_configuration_and_ends_well(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY_YAML)
    assert cli.main(["train", "tiny.yaml", "--agent.n_steps=100000", "--stop_at_return=-1000"]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    why = "Ended after 0 of 100,000 updates: the return has reached stop_at_return=-1000.0."
    assert why in capsys.readouterr().out
    assert [each["n_updates_done"] for each in read_json_lines(run / "metrics.jsonl")] == [0]
    assert (run / "summary.json").exists()
    assert (run / "learning_curve.png").exists()
    assert cli.main(["resume", str(run)]) == 0
    assert why in capsys.readouterr().out
    assert [each["n_updates_done"] for each in read_json_lines(run / "metrics.jsonl")] == [0]


def test_a_return_to_stop_at_needs_evaluations(tmp_path, capsys):
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY_YAML)
    assert cli.main(["train", str(path), "--stop_at_return=1", "--agent.n_evals=0"]) == 2
    assert "stop_at_return=1.0 needs evaluations" in capsys.readouterr().err
