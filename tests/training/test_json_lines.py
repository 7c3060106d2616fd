"""Lines of metrics.jsonl."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.evaluation.run_files import read_records
from jaxagents.training.callbacks import Evaluation
from jaxagents.training.trackers import JsonLines


def evaluation(n_updates_done=50, **metrics):
    return Evaluation(
        n_updates_done=n_updates_done,
        n_environment_steps=2048 * n_updates_done,
        seconds=1.5,
        metrics={
            "returns": np.array([[1.0, -2.0], [3.0, -2.0]], dtype=np.float32),
            "episode_lengths": np.array([25, 30]),
            **metrics,
        },
        runner=None,
        steps_per_second=20_480.25,
    )


def strictly_valid(constant):
    raise AssertionError(f"{constant} is not JSON")


def test_a_line_describes_the_evaluation_per_actor(tmp_path):
    JsonLines(tmp_path / "metrics.jsonl")(evaluation())
    (record,) = read_records(tmp_path / "metrics.jsonl")
    assert record == {
        "n_updates_done": 50,
        "n_environment_steps": 102_400,
        "seconds": 1.5,
        "steps_per_second": 20_480.2,
        "return_mean": [2.0, -2.0],
        "return_min": [1.0, -2.0],
        "return_max": [3.0, -2.0],
        "return_std": [1.0, 0.0],
        "episode_length_mean": 27.5,
    }


def test_training_metrics_are_lists_per_policy(tmp_path):
    JsonLines(tmp_path / "metrics.jsonl")(
        evaluation(actor_epochs=np.array([4, 2]), kl=jnp.array([0.25, 0.5]))
    )
    (record,) = read_records(tmp_path / "metrics.jsonl")
    assert record["actor_epochs"] == [4, 2]
    assert record["kl"] == [0.25, 0.5]


def test_other_evaluation_metrics_are_means_over_episodes(tmp_path):
    JsonLines(tmp_path / "metrics.jsonl")(
        evaluation(
            terminated=np.array([[True, False], [True, True]]), info_won=np.array([1.0, 0.0])
        )
    )
    (record,) = read_records(tmp_path / "metrics.jsonl")
    assert record["terminated_mean"] == [1.0, 0.5]
    assert record["info_won_mean"] == 0.5


def test_metrics_cannot_overwrite_the_fields_of_the_evaluation(tmp_path):
    JsonLines(tmp_path / "metrics.jsonl")(evaluation(n_environment_steps=np.array(7)))
    (record,) = read_records(tmp_path / "metrics.jsonl")
    assert record["n_environment_steps"] == 102_400


@pytest.mark.filterwarnings("error")
def test_nan_and_infinity_become_null(tmp_path):
    path = tmp_path / "metrics.jsonl"
    returns = np.array([[np.nan, np.inf], [1.0, 2.0]])
    JsonLines(path)(evaluation(returns=returns, actor_loss=np.array([np.nan, -np.inf, 1.0])))
    record = json.loads(path.read_text(), parse_constant=strictly_valid)
    assert record["return_mean"] == [None, None]
    assert record["return_min"] == [None, 2.0]
    assert record["return_std"] == [None, None]
    assert record["actor_loss"] == [None, None, 1.0]


@pytest.mark.filterwarnings("error")
def test_an_evaluation_without_episodes_has_null_returns(tmp_path):
    JsonLines(tmp_path / "metrics.jsonl")(
        evaluation(returns=np.zeros((0, 2)), episode_lengths=np.zeros(0))
    )
    (record,) = read_records(tmp_path / "metrics.jsonl")
    assert record["return_mean"] == record["return_max"] == [None, None]
    assert record["episode_length_mean"] is None


def test_each_line_can_be_read_while_training_goes_on(tmp_path):
    path = tmp_path / "metrics.jsonl"
    track = JsonLines(path)
    for n_updates_done in (0, 50, 100):
        track(evaluation(n_updates_done))
        assert path.read_bytes().endswith(b"\n")
        assert read_records(path)[-1]["n_updates_done"] == n_updates_done
    assert len(path.read_text().splitlines()) == 3


def test_an_existing_file_is_continued(tmp_path):
    path = tmp_path / "metrics.jsonl"
    JsonLines(path)(evaluation(50))
    JsonLines(path)(evaluation(100))
    assert [record["n_updates_done"] for record in read_records(path)] == [50, 100]


def test_a_half_written_last_line_is_skipped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    JsonLines(path)(evaluation(50))
    path.write_bytes(path.read_bytes() + b'{"n_updates_done": 100, "return_me')
    assert [record["n_updates_done"] for record in read_records(path)] == [50]


def test_a_resumed_run_continues_after_a_half_written_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    JsonLines(path)(evaluation(50))
    interrupted = path.read_bytes() + b'{"n_updates_done": 100, "return_me'
    path.write_bytes(interrupted)
    JsonLines(path)(evaluation(100))
    assert path.read_bytes().startswith(interrupted)
    assert [record["n_updates_done"] for record in read_records(path)] == [50, 100]


def test_the_later_line_of_a_repeated_evaluation_counts(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for n_updates_done, seconds in ((50, 1.0), (100, 2.0), (50, 3.0)):
        JsonLines(path)(evaluation(n_updates_done)._replace(seconds=seconds))
    records = read_records(path)
    assert [(each["n_updates_done"], each["seconds"]) for each in records] == [
        (50, 3.0),
        (100, 2.0),
    ]


@pytest.mark.parametrize("line", [b"\xff\x00", b""])
def test_invalid_lines_are_skipped(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line + b"\n")
    JsonLines(path)(evaluation(50))
    assert [record["n_updates_done"] for record in read_records(path)] == [50]


def test_a_tracker_does_not_stop_training(tmp_path):
    assert JsonLines(tmp_path / "metrics.jsonl")(evaluation()) is None


def test_missing_folders_are_created(tmp_path):
    JsonLines(str(tmp_path / "runs" / "1" / "metrics.jsonl"))(evaluation())
    assert len(read_records(tmp_path / "runs" / "1" / "metrics.jsonl")) == 1


def test_a_path_that_cannot_be_written_fails_before_training(tmp_path):
    with pytest.raises(IsADirectoryError):
        JsonLines(tmp_path)
