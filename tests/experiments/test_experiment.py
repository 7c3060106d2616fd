"""Experiments: configurations and their runs. The command line has its own tests."""

import dataclasses
import errno
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.environments.suites.catalogue import SUITES
from jaxagents.errors import ExperimentError
from jaxagents.evaluation.run_files import read_records
from jaxagents.evaluation.runs import read_run
from jaxagents.experiments.config_files.file import load_config, save_config
from jaxagents.experiments.config_files.schema import EvaluationConfig, ExperimentConfig
from jaxagents.experiments.experiment import Experiment
from jaxagents.experiments.make_agent import make_environment
from jaxagents.training.checkpoints import Checkpoints

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
EXTRAS = {
    "env: pettingzoo/": "pettingzoo",
    "LunarLander": "Box2D",
    "Hopper": "mujoco",
    "env: jaxmarl/ant": "brax",
    **{f"env: {suite}/": found.package for suite, found in SUITES.items()},
}
LEAST = {  # two updates and an evaluation: nearly all of the time is compilation
    "n_steps": 2,
    "batch_size": 2,
    "minibatch_size": 1,
    "n_minibatches": "null",
    "rollout_length": 4,
    "actor_epochs": 1,
    "critic_epochs": 1,
    "eval_frequency": 2,
    "initial_evaluation": "false",
    "n_evals": 2,
    "max_episode_steps": 3,
    "progress_bar": "false",
}

ONE_LAYER = ja.Layers(hidden_sizes=(8,))
TINY_AGENT = ja.AgentConfig(
    n_steps=3,
    batch_size=4,
    minibatch_size=2,
    rollout_length=4,
    actor_epochs=1,
    critic_epochs=1,
    eval_frequency=1,
    n_evals=3,
    progress_bar=False,
    actor_layers=ONE_LAYER,
    critic_layers=ONE_LAYER,
)


def tiny_config(tmp_path: Path, **changes) -> ExperimentConfig:
    agent = dataclasses.replace(TINY_AGENT, **changes.pop("agent", {}))
    fields = {
        "name": "tiny",
        "env": "hunting/discrete",
        "agent": agent,
        "evaluation": EvaluationConfig(n_evals=3),
        "runs_dir": str(tmp_path / "runs"),
        **changes,
    }
    return ExperimentConfig(**fields)


def skip_without_extras(path: Path) -> None:
    for words, package in EXTRAS.items():
        if words in path.read_text():
            pytest.importorskip(package)


@pytest.mark.slow
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_configuration_trains_and_leaves_a_complete_run(path, tmp_path):
    skip_without_extras(path)
    overrides = [f"--agent.{name}={value}" for name, value in LEAST.items()]
    overrides += ["--evaluation.n_evals=2", f"--runs_dir={tmp_path}"]
    experiment = Experiment(load_config(path, overrides))

    summary = experiment.train()

    assert experiment.config.name == path.stem
    assert {each.name for each in experiment.directory.iterdir()} == {
        "checkpoints",
        "config.yaml",
        "environment.json",
        "learning_curve.png",
        "metrics.jsonl",
        "summary.json",
        "tensorboard",
    }
    assert summary["training"]["n_updates_done"] == 2
    assert len(summary["returns"]["mean"]) == experiment.agent.environments.n_actors


@pytest.mark.slow
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_configuration_builds_its_agent(path, tmp_path):
    skip_without_extras(path)
    experiment = Experiment(load_config(path), tmp_path)
    assert experiment.config.name == path.stem
    assert experiment.config.n_environment_steps > 100_000
    assert experiment.agent.config.batch_size == experiment.config.agent.batch_size


def test_a_saved_configuration_is_read_back_unchanged(tmp_path):
    config = tiny_config(
        tmp_path,
        env_kwargs={"num_agents": 2, "nested": {"a": [1, 2.5]}},
        env_params={"capture_radius": 1e-05},
        agent={"parameter_sharing": (0, 1), "max_episode_steps": 7},
        hyperparams=ja.HyperParameters(
            kl_threshold=[0.01, math.inf],
            actor_optimizer_params=ja.OptimizerParams(learning_rate=1e-7),
        ),
        evaluation=EvaluationConfig(mode="last", greedy=False),
    )
    save_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config


