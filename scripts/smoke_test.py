"""Use an installed jaxagents as its users do. Run it outside of the repository.

    python smoke_test.py [RUN_OF_1_0]

RUN_OF_1_0 is a copy of tests/data/run_of_1_0, which is evaluated and resumed.
"""

import dataclasses
import subprocess
import sys
import sysconfig
from pathlib import Path

import jax
import numpy as np

import jaxagents as ja

SHORT = {
    "agent.n_steps": 2,
    "agent.eval_frequency": 1,
    "agent.n_evals": 2,
    "agent.batch_size": 4,
    "agent.minibatch_size": 2,
    "agent.rollout_length": 8,
    "evaluation.n_evals": 2,
}


def main() -> None:
    """Use the library, then the commands."""
    assert Path(ja.__file__).is_relative_to(sysconfig.get_path("purelib")), ja.__file__
    assert Path(ja.__file__).with_name("py.typed").is_file()
    use_the_library()
    use_the_commands(*sys.argv[1:])
    print("works with", *(f"{each.__name__} {each.__version__}" for each in (ja, jax, np)))


def use_the_library() -> None:
    """Train, restore, evaluate and resume."""
    config = ja.AgentConfig(
        n_steps=2,
        eval_frequency=1,
        n_evals=2,
        batch_size=4,
        minibatch_size=2,
        rollout_length=8,
        progress_bar=False,
        checkpoint_dir="checkpoints",
    )
    env, env_params = ja.make("jaxmarl/MPE_simple_spread_v3")
    agent = ja.DiscreteIPPO(env, env_params, config)
    runner, _ = agent.train(jax.random.key(0), ja.HyperParameters())
    restored, _ = agent.restore(mode="last")
    for mine, saved in zip(
        jax.tree.leaves(runner.actor.params), jax.tree.leaves(restored.actor.params), strict=True
    ):
        np.testing.assert_array_equal(mine, saved)
    evaluation = agent.eval(jax.random.key(1))
    assert np.isfinite(agent.summarize(evaluation["returns"]).mean).all()
    longer = dataclasses.replace(config, n_steps=3)
    resumed, _ = ja.DiscreteIPPO(env, env_params, longer).resume()
    assert int(resumed.n_updates_done) == 3

    env, env_params = ja.make("gymnax/Pendulum-v1")
    agent = ja.ContinuousIPPO(env, env_params, dataclasses.replace(config, checkpoint_dir=None))
    agent.train(jax.random.key(0), ja.HyperParameters())


def use_the_commands(run_of_1_0: str | None = None) -> None:
    """Go through the command line."""
    changes = [text for key, value in SHORT.items() for text in (f"--{key}", str(value))]
    assert command("--version") == ja.__version__
    command("doctor")
    command("demo", "--no-open", *changes)
    command("config", "gymnasium/CartPole-v1", "--to", "config.yaml")
    run = command("train", "config.yaml", "--quiet", *changes)
    command("resume", run, "--agent.n_steps", "3")
    for name in ("eval", "export", "plot", "report", "replay"):
        command(name, run)
    if run_of_1_0 is not None:
        command("eval", run_of_1_0)
        command("resume", run_of_1_0, "--agent.n_steps", "6")


def command(*arguments: str) -> str:
    """Run the installed command; return what it prints."""
    program = Path(sysconfig.get_path("scripts"), "jaxagents")
    finished = subprocess.run([program, *arguments], capture_output=True, text=True)
    assert finished.returncode == 0, (arguments, finished.stdout, finished.stderr)
    return finished.stdout.strip()


if __name__ == "__main__":
    main()
