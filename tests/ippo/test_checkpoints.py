"""Checkpoints of real trainings on disk, through the public contract."""

import dataclasses
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
from tests.ippo.test_training import FAST, TINY, assert_trees_equal
from tests.probes import Aim, Walk

REPOSITORY = Path(__file__).parents[2]


def agent_with(directory, **changes) -> ja.DiscreteIPPO:
    config = dataclasses.replace(TINY, n_steps=8, checkpoint_dir=directory, **changes)
    return ja.DiscreteIPPO(Walk(), None, config)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of 8 updates, evaluated at 0, 2, 4, 6 and 8, of which 2 latest and 2 best are kept."""
    directory = tmp_path_factory.mktemp("run") / "checkpoints"
    agent = agent_with(directory, keep_best=2)
    runner, metrics = agent.train(jax.random.key(0), FAST)
    return directory, runner, metrics


def test_the_last_checkpoint_is_the_runner_that_train_returns(trained):
    directory, runner, metrics = trained
    restored, history = agent_with(directory).restore(mode="last")
    assert_trees_equal(restored.replace(rng=0, env_state=0), runner.replace(rng=0, env_state=0))
    assert_trees_equal(restored.env_state, runner.env_state)
    np.testing.assert_array_equal(*map(jax.random.key_data, (restored.rng, runner.rng)))
    assert_trees_equal(history, metrics)


def test_the_latest_and_the_best_checkpoints_are_kept(trained):
    directory, _, metrics = trained
    scores = np.asarray(metrics["returns"]).mean(axis=(1, 2))
    # Among equal returns the later checkpoints stay.
    best = sorted(range(5), key=lambda row: (scores[row], row))[-2:]
    assert Checkpoints(directory).steps() == sorted({6, 8} | {2 * row for row in best})


def test_best_is_the_highest_mean_return_among_those_kept(trained):
    directory, _, metrics = trained
    steps = Checkpoints(directory).steps()
    scores = {step: float(np.mean(metrics["returns"][step // 2])) for step in steps}
    restored, _ = agent_with(directory).restore()
    assert scores[int(restored.n_updates_done)] == max(scores.values())


def test_best_fn_chooses_a_row_of_the_kept_checkpoints(trained):
    directory, _, _ = trained
    steps = Checkpoints(directory).steps()

    def first(metrics):
        np.testing.assert_array_equal(metrics["n_updates_done"], steps)
        return 0

    restored, history = agent_with(directory).restore(best_fn=first)
    assert int(restored.n_updates_done) == steps[0]
    assert len(history["n_updates_done"]) == 5
    with pytest.raises(ValueError, match=r"row 9 of \d kept checkpoints"):
        agent_with(directory).restore(best_fn=lambda metrics: 9)


def test_restoring_reads_one_runner_only(trained, monkeypatch):
    directory, _, _ = trained
    read = []
    original = Checkpoints.read_runner

    def spy(self, step):
        read.append(step)
        return original(self, step)

    monkeypatch.setattr(Checkpoints, "read_runner", spy)
    agent_with(directory).restore(mode="best")
    assert len(read) == 1


def test_a_fresh_process_restores_and_plays_the_same(trained):
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
    agent = agent_with(directory)
    agent.collect_training(runner)
    returns = agent.eval(jax.random.key(5), n_evals=3, greedy=False)["returns"]
    assert float(output.stdout.splitlines()[-1]) == float(returns.sum())


def test_a_directory_that_holds_a_run_is_not_trained_into(trained):
    directory, _, _ = trained
    before = sorted(path for path in directory.rglob("*"))
    with pytest.raises(ValueError, match=r"resume.*restore.*another directory"):
        agent_with(directory).train(jax.random.key(0), FAST)
    assert sorted(path for path in directory.rglob("*")) == before


def test_constructing_an_agent_touches_no_directory(tmp_path):
    agent_with(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_nothing_foreign_in_the_directory_is_removed(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("keep")
    agent_with(tmp_path).train(jax.random.key(0), FAST)
    assert (tmp_path / "notes" / "mine.txt").read_text() == "keep"


def test_resuming_continues_to_n_steps_as_if_never_interrupted(trained, tmp_path):
    _, straight, metrics = trained

    def stop(evaluation: ja.Evaluation) -> bool:
        return evaluation.n_updates_done == 4

    config = dataclasses.replace(TINY, n_steps=8, checkpoint_dir=tmp_path)
    ja.DiscreteIPPO(Walk(), None, config, callbacks=[stop]).train(jax.random.key(0), FAST)
    resumed, history = ja.DiscreteIPPO(Walk(), None, config).resume()
    assert_trees_equal(resumed.actor, straight.actor)
    assert_trees_equal(resumed.critic, straight.critic)
    assert_trees_equal(history, metrics)
    with pytest.raises(ValueError, match="larger n_steps"):
        ja.DiscreteIPPO(Walk(), None, config).resume()


def test_without_evaluation_checkpoints_are_still_written(tmp_path):
    agent = agent_with(tmp_path, n_evals=0, keep_latest=9)
    agent.train(jax.random.key(0), FAST)
    assert Checkpoints(tmp_path).steps() == [0, 2, 4, 6, 8]
    assert int(agent.restore(mode="last")[0].n_updates_done) == 8
    with pytest.raises(ValueError, match="not evaluated"):
        agent.restore(mode="best")


def test_a_checkpoint_precedes_training_even_without_an_initial_evaluation(tmp_path):
    agent = agent_with(tmp_path, initial_evaluation=False, keep_latest=9)
    agent.train(jax.random.key(0), FAST)
    assert Checkpoints(tmp_path).steps() == [0, 2, 4, 6, 8]
    runner, history = agent.restore(mode="last")
    np.testing.assert_array_equal(history["n_updates_done"], [2, 4, 6, 8])
    assert int(runner.n_updates_done) == 8


def test_per_policy_hyperparameters_survive(tmp_path):
    agent = agent_with(tmp_path, parameter_sharing="independent")
    hyperparams = FAST.replace(kl_threshold=jnp.array([0.01, jnp.inf]))
    agent.train(jax.random.key(0), hyperparams)
    restored, _ = agent.restore(mode="last")
    np.testing.assert_array_equal(restored.hyperparams.kl_threshold, np.float32([0.01, np.inf]))


def test_a_checkpoint_of_another_agent_is_refused_by_name(trained):
    directory, _, _ = trained
    config = dataclasses.replace(TINY, checkpoint_dir=directory)
    for agent in (
        ja.DiscreteIPPO(Walk((100,) * 3), None, config),
        ja.ContinuousIPPO(Aim(), None, config),
        agent_with(directory, parameter_sharing="independent"),
    ):
        with pytest.raises(ValueError, match="is of another agent") as raised:
            agent.restore(mode="last")
        assert "\n" not in str(raised.value)


def test_a_checkpoint_of_a_newer_format_is_refused(trained, monkeypatch):
    directory, _, _ = trained
    monkeypatch.setattr("jaxagents.checkpointing.FORMAT_VERSION", 0)
    with pytest.raises(ValueError, match="Install a newer one"):
        agent_with(directory).restore()


def test_an_empty_directory_says_that_there_is_nothing_to_restore(tmp_path):
    with pytest.raises(ValueError, match="holds no checkpoint"):
        agent_with(tmp_path).restore()


def test_leaves_of_every_dtype_come_back_as_they_were(tmp_path):
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
