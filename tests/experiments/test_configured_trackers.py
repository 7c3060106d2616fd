"""The trackers that a configuration asks for, beside the files of the run."""

import sys
from pathlib import Path

import numpy as np
import pytest

import jaxagents as ja
from jaxagents.errors import ExperimentError
from jaxagents.evaluation.run_files import read_records
from jaxagents.experiments.config_files.file import load_config, save_config
from jaxagents.experiments.config_files.schema import TrackingConfig
from jaxagents.experiments.experiment import Experiment
from jaxagents.experiments.make_agent import open_trackers
from tests.experiments.test_experiment import tiny_config
from tests.plugins import forget_registrations
from tests.training.test_trackers import tensorboard_scalars


class Table(ja.Tracker):
    """A tracker as a user may write it."""

    def __init__(self, path: Path):
        self._file = path.open("w")

    def log(self, evaluation: ja.Evaluation) -> None:
        scalars = evaluation.scalars()
        print(evaluation.n_updates_done, scalars["evaluation/return_mean"], file=self._file)

    def close(self) -> None:
        self._file.close()


class Broken(ja.Tracker):
    def log(self, evaluation: ja.Evaluation) -> None:
        raise ConnectionError("the network is\ndown")

    def close(self) -> None:
        raise ConnectionError("still")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with two user-defined trackers, one of which fails."""
    folder = tmp_path_factory.mktemp("trackers")
    trackers = [Broken(), Table(folder / "table.txt")]
    experiment = Experiment(tiny_config(folder), trackers=trackers)
    with pytest.MonkeyPatch.context() as patch:
        warned = []
        patch.setattr(
            "jaxagents.training.trackers._logger.warning",
            lambda text, *args: warned.append(text % args),
        )
        experiment.train()
    return experiment, folder / "table.txt", warned


@pytest.mark.slow
def test_a_user_defined_tracker_receives_every_evaluation_and_is_closed(run):
    experiment, table, _ = run
    lines = read_records(experiment.directory / "metrics.jsonl")
    rows = [list(map(float, row.split())) for row in table.read_text().splitlines()]
    expected = [[each["n_updates_done"], np.mean(each["return_mean"])] for each in lines]
    np.testing.assert_allclose(rows, expected, rtol=1e-6)
    assert len(rows) == 4


@pytest.mark.slow
def test_a_failing_tracker_is_reported_once_and_does_not_end_training(run):
    assert run[2] == ["Broken has failed, training continues: the network is down"]
    assert (run[0].directory / "summary.json").exists()


@pytest.mark.slow
def test_tensorboard_reads_the_metrics_of_an_experiment(run):
    directory = run[0].directory
    scalars = tensorboard_scalars(directory / "tensorboard")
    lines = read_records(directory / "metrics.jsonl")
    for name in ("actor_loss", "critic_loss", "entropy", "kl", "clip_fraction", "learning_rate"):
        values = [each[name][0] for each in lines if each[name][0] is not None]
        assert list(scalars[f"training/{name}"].values()) == pytest.approx(values)
    assert scalars["training/learning_rate"] == pytest.approx({16: 1e-3, 32: 1e-3, 48: 1e-3})
    for kind in ("mean", "min", "max"):
        assert list(scalars[f"evaluation/return_{kind}_actor_1"]) == [0, 16, 32, 48]
    others = {"explained_variance", "actor_gradient_norm", "critic_gradient_norm", "actor_epochs"}
    assert {f"training/{name}" for name in others} <= scalars.keys()
    assert all(each["steps_per_second"] > 0 for each in lines[1:])
    assert lines[0]["steps_per_second"] is None


def test_tensorboard_can_be_switched_off(tmp_path):
    config = tiny_config(tmp_path, tracking=TrackingConfig(tensorboard=False))
    assert open_trackers(config, tmp_path) == []


@pytest.mark.filterwarnings("default")
def test_training_goes_on_if_wandb_cannot_be_used(tmp_path, monkeypatch, caplog):
    wandb = pytest.importorskip("wandb")

    def refuse(*_, **__):
        raise wandb.errors.UsageError("No API key configured.")

    monkeypatch.setattr(wandb, "init", refuse)
    config = tiny_config(tmp_path, tracking=TrackingConfig(tensorboard=False, wandb="project"))
    assert open_trackers(config, tmp_path) == []
    (record,) = caplog.records
    assert record.message == (
        "W&B cannot be used, training continues without it: No API key configured."
    )


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_package_is_named_before_anything_is_written(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    config = tiny_config(tmp_path, tracking=TrackingConfig(**{name: "project"}))
    with pytest.raises(ExperimentError) as error:
        Experiment(config).train()
    assert f'pip install -c constraints.txt -e ".[{name}]"' in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "runs").exists()


def test_an_older_configuration_file_without_tracking_has_its_defaults(tmp_path):
    config = tiny_config(tmp_path, tracking=TrackingConfig(tensorboard=False))
    path = tmp_path / "config.yaml"
    save_config(config, path)
    assert load_config(path) == config
    text = path.read_text()
    older = text[: text.index("tracking:")] + text[text.index("runs_dir:") :]
    path.write_text(older.replace("stop_at_return: null\n", ""))
    assert load_config(path).tracking == TrackingConfig()
    assert load_config(path, ["--tracking.wandb=mine"]).tracking.wandb == "mine"


def test_an_empty_project_name_is_refused():
    with pytest.raises(ValueError, match="wandb='' names nothing"):
        TrackingConfig(wandb="")


@pytest.mark.filterwarnings("default")
def test_training_goes_on_if_a_registered_tracker_cannot_be_opened(tmp_path, monkeypatch, caplog):
    forget_registrations(monkeypatch)
    ja.register_tracker("table", lambda directory, config, path: Table(Path(path)))
    ja.register_tracker("text", lambda directory, config: "text")
    others = {
        "text": {},
        "table": {"path": str(tmp_path / "missing" / "table.txt")},
    }
    config = tiny_config(tmp_path, tracking=TrackingConfig(tensorboard=False, others=others))

    assert open_trackers(config, tmp_path) == []
    text, table = caplog.messages
    assert text == (
        "text cannot be used, training continues without it: 'text' does not inherit from "
        "jaxagents.Tracker."
    )
    assert table.startswith(
        "table cannot be used, training continues without it: [Errno 2] No such"
    )


def test_a_tracker_is_registered_once_and_opened_after_the_built_in_ones(tmp_path, monkeypatch):
    forget_registrations(monkeypatch)
    ja.register_tracker("broken", lambda directory, config: Broken())
    with pytest.raises(ValueError, match=r"^the tracker 'broken' is taken; choose another name"):
        ja.register_tracker("broken", Broken)
    config = tiny_config(tmp_path, tracking=TrackingConfig(others={"broken": None}))
    assert [type(each).__name__ for each in open_trackers(config, tmp_path)] == [
        "TensorBoard",
        "Broken",
    ]
