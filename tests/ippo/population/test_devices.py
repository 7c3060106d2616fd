"""Populations on several devices: as on one."""

import json
import subprocess
import sys

import numpy as np
import pytest

from jaxagents.evaluation.runs import read_groups
from tests.ippo.population import divided_population

CONFIG = """
name: divided
env: hunting/discrete
seeds: 8
agent:
  n_steps: 2
  batch_size: 6
  minibatch_size: 3
  rollout_length: 8
  eval_frequency: 1
  n_evals: 3
  progress_bar: false
evaluation: {n_evals: 3}
"""


def run(*arguments):
    command = [sys.executable, "-m", "tests.ippo.population.divided_population"]
    command += map(str, arguments)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow  # each case compiles four programs
@pytest.mark.parametrize("case", divided_population.CASES)
def test_members_learn_on_four_devices_what_they_do_on_one(case):
    numbers = (4, 2, 3)
    result = run("compare", case, *numbers)
    for n in numbers:
        assert max(result[str(n)]) < 1e-5
    epochs = np.array(result["epochs"])
    assert ((epochs > 1) & (epochs < 8)).any() if "stopped" in case else (epochs == 4).all()


@pytest.mark.slow  # trains five populations
def test_a_population_is_resumed_on_another_number_of_devices(tmp_path):
    differences = run("resume", tmp_path)
    assert differences["2"] == 0
    assert max(differences.values()) < 1e-5


@pytest.mark.slow  # trains three populations
def test_members_that_diverge_stop_alone_and_seldom_compile_anew():
    result = run("diverge")
    assert max(result["differences"].values()) < 1e-5
    assert result["stopped"] == [[False, bool(i % 2), bool(i % 2)] for i in range(4)]
    # Two of four are left: on two devices one each is enough, on four all keep their place.
    assert result["programs"] == {"2": 2, "4": 1}


@pytest.mark.slow  # trains six populations
def test_members_are_selected_as_on_one_device():
    for differences in run("select").values():
        assert max(differences) < 1e-5


@pytest.mark.slow  # trains four populations
def test_a_member_per_device_may_be_what_cannot_be_divided():
    differences = run("one_per_device")
    assert max(differences.values()) < 1e-5


@pytest.mark.slow  # commands in processes of their own
def test_commands_train_and_resume_seeds_on_devices(tmp_path, monkeypatch):
    path, runs = tmp_path / "config.yaml", tmp_path / "runs"
    path.write_text(CONFIG)
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

    def jaxagents(*arguments):
        command = [sys.executable, "-m", "jaxagents", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    command = ["train", path, "--runs_dir", runs]
    refused = jaxagents(*command, "--seeds", 2, "--devices", 4)
    assert refused.returncode == 2
    assert "does not divide among devices=4, of which 2 train each of 2" in refused.stderr
    assert not runs.exists()
    done = jaxagents(*command, "--devices", 4)
    assert done.returncode == 0, done.stderr
    (directory,) = runs.iterdir()
    assert "devices: 1" in (directory / "members" / "7" / "config.yaml").read_text()
    done = jaxagents("resume", directory, "--agent.n_steps", 3, "--agent.devices", 2)
    assert done.returncode == 0, done.stderr
    (members,) = read_groups([directory]).values()
    assert [member.n_updates_done for member in members] == [3] * 8
