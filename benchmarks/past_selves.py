"""Do later policies beat earlier ones? Connect Four learnt against random moves and past selves.

    python benchmarks/past_selves.py --seed 0

Trains as configs/connect_four.yaml does, keeps the policy after every sixth of the updates, and
lets all of them play each other. Prints the share of games that the row wins against the column.
"""

import argparse
import dataclasses
from pathlib import Path

import jax
import numpy as np

import jaxagents as ja
from jaxagents.experiments.config_files.file import load_config

CONFIG = Path(__file__).parents[1] / "configs" / "connect_four.yaml"
N_EPISODES = 500


def main() -> None:
    """Train, play, and print the table in Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    experiment = load_config(CONFIG)
    config = dataclasses.replace(experiment.agent, n_evals=0, progress_bar=False)
    env, params = ja.make(experiment.env)
    opponents = [ja.RandomOpponent()]
    selves = ja.PastSelves(every=experiment.side.past_selves_every)
    side = ja.Side(env, experiment.side.actors, opponents=opponents, past_selves=selves)
    agent = ja.IPPO(side, params, config)
    runner = agent.init(jax.random.key(parser.parse_args().seed), ja.HyperParameters())
    runners = [runner]
    for done in range(1, config.n_steps + 1):
        runner, _ = agent.step(runner)
        if done % (config.n_steps // 6) == 0:
            runners.append(runner)
    policies = ja.FrozenPolicies(agent, runners)
    columns = [*opponents, policies]
    table = ja.payoffs(side, params, policies, columns, jax.random.key(1), N_EPISODES)
    won = np.mean(table.returns[..., 0] > 0, axis=-1)
    print("| |", " | ".join(table.columns), "|")
    print("| ---" * (len(table.columns) + 1), "|", sep="")
    for name, shares in zip(table.rows, won, strict=True):
        print(f"| {name} |", " | ".join(f"{100 * share:.0f}" for share in shares), "|", flush=True)


if __name__ == "__main__":
    main()
