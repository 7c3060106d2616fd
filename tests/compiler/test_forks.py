"""Trainings in processes that were started by multiprocessing."""

import subprocess
import sys

import pytest

TRAINING = """
import faulthandler, multiprocessing, sys
import jax
import jaxagents as ja

def train(directory):
    faulthandler.dump_traceback_later(60, exit=True)
    env, env_params = ja.make("hunting/discrete")
    config = ja.AgentConfig(
        n_steps=1, batch_size=2, minibatch_size=2, rollout_length=2, n_evals=2,
        checkpoint_dir=directory, progress_bar=False,
    )
    try:
        runner, _ = ja.DiscreteIPPO(env, env_params, config).train(
            jax.random.key(0), ja.HyperParameters()
        )
        print("updates:", int(runner.n_updates_done), flush=True)
    except RuntimeError as error:
        print(error, flush=True)

if __name__ == "__main__":
    jax.random.key(0)
    how, directory = sys.argv[1:]
    process = multiprocessing.get_context(how).Process(target=train, args=(directory,))
    process.start()
    process.join()
"""
REFUSED = (
    "this process was forked from one in which jax had run, and jax does not work in it; start it "
    'by multiprocessing.get_context("spawn"), or fork before jax runs.\n'
)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
@pytest.mark.parametrize(
    ("how", "output"),
    [("fork", REFUSED), pytest.param("spawn", "updates: 1\n", marks=pytest.mark.slow)],
)
def test_children_train_if_spawned_and_are_refused_if_forked_after_jax_had_run(
    how, output, tmp_path
):
    script = tmp_path / "training.py"  # spawned children import it
    script.write_text(TRAINING)
    finished = subprocess.run(
        [sys.executable, str(script), how, str(tmp_path / "checkpoints")],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert finished.stdout == output, finished.stderr
