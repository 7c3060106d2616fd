"""Sample efficiency of replayed rollouts, against as many optimizer steps on new ones alone.

    python benchmarks/replay.py CartPole-v1 --updates 25
    python benchmarks/replay.py Pendulum-v1 --updates 75

Each setting trains from the same seeds for the same environment steps. Its line shows the
optimizer steps of each update's actor, the interquartile mean of the final policies' greedy
returns, its 95 % bootstrap interval, the worst seed, and the duration of an update.
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
_EPOCHS = {"actor_epochs": EPOCHS, "critic_epochs": EPOCHS}


def settings(n_rollouts: list[int]) -> dict[str, dict[str, Any]]:
    """List the settings' names and options: without replay, with it, and their controls."""
    chosen: dict[str, dict[str, Any]] = {
        "GAE": {"advantages": "gae", **_EPOCHS},
        "V-trace": {"advantages": "vtrace", **_EPOCHS},
    }
    for n in n_rollouts:
        chosen[f"V-trace, {n} replayed"] = {"advantages": "vtrace", "replay_updates": n, **_EPOCHS}
        epochs = EPOCHS * (1 + n)
        more = {"actor_epochs": epochs, "critic_epochs": epochs}
        chosen[f"GAE, {epochs} epochs"] = {"advantages": "gae", **more}
        chosen[f"V-trace, {epochs} epochs"] = {"advantages": "vtrace", **more}
    return chosen


def final_returns(agent: ja.IPPOBase, hyperparams: ja.HyperParameters, n_seeds: int) -> list[float]:
    """Train from each seed, and evaluate the final policies."""
    keys = jax.vmap(jax.random.key)(np.arange(n_seeds))
    runners, _ = jax.vmap(lambda key: agent.train(key, hyperparams))(keys)
    returns = []
    for seed in range(n_seeds):
        runner = jax.tree.map(lambda leaf, seed=seed: leaf[seed], runners)
        metrics: Any = agent.eval(jax.random.key(1000 + seed), N_EPISODES, runner=runner)
        returns.append(float(np.mean(metrics["returns"])))
    return returns


def milliseconds_per_update(agent: ja.IPPOBase, hyperparams: ja.HyperParameters) -> float:
    """Return the median duration of 20 updates, with replay if it is configured."""
    runner, seconds = agent.init(jax.random.key(0), hyperparams), []
    for _ in range(agent.config.replay_updates + 20):
        started = time.perf_counter()
        runner, _ = jax.block_until_ready(agent.step(runner))
        seconds.append(time.perf_counter() - started)
    return 1000 * float(np.median(seconds[-20:]))


def main() -> None:
    """Print a row per setting."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("env_id", choices=["CartPole-v1", "Acrobot-v1", "Pendulum-v1"])
    parser.add_argument("--updates", type=int, default=25, help="of 2,048 environment steps")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--replayed", type=int, nargs="*", default=[1, 3])
    arguments = parser.parse_args()
    hyperparams = ja.HyperParameters()
    print(f"{arguments.env_id}, {2048 * arguments.updates:,} steps, {arguments.seeds} seeds")
    for name, options in settings(arguments.replayed).items():
        config = ja.AgentConfig(n_steps=arguments.updates, n_evals=0, progress_bar=False, **options)
        env, params = ja.make(f"gymnax/{arguments.env_id}")
        is_real = arguments.env_id == "Pendulum-v1"
        agent = (ja.ContinuousIPPO if is_real else ja.DiscreteIPPO)(env, params, config)
        returns = np.array(final_returns(agent, hyperparams, arguments.seeds))
        resamples = resampled_interquartile_means(returns, np.random.default_rng(0))
        low, high = percentile_interval(resamples)
        n_optimizer_steps = config.actor_epochs * config.n_minibatches * (1 + config.replay_updates)
        print(
            f"| {name} | {n_optimizer_steps} | {interquartile_mean(returns):.1f} | {low:.1f} to "
            f"{high:.1f} | {returns.min():.1f} | "
            f"{milliseconds_per_update(agent, hyperparams):.0f} ms |",
            flush=True,
        )


if __name__ == "__main__":
    main()
