"""Runs that each version stored are read as they were written: see docs/compatibility.md."""

import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxagents.evaluation.run_files import read_records
from jaxagents.experiments.experiment import Experiment
from jaxagents.training.checkpoints import Checkpoints
from jaxagents.training.named_arrays import strip_keys, to_leaves

REPOSITORY = Path(__file__).parents[2]
DATA = REPOSITORY / "tests" / "data"
RUNS = sorted(DATA.glob("run_of_*_*[0-9]"))


def test_there_is_a_run_of_every_minor_version():
    changes = (REPOSITORY / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## \[?(\d+)\.(\d+)\.\d+", changes, re.MULTILINE)
    assert {run.name for run in RUNS} == {f"run_of_{major}_{minor}" for major, minor in versions}


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_every_array_of_a_stored_checkpoint_is_restored_unchanged(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    agent = Experiment.of_run(tmp_path / "run").restore("last")
    runner, metrics = agent.restore("last")
    leaves = to_leaves(jax.device_get(strip_keys(runner)))
    (stored,) = (run / "checkpoints").iterdir()
    with np.load(stored / "state.npz") as arrays:
        assert leaves.keys() == set(arrays)
        for name in arrays:
            np.testing.assert_array_equal(leaves[name], arrays[name], err_msg=name)
    with np.load(stored / "history.npz") as arrays:
        assert arrays.keys() <= metrics.keys()


@pytest.mark.slow
def test_the_run_of_1_0_is_resumed(tmp_path):
    run = tmp_path / "run"
    shutil.copytree(DATA / "run_of_1_0", run)
    summary = Experiment.of_run(run, ["--agent.n_steps", "6"], progress_bar=False).resume()
    assert summary["training"]["n_updates_done"] == 6
    assert Checkpoints(run / "checkpoints").last_step() == 6
    updates = [line["n_updates_done"] for line in read_records(run / "metrics.jsonl")]
    assert updates == [0, 2, 4, 6]
