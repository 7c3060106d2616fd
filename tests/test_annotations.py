"""Calls keep to the package's annotations of shapes and types.

Checking annotations makes tracing half as slow again, so only some tests run with it, in processes
of their own.
"""

import subprocess
import sys
from pathlib import Path

import pytest

import jaxagents

TESTS, PACKAGE = Path(__file__).parent, Path(jaxagents.__file__).parent
# Jax rebuilds pytree dataclasses with leaves that are no arrays, and configurations report wrong
# values by errors of their own.
UNCHECKED = {
    "__main__",
    "config",
    "environments.hunting",
    "experiments.config_files.schema",
    "experiments.experiment",
    "hyperparameters",
    "ippo.population.selection",
    "ippo.vmapped_training",
    "types",
}
GROUPS = {
    "statistics": ["compiler/test_reductions.py", "ppo/test_statistics.py"],
    "calls": ["annotated_calls.py"],
    "commands": ["annotated_commands.py"],
    "formulas": ["ppo", "compiler", "evaluation", "networks"],
    "environments": [
        "environments/test_batch.py",
        "environments/test_environment_check.py",
        "environments/test_gymnax.py",
        "environments/host/test_adapters.py",
        "environments/host/test_batch.py",
    ],
    "agents": ["ippo/test_distributions.py", "ippo/test_episode_ends.py", "ippo/test_memory.py"],
    "experiments": ["experiments", "visual"],
}


def module_names() -> set[str]:
    """List the package's modules by their dotted names, such as "ppo.losses"."""
    paths = [path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py")]
    return {".".join(path.parts) for path in paths if path.name != "__init__"}


def test_the_unchecked_modules_exist():
    assert module_names() >= UNCHECKED


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_calls_keep_to_the_annotations(group):
    checked = [f"jaxagents.{name}" for name in sorted(module_names() - UNCHECKED)]
    hook = f"--jaxtyping-packages={','.join(checked)},beartype.beartype"
    files = [str(TESTS / name) for name in GROUPS[group]]
    command = [sys.executable, "-m", "pytest", "-n0", "-q", "--tb=short", hook, *files]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout[-4000:]
