"""Trackers, whose files are read back by the tools that they are made for."""

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from jaxagents.evaluation.run_files import read_records
from jaxagents.training.trackers import (
    JsonLines,
    MLflow,
    TensorBoard,
    Trackers,
    WandB,
)
from tests.training.test_atomic_write import files_of_at_most
from tests.training.test_json_lines import evaluation


def tensorboard_scalars(directory: Path) -> dict[str, dict[int, float]]:
    """Read event files as TensorBoard does: the values of each tag by their steps."""
    event_accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    accumulator = event_accumulator.EventAccumulator(str(directory))
    accumulator.Reload()
    scalars = {}
    for tag in accumulator.Tags()["scalars"]:
        steps = [each.step for each in accumulator.Scalars(tag)]
        assert steps == sorted(set(steps)), f"{tag} goes back or repeats itself: {steps}"
        scalars[tag] = {each.step: each.value for each in accumulator.Scalars(tag)}
    return scalars


def log_all(tracker, *evaluations) -> None:
    for each in evaluations:
        tracker.log(each)
    tracker.close()


def at(n_updates_done: int, kl: float = 0.5):
    return evaluation(n_updates_done, kl=np.array([kl, np.nan]), info_won=np.array([1.0, 0.0]))


# TensorBoard.


def test_tensorboard_reads_the_scalars_of_each_actor_and_policy(tmp_path):
    log_all(TensorBoard(tmp_path), at(0), at(50, kl=0.25))
    scalars = tensorboard_scalars(tmp_path)
    assert scalars["evaluation/return_mean"] == {0: 0.0, 102_400: 0.0}
    assert scalars["evaluation/return_mean_actor_0"] == {0: 2.0, 102_400: 2.0}
    assert scalars["evaluation/return_min_actor_1"] == {0: -2.0, 102_400: -2.0}
    assert scalars["evaluation/info_won_mean"] == {0: 0.5, 102_400: 0.5}
    assert scalars["evaluation/episode_length_mean"][0] == 27.5
    assert scalars["training/kl_policy_0"] == {0: 0.5, 102_400: 0.25}
    assert "training/kl_policy_1" not in scalars  # it is NaN
    assert scalars["time/n_updates_done"] == {0: 0.0, 102_400: 50.0}
    assert scalars["time/steps_per_second"][0] == pytest.approx(20_480.2)


def test_tensorboard_shows_the_latest_values_of_a_resumed_run(tmp_path):
    log_all(TensorBoard(tmp_path), at(0), at(50, kl=0.1), at(100, kl=0.2), at(150, kl=0.3))
    log_all(TensorBoard(tmp_path), at(100, kl=0.7), at(150, kl=0.8))
    assert len(list(tmp_path.iterdir())) == 2
    kl = tensorboard_scalars(tmp_path)["training/kl_policy_0"]
    steps = [2048 * n for n in (0, 50, 100, 150)]
    assert kl == pytest.approx(dict(zip(steps, (0.5, 0.1, 0.7, 0.8), strict=True)))


def test_tensorboard_can_read_the_scalars_during_training(tmp_path):
    tracker = TensorBoard(tmp_path)
    tracker.log(at(0))
    assert tensorboard_scalars(tmp_path)["training/kl_policy_0"] == {0: 0.5}
    tracker.close()


def test_a_full_disk_is_reported_once_and_leaves_readable_files(tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    trackers = Trackers([TensorBoard(tmp_path / "tensorboard"), JsonLines(path)])
    trackers.log(at(0))
    with files_of_at_most(path.stat().st_size):
        trackers.log(at(50))
        trackers.log(at(100))
    trackers.log(at(150))
    trackers.close()
    first, second = (record.message for record in caplog.records)
    assert first.startswith("TensorBoard has failed, training continues: [Errno 27]")
    assert second.startswith("JsonLines has failed, training continues: [Errno 27]")
    assert 0 in tensorboard_scalars(tmp_path / "tensorboard")["training/kl_policy_0"]
    assert [each["n_updates_done"] for each in read_records(path)] == [0, 150]


# User-defined trackers.


# Weights & Biases, offline.


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    return pytest.importorskip("wandb")


def wandb_history(directory: Path) -> list[dict[str, float]]:
    """Read the history that W&B has stored for a later upload, in the order of its files' names."""
    from wandb.proto import wandb_internal_pb2

    rows = []
    for path in sorted((directory / "wandb").glob("offline-run-*/*.wandb")):
        for data in leveldb_records(path.read_bytes()):
            record = wandb_internal_pb2.Record.FromString(data)
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                rows.append({each.nested_key[0]: json.loads(each.value_json) for each in items})
    return rows


def leveldb_records(contents: bytes) -> Iterator[bytes]:
    """Split a log of LevelDB's format, https://github.com/google/leveldb doc/log_format.md."""
    offset, record = 7, b""  # behind W&B's own header
    while offset + 7 <= len(contents):
        _, length, kind = struct.unpack_from("<IHB", contents, offset)
        record += contents[offset + 7 : offset + 7 + length]
        offset += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield record
            record = b""
        room = -offset % 2**15  # the end of a block is padded where no header fits
        offset += room if room < 7 else 0


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_wandb_receives_the_scalars_and_a_resumed_run_continues(tmp_path, offline):
    for n_updates_done in (0, 50):
        if n_updates_done:
            time.sleep(1.0 - time.time() % 1.0)  # W&B names folders by the second of their creation
        log_all(WandB("project", tmp_path, {"agent": {"n_steps": 3}}), at(n_updates_done))
    deadline = time.monotonic() + 30.0
    # W&B's service may write the last records a moment after the run has finished.
    while len(rows := wandb_history(tmp_path)) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [each["time/n_environment_steps"] for each in rows] == [0, 102_400]
    assert [each["training/kl_policy_0"] for each in rows] == [0.5, 0.5]
    assert rows[0]["evaluation/return_mean_actor_0"] == 2.0
    run_id = (tmp_path / "wandb" / "run_id").read_text().strip()
    logs = [each.name for each in tmp_path.glob("wandb/offline-run-*/*.wandb")]
    assert logs == [f"run-{run_id}.wandb"] * 2


# MLflow, with a local store.


@pytest.mark.filterwarnings("default")
def test_mlflow_receives_the_scalars_and_a_resumed_run_continues(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'store'}")
    directory = tmp_path / "run"
    for n_updates_done in (0, 50):
        log_all(MLflow("experiment", directory, {"agent": {"n_steps": 3}}), at(n_updates_done))
    client = mlflow.MlflowClient()
    found = client.get_experiment_by_name("experiment")
    (logged,) = client.search_runs([found.experiment_id])
    assert logged.data.params == {"agent.n_steps": "3"}
    assert logged.info.status == "FINISHED"
    history = client.get_metric_history(logged.info.run_id, "training/kl_policy_0")
    assert [(each.step, each.value) for each in history] == [(0, 0.5), (102_400, 0.5)]
