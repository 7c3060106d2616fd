"""Experiments of several seeds: one population, whose members are read as runs."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from jaxagents.cli import main as cli
from jaxagents.errors import ExperimentError
from jaxagents.evaluation.comparison import make_group
from jaxagents.evaluation.run_files import read_records
from jaxagents.evaluation.runs import member_directories, population_of, read_groups
from jaxagents.experiments.config_files.file import load_config
from jaxagents.experiments.config_files.schema import ExperimentConfig
from jaxagents.experiments.experiment import Experiment
from jaxagents.experiments.make_agent import restored_agent
from jaxagents.experiments.members import MemberRuns
from jaxagents.experiments.report.sentences import diagnoses, unfinished_notes
from jaxagents.experiments.summaries import combine
from jaxagents.ppo.finiteness import NonFiniteError
from jaxagents.training.checkpoints import Checkpoints
from tests.agents import assert_trees_equal
from tests.experiments.test_experiment import TINY_AGENT

SEEDS = (5, 6, 7)


def config_in(folder, seeds=3, seed=5, **agent) -> ExperimentConfig:
    return ExperimentConfig(
        name="few",
        env="hunting/discrete",
        agent=dataclasses.replace(TINY_AGENT, **agent),
        seed=seed,
        seeds=seeds,
        runs_dir=str(folder / "runs"),
    )


@pytest.fixture(scope="module")
def population(tmp_path_factory):
    experiment = Experiment(config_in(tmp_path_factory.mktemp("population")))
    return experiment, experiment.train()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Train the second member's seed by itself."""
    experiment = Experiment(config_in(tmp_path_factory.mktemp("alone"), seeds=1, seed=6))
    return experiment, experiment.train()


def without_times(records):
    times = ("seconds", "steps_per_second")
    return [{name: v for name, v in each.items() if name not in times} for each in records]


@pytest.mark.slow
def test_a_member_is_its_run_alone(population, alone):
    (experiment, summary), (single, expected) = population, alone
    assert summary["members"][1] == {name: expected[name] for name in summary["members"][1]}
    member = experiment.directory / "members" / "1"
    records = read_records(member / "metrics.jsonl")
    assert without_times(records) == without_times(read_records(single.directory / "metrics.jsonl"))
    own = json.loads((member / "summary.json").read_text())
    assert own["diagnosis"] == expected["diagnosis"]
    trained = load_config(member / "config.yaml")
    assert dataclasses.replace(trained, runs_dir="") == dataclasses.replace(
        load_config(single.directory / "config.yaml"), runs_dir=""
    )


@pytest.mark.slow
def test_the_summary_has_statistics_over_members(population):
    experiment, summary = population
    means = [each["returns"]["mean"] for each in summary["members"]]
    np.testing.assert_allclose(summary["returns"]["mean"], np.mean(means, axis=0))
    np.testing.assert_allclose(summary["returns"]["max"], np.max(means, axis=0))
    assert summary["training"]["n_updates_done"] == 3
    assert json.loads((experiment.directory / "summary.json").read_text()) == summary
    assert (experiment.directory / "learning_curve.png").is_file()
    assert not (experiment.directory / "metrics.jsonl").exists()


@pytest.mark.parametrize(("of_members", "mean"), [((None, 1.0), 1.0), ((None, None), None)])
def test_an_info_is_averaged_over_the_members_that_have_it(of_members, mean):
    evaluations = [
        {
            "checkpoint": {"n_updates_done": 1},
            "returns": {"mean": [0.0]},
            "means": {"info_told": value},
        }
        for value in of_members
    ]
    assert combine(evaluations)["means"] == {"info_told": mean}


@pytest.mark.slow
def test_members_are_read_as_a_group_of_runs(population):
    experiment, _ = population
    folders = member_directories(experiment.directory)
    assert folders == [experiment.directory / "members" / str(i) for i in range(3)]
    assert population_of(folders[2]) == (experiment.directory.absolute(), 2)
    assert population_of(experiment.directory) is None
    ((label, runs),) = read_groups([experiment.directory]).items()
    assert label == "few"
    assert [run.config["seed"] for run in runs] == list(SEEDS)
    assert not any(run.is_unfinished for run in runs)


@pytest.mark.slow
def test_runs_alone_join_the_group(population, alone, tmp_path):
    other = shutil.copytree(alone[0].directory, tmp_path / "other")
    config = (other / "config.yaml").read_text()
    (other / "config.yaml").write_text(config.replace("\nseed: 6\n", "\nseed: 9\n"))
    ((_, runs),) = read_groups([population[0].directory, other]).items()
    assert [run.config["seed"] for run in runs] == [*SEEDS, 9]
    with pytest.raises(ExperimentError, match="are the same run, of seed 6"):
        read_groups([population[0].directory, alone[0].directory])


@pytest.mark.slow
def test_a_member_plays_from_its_directory(population, alone):
    experiment, summary = population
    member = Experiment.of_run(experiment.directory / "members" / "1")
    assert member.evaluate() == summary["members"][1]
    _, runner = restored_agent(experiment.directory / "members" / "1")
    assert_trees_equal(runner, restored_agent(alone[0].directory)[1])


def test_the_best_member_plays_for_the_population(population):
    experiment, _ = population
    agent = Experiment.of_run(experiment.directory).agent
    _, metrics = agent.restore("best")
    best = int(np.argmax(np.asarray(metrics["returns"]).mean(axis=(2, 3)).max(axis=1)))
    expected, _ = agent.restore("best", member=best)
    assert_trees_equal(restored_agent(experiment.directory)[1], expected)
    played = Experiment.of_run(experiment.directory).restore()
    assert_trees_equal(played._collected[0], expected)


