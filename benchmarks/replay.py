"""Sample efficiency of replayed rollouts, against as many optimizer steps on new ones alone.

    python benchmarks/replay.py CartPole-v1 --updates 25
    python benchmarks/replay.py Pendulum-v1 --updates 50 --kl-threshold 0.02

Each setting trains from the same seeds for the same environment steps. Its line shows the
interquartile mean of the final policies' greedy returns, with its 95 % bootstrap interval, the
worst seed, and the optimizer steps of each update's actor.
"""

import argparse
import time
from typing import Any

import jax
import numpy as np

import jaxagents as ja
from jaxagents.evaluation.bootstrap import (
    interquartile_mean,
    percentile_interval,
    resampled_interquartile_means,
)

N_EPISODES = 100
EPOCHS = 4


def settings(n_rollouts: list[int]) -> dict[str, dict[str, Any]]:
    """List the settings' names and options: without replay, with it, and their controls."""
    chosen: dict[str, dict[str, Any]] = {
        "GAE": {"advantages": "gae"},
        "V-trace": {"advantages": "vtrace"},
    }
    for n in n_rollouts:
        chosen[f"V-trace, {n} replayed"] = {"advantages": "vtrace", "replay_updates": n}
        epochs = EPOCHS * (1 + n)
        more = {"actor_epochs": epochs, "critic_epochs": epochs}
        chosen[f"GAE, {epochs} epochs"] = {"advantages": "gae", **more}
        chosen[f"V-trace, {epochs} epochs"] = {"advantages": "vtrace", **more}
    return chosen


def final_returns(
    env_id: str, config: ja.AgentConfig, hyperparams: ja.HyperParameters, n_seeds: int
) -> list[float]:
    """Train from each seed, and evaluate the final policies."""
    env, params = ja.make(f"gymnax/{env_id}")
    agent = (ja.ContinuousIPPO if env_id == "Pendulum-v1" else ja.DiscreteIPPO)(env, params, config)
    keys = jax.vmap(jax.random.key)(np.arange(n_seeds))
    runners, _ = jax.vmap(lambda key: agent.train(key, hyperparams))(keys)
    returns = []
    for seed in range(n_seeds):
        runner = jax.tree.map(lambda leaf, seed=seed: leaf[seed], runners)
        metrics: Any = agent.eval(jax.random.key(1000 + seed), N_EPISODES, runner=runner)
        returns.append(float(np.mean(metrics["returns"])))
    return returns


def main() -> None:
    """Print a row per setting."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("env_id", choices=["CartPole-v1", "Acrobot-v1", "Pendulum-v1"])
    parser.add_argument("--updates", type=int, default=25, help="of 2,048 environment steps")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--replayed", type=int, nargs="*", default=[1, 3])
    parser.add_argument("--kl-threshold", type=float, default=float("inf"))
    arguments = parser.parse_args()
    hyperparams = ja.HyperParameters(kl_threshold=arguments.kl_threshold)
    print(f"{arguments.env_id}, {2048 * arguments.updates:,} steps, {arguments.seeds} seeds")
    for name, options in settings(arguments.replayed).items():
        started = time.perf_counter()
        config = ja.AgentConfig(
            n_steps=arguments.updates, n_evals=0, progress_bar=False, **{**_EPOCHS, **options}
        )
        returns = np.array(final_returns(arguments.env_id, config, hyperparams, arguments.seeds))
        resamples = resampled_interquartile_means(returns, np.random.default_rng(0))
        low, high = percentile_interval(resamples)
        n_optimizer_steps = config.actor_epochs * config.n_minibatches * (1 + config.replay_updates)
        print(
            f"| {name} | {n_optimizer_steps} | {interquartile_mean(returns):.1f} | {low:.1f} to "
            f"{high:.1f} | {returns.min():.1f} | {time.perf_counter() - started:.0f} s",
            flush=True,
        )


_EPOCHS = {"actor_epochs": EPOCHS, "critic_epochs": EPOCHS}

if __name__ == "__main__":
    main()