def test_arrays_among_the_hyperparameters_are_saved_as_lists(tmp_path):
    hyperparams = ja.HyperParameters(gamma=jnp.array([0.5, 0.75]))
    save_config(tiny_config(tmp_path, hyperparams=hyperparams), tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml").hyperparams.gamma == [0.5, 0.75]


def test_a_field_that_no_file_can_hold_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"agent\.checkpoint_dir cannot be saved to a file"):
        tiny_config(tmp_path, agent={"checkpoint_dir": "somewhere"})


def test_overrides_win_over_the_file_and_leave_its_other_values(tmp_path):
    config = tiny_config(tmp_path, env_params={"prey_speed": 0.5}, seed=3)
    save_config(config, tmp_path / "config.yaml")
    overrides = ["--agent.n_steps", "9", "--hyperparams.gamma=0.5", "--env_params.capture_radius=2"]
    changed = load_config(tmp_path / "config.yaml", overrides)
    assert changed.agent == dataclasses.replace(config.agent, n_steps=9)
    assert changed.hyperparams == ja.HyperParameters(gamma=0.5)
    assert changed.env_params == {"prey_speed": 0.5, "capture_radius": 2}
    assert changed.seed == 3


def test_environment_parameters_and_arguments_reach_the_environment(tmp_path):
    _, params = make_environment(tiny_config(tmp_path, env_params={"max_steps_in_episode": 5}))
    assert params.max_steps_in_episode == 5
    assert params.capture_reward == 10.0
    spread = tiny_config(tmp_path, env="jaxmarl/MPE_simple_spread_v3", env_kwargs={"num_agents": 4})
    assert make_environment(spread)[0].n_actors == 4


def test_the_agent_is_chosen_by_the_action_space(tmp_path):
    for env, agent_class in [
        ("hunting/discrete", ja.DiscreteIPPO),
        ("hunting/continuous", ja.ContinuousIPPO),
    ]:
        assert type(Experiment(tiny_config(tmp_path, env=env)).agent) is agent_class


def test_nothing_is_written_before_training(tmp_path):
    Experiment(tiny_config(tmp_path))
    assert not any(tmp_path.iterdir())


def test_two_runs_of_the_same_second_have_different_directories(tmp_path, monkeypatch):
    monkeypatch.setattr("time.strftime", lambda _: "now")
    # Neither has written anything that the other could see.
    first, second = (Experiment(tiny_config(tmp_path)).directory for _ in range(2))
    assert first.parent == second.parent == tmp_path / "runs"
    assert all(re.fullmatch("tiny-now-[0-9a-f]{6}", each.name) for each in (first, second))
    assert first != second


def test_a_tilde_is_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/somewhere")
    config = tiny_config(Path(), runs_dir="~/runs")
    assert Experiment(config).directory.parent == Path("/somewhere/runs")
    assert Checkpoints("~/run").directory == Path("/somewhere/run").resolve()
    # A directory that is given is used as it is.
    given = Experiment(config, "./~/run")
    assert given.directory.absolute() == given.agent.config.checkpoint_dir.parent


def test_numpy_integers_become_python_integers(tmp_path):
    agent, evaluation = {"batch_size": np.int64(4)}, EvaluationConfig(n_evals=np.int32(2))
    config = tiny_config(tmp_path, agent=agent, evaluation=evaluation, seed=np.uint8(3))
    values = (config.agent.batch_size, config.evaluation.n_evals, config.seed)
    assert [(type(each), each) for each in values] == [(int, 4), (int, 2), (int, 3)]
    limit = {"max_steps_in_episode": np.int64(5)}
    _, params = make_environment(tiny_config(tmp_path, env_params=limit))
    assert params.max_steps_in_episode == 5