@pytest.mark.slow
def test_a_resumed_population_is_that_of_one_go(population, tmp_path):
    first = Experiment(config_in(tmp_path, n_steps=2))
    first.train()
    resumed = Experiment.of_run(first.directory, ["--agent.n_steps", "3"])
    summary = resumed.resume()
    expected = population[1]
    assert summary["members"] == expected["members"]
    continued, whole = (
        Checkpoints(each.directory / "checkpoints").read_runner(3)
        for each in (first, population[0])
    )
    planned_then = np.where(continued["best.n_updates_done"] <= 2, 2, 3)
    np.testing.assert_array_equal(continued.pop("best.n_steps"), planned_then)
    np.testing.assert_array_equal(whole.pop("best.n_steps"), 3)
    assert_trees_equal(continued, whole)
    member = first.directory / "members" / "2"
    assert load_config(member / "config.yaml").agent.n_steps == 2
    assert load_config(member / "config_from_2.yaml").agent.n_steps == 3


def test_a_finished_population_keeps_the_settings_that_trained_it(population, tmp_path):
    run = shutil.copytree(population[0].directory, tmp_path / "run")
    overrides = ["--hyperparams.gamma", "0.5", "--evaluation.seed", "7"]
    Experiment.of_run(run, overrides).resume()
    for folder in (run, *member_directories(run)):
        kept = load_config(folder / "config_from_3.yaml")
        assert (kept.hyperparams.gamma, kept.evaluation.seed) == (0.99, 7)


def test_a_member_is_not_resumed_by_itself(population):
    with pytest.raises(ExperimentError, match="is a member of a population; resume"):
        Experiment.of_run(population[0].directory / "members" / "0").resume()


def test_the_number_of_seeds_stays(population):
    experiment = Experiment.of_run(population[0].directory, ["--seeds", "4"])
    with pytest.raises(ExperimentError, match="seeds=4, but the run began with 3"):
        experiment.resume()


def test_a_number_of_seeds_out_of_range_is_refused(tmp_path):
    with pytest.raises(ValueError, match="seeds=0 trains nothing"):
        config_in(tmp_path, seeds=0)
    with pytest.raises(ValueError, match="seed=4294967296"):
        config_in(tmp_path, seeds=2, seed=2**32 - 1)


@pytest.mark.slow
def test_commands_take_populations(population, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    run = str(population[0].directory)
    assert cli.main(["eval", run, "--n-evals", "2"]) == 0
    assert "for each of 3 seeds; statistics are of their means" in capsys.readouterr().out
    assert cli.main(["plot", run]) == 0
    for _ in range(2):  # the second replaces the picture of the first
        assert cli.main(["crossplay", run, "--n-evals", "2"]) == 0
    assert "a gap of" in capsys.readouterr().out
    lines = (population[0].directory / "crossplay.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "jaxagents crossplay",
        "seed 5",
        "seed 6",
        "seed 7",
    ]
    assert cli.main(["report", run, "--no-replay"]) == 0
    page = (population[0].directory / "report.html").read_text()
    assert "3 runs on hunting/discrete with seeds 5, 6 and 7" in page


def test_environments_outside_of_jax_are_refused_before_anything_is_written(tmp_path):
    config = dataclasses.replace(config_in(tmp_path), env="gymnasium/CartPole-v1")
    with pytest.raises(ExperimentError, match="played by one member at a time"):
        Experiment(config)
    assert not (tmp_path / "runs").exists()


def test_a_table_of_the_users_is_not_replaced(population, tmp_path, capsys):
    (tmp_path / "mine.csv").write_text("my,numbers")
    to = str(tmp_path / "mine.png")
    assert cli.main(["crossplay", str(population[0].directory), "--to", to]) == 2
    assert "was not made by jaxagents crossplay" in capsys.readouterr().err
    assert (tmp_path / "mine.csv").read_text() == "my,numbers"


def test_a_finished_population_is_compared_though_a_member_has_stopped(tmp_path, monkeypatch):
    config = config_in(tmp_path)
    diverging = config.hyperparams.replace(vf_coeff=[0.5, 3e38, 0.5])
    monkeypatch.setattr(MemberRuns, "initial_hyperparams", lambda self: diverging)
    experiment = Experiment(config)
    summary = experiment.train()

    assert summary["training"]["n_updates_done"] == 3
    ((_, runs),) = read_groups([experiment.directory]).items()
    assert [run.n_updates_done for run in runs] == [3, 0, 3]  # update 1 of the second one fails
    trainings = [run.final_summary["training"] for run in runs]
    assert [each["n_updates_done"] for each in trainings] == [3, 0, 3]
    assert [each["n_environment_steps"] for each in trainings] == [3 * 16, 0, 3 * 16]
    assert make_group("few", runs).returns.shape == (3,)
    stopped = "Training has stopped after 0 of 3 updates: the next ones had NaN or infinite"
    assert f"seed 6: {stopped} quantities." in summary["diagnosis"]
    assert f"{experiment.directory.name}, member 1: {stopped} quantities." in diagnoses(
        {"few": runs}
    )
    assert unfinished_notes({"few": runs}) == []


@pytest.mark.slow  # see the population's own test
def test_training_fails_if_all_members_diverge(tmp_path):
    config = config_in(tmp_path)
    hyperparams = config.hyperparams.replace(vf_coeff=3e38)
    with pytest.raises(NonFiniteError, match="update 1 has NaN or infinity"):
        Experiment(dataclasses.replace(config, hyperparams=hyperparams)).train()
