"""Training by several processes, each with environments in workers of its own."""

import functools
import os
import signal
import time

import jax
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.evaluation.run_files import read_records
from tests.agents import FAST, tiny
from tests.environments.host.probes import Stairs
from tests.environments.host.processes import is_running, workers
from tests.ippo.divided_training import largest_difference
from tests.ippo.processes import jaxagents, start_training, train, wait_for_checkpoints

CONFIG = """
name: several
env: gymnasium/CartPole-v1
env_kwargs: {{n_workers: 1}}
agent:
  n_steps: {n_steps}
  batch_size: 8
  minibatch_size: 8
  rollout_length: 8
  eval_frequency: 2
  n_evals: 4
  max_episode_steps: 50
  progress_bar: false
evaluation: {{n_evals: 4}}
"""


def assert_they_learn_what_one_does(n_processes, tmp_path, env_id):
    """Train in several processes and in one, and compare the final states."""
    all_of_them = train(n_processes, n_processes, tmp_path / "several", env_id)
    (alone,) = train(1, 1, tmp_path / "one", env_id)
    of_all = alone.pop("n_own_envs")
    for each in all_of_them:
        np.testing.assert_array_equal(n_processes * each.pop("n_own_envs"), of_all)
    # A checksum of the history: each process has that of its own environments.
    own = {each["env_state.env_state"].tobytes() for each in all_of_them}
    assert len(own) == 1
    alone.pop("env_state.env_state")
    for name in alone:
        for each in all_of_them:
            np.testing.assert_array_equal(all_of_them[0][name], each[name])
        assert largest_difference(alone[name], all_of_them[0][name]) < 1e-5, name


@pytest.mark.slow  # three trainings in processes of their own
def test_two_processes_learn_what_one_does_from_agents_of_the_parallel_api(tmp_path):
    assert_they_learn_what_one_does(2, tmp_path, "echo")


@pytest.mark.slow  # seven processes compile
def test_two_and_four_processes_learn_what_one_does_from_cartpoles(tmp_path):
    for n_processes in (2, 4):
        (tmp_path / str(n_processes)).mkdir()
        assert_they_learn_what_one_does(
            n_processes, tmp_path / str(n_processes), "gymnasium/CartPole-v1"
        )


def test_several_devices_of_one_process_are_refused_before_a_worker_starts(monkeypatch):
    monkeypatch.setattr("jax.devices", lambda: [None] * 2)
    env = ja.HostEnvironment(functools.partial(Stairs, limit=2), n_workers=1)
    agent = ja.DiscreteIPPO(env, None, tiny(devices=2))
    with pytest.raises(ValueError, match=r"devices=2, .* choose devices=1, or start 2 processes"):
        agent.train(jax.random.key(0), FAST)
    assert workers() == set()


@pytest.mark.slow  # two processes compile
@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("raises", "environment 2 at step 1 raised ZeroDivisionError: the stairs are broken"),
        ("unstartable", "environment 4 at the reset raised OSError: no stairs left"),
    ],
)
def test_a_fault_in_one_process_is_raised_in_all(tmp_path, env_id, message):
    first, second = start_training(2, 2, tmp_path / "run", env_id)
    of_first, of_second = (process.communicate(timeout=120)[1] for process in (first, second))
    assert (first.returncode, second.returncode) == (1, 1)
    assert f"HostEnvironmentError: in process 1, {message}" in of_first
    assert f"HostEnvironmentError: {message}" in of_second


def all_workers(processes):
    return {worker for process in processes for worker in workers(process.pid)}


def assert_they_end(some_workers):
    deadline = time.monotonic() + 10
    while any(map(is_running, some_workers)):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow  # a whole run, twice
@pytest.mark.parametrize("killed", ["a worker", "a process"])
def test_if_one_is_killed_all_end_and_resume_in_another_number(tmp_path, killed):
    path, runs = tmp_path / "config.yaml", tmp_path / "runs"
    path.write_text(CONFIG.format(n_steps=100_000))
    processes = jaxagents(tmp_path, ["train", path, "--runs_dir", runs], 2)
    wait_for_checkpoints(runs)
    some_workers = all_workers(processes)
    assert len(some_workers) == 2 * 2  # of the training and of the evaluations
    if killed == "a process":
        os.kill(processes[1].pid, signal.SIGKILL)
    else:
        os.kill(min(workers(processes[1].pid)), signal.SIGKILL)
    said = [process.communicate(timeout=60)[1] for process in processes]
    assert_they_end(some_workers)
    if killed == "a process":
        assert "another process has ended, and this one cannot continue" in said[0]
        assert processes[0].returncode == 1
    else:
        assert all("ended its worker process (SIGKILL)" in errors for errors in said)
        assert "error: in process 1, environments 4-7 at step" in said[0]
        assert [process.returncode for process in processes] == [1, 1]

    (run,) = runs.iterdir()
    n_steps = read_records(run / "metrics.jsonl")[-1]["n_updates_done"] + 4
    for n_processes in (1, 4):
        processes = jaxagents(tmp_path, ["resume", run, "--agent.n_steps", n_steps], n_processes)
        for process in processes:
            _, errors = process.communicate(timeout=180)
            assert process.returncode == 0, errors
        assert read_records(run / "metrics.jsonl")[-1]["n_updates_done"] == n_steps
        n_steps += 4
    assert (run / "summary.json").is_file()
