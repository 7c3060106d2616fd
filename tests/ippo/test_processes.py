"""Training by several processes, over the loopback interface."""

import signal
import time

import numpy as np
import pytest

from jaxagents.cli import main as cli
from jaxagents.evaluation.run_files import read_records
from tests.ippo.divided_training import largest_difference
from tests.ippo.processes import free_port, jaxagents, start, train, wait_for_checkpoints

CONFIG = """
name: several
env: hunting/discrete
agent:
  n_steps: {n_steps}
  batch_size: 8
  minibatch_size: 4
  rollout_length: 8
  eval_frequency: 2
  n_evals: 4
  progress_bar: false
evaluation: {{n_evals: 4}}
"""


@pytest.mark.slow
@pytest.mark.parametrize("n_members", [1, 2, 3])
def test_two_processes_end_with_the_same_state_as_one(tmp_path, n_members):
    first, second = train(2, 2, tmp_path / "two", n_members=n_members)
    (alone,) = train(1, 1, tmp_path / "one", n_members=n_members)
    for name in alone:
        np.testing.assert_array_equal(first[name], second[name])
        assert largest_difference(alone[name], first[name]) < 1e-5


@pytest.mark.slow
def test_a_signal_to_one_of_them_interrupts_all(tmp_path):
    path, runs = tmp_path / "config.yaml", tmp_path / "runs"
    path.write_text(CONFIG.format(n_steps=100_000))
    processes = jaxagents(tmp_path, ["train", path, "--runs_dir", runs], 2)
    wait_for_checkpoints(runs)
    processes[1].send_signal(signal.SIGTERM)
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 128 + signal.SIGTERM, errors
        assert "interrupted; resume with: jaxagents resume" in errors
    (run,) = runs.iterdir()
    assert not (run / "summary.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("n_processes", "n_afterwards"), [(2, 4), (4, 2)])
def test_if_one_is_killed_the_others_end_and_all_resume_in_another_number(
    tmp_path, n_processes, n_afterwards
):
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.format(n_steps=100_000))
    runs = tmp_path / "runs"
    processes = jaxagents(tmp_path, ["train", path, "--runs_dir", runs], n_processes)
    wait_for_checkpoints(runs)
    processes[1].send_signal(signal.SIGKILL)
    killed_at = time.monotonic()
    said = []
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode != 0
        said += ["another process has ended, and this one cannot continue" in errors]
    # Gloo itself may abort those of several that wait for data of the others.
    assert all(said[i] for i in (0, 2, 3) if i < n_processes) or (n_processes == 4 and any(said))
    assert time.monotonic() - killed_at < 60

    (run,) = runs.iterdir()
    records = read_records(run / "metrics.jsonl")
    n_steps = records[-1]["n_updates_done"] + 4
    command = ["resume", run, "--agent.n_steps", n_steps]
    for process in jaxagents(tmp_path, command, n_afterwards):
        _, errors = process.communicate(timeout=180)
        assert process.returncode == 0, errors
    assert read_records(run / "metrics.jsonl")[-1]["n_updates_done"] == n_steps
    assert (run / "summary.json").is_file()


@pytest.mark.slow
def test_processes_that_disagree_end_with_the_reason(tmp_path):
    path, other = tmp_path / "config.yaml", tmp_path / "other.yaml"
    path.write_text(CONFIG.format(n_steps=4))
    other.write_text(CONFIG.format(n_steps=5))
    port = free_port()
    options = ["--coordinator", f"127.0.0.1:{port}", "--num-processes", 2, "--process-id"]
    processes = [
        start("jaxagents", "train", each, "--runs_dir", tmp_path / "runs", *options, i)
        for i, each in enumerate((path, other))
    ]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 1
        assert "disagree about agent.n_steps: it is 4 in process 0 and 5 in process 1" in errors
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--num-processes", "2"], "need --coordinator HOST:PORT, --num-processes N and"),
        (
            ["--coordinator", "localhost:1", "--num-processes", "2", "--process-id", "2"],
            "--process-id 2 is none of 2 processes; count from 0 to 1",
        ),
    ],
)
def test_incomplete_options_are_refused(tmp_path, capsys, options, message):
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.format(n_steps=4))
    assert cli.main(["train", str(path), *options]) == 2
    assert message in capsys.readouterr().err


def test_more_devices_than_there_are_are_refused_before_anything_is_written(tmp_path, capsys):
    path, runs = tmp_path / "config.yaml", tmp_path / "runs"
    path.write_text(CONFIG.format(n_steps=4).replace("minibatch_size: 4", "minibatch_size: 8"))
    options = ["--runs_dir", str(runs), "--agent.n_evals", "8", "--devices", "8"]
    assert cli.main(["train", str(path), *options]) == 2
    assert "error: devices=8, but jax sees" in capsys.readouterr().err
    assert not runs.exists()