def test_files_are_read_the_same_in_every_locale(tmp_path):
    text = "# Größe\nname: größe\nenv: hunting/discrete\nagent: {n_steps: 1}\n"
    (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
    code = (
        "import jaxagents as ja\nprint(ascii(ja.load_config('config.yaml', ['--seed', '3']).name))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (run.stdout.strip(), run.stderr) == (ascii("größe"), "")


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31m", "a\x85b"])
def test_a_path_with_a_line_break_or_control_character_is_refused_before_training(name, tmp_path):
    experiment = Experiment(tiny_config(tmp_path), tmp_path / name)
    with pytest.raises(ExperimentError, match="has a line break or control character") as error:
        experiment.train()
    assert str(error.value).isprintable()
    assert not list(tmp_path.iterdir())
    save_config(experiment.config, tmp_path / name)
    assert load_config(tmp_path / name) == experiment.config


def test_a_directory_that_exists_is_not_trained_into(tmp_path):
    with pytest.raises(ExperimentError, match="exists already; name another directory") as error:
        Experiment(tiny_config(tmp_path), tmp_path).train()
    assert "\n" not in str(error.value)
    assert not any(tmp_path.iterdir())


class Stopped(NamedTuple):
    """A run that was stopped by its callback, after the callback had failed twice."""

    experiment: Experiment
    failures: list[tuple[Exception, Exception]]  # each as it was raised, and as it was caught
    summary: dict[str, Any]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> Stopped:
    errors = [ValueError("mine"), TypeError("mine")]
    pending = list(errors)

    def callback(evaluation):
        if pending:
            raise pending.pop(0)
        return evaluation.n_updates_done == 2

    config = tiny_config(
        tmp_path_factory.mktemp("stopped"), evaluation=EvaluationConfig(mode="last", n_evals=3)
    )
    experiment = Experiment(config, callbacks=[callback])
    with pytest.raises(ValueError, match=r"^mine$") as in_train:
        experiment.train()
    with pytest.raises(TypeError, match=r"^mine$") as in_resume:
        experiment.resume()
    caught = [in_train.value, in_resume.value]
    return Stopped(experiment, list(zip(errors, caught, strict=True)), experiment.resume())


@pytest.mark.slow
def test_errors_of_a_callback_are_raised_unchanged(stopped):
    assert all(raised is caught for raised, caught in stopped.failures)


@pytest.mark.slow
def test_a_run_stopped_by_a_callback_is_complete_up_to_there(stopped):
    summary, directory = stopped.summary, stopped.experiment.directory
    assert summary["training"]["n_updates_done"] == 2
    assert summary["training"]["n_environment_steps"] == 2 * 4 * 4
    assert summary["checkpoint"] == {"n_updates_done": 2, "n_environment_steps": 32}
    # Of random actions: the predator earns what the prey loses, in episodes of some steps.
    measured = summary["random_returns"]
    assert measured["n_evals"] == 16
    assert len(measured["mean"]) == len(measured["std"]) == 2
    assert (directory / "learning_curve.png").stat().st_size > 1000
    assert json.loads((directory / "summary.json").read_text()) == summary


@pytest.mark.slow
def test_a_run_without_evaluations_has_no_learning_curve(tmp_path):
    evaluation = EvaluationConfig(mode="last", n_evals=3)
    experiment = Experiment(tiny_config(tmp_path, agent={"n_evals": 0}, evaluation=evaluation))
    experiment.train()
    assert not (experiment.directory / "learning_curve.png").exists()
    with pytest.raises(ExperimentError, match=r"not evaluated \(n_evals=0\)"):
        experiment.restore("best")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    experiment = Experiment(tiny_config(tmp_path_factory.mktemp("experiment")))
    experiment.train()
    return experiment.directory


@pytest.mark.slow
def test_a_run_is_evaluated_again_wherever_its_directory_is_now(run, tmp_path):
    restored = Experiment.of_run(shutil.copytree(run, tmp_path / "elsewhere"))
    summary = json.loads((run / "summary.json").read_text())
    evaluation = restored.evaluate()
    assert evaluation == {name: summary[name] for name in evaluation}
    other = restored.evaluate(EvaluationConfig(mode="last", n_evals=2, greedy=False, seed=5))
    assert other["checkpoint"]["n_updates_done"] == 3
    assert other["evaluation"] == {"mode": "last", "n_evals": 2, "greedy": False, "seed": 5}
    assert restored.restore().policy(None, jnp.zeros((2, 6))).shape == (2,)


@pytest.mark.slow
def test_a_summary_has_the_time_of_all_processes(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    records = read_records(copy / "metrics.jsonl")
    records[-1]["seconds"] = 1000.0
    (copy / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    training = Experiment.of_run(copy, ["--agent.n_steps", "4"]).resume()["training"]
    assert training["n_environment_steps"] == 4 * 16
    assert 1000.0 < training["seconds"] < 1300.0
    assert training["environment_steps_per_second"] == pytest.approx(
        16 / (training["seconds"] - 1000.0), rel=0.1
    )  # since it was resumed


@pytest.mark.slow
def test_the_speed_of_a_run_that_was_killed_before_its_summary_is_told(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    (copy / "summary.json").unlink()
    training = Experiment.of_run(copy).resume()["training"]
    assert training["seconds"] == read_records(copy / "metrics.jsonl")[-1]["seconds"]
    assert training["environment_steps_per_second"] == pytest.approx(
        3 * 16 / training["seconds"], abs=0.1
    )


@pytest.mark.slow
@pytest.mark.parametrize("n_steps", [3, 6])
def test_evaluations_of_a_training_that_is_not_continued_do_not_count(run, tmp_path, n_steps):
    """A run is killed after update 5, before its checkpoint is written, and evaluates less now."""
    copy = shutil.copytree(run, tmp_path / "run")
    (copy / "summary.json").unlink()
    metrics = copy / "metrics.jsonl"
    before = metrics.read_text()
    last = json.loads(before.splitlines()[-1])
    ahead = "".join(json.dumps({**last, "n_updates_done": n}) + "\n" for n in (4, 5))
    metrics.write_text(before + ahead + '{"n_upd')
    changes = ["--agent.n_steps", str(n_steps), "--agent.eval_frequency", "3"]
    Experiment.of_run(copy, changes).resume()
    found = read_run(copy)
    assert [each["n_updates_done"] for each in found.records] == [*range(4), *range(6, n_steps + 1)]
    assert not found.is_unfinished
    assert metrics.read_text().startswith(before + ahead)
    again = metrics.read_text()
    Experiment.of_run(copy, changes).resume()
    assert metrics.read_text() == again


@pytest.mark.slow
def test_a_failing_plot_loses_no_summary(run, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr("jaxagents.visual.run_plots.plot_runs", fail)
    copy = shutil.copytree(run, tmp_path / "run")
    (copy / "summary.json").unlink()
    with pytest.raises(ExperimentError, match="disk full"):
        Experiment.of_run(copy).resume()
    assert json.loads((copy / "summary.json").read_text())["training"]


@pytest.mark.slow
def test_a_configuration_that_cannot_be_kept_up_to_date_does_not_end_a_resumed_training(
    run, tmp_path, monkeypatch, caplog
):
    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    copy = shutil.copytree(run, tmp_path / "run")
    experiment = Experiment.of_run(copy, ["--agent.n_steps", "9"])
    monkeypatch.setattr("jaxagents.experiments.run_directory.save_config", fail)
    experiment._start = {"time": "now"}
    experiment._record(ja.Evaluation(3, 48, 0.0, {}, runner=None))
    (warning,) = caplog.messages
    assert warning.startswith("the new configuration could not be written: [Errno ")
    assert (copy / "config.yaml").read_bytes() == (run / "config.yaml").read_bytes()
    assert json.loads((copy / "environment.json").read_text())[-1] == {"time": "now"}


@pytest.mark.slow
def test_a_run_in_training_is_not_resumed_and_not_made_anew_where_it_was(tmp_path, caplog):
    """While it trains, another process resumes it, a folder is deleted, and it is moved."""
    run, moved, refused = tmp_path / "run", tmp_path / "moved", []

    def interfere(evaluation):
        if evaluation.n_updates_done == 1:
            with pytest.raises(ExperimentError) as error:
                Experiment.of_run(run).resume()
            refused.append(str(error.value))
            shutil.rmtree(run / "tensorboard")
        if evaluation.n_updates_done == 2:
            while 1 not in Checkpoints(run / "checkpoints").steps():
                time.sleep(0.01)
            run.rename(moved)

    with pytest.raises(ExperimentError) as error:
        Experiment(tiny_config(tmp_path), run, callbacks=[interfere]).train()
    assert f"another training writes to {run}/checkpoints (process {os.getpid()})" in refused[0]
    assert f"its last whole checkpoint is {moved}/checkpoints/1: resume" in str(error.value)
    assert not run.exists()
    (warning,) = caplog.messages
    assert warning.startswith(f"{run}/tensorboard was deleted while the run trained: its eval")
    assert list((moved / "tensorboard").iterdir())
    late = Experiment.of_run(moved)
    (moved / "config_from_1.yaml").write_bytes((moved / "config.yaml").read_bytes())
    with pytest.raises(ExperimentError, match="was written while this process started"):
        late.resume()


@pytest.mark.slow  # see the agent's own test
def test_the_best_checkpoint_is_the_one_of_the_highest_mean_return(run):
    lines = read_records(run / "metrics.jsonl")
    best = max(lines, key=lambda line: np.mean(line["return_mean"]))
    summary = json.loads((run / "summary.json").read_text())
    assert summary["checkpoint"]["n_updates_done"] == best["n_updates_done"]


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ExperimentError, match=r"is not a run: it has no config\.yaml"):
        Experiment.of_run(tmp_path)


def test_an_agents_checkpoints_are_told_from_a_run(tmp_path):
    (tmp_path / "own").mkdir()
    leaves = {"actor.params.kernel": np.zeros(1)}
    Checkpoints(tmp_path / "own").write(0, leaves, {}, {}, 0.0)
    with pytest.raises(ExperimentError, match=r"own holds the checkpoints of an agent.*restore"):
        Experiment.of_run(tmp_path / "own")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env": "hunting/discreet"}, "Did you mean hunting/discrete"),
        ({"env_kwargs": {"size": 3}}, "hunting/discrete cannot be constructed with size=3"),
        ({"env_params": {"speed": 3}}, "env_params.speed is no parameter of hunting/discrete"),
        ({"env_params": {"prey_speed": "a"}}, "env_params.prey_speed should be a number, but is"),
        (
            {"env": "jaxmarl/MPE_simple_spread_v3", "env_params": {"num_agents": 2}},
            "jaxmarl/MPE_simple_spread_v3 has no parameters; empty env_params, or use env_kwargs",
        ),
        ({"hyperparams": ja.HyperParameters(gamma=2.0)}, "gamma=2.0 is out of range"),
        ({"hyperparams": ja.HyperParameters(gamma=[0.1] * 3)}, "gamma has shape"),
        ({"agent": {"parameter_sharing": (0, 0, 1)}}, "parameter_sharing"),
    ],
)
def test_what_fits_no_environment_or_agent_is_refused_in_one_line(changes, message, tmp_path):
    with pytest.raises(ExperimentError) as error:
        Experiment(tiny_config(tmp_path, **changes))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b"])
def test_a_name_that_cannot_be_a_directory_is_refused(name, tmp_path):
    with pytest.raises(ValueError, match="cannot name a directory"):
        tiny_config(tmp_path, name=name)


@pytest.mark.slow
def test_a_relative_run_stays_where_the_experiment_was_built(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    experiment = Experiment(tiny_config(tmp_path, runs_dir="runs"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    experiment.train()
    assert experiment.directory.parent == tmp_path / "runs"
    assert Checkpoints(experiment.directory / "checkpoints").steps()
    assert (experiment.directory / "learning_curve.png").is_file()
    assert not any((tmp_path / "elsewhere").iterdir())
