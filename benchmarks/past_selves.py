"""Do later policies beat earlier ones? Connect Four learnt against random moves and past selves.

    python benchmarks/past_selves.py --seed 0

Trains as configs/connect_four.yaml does, keeps the policy after every sixth of the updates, and
lets all of them play each other. Prints the share of games that the row wins against the column.
"""

import argparse

import jax
import numpy as np

import jaxagents as ja

N_EPISODES = 500
N_UPDATES = 732
EVERY = N_UPDATES // 6
CONFIG = ja.AgentConfig(
    n_steps=N_UPDATES,
    batch_size=64,
    minibatch_size=16,
    rollout_length=64,
    n_evals=0,
    anneal_learning_rate=True,
    progress_bar=False,
)


def main() -> None:
    """Train, play, and print the table in Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    env, params = ja.make("pgx/connect_four")
    opponents, selves = [ja.RandomOpponent()], ja.PastSelves(every=20)
    side = ja.Side(env, [0], opponents=opponents, past_selves=selves)
    agent = ja.IPPO(side, params, CONFIG)
    runner = agent.init(jax.random.key(parser.parse_args().seed), ja.HyperParameters())
    runners = [runner]
    for done in range(1, N_UPDATES + 1):
        runner, _ = agent.step(runner)
        if done % EVERY == 0:
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
