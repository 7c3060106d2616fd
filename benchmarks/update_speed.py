"""Time of an update on simple_spread's stock workload, beside the stand-in for JaxMARL's recipe.

Both train 50 updates of 16 environments by 128 steps at a time, in turn; the median of the
ratios, pair by pair, holds even where the machine's speed drifts.

    python benchmarks/update_speed.py --pairs 9
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
from jaxmarl_recipe import make_train

import jaxagents as ja

N_UPDATES = 50


def seconds(train: Callable[[Any], Any], seed: int) -> float:
    """Time one training."""
    started = time.perf_counter()
    jax.block_until_ready(train(jax.random.key(seed)))
    return time.perf_counter() - started


def make_ours() -> Callable[[Any], Any]:
    """Build our agent, without evaluations, as the recipe has none."""
    env, env_params = ja.make("jaxmarl/MPE_simple_spread_v3")
    config = ja.AgentConfig(
        n_steps=N_UPDATES,
        eval_frequency=N_UPDATES,
        n_evals=0,
        anneal_learning_rate=True,
        progress_bar=False,
    )
    agent = ja.DiscreteIPPO(env, env_params, config)
    return lambda rng: agent.train(rng, ja.HyperParameters())


def main() -> None:
    """Print compile times, medians of ms per update, and the median ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=9)
    pairs = parser.parse_args().pairs
    trains = {"jaxagents": make_ours(), "recipe": jax.jit(make_train(N_UPDATES))}
    first = {name: seconds(train, 0) for name, train in trains.items()}
    times = {
        name: [] for name in trains
    }  # interleaved below, so that drift of the machine hits both alike
    for seed in range(pairs):
        for name, train in trains.items():
            times[name].append(seconds(train, seed) / N_UPDATES * 1e3)
    for name, milliseconds in times.items():
        median = statistics.median(milliseconds)
        compile_time = first[name] - median * N_UPDATES / 1e3
        print(
            f"{name:10} {median:6.2f} ms per update ({min(milliseconds):.2f} to "
            f"{max(milliseconds):.2f}), {16 * 128 / median * 1e3:,.0f} environment steps/s; "
            f"compiled in {compile_time:.1f} s"
        )
    ratios = [ours / theirs for ours, theirs in zip(*times.values(), strict=True)]
    print(f"ratio of times, jaxagents / recipe: median {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
