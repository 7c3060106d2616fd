"""The success of runs: in their files, in what commands print, and in plots and reports."""

import csv
import json
from pathlib import Path

import jax.numpy as jnp
import pytest

import jaxagents as ja
from jaxagents.cli import main as cli
from jaxagents.environments.protocol import Environment
from jaxagents.errors import ExperimentError
from jaxagents.evaluation.run_files import read_records, read_summary
from jaxagents.experiments.report.page import write_report
from jaxagents.training.callbacks import Evaluation
from jaxagents.training.trackers import Tracker
from tests import fabricated, reported
from tests.plugins import forget_registrations

SUCCESS = {
    "info": "won",
    "title": "battles won",
    "kind": "share",
    "mean": 0.87,
    "low": 0.79,
    "high": 0.922,
    "n_episodes": 100,
    "others": {"fled": 0.05},
}


class Darts(Environment):
    """One throw, which hits with action 1; the second of two actors is always right."""

    n_actors = 2
    success = ja.Success("hit", "darts on the board", others=("missed",))

    def action_space(self, params):
        return ja.Discrete(2)

    def reset_env(self, rng, params):
        return jnp.ones((2, 1)), jnp.zeros(())

    def step_env(self, rng, state, action, params):
        hit = (action == 1) | jnp.array([False, True])
        info = {"hit": hit.astype(jnp.float32), "missed": (~hit).astype(jnp.float32)}
        over = jnp.ones(2, bool)
        return jnp.ones((2, 1)), state, info["hit"], over, ~over, info


class Kept(Tracker):
    """Keeps the scalars of all evaluations."""

    def __init__(self):
        self.scalars = []

    def log(self, evaluation: Evaluation) -> None:
        self.scalars.append(evaluation.scalars())

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train on a user's own environment; return the summary, the directory and the scalars."""
    with pytest.MonkeyPatch.context() as patch:
        forget_registrations(patch)
        ja.register_environment("test/darts", Darts)
        folder = tmp_path_factory.mktemp("darts")
        path = folder / "darts.yaml"
        path.write_text(
            "name: darts\nenv: test/darts\n"
            "agent: {n_steps: 2, batch_size: 4, minibatch_size: 2, rollout_length: 4, n_evals: 5, "
            "actor_epochs: 1, critic_epochs: 1, eval_frequency: 1, progress_bar: false, "
            "actor_layers: {hidden_sizes: [8]}, critic_layers: {hidden_sizes: [8]}}\n"
            f"evaluation: {{n_evals: 10}}\nruns_dir: {folder}\n"
        )
        kept = Kept()
        experiment = ja.Experiment(ja.load_config(path), trackers=[kept])
        yield experiment.train(), experiment.directory, kept.scalars


@pytest.mark.slow
def test_the_summary_holds_the_success_beside_the_returns(trained):
    summary, directory, _ = trained
    success = summary["success"]
    assert list(success) == list(SUCCESS)
    assert (success["title"], success["n_episodes"]) == ("darts on the board", 10)
    assert success["mean"] in (0.5, 1.0)
    assert success["mean"] + success["others"]["missed"] == 1.0
    assert success["low"] <= success["mean"] <= success["high"]
    assert "success" not in summary["means"]
    assert summary["means"]["info_hit"] == success["mean"]
    assert read_summary(directory / "summary.json")["success"] == success


def test_every_evaluation_records_the_success_and_trackers_receive_it(trained):
    _, directory, scalars = trained
    records = read_records(directory / "metrics.jsonl")
    assert [each["success"] for each in records] == [each["info_hit_mean"] for each in records]
    assert [each["evaluation/success"] for each in scalars] == [each["success"] for each in records]


def test_train_and_eval_print_the_success(trained, capsys):
    summary, directory, _ = trained
    assert cli.main(["eval", str(directory)]) == 0
    line = capsys.readouterr().out.rstrip().splitlines()[-1]
    percent = 100 * summary["success"]["mean"]
    assert line.startswith(f"darts on the board: {percent:.1f} % (95 % interval ")
    assert line.endswith(f"; missed {100 - percent:.1f} %")


def test_the_success_can_be_plotted(trained, tmp_path, capsys):
    path = tmp_path / "success.svg"
    assert cli.main(["plot", str(trained[1]), "--metrics", "success", "--to", str(path)]) == 0
    assert "Darts on the board" in path.read_text()


def add_success(run: Path, **changes) -> Path:
    path = run / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"success": SUCCESS | changes}))
    return run


def test_a_report_shows_the_success_beside_the_return(tmp_path):
    run = add_success(reported.write_run(tmp_path / "run"))
    page = write_report([run], replay=False).read_text()
    assert "; battles won: 87.0 % (95 % interval 79.0 to 92.2); fled 5.0 %." in page
    assert "Battles won</dt>" in page
    assert "95 % CI: 79.0 to 92.2" in page
    assert page.count(">fled<") == 1
    without = write_report([reported.write_run(tmp_path / "other")], replay=False).read_text()
    assert "battles won" not in without


def test_a_comparison_has_a_column_of_successes_if_all_runs_have_one(tmp_path, capsys):
    def write(name, seed, **changes):
        run = tmp_path / f"{name}-{seed}"
        fabricated.write_run(run, name=name, seed=seed, final_returns=[1.0 + seed])
        return str(add_success(run, **changes))

    runs = [write("a", 0, mean=0.25), write("a", 1, mean=0.75), write("b", 0, mean=0.125)]
    table = tmp_path / "all.csv"
    assert cli.main(["compare", *runs, "--csv", str(table)]) == 0
    title, first, second, *_ = capsys.readouterr().out.splitlines()
    assert title.endswith("battles won")
    assert (first.split()[0], first[-6:]) == ("a", "50.0 %")
    assert (second.split()[0], second[-6:]) == ("b", "12.5 %")
    with table.open() as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] != "pair"]
    found = [(row["group"], row["seed"], row["success"]) for row in rows]
    of_a = [("a", "", "0.5"), ("a", "0", "0.25"), ("a", "1", "0.75")]
    assert found == [*of_a, ("b", "", "0.125"), ("b", "0", "0.125")]
    assert {row["success_title"] for row in rows} == {"battles won"}

    other = write("c", 0, title="goals reached")
    assert cli.main(["compare", *runs, other]) == 0
    assert "battles won" not in capsys.readouterr().out
    lone = tmp_path / "d"
    fabricated.write_run(lone, name="d", final_returns=[1.0])
    table = tmp_path / "without.csv"
    assert cli.main(["compare", str(lone), *runs, "--csv", str(table)]) == 0
    assert "battles won" not in capsys.readouterr().out
    assert "battles won" not in table.read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "percent"}, "success.kind should be share or count"),
        ({"mean": "most"}, "success.mean should be a number"),
        ({"others": {"fled": "few"}}, "success.others should be numbers by name"),
    ],
)
def test_a_damaged_success_is_named(tmp_path, changes, message):
    run = add_success(fabricated.write_run(tmp_path / "run", final_returns=[1.0]), **changes)
    with pytest.raises(ExperimentError, match=message):
        read_summary(run / "summary.json")


def test_a_success_without_its_keys_is_named(tmp_path):
    run = fabricated.write_run(tmp_path / "run", final_returns=[1.0])
    path = run / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"success": {"info": "won"}}))
    with pytest.raises(ExperimentError, match=r"success\.title is missing"):
        read_summary(path)
