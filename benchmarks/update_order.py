"""What the order of updates changes in Matrax's climbing game, whose returns are computed exactly.

Each player has a policy of its own. After every update, the pair's expected reward in a round is
read off the probabilities of their actions.

    python benchmarks/update_order.py --seeds 32                     # needs the extra matrax
"""

import argparse

import jax
import numpy as np

import jaxagents as ja
from jaxagents.evaluation.bootstrap import percentile_interval, resampled_means

N_UPDATES = 80
ROUNDS = 5
PAYOFFS = np.array([[11.0, -30.0, 0.0], [-30.0, 7.0, 0.0], [0.0, 6.0, 5.0]])


def agent_of(order: str) -> ja.DiscreteIPPO:
    """Build an agent with a policy for each player."""
    env, env_params = ja.make("matrax/Climbing-stateless-v0", time_limit=ROUNDS)
    config = ja.AgentConfig(
        n_steps=N_UPDATES,
        batch_size=32,
        rollout_length=ROUNDS,
        n_evals=1,
        parameter_sharing="independent",
        update_order=order,
    )
    return ja.DiscreteIPPO(env, env_params, config)


def expected_rewards(agent: ja.DiscreteIPPO, seed: int, learning_rate: float) -> np.ndarray:
    """Train, and return the expected reward of a round after each update."""
    runner = agent.init(jax.random.key(seed), ja.HyperParameters(learning_rate=learning_rate))
    (episode,) = agent.record(jax.random.key(0), n_evals=1, runner=runner)
    rewards = []
    for _ in range(N_UPDATES):
        runner, _ = agent.step(runner)
        one, other = agent.view(episode, runner).probabilities[0]
        rewards.append(one @ PAYOFFS @ other)
    return np.array(rewards)


def main() -> None:
    """Print each order's expected rewards over seeds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=32)
    parser.add_argument("--learning-rates", type=float, nargs="+", default=[1e-3, 5e-3, 2e-2])
    args = parser.parse_args()
    agents = {order: agent_of(order) for order in ("together", "sequential")}
    for rate in args.learning_rates:
        runs = {
            order: np.stack([expected_rewards(agent, seed, rate) for seed in range(args.seeds)])
            for order, agent in agents.items()
        }
        for order, rewards in runs.items():
            last = rewards[:, -1]
            ends = ", ".join(f"{(np.abs(last - end) < 0.5).sum()} near {end}" for end in (11, 7, 6))
            print(f"{rate:g} {order}: mean over updates {rewards.mean():.2f}; seeds end: {ends}")
        gain = runs["sequential"].mean(axis=1) - runs["together"].mean(axis=1)
        low, high = percentile_interval(resampled_means(gain))
        print(f"{rate:g} gain, mean over updates: {gain.mean():.2f} [{low:.2f}, {high:.2f}]")


if __name__ == "__main__":
    main()
