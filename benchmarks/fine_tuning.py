"""What does a trained policy save on a changed task? simple_spread without friction.

The zoo's policy is fine-tuned for a tenth of the updates of configs/simple_spread.yaml, and
policies are trained from scratch for as many.

    python benchmarks/fine_tuning.py
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from jaxagents.experiments.config_files.file import load_config
from jaxagents.experiments.experiment import Experiment
from jaxagents.experiments.starting_point import read_starting_point
from jaxagents.types import Runner

CONFIG = Path(__file__).resolve().parents[1] / "configs" / "simple_spread.yaml"
TASK = ["--env_kwargs", "{damping: 0.0}", "--tracking.tensorboard", "false"]  # 0.25 by default
FROM_ZOO = ["--init_from", "zoo:jaxmarl/MPE_simple_spread_v3"]
TENTH = ["--agent.n_steps", "60"]
VARIANTS = {
    "from scratch": TENTH,
    "fine-tuned": [*TENTH, *FROM_ZOO],
    "the actor alone": [*TENTH, *FROM_ZOO, "--init_parts", "[actor]"],
    "the first layer frozen": [*TENTH, *FROM_ZOO, "--agent.freeze", "[actor.torso.Dense_0]"],
    "all but the last layer frozen": [*TENTH, *FROM_ZOO, "--agent.freeze", "[actor.torso]"],
}
N_EVALS = 200


def earned(experiment: Experiment, runner: Runner) -> float:
    """Return the mean return of an actor over greedy episodes."""
    returns = experiment.agent.eval(jax.random.key(1), N_EVALS, runner=runner)["returns"]
    return float(np.mean(returns))


def before_training() -> float:
    """Evaluate the zoo's policy on the changed task."""
    experiment = Experiment(load_config(CONFIG, [*TASK, *FROM_ZOO]))
    start = read_starting_point(experiment.agent, experiment.config)
    assert start is not None
    return earned(experiment, start.runner)


def after_training(overrides: Sequence[str], n_seeds: int) -> list[float]:
    """Train a configuration with several seeds, and evaluate each at the end."""
    with tempfile.TemporaryDirectory() as runs:
        given = [*TASK, *overrides, "--seeds", str(n_seeds), "--runs_dir", runs]
        experiment = Experiment(load_config(CONFIG, given))
        experiment.train()
        runners, _ = experiment.agent.restore("last")
    agent = experiment.agent
    return [earned(experiment, agent.member(runners, seed)) for seed in range(n_seeds)]


def main() -> None:
    """Print each variant's mean and its worst seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--only", nargs="*", choices=list(VARIANTS), default=list(VARIANTS))
    arguments = parser.parse_args()
    print(f"{'the policy of the zoo, 0 updates':40}{before_training():8.1f}", flush=True)
    for name in arguments.only:
        returns = after_training(VARIANTS[name], arguments.seeds)
        print(f"{name:40}{np.mean(returns):8.1f} (worst {min(returns):.1f})", flush=True)


if __name__ == "__main__":
    main()
