"""Networks over entities compared with dense ones, and policies of small teams in larger ones.

Each network learns from several seeds on each size of a task. Its final policies play there, and
those of the smallest size also on the larger ones: as they are, and fine-tuned for a tenth of the
budget. Rows that the file holds already are not computed again.

    python benchmarks/entities.py train --seeds 8                    # needs the extra jumanji
    python benchmarks/entities.py train --tasks spread
    python benchmarks/entities.py table
"""

import argparse
import csv
import functools
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import jaxagents as ja
from jaxagents.evaluation.bootstrap import (
    interquartile_mean,
    percentile_interval,
    resampled_interquartile_means,
)
from jaxagents.types import Runner

FILE = Path(__file__).with_suffix(".csv")
COLUMNS = ("task", "network", "trained_on", "played_on", "how", "seed", "final")
N_EVALS = 200


class Task(NamedTuple):
    """An environment of several sizes."""

    env: str
    sizes: Mapping[str, Mapping[str, Any]]  # arguments by name, the smallest first
    n_steps: int = 244  # updates: 499,712 environment steps
    metric: str = "returns"


TASKS = {
    "spread": Task(
        "jaxmarl/MPE_simple_spread_v3",
        {str(n): {"num_agents": n, "num_landmarks": n} for n in (3, 5, 8)},
    ),
    "smax": Task(
        "jaxmarl/HeuristicEnemySMAX",
        {name: {"scenario": name} for name in ("3m", "8m")},
        metric="info_won",
    ),
    "lbf": Task(
        "jumanji/LevelBasedForaging-v0",
        {name: {"scenario": name} for name in ("8x8-2p-2f", "15x15-4p-3f")},
    ),
}
NETWORKS = {"dense": None, "deep_sets": "deep_sets", "attention": "attention"}
HYPERPARAMS = ja.HyperParameters()


@functools.cache
def agent_of(task_name: str, network: str, size: str, fraction: int = 1) -> ja.IPPOBase:
    """Build the agent of a network on a size of a task, for a fraction of the budget."""
    task = TASKS[task_name]
    env, env_params = ja.make(task.env, **task.sizes[size])
    config = ja.AgentConfig(
        n_steps=task.n_steps // fraction,
        eval_frequency=10**6,
        initial_evaluation=False,
        normalize_observations=False,
        actor_network=NETWORKS[network],
        critic_network=NETWORKS[network],
        progress_bar=False,
    )
    return ja.IPPO(env, env_params, config)


@functools.cache
def trained(task_name: str, network: str, size: str, seed: int) -> Runner:
    """Train on a size from a seed."""
    return agent_of(task_name, network, size).train(jax.random.key(seed), HYPERPARAMS)[0]


def final(task: str, network: str, trained_on: str, played_on: str, how: str, seed: int) -> float:
    """Return what the final policies of a seed earn in greedy episodes."""
    agent, eval_key = agent_of(task, network, played_on), jax.random.key(1)
    if how == "random":
        metrics = agent.eval_random(eval_key, N_EVALS)
    else:
        runner = trained(task, network, trained_on, seed)
        if how != "trained":
            runner = agent.init(jax.random.key(seed), HYPERPARAMS, start=runner)
        if how == "fine-tuned":
            agent = agent_of(task, network, played_on, fraction=10)
            runner, _ = agent.train(None, HYPERPARAMS, runner=runner)
        metrics = agent.eval(eval_key, N_EVALS, runner=runner)
    return float(np.mean(metrics[TASKS[task].metric]))


def rows_of(task_name: str, network: str, n_seeds: int) -> Iterator[tuple[str, str, str, int]]:
    """Yield where policies are trained and played, how, and the seed."""
    first, *larger = TASKS[task_name].sizes
    for seed in range(n_seeds):
        yield first, first, "trained", seed
        for size in larger if network != "dense" else ():
            yield first, size, "zero-shot", seed
            yield first, size, "fine-tuned", seed
        for size in larger:
            yield size, size, "trained", seed
    if network == "dense":
        yield from ((size, size, "random", 0) for size in (first, *larger))


def read() -> list[dict[str, str]]:
    """Read the rows of the file."""
    if not FILE.exists():
        return []
    with FILE.open(newline="") as file:
        return list(csv.DictReader(file))


def train(arguments: argparse.Namespace) -> None:
    """Compute what the file lacks."""
    done = {tuple(row[name] for name in COLUMNS[:-1]) for row in read()}
    with FILE.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if not file.tell():
            writer.writerow(COLUMNS)
        for name, network in itertools.product(arguments.tasks, arguments.networks):
            for row in rows_of(name, network, arguments.seeds):
                if (name, network, *map(str, row)) not in done:
                    value = final(name, network, *row)
                    print(name, network, *row, f"{value:.4g}", flush=True)
                    writer.writerow((name, network, *row, f"{value:.6g}"))
                    file.flush()


def table(arguments: argparse.Namespace) -> None:
    """Print the interquartile mean over seeds of each row, with its 95 % interval."""
    groups = defaultdict(list)
    for row in read():
        groups[tuple(row[name] for name in COLUMNS[:5])].append(float(row["final"]))
    for (task, network, trained_on, played_on, how), values in groups.items():
        resamples = resampled_interquartile_means(np.array(values), np.random.default_rng(0))
        low, high = percentile_interval(resamples)
        mean = interquartile_mean(np.array(values))
        text = f"{mean:6.3g} ({low:.3g} to {high:.3g}), worst {min(values):.3g}"
        print(f"{task:8}{network:12}{trained_on:>12} -> {played_on:14}{how:12}{text}")


def main() -> None:
    """Train, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("train")
    command.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    command.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    command.add_argument("--seeds", type=int, default=8)
    command.set_defaults(run=train)
    commands.add_parser("table").set_defaults(run=table)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
