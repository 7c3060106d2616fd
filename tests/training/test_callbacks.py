"""Callbacks: what they receive, what they may do, and `StopAtReturn`."""

import contextlib
import dataclasses
import logging
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.training.checkpoints import Checkpoints
from tests.agents import FAST, WALK, assert_trees_equal, begin, shared_agent
from tests.recording import RECORDED, leaves_of, recording_agent
from tests.training.test_json_lines import evaluation


def returning(value: float, n_updates_done: int = 0) -> ja.Evaluation:
    """Make an evaluation with this mean over episodes and actors, and no such single return."""
    return evaluation(n_updates_done, returns=np.array([[value - 2, value + 2]] * 2))


def answers(callback, values) -> list[bool]:
    return [callback(returning(value, i)) for i, value in enumerate(values)]


def test_training_stops_at_the_first_mean_return_that_reaches_the_target():
    assert answers(ja.StopAtReturn(5.0), [4.9, np.nan, 5.0]) == [False, False, True]


def test_patience_counts_consecutive_evaluations():
    values = [5.0, 4.0, 5.0, 6.0]
    assert answers(ja.StopAtReturn(5.0, patience=2), values) == [False, False, False, True]


def test_patience_counts_anew_in_another_training():
    callback = ja.StopAtReturn(5.0, patience=2)
    assert answers(callback, [4.0, 5.0]) == [False, False]
    assert answers(callback, [5.0, 5.0]) == [False, True]


def test_targets_that_cannot_be_reached_are_refused():
    with pytest.raises(ValueError, match="patience=0 is too small"):
        ja.StopAtReturn(5.0, patience=0)
    without_returns = evaluation()._replace(metrics={})
    with pytest.raises(ValueError, match="choose n_evals > 0"):
        ja.StopAtReturn(5.0)(without_returns)


@contextlib.contextmanager
def compilations_counted():
    """Count how often jax compiles a function of a given name."""
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
    """A training whose callback uses jax, and what the callback saw."""
    seen, programs, rng = [], [], jax.random.key(7)
    observation, _ = WALK.reset(rng, None)

    def look(event: ja.Evaluation) -> None:
        own = event.agent.eval(rng, n_evals=2, runner=event.runner)
        seen.append((event, np.asarray(event.policy(observation)), np.asarray(own["returns"])))
        programs.append(n_compiled("update_repeatedly"))

    config = dataclasses.replace(RECORDED, checkpoint_dir=None)
    agent = ja.DiscreteIPPO(WALK, None, config, callbacks=[look])
    with compilations_counted() as n_compiled:
        runner, metrics = agent.train(jax.random.key(0), FAST)
    assert programs == [1] * 5  # the block after a callback is the same compiled program
    return agent, runner, metrics, seen, (rng, observation)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The directory of the same training without callbacks, and its results."""
    directory = tmp_path_factory.mktemp("run")
    return directory, *recording_agent(directory).train(jax.random.key(0), FAST)


def test_a_callback_may_act_and_evaluate_with_the_current_policies(observed):
    agent, runner, _, seen, (rng, observation) = observed
    assert [event.n_updates_done for event, *_ in seen] == [0, 2, 4, 6, 8]
    event, actions, returns = seen[-1]
    assert_trees_equal(event.runner.actor.params, runner.actor.params)
    np.testing.assert_array_equal(actions, agent.policy(runner, observation))
    np.testing.assert_array_equal(returns, agent.eval(rng, n_evals=2, runner=runner)["returns"])


@pytest.mark.slow
def test_callbacks_do_not_change_training(observed, straight):
    _, runner, metrics, seen, _ = observed
    _, plain, plain_metrics = straight
    assert_trees_equal((runner.actor, runner.critic), (plain.actor, plain.critic))
    assert_trees_equal(metrics, plain_metrics)
    for i, (event, *_) in enumerate(seen):
        for name, values in event.metrics.items():
            np.testing.assert_array_equal(values, metrics[name][i])


def test_callbacks_receive_numpy_arrays_and_the_speed(observed):
    events = [event for event, *_ in observed[3]]
    assert all(type(each) is np.ndarray for event in events for each in event.metrics.values())
    assert np.isnan(events[0].steps_per_second)
    steps = events[1].n_environment_steps / (events[1].seconds - events[0].seconds)
    assert events[1].steps_per_second == pytest.approx(steps)


def test_a_training_that_a_callback_ended_is_resumed_bit_for_bit(tmp_path, straight):
    ends = [True]

    def end_once(event: ja.Evaluation) -> bool:
        return event.n_updates_done == 2 and ends.pop()

    agent = recording_agent(tmp_path, [end_once])
    stopped, _ = agent.train(jax.random.key(0), FAST)
    assert int(stopped.n_updates_done) == 2
    resumed, metrics = agent.resume()
    assert_trees_equal(leaves_of(resumed), leaves_of(straight[1]))
    assert_trees_equal(metrics, straight[2])


@pytest.mark.parametrize(
    ("answer", "n_updates"),
    [
        (np.bool_(True), 0),
        (jnp.array(True), 0),
        (np.bool_(False), 8),
        (1, 8),
        ([True], 8),
        (np.array([True]), 8),
        ((np.zeros(3), 2), 8),
        (jax.random.key(0), 8),
    ],
    ids=repr,
)
def test_a_callback_ends_training_only_by_a_true_of_python_numpy_or_jax(answer, n_updates):
    runner, _ = recording_agent(None, [lambda _: answer]).train(jax.random.key(0), FAST)
    assert int(runner.n_updates_done) == n_updates


def test_a_run_from_before_a_metric_existed_is_resumed_with_nan_for_it(tmp_path, straight):
    directory = shutil.copytree(straight[0], tmp_path / "run")
    shutil.rmtree(directory / "8")
    read = Checkpoints(directory).read_history(6)
    del read["learning_rate"]
    agent = recording_agent(directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "read_history", lambda *_: read)
        _, metrics = agent.resume()
    rates = np.asarray(metrics["learning_rate"])[:, 0]
    np.testing.assert_array_equal(np.isfinite(rates), [False] * 4 + [True])
    np.testing.assert_array_equal(metrics["kl"], straight[2]["kl"])
    _, history = agent.restore("last")
    np.testing.assert_array_equal(history["learning_rate"], metrics["learning_rate"])


def test_the_tracked_learning_rate_is_the_mean_over_the_updates_of_a_block(straight):
    rates = FAST.actor_optimizer_params.learning_rate * (1 - np.arange(8) / 8)  # linear
    expected = [np.nan, *rates.reshape(4, 2).mean(axis=1)]
    np.testing.assert_allclose(straight[2]["learning_rate"][:, 0], expected, rtol=1e-6)


@pytest.mark.slow
def test_the_tracked_learning_rate_is_the_adapted_one_with_which_the_update_was_done():
    agent = shared_agent(learning_rate_schedule="kl")
    runner, before, used = begin(agent, kl_target=1e-9), [], []
    for _ in range(3):
        before.append(runner.learning_rate)
        runner, metrics = agent.step(runner)
        used.append(metrics["learning_rate"])
    np.testing.assert_array_equal(used, before)
    assert used[2] < used[0]
