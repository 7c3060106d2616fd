"""Does a pool of opponents help? Predators trained against several preys, and against the last one.

    python benchmarks/league.py --seeds 4

Predator and prey first learn from each other. Preys that are frozen along the way form the pool.
New predators then learn against the whole pool, or against the last prey alone, in as many steps.
Both, and the predator of the first training, hunt every prey of the pool.
"""

import argparse
from pathlib import Path

import jax
import numpy as np

import jaxagents as ja
from jaxagents.evaluation.bootstrap import percentile_interval, resampled_counts

N_EPISODES = 500
SIZES = {
    "batch_size": 64,
    "rollout_length": 64,
    "minibatch_size": 16,
    "n_evals": 0,
    "progress_bar": False,
}
HYPERPARAMS = ja.HyperParameters()


def train_both(env, params, seed: int, n_updates: int, n_frozen: int):
    """Let predator and prey learn from each other; return the agent and all frozen runners."""
    config = ja.AgentConfig(n_steps=n_updates, parameter_sharing="independent", **SIZES)
    agent = ja.DiscreteIPPO(env, params, config)
    runner, runners = agent.init(jax.random.key(seed), HYPERPARAMS), {}
    every = n_updates // n_frozen
    for done in range(1, n_updates + 1):
        runner, _ = agent.step(runner)
        if done % every == 0:
            runners[f"prey after {done}"] = runner
    return agent, runners


def train_predator(env, params, opponents, seed: int, n_updates: int, prioritized: bool):
    """Train a predator against frozen preys."""
    side = ja.Side(env, [0], opponents=opponents, prioritized=prioritized)
    agent = ja.DiscreteIPPO(side, params, ja.AgentConfig(n_steps=n_updates, **SIZES))
    runner, _ = agent.train(jax.random.key(100 + seed), HYPERPARAMS)
    return ja.FrozenPolicies(agent, runner)


def main() -> None:
    """Print the win rates by seed, and their means with intervals; draw the last seed's matrix."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--updates", type=int, default=120)
    parser.add_argument("--frozen", type=int, default=6)
    parser.add_argument("--picture", type=Path, default=Path("payoffs.png"))
    arguments = parser.parse_args()
    env, params = ja.make("hunting/discrete")
    names = ("with its prey", "last prey only", "pool", "pool, prioritised")
    rates = []
    for seed in range(arguments.seeds):
        agent, runners = train_both(env, params, seed, arguments.updates, arguments.frozen)
        pool = ja.FrozenPolicies(agent, runners)
        last = list(runners.values())[-1]
        alone = ja.FrozenPolicies(agent, last)
        rest = (seed, arguments.updates)
        predators = [
            alone,
            train_predator(env, params, alone, *rest, prioritized=False),
            train_predator(env, params, pool, *rest, prioritized=False),
            train_predator(env, params, pool, *rest, prioritized=True),
        ]
        table = ja.payoffs(
            ja.Side(env, [0]), params, predators, pool, jax.random.key(7), N_EPISODES
        )
        table = table._replace(rows=names)
        rates.append(table.win_rate)
        print(f"seed {seed}: wins by row ({', '.join(names)}) and prey")
        print(np.array2string(table.win_rate, precision=2), flush=True)
        ja.draw_payoffs(table, arguments.picture, "Share of episodes with a capture")
    wins = np.stack(rates)  # [seeds, predators, preys]
    generator = np.random.default_rng(0)
    for title, values in (("first prey", wins[:, :, 0]), ("all preys", wins.mean(axis=2))):
        print(f"| Predator, against the {title} | Wins | 95 % interval over seeds |")
        print("| --- | --- | --- |")
        counts = np.concatenate(list(resampled_counts(len(values), generator)))
        for i, name in enumerate(names):
            low, high = percentile_interval(counts @ values[:, i] / len(values))
            print(f"| {name} | {values[:, i].mean():.3f} | {low:.3f} to {high:.3f} |")
        gain = values[:, 2] - values[:, 1]
        low, high = percentile_interval(counts @ gain / len(gain))
        print(f"| pool minus last prey only | {gain.mean():.3f} | {low:.3f} to {high:.3f} |")


if __name__ == "__main__":
    main()
