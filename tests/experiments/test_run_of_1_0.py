"""A run that the first version wrote, before the modules moved, is resumed by this one."""

import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.experiments.experiment import Experiment
from jaxagents.ppo import batches
from jaxagents.ppo.normalization import Rescaling
from jaxagents.training.named_arrays import strip_keys, to_leaves

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "run_of_1_0"
    shutil.copytree(DATA / "run_of_1_0", directory)
    return directory


def test_a_run_of_the_first_version_resumes_to_the_state_that_version_reached(run, monkeypatch):
    # That version let values move with their statistics.
    unchanged = Rescaling(scale=jnp.ones(()), shift=jnp.zeros(()))
    monkeypatch.setattr(batches, "rescaling", lambda *_: unchanged)
    experiment = Experiment.of_run(run, ["--agent.n_steps", "8"], progress_bar=False)
    summary = experiment.resume()
    assert summary["training"]["n_updates_done"] == 8
    runner, metrics = experiment.agent.restore("last")
    np.testing.assert_array_equal(metrics["n_updates_done"], [0, 2, 4, 6, 8])
    with np.load(DATA / "run_of_1_0_after_8_updates.npz") as arrays:
        expected = dict(arrays)
    leaves = to_leaves(strip_keys(jax.device_get(runner)))
    assert leaves.keys() == expected.keys()
    for name in leaves:
        # Bit-identical on the machine that wrote it; others may round differently.
        np.testing.assert_allclose(leaves[name], expected[name], atol=1e-5, err_msg=name)


def test_its_metrics_are_continued(run):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    before = (DATA / "run_of_1_0" / "metrics.jsonl").read_text().splitlines()
    assert lines[: len(before)] == before
    assert len(lines) == 5
