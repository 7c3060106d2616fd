"""Checkpoints of real runs on disk, through the public contract."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.training.checkpoints import Checkpoints
from jaxagents.training.saved_run import highest_return
from tests.agents import FAST, WALK, assert_trees_equal, tiny
from tests.probes import Aim, Walk
from tests.recording import leaves_of, recording_agent

REPOSITORY = Path(__file__).parents[2]


def agent_with(directory, **changes) -> ja.DiscreteIPPO:
    return ja.DiscreteIPPO(WALK, None, tiny(checkpoint_dir=directory, **{"n_steps": 8} | changes))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of 8 updates, evaluated at 0, 2, 4, 6 and 8; the 2 latest and 2 best are kept.

    Its directory held somebody's notes before.
    """
    directory = tmp_path_factory.mktemp("run") / "checkpoints"
    (directory / "notes").mkdir(parents=True)
    (directory / "notes" / "mine.txt").write_text("keep")
    runner, metrics = recording_agent(directory, keep_best=2).train(jax.random.key(0), FAST)
    return directory, runner, metrics


def test_the_last_checkpoint_is_the_runner_that_train_returns(trained):
    directory, runner, metrics = trained
    restored, history = recording_agent(directory).restore(mode="last")
    assert_trees_equal(restored, runner)
    assert_trees_equal(history, metrics)


def test_the_latest_and_the_best_checkpoints_are_kept(trained):
    directory, _, metrics = trained
    scores = np.asarray(metrics["returns"]).mean(axis=(1, 2))
    # Of equal returns the later checkpoints stay.
    best = sorted(range(5), key=lambda row: (scores[row], row))[-2:]
    assert Checkpoints(directory).steps() == sorted({6, 8} | {2 * row for row in best})


