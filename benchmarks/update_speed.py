"""Time of an update on simple_spread's stock workload, beside the stand-in for JaxMARL's recipe.

Both train 200 updates of 16 environments by 128 steps at a time, in turn; the median of the
ratios, pair by pair, holds even where the machine's speed drifts. With `--recurrent` both have
memory: our agent that of `configs/simple_spread_recurrent.yaml`, the recipe its GRU. Further
arguments override our configuration.

    python benchmarks/update_speed.py --pairs 9
    python benchmarks/update_speed.py --pairs 9 --recurrent --agent.recurrent gru
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jaxmarl_recipe
import jaxmarl_recurrent_recipe
from learning import make_agent

from jaxagents.experiments.config_files.file import load_config

N_UPDATES = 200
# Without evaluations, as the recipes have none.
OVERRIDES = ("--agent.n_steps", str(N_UPDATES), "--agent.n_evals", "0", "--evaluation.mode", "last")


def seconds(train: Callable[[Any], Any], seed: int) -> float:
    """Time one training."""
    started = time.perf_counter()
    jax.block_until_ready(train(jax.random.key(seed)))
    return time.perf_counter() - started


def make_ours(config_path: str, overrides: Sequence[str]) -> Callable[[Any], Any]:
    """Build our agent as a configuration file and overrides say."""
    config = load_config(config_path, (*OVERRIDES, *overrides))
    agent = make_agent(config)
    return lambda rng: agent.train(rng, config.hyperparams)


def main() -> None:
    """Print compile times, medians of ms per update, and the median ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--recurrent", action="store_true", help="compare agents with memory")
    args, overrides = parser.parse_known_args()
    if args.recurrent:
        config_path, recipe = "configs/simple_spread_recurrent.yaml", jaxmarl_recurrent_recipe
    else:
        config_path, recipe = "benchmarks/peers/jaxmarl_spread.yaml", jaxmarl_recipe
    trains = {
        "jaxagents": make_ours(config_path, overrides),
        "recipe": jax.jit(recipe.make_train(N_UPDATES)),
    }
    first = {name: seconds(train, 0) for name, train in trains.items()}
    times = {
        name: [] for name in trains
    }  # interleaved below, so that drift of the machine hits both alike
    for seed in range(args.pairs):
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
