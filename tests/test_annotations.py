"""Shapes and types hold: some of the tests run again, with every annotation checked.

Checking makes tracing half as slow again, so that the suite itself goes without.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_layers import FILES, PACKAGES

TESTS = Path(__file__).parent
# Pytree dataclasses are rebuilt by jax with leaves that are no arrays; configurations say
# themselves what is wrong with them.
UNCHECKED = {
    "__main__",
    "config",
    "configuration",
    "environments.hunting",
    "experiment",
    "hyperparameters",
    "types",
}
GROUPS = {
    "formulas": [
        "test_advantages.py",
        "test_batches.py",
        "test_compilation.py",
        "test_concurrency.py",
        "test_finiteness.py",
        "test_leaves.py",
        "test_losses.py",
        "test_minibatches.py",
        "test_normalization.py",
        "test_optimization.py",
        "test_policies.py",
        "test_schedules.py",
        "test_statistics.py",
        "test_unrolling.py",
        "test_vtrace.py",
    ],
    "environments": ["environments/test_batch.py", "environments/test_gymnax.py"],
    "agents": ["ippo/test_distributions.py", "ippo/test_episode_ends.py"],
    "runs": ["test_exporting.py", "test_replay.py", "test_trajectories.py"],
    "results": ["test_curves.py", "test_comparison.py", "test_plotting_runs.py", "test_report.py"],
}


@pytest.mark.parametrize("group", GROUPS)
def test_every_call_keeps_to_its_annotations(group):
    checked = [f"jaxagents.{name}" for name in sorted(FILES.keys() - PACKAGES - UNCHECKED)]
    hook = f"--jaxtyping-packages={','.join(checked)},beartype.beartype"
    files = [str(TESTS / name) for name in GROUPS[group]]
    command = [sys.executable, "-m", "pytest", "-n0", "-q", "-x", "--tb=short", hook, *files]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout[-4000:]