def test_best_is_the_highest_mean_return_among_the_kept_checkpoints(trained):
    directory, _, metrics = trained
    steps = Checkpoints(directory).steps()
    scores = {step: float(np.mean(metrics["returns"][step // 2])) for step in steps}
    restored, _ = recording_agent(directory).restore()
    assert scores[int(restored.n_updates_done)] == max(scores.values())


def test_best_is_the_last_of_equal_returns():
    returns = np.float32([[1.0], [1e8], [-1e8]])  # in this precision their sum depends on the order
    history = np.stack([returns[order] for order in ([1, 0, 2], [1, 2, 0], [0, 1, 2], [1, 0, 2])])
    assert [highest_return({"returns": history[:n]}) for n in (1, 2, 3, 4)] == [0, 1, 2, 3]
    assert highest_return({"returns": np.array([[[1.0]], [[2.0]], [[np.nan]]])}) == 1


def test_best_fn_chooses_a_row_of_the_kept_checkpoints(trained):
    directory, _, _ = trained
    steps = Checkpoints(directory).steps()

    def first(metrics):
        np.testing.assert_array_equal(metrics["n_updates_done"], steps)
        return 0

    agent = recording_agent(directory)
    restored, history = agent.restore(best_fn=first)
    assert int(restored.n_updates_done) == steps[0]
    assert len(history["n_updates_done"]) == 5
    with pytest.raises(ValueError, match=r"row 9 of \d kept checkpoints"):
        agent.restore(best_fn=lambda metrics: 9)
    for value in (None, 1.5, np.zeros(2)):
        with pytest.raises(TypeError, match=r"^best_fn returned \w+; return the index of a row"):
            agent.restore(best_fn=lambda metrics, value=value: value)


def test_restoring_reads_only_one_runner(trained, monkeypatch):
    directory, _, _ = trained
    read = []
    original = Checkpoints.read_runner

    def spy(self, step):
        read.append(step)
        return original(self, step)

    monkeypatch.setattr(Checkpoints, "read_runner", spy)
    recording_agent(directory).restore(mode="best")
    assert len(read) == 1


@pytest.mark.slow  # commands read the runs of other commands in tests/cli
def test_a_new_process_restores_and_plays_the_same(trained):
    directory, runner, _ = trained
    code = f"""
import jax, jaxagents as ja
from tests.ippo.test_checkpoints import agent_with
agent = agent_with({str(directory)!r})
agent.restore(mode="last")
print(float(agent.eval(jax.random.key(5), n_evals=3, greedy=False)["returns"].sum()))
"""
    output = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
    )
    agent = recording_agent(directory)
    returns = agent.eval(jax.random.key(5), n_evals=3, greedy=False, runner=runner)["returns"]
    assert float(output.stdout.splitlines()[-1]) == float(returns.sum())


def test_a_directory_that_holds_a_run_is_not_trained_into(trained):
    directory, _, _ = trained
    before = sorted(path for path in directory.rglob("*"))
    with pytest.raises(ValueError, match=r"resume.*restore.*another directory"):
        recording_agent(directory).train(jax.random.key(0), FAST)
    assert sorted(path for path in directory.rglob("*")) == before


def test_constructing_an_agent_touches_no_directory(tmp_path):
    agent_with(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_other_files_in_the_directory_are_kept(trained):
    assert (trained[0] / "notes" / "mine.txt").read_text() == "keep"


def test_a_resumed_run_continues_to_n_steps_as_if_never_interrupted(trained, tmp_path):
    _, straight, metrics = trained

    def stop(evaluation: ja.Evaluation) -> bool:
        return evaluation.n_updates_done == 4

    stopped, _ = recording_agent(tmp_path, [stop]).train(jax.random.key(0), FAST)
    assert int(stopped.n_updates_done) == 4
    resumed, history = recording_agent(tmp_path).resume()
    assert_trees_equal(leaves_of(resumed), leaves_of(straight))
    assert_trees_equal(history, metrics)
    with pytest.raises(ValueError, match="larger n_steps"):
        recording_agent(tmp_path).resume()


@pytest.fixture(scope="module")
def without_evaluation(tmp_path_factory):
    """A run without evaluations, of policies with thresholds of their own; and its agent."""
    directory = tmp_path_factory.mktemp("run")
    agent = agent_with(
        directory, n_steps=4, n_evals=0, keep_latest=9, parameter_sharing="independent"
    )
    agent.train(jax.random.key(0), FAST.replace(kl_threshold=jnp.array([0.01, jnp.inf])))
    return directory, agent


@pytest.mark.slow
def test_checkpoints_are_written_even_without_evaluation(without_evaluation):
    directory, agent = without_evaluation
    assert Checkpoints(directory).steps() == [0, 2, 4]
    assert int(agent.restore(mode="last")[0].n_updates_done) == 4
    with pytest.raises(ValueError, match="not evaluated"):
        agent.restore(mode="best")


@pytest.mark.slow
def test_hyperparameters_per_policy_are_restored(without_evaluation):
    _, agent = without_evaluation
    runner, _ = agent.restore(mode="last")
    np.testing.assert_array_equal(runner.hyperparams.kl_threshold, np.float32([0.01, np.inf]))


def test_a_checkpoint_precedes_training_even_without_an_initial_evaluation(tmp_path):
    agent = recording_agent(tmp_path, keep_latest=9)
    agent.run.train(agent.init(jax.random.key(0), FAST), 0, initial=False)
    assert Checkpoints(tmp_path).steps() == [0, 2, 4, 6, 8]
    runner, history = agent.restore(mode="last")
    np.testing.assert_array_equal(history["n_updates_done"], [2, 4, 6, 8])
    assert int(runner.n_updates_done) == 8


def test_a_checkpoint_of_another_agent_is_refused(trained):
    directory, _, _ = trained
    for agent in (
        ja.DiscreteIPPO(Walk((100,) * 3), None, tiny(checkpoint_dir=directory)),
        ja.ContinuousIPPO(Aim(), None, tiny(checkpoint_dir=directory)),
        agent_with(directory, parameter_sharing="independent"),
    ):
        with pytest.raises(ValueError, match="belongs to another agent") as raised:
            agent.restore(mode="last")
        assert "\n" not in str(raised.value)


def test_a_checkpoint_of_a_newer_format_is_refused(trained, monkeypatch):
    directory, _, _ = trained
    monkeypatch.setattr("jaxagents.training.checkpoints.FORMAT_VERSION", 0)
    with pytest.raises(ValueError, match="Install a newer one"):
        recording_agent(directory).restore()


def test_an_empty_directory_has_nothing_to_restore(tmp_path):
    with pytest.raises(ValueError, match="holds no checkpoint"):
        recording_agent(tmp_path).restore()


def test_leaves_of_every_dtype_are_restored_unchanged(tmp_path):
    leaves = {
        "actor.params.kernel": np.asarray(jnp.array([1.5, -2.0], jnp.bfloat16)),
        "actor.opt_state.mu": np.asarray(jnp.array([0.25], jnp.bfloat16)),
        "env_state.alive": np.array([True, False]),
        "rng": np.array([1, 2], np.uint32),
        "n_updates_done": np.int32(2),
    }
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(0, leaves, {}, {}, 0.0)
    restored = checkpoints.read_runner(0)
    assert {name: leaf.dtype for name, leaf in restored.items()} == {
        name: leaf.dtype for name, leaf in leaves.items()
    }
    for name, leaf in leaves.items():
        np.testing.assert_array_equal(restored[name], leaf)


def test_checkpoints_are_written_where_the_system_cannot_reserve_space(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "posix_fallocate", raising=False)  # macOS has none
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(0, {"leaf": np.arange(3)}, {}, {}, 0.0, with_params=False)
    np.testing.assert_array_equal(checkpoints.read_runner(0)["leaf"], [0, 1, 2])


@pytest.mark.slow
def test_a_relative_directory_is_where_the_agent_was_built(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    agent = agent_with("run")
    monkeypatch.chdir(tmp_path / "elsewhere")
    runner, _ = agent.train(jax.random.key(0), FAST)
    assert Checkpoints(tmp_path / "run").steps() == [6, 8]
    assert_trees_equal(agent.restore("last")[0], runner)
    assert not any((tmp_path / "elsewhere").iterdir())
