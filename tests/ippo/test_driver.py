"""The driver of runs, with learners that only count."""

import signal
import threading
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

import jaxagents as ja
from jaxagents.ippo import driver
from jaxagents.ippo.driver import Learners, drive
from jaxagents.training.recorder import Recorder, recording
from tests.agents import FAST, WALK, tiny


class Count(NamedTuple):
    runner: Array
    stop: Array


class Agent(NamedTuple):
    config: object


def runner_after(n_updates) -> Any:
    return SimpleNamespace(n_updates_done=n_updates)


def drive_two_twos_and_a_one(callbacks=(), stops_at=None, n_learners=1, report_themselves=None):
    """Count to 5 in three blocks; return the state, the metrics and the blocks' sizes."""
    sizes, config = [], tiny(n_steps=5, eval_frequency=2)

    def run_block(state, size):
        sizes.append(int(size))
        done = state.runner + size
        rows = [{"count": done + 0.5 * i} for i in range(n_learners)]
        return Count(done, jnp.array(int(done) == stops_at)), rows

    learners = Learners(
        agents=[Agent(config)] * n_learners,
        recorders=[Recorder(config, each, {}) for each in callbacks or [()] * n_learners],
        report_themselves=[False] * n_learners if report_themselves is None else report_themselves,
        run_block=run_block,
        runners=lambda state: [runner_after(state.runner)] * n_learners,
    )
    start = Count(jnp.int32(0), jnp.array(False))
    state, metrics = drive(learners, start, 0, initial=False, histories=[None] * n_learners)
    return state, metrics, sizes


def test_all_blocks_run_and_leave_a_row_each():
    state, (metrics,), sizes = drive_two_twos_and_a_one()
    assert state.runner == 5
    assert sizes == [2, 2, 1]
    np.testing.assert_array_equal(metrics["count"], [2, 4, 5])


@pytest.mark.parametrize(
    "stop",
    [{"callbacks": [[lambda evaluation: evaluation.n_updates_done == 4]]}, {"stops_at": 4}],
    ids=["by a callback", "by the block"],
)
def test_a_run_that_stops_leaves_rows_of_nan(stop):
    state, (metrics,), sizes = drive_two_twos_and_a_one(**stop)
    assert state.runner == 4
    assert sizes == [2, 2]
    np.testing.assert_array_equal(metrics["count"], [2, 4, np.nan])


def test_a_block_that_fails_is_not_reported():
    seen = []
    drive_two_twos_and_a_one([[lambda each: seen.append(each.n_updates_done)]], stops_at=4)
    assert seen == [2]


def test_a_callback_that_raises_ends_the_run_of_all_once_all_were_called():
    seen = []

    def fail(evaluation):
        raise ZeroDivisionError(evaluation.n_updates_done)

    def note(evaluation):
        seen.append((evaluation.n_updates_done, evaluation.metrics["count"].item()))

    with pytest.raises(ZeroDivisionError, match="2"):
        drive_two_twos_and_a_one([[fail], [note]], n_learners=2)
    assert seen == [(2, 2.5)]


def test_only_learners_whose_programs_do_not_report_are_reported():
    seen = []

    def note(name, evaluation):
        seen.append((name, evaluation.n_updates_done))

    callbacks = [[partial(note, name)] for name in ("reports itself", "is reported")]
    drive_two_twos_and_a_one(callbacks, n_learners=2, report_themselves=[True, False])
    assert seen == [("is reported", n) for n in (2, 4, 5)]


def test_an_error_of_a_callback_is_raised_although_a_signal_has_arrived_too():
    def fail(evaluation):
        signal.raise_signal(signal.SIGINT)
        raise ZeroDivisionError

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(ZeroDivisionError):
            drive_two_twos_and_a_one([[fail]])
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_signal_that_arrives_while_processes_exchange_theirs_ends_the_next_block(monkeypatch):
    """Simulated: two processes, of which the other has no signal."""

    def largest(value):
        if not calls:
            signal.raise_signal(signal.SIGINT)  # once this process's number has been read
        calls.append(value)
        return value

    monkeypatch.setattr(driver, "n_processes", lambda: 2)
    monkeypatch.setattr(driver, "largest", largest)
    calls, seen = [], []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            drive_two_twos_and_a_one([[lambda each: seen.append(each.n_updates_done)]])
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [2, 4]


def test_a_program_that_was_left_running_reports_nothing_more():
    seen = []
    recorder = Recorder(tiny(), [seen.append], {})
    row = {"count": np.float32(1)}
    with recording([recorder], 0, [None]):
        assert not recorder.on_evaluation(runner_after(1), row)
        recorder.call_back(None, runner_after(1))
    assert recorder.on_evaluation(runner_after(2), row)
    recorder.call_back(None, runner_after(2))
    assert [each.n_updates_done for each in seen] == [1]


def test_a_history_precedes_the_rows():
    config = tiny(n_steps=3, eval_frequency=2)

    def run_block(state, size):
        return Count(state.runner + size, state.stop), [{"count": size + 0.5}]

    learners = Learners(
        agents=[Agent(config)],
        recorders=[Recorder(config, (), {})],
        report_themselves=[True],
        run_block=run_block,
        runners=lambda state: [state],
    )
    start = Count(jnp.int32(2), jnp.array(False))
    _, (metrics,) = drive(learners, start, 2, False, [{"count": np.array([7.0], np.float32)}])
    assert isinstance(metrics["count"], jax.Array)
    np.testing.assert_array_equal(metrics["count"], [7, 1.5])


@pytest.mark.slow
def test_training_with_checkpoints_runs_in_the_callers_thread_and_its_contexts(tmp_path):
    seen = []

    def look(evaluation):
        jax_config: Any = jax.config
        seen.append(
            (
                threading.current_thread() is threading.main_thread(),
                jax_config.jax_default_matmul_precision,
            )
        )

    config = tiny(n_steps=1, checkpoint_dir=tmp_path)
    with jax.default_matmul_precision("highest"):
        ja.DiscreteIPPO(WALK, None, config, [look]).train(jax.random.key(0), FAST)
    assert seen == [(True, "highest")] * 2
