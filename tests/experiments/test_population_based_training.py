"""Runs of population-based training: one run, whose members go on from each other."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from jaxagents.cli import main as cli
from jaxagents.errors import ExperimentError
from jaxagents.evaluation.run_files import read_records
from jaxagents.evaluation.runs import Lineages, read_groups, read_lineages
from jaxagents.experiments.config_files.schema import (
    ExperimentConfig,
    PopulationBasedTrainingConfig,
)
from jaxagents.experiments.experiment import Experiment
from jaxagents.experiments.report.content import recipe
from jaxagents.visual.population_plots import draw_lineages
from tests.agents import assert_trees_equal
from tests.experiments.test_experiment import TINY_AGENT

VARY = {"ent_coeff": [0.001, 0.1], "gamma": [0.9, 0.99]}


def config_in(folder, n_steps=3, **changes) -> ExperimentConfig:
    return ExperimentConfig(
        name="evolved",
        env="hunting/discrete",
        agent=dataclasses.replace(TINY_AGENT, n_steps=n_steps, eval_frequency=1),
        population_based_training=PopulationBasedTrainingConfig(vary=VARY),
        runs_dir=str(folder / "runs"),
        **{"seeds": 4, **changes},
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    experiment = Experiment(config_in(tmp_path_factory.mktemp("evolved")))
    return experiment, experiment.train()


@pytest.mark.slow
def test_the_best_member_speaks_for_the_run(run):
    experiment, summary = run
    _, metrics = experiment.agent.restore("best")
    best = int(np.argmax(metrics["returns"].mean(axis=(2, 3)).max(axis=1)))
    assert summary["best_member"] == best
    assert summary["returns"] == summary["members"][best]["returns"]
    ((read,),) = read_groups([experiment.directory]).values()
    assert read.directory == experiment.directory
    highest = metrics["returns"].mean(axis=(2, 3)).max(axis=0)
    recorded = [np.mean(each["return_mean"]) for each in read.records]
    np.testing.assert_allclose(recorded, highest, rtol=1e-5)


@pytest.mark.slow
def test_the_first_member_begins_as_configured_and_lineages_are_recorded(run):
    experiment, _ = run
    history = read_lineages(experiment.directory)
    assert history.hyperparams["ent_coeff"][0, 0] == np.float32(0.01)
    assert len(set(history.hyperparams["gamma"][0])) == 4
    members = [experiment.directory / "members" / str(i) for i in range(4)]
    own = [read_records(each / "metrics.jsonl") for each in members]
    np.testing.assert_array_equal(
        history.parents, np.array([[each["parents"] for each in records] for records in own]).T
    )
    # After each of the first two blocks, the weakest of four goes on from the strongest.
    assert ((history.parents[2:] != np.arange(4)).sum(axis=1) == 1).all()
    assert (history.parents[:2] == np.arange(4)).all()
    assert (experiment.directory / "lineages.png").stat().st_size > 10_000


@pytest.mark.slow
def test_a_run_is_resumed_by_its_own_rule(run, tmp_path):
    """Nothing is left to train: only what was recorded is read, checked and evaluated."""
    copied = Experiment.of_run(shutil.copytree(run[0].directory, tmp_path / "run"))
    assert copied.resume()["members"] == run[1]["members"]


@pytest.mark.slow
def test_a_resumed_run_is_that_of_one_go(run, tmp_path):
    first = Experiment(config_in(tmp_path, n_steps=2))
    first.train()
    resumed = Experiment.of_run(first.directory, ["--agent.n_steps", "3"])
    assert resumed.resume()["members"] == run[1]["members"]
    assert_trees_equal(resumed.agent.restore("last"), run[0].agent.restore("last"))


@pytest.mark.slow
def test_commands_take_it_as_one_run(run, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    directory = str(run[0].directory)
    assert cli.main(["eval", directory, "--n-evals", "2"]) == 0
    assert "by the best of 4 seeds that continued from each other" in capsys.readouterr().out
    assert cli.main(["report", directory, "--no-replay", "--to", "page.html"]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "<h2>Lineages</h2>" in page
    assert "Lineages of" in page
    assert cli.main(["eval", f"{directory}/members/2", "--n-evals", "2"]) == 0
    assert json.loads((run[0].directory / "summary.json").read_text())["best_member"] in range(4)


def test_founders_are_traced_through_parents():
    nan = np.nan
    history = Lineages(
        n_environment_steps=np.arange(4),
        returns=np.zeros((4, 3)),
        parents=np.array([[0, 1, 2], [0, 0, 2], [1, 1, nan], [0, 2, 1]]),
        hyperparams={},
    )
    expected = [[0, 1, 2], [0, 0, 2], [0, 0, nan], [0, nan, 0]]
    np.testing.assert_array_equal(history.founders, expected)


def test_a_picture_has_a_panel_of_each_quantity_and_dotted_lines_of_succession(tmp_path):
    history = Lineages(
        n_environment_steps=np.array([0, 10, 20]),
        returns=np.array([[0.0, 0.0], [3.0, 1.0], [4.0, 5.0]]),
        parents=np.array([[0.0, 1.0], [0.0, 1.0], [0.0, 0.0]]),
        hyperparams={"ent_coeff": np.array([[0.01, 0.2], [0.01, 0.2], [0.01, 0.0125]])},
    )
    path = tmp_path / "lineages.svg"
    draw_lineages(history, path)
    picture = path.read_text()
    assert "ent_coeff" in picture
    assert "the 2 members descend from 1 of the first" in picture
    assert picture.count("stroke-dasharray") == 2  # of the second member, in both panels


def test_a_run_without_selection_has_no_lineages(tmp_path):
    with pytest.raises(ExperimentError, match="no population with a selection"):
        read_lineages(tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vary": {"entropy": [0, 1]}}, "'entropy', which is no hyperparameter"),
        ({"vary": {"gamma": [0.99, 0.9]}}, "the lower one first"),
        ({"vary": VARY, "every": 0}, "every=0"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        PopulationBasedTrainingConfig(**settings)


def test_a_single_seed_is_refused_before_anything_is_written(tmp_path):
    experiment = Experiment(config_in(tmp_path, seeds=1))
    with pytest.raises(ExperimentError, match="selects nothing; train at least 2"):
        experiment.train()
    assert not experiment.directory.exists()


def test_training_without_evaluations_is_refused(tmp_path):
    config = config_in(tmp_path)
    with pytest.raises(ValueError, match="population_based_training needs evaluations"):
        dataclasses.replace(
            config,
            agent=dataclasses.replace(config.agent, n_evals=0),
            evaluation=dataclasses.replace(config.evaluation, mode="last"),
        )


@pytest.mark.slow
def test_hyperparameters_that_are_varied_cannot_be_given_when_resuming(tmp_path):
    first = Experiment(config_in(tmp_path, n_steps=2))
    first.train()
    before = sorted(path.name for path in first.directory.iterdir())
    overrides = ["--agent.n_steps", "3", "--hyperparams.ent_coeff", "0.05"]
    with pytest.raises(ExperimentError, match=r"hyperparams.ent_coeff=0.05, but .* from 0.01 on"):
        Experiment.of_run(first.directory, overrides).resume()
    assert sorted(path.name for path in first.directory.iterdir()) == before


@pytest.mark.slow
def test_other_hyperparameters_may_change_and_members_keep_their_own_of_the_varied(tmp_path):
    first = Experiment(config_in(tmp_path, n_steps=2))
    first.train()
    overrides = ["--agent.n_steps", "3", "--hyperparams.gae_lambda", "0.5"]
    resumed = Experiment.of_run(first.directory, overrides)
    resumed.resume()
    runner, _ = resumed.agent.restore("last")
    np.testing.assert_array_equal(runner.hyperparams.gae_lambda, np.float32([0.5] * 4))
    assert len(set(np.ravel(runner.hyperparams.gamma))) > 1
    assert recipe(first.directory)[-1].endswith(" --agent.n_steps 3 --hyperparams.gae_lambda 0.5")
