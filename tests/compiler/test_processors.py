"""Trainings on a single processor."""

import os
import subprocess
import sys

import pytest

from jaxagents.compiler.processors import n_processors

needs_affinity = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="no affinity on this system"
)
PIN = "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
IMPORT = "import jaxagents as ja"
ONE_THREAD = "os.environ['NPROC'] = '1'"
COMPUTE = "import jax; jax.numpy.ones(3).sum().block_until_ready()"
TRAINING = """
import os, sys
import jax

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


@needs_affinity
def test_processors_are_those_of_the_affinity():
    allowed = os.sched_getaffinity(0)
    assert n_processors() == len(allowed)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert n_processors() == 1
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.slow
@needs_affinity
@pytest.mark.parametrize(
    "preparation",
    [(PIN, IMPORT), (IMPORT, PIN), (ONE_THREAD, IMPORT), (ONE_THREAD, COMPUTE, IMPORT)],
    ids=["before", "after", "NPROC=1", "NPROC=1 and computed"],
)
def test_a_training_with_checkpoints_ends_on_one_processor(preparation, tmp_path):
    """With one thread, XLA would wait for a callback that waits for XLA."""
    environment = {name: value for name, value in os.environ.items() if name != "NPROC"}
    training = "\n".join(["import os", *preparation, TRAINING])
    finished = subprocess.run(
        [sys.executable, "-c", training, str(tmp_path / "checkpoints")],
        env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert finished.stdout.endswith("updates: 1\n"), finished.stderr
