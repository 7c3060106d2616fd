"""What do checkpoints cost? simple_spread's stock workload with one every ten updates, and without.

python benchmarks/checkpoint_cost.py --pairs 9
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import jax

import jaxagents as ja

N_STEPS, FREQUENCY = 200, 10


def make_agent(directory: Path | None) -> ja.DiscreteIPPO:
    """Build an agent that saves every ten updates, or one that is the same but never saves."""
    env, env_params = ja.make("jaxmarl/MPE_simple_spread_v3")
    config = ja.AgentConfig(
        n_steps=N_STEPS,
        eval_frequency=FREQUENCY,
        n_evals=0,
        checkpoint_dir=directory,
        progress_bar=False,
    )
    return ja.DiscreteIPPO(env, env_params, config)


def seconds_of(agent: ja.DiscreteIPPO) -> float:
    """Time a training that is already compiled, including the writing of the last checkpoint."""
    started = time.perf_counter()
    jax.block_until_ready(agent.train(jax.random.key(0), ja.HyperParameters()))
    return time.perf_counter() - started


def main() -> None:
    """Print the times, and the median of the pairs' ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=9)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # An agent is compiled for its configuration: each directory is used again, emptied.
        directory = Path(folder) / "checkpoints"
        saving, plain = make_agent(directory), make_agent(None)
        ratios = []
        for pair in range(arguments.pairs + 1):
            # Each begins every other pair: a machine may slow down while it works.
            order = (saving, plain) if pair % 2 else (plain, saving)
            seconds = {agent: seconds_of(agent) for agent in order}
            with_checkpoints, without = seconds[saving], seconds[plain]
            directory.rename(Path(folder) / f"done-{pair}")
            if pair:  # the first compiles
                ratios.append(with_checkpoints / without)
                print(f"{with_checkpoints:7.3f} s with, {without:7.3f} s without", flush=True)
    print(f"median ratio {statistics.median(ratios):.4f} of {arguments.pairs} pairs")


if __name__ == "__main__":
    main()
