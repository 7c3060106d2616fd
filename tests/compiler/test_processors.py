"""Trainings on a single processor."""

import os
import subprocess
import sys

import pytest

TRAINING = """
import os, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import jax
import jaxagents as ja

env, env_params = ja.make("hunting/discrete")
# Small arrays are copied at once, by the thread that calls back: networks have their usual size.
config = ja.AgentConfig(
    n_steps=1, batch_size=4, minibatch_size=2, rollout_length=4, n_evals=2,
    checkpoint_dir=sys.argv[1], progress_bar=False,
)
agent = ja.DiscreteIPPO(env, env_params, config)
runner, _ = agent.train(jax.random.key(0), ja.HyperParameters())
print("updates:", int(runner.n_updates_done))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_a_training_with_checkpoints_ends_on_one_processor(tmp_path):
    """With one thread, XLA would wait for a callback that waits for XLA."""
    environment = {name: value for name, value in os.environ.items() if name != "NPROC"}
    finished = subprocess.run(
        [sys.executable, "-c", TRAINING, str(tmp_path / "checkpoints")],
        env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert finished.stdout.endswith("updates: 1\n"), finished.stderr
