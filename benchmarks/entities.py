"""Networks over entities beside dense ones, and policies of small teams in larger ones.

Each network learns from several seeds on each size of a task. Its final policies play there, and
those of the smallest size also on the larger ones: as they are, and fine-tuned for a tenth of the
budget. Rows that the file holds already are not computed again.

    python benchmarks/entities.py train --tasks spread --seeds 8
    python benchmarks/entities.py table
"""

import argparse
import csv
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
    config: Mapping[str, Any]
    metric: str = "returns"


TASKS = {
    "spread": Task(
        "jaxmarl/MPE_simple_spread_v3",
        {str(n): {"num_agents": n, "num_landmarks": n} for n in (3, 5, 8)},
        {"n_steps": 244},
    ),
    "smax": Task(
        "jaxmarl/HeuristicEnemySMAX",
        {name: {"scenario": name} for name in ("3m", "8m")},
        {"n_steps": 244},
        "info_won",
    ),
}
NETWORKS = {"dense": None, "deep_sets": "deep_sets", "attention": "attention"}


def make_agent(task: Task, size: str, network: str, **changes: Any) -> ja.IPPOBase:
    """Build the agent of a network on a size of a task."""
    env, env_params = ja.make(task.env, **task.sizes[size])
    config = ja.AgentConfig(
        **{**task.config, **changes},
        eval_frequency=10**6,
        initial_evaluation=False,
        normalize_observations=False,
        actor_network=NETWORKS[network],
        critic_network=NETWORKS[network],
        progress_bar=False,
    )
    return ja.IPPO(env, env_params, config)


def finals(agent: ja.IPPOBase, runners: list[Runner], metric: str) -> list[float]:
    """Return the mean of greedy episodes of each runner's policies."""
    played = (agent.eval(jax.random.key(1), N_EVALS, runner=runner) for runner in runners)
    return [float(np.mean(metrics[metric])) for metrics in played]


def rows_of(
    task_name: str, network: str, n_seeds: int, done: set[tuple[str, ...]]
) -> Iterator[tuple[str, str, str, list[float]]]:
    """Yield where policies were trained and played, how, and what each seed's earned."""
    task = TASKS[task_name]
    first, *larger = task.sizes
    keys = jax.vmap(jax.random.key)(np.arange(n_seeds))
    hyperparams = ja.HyperParameters()

    def trained(size: str) -> tuple[ja.IPPOBase, list[Runner]]:
        agent = make_agent(task, size, network)
        runners, _ = agent.train(keys, hyperparams)
        return agent, [agent.member(runners, seed) for seed in range(n_seeds)]

    def is_missing(*row: str) -> bool:
        return (task_name, network, *row) not in done

    small: list[Runner] = []
    transfers = [(size, how) for size in larger for how in ("zero-shot", "fine-tuned")]
    if is_missing(first, first, "trained") or (
        network != "dense" and any(is_missing(first, *transfer) for transfer in transfers)
    ):
        agent, small = trained(first)
        yield first, first, "trained", finals(agent, small, task.metric)
    if network == "dense":
        for size in filter(lambda size: is_missing(size, size, "random"), task.sizes):
            agent = make_agent(task, size, network)
            metrics = agent.eval_random(jax.random.key(1), N_EVALS)
            yield size, size, "random", [float(np.mean(metrics[task.metric]))]
    for size in larger if network != "dense" else ():
        if is_missing(first, size, "zero-shot"):
            agent = make_agent(task, size, network)
            starts = [agent.init(jax.random.key(0), hyperparams, start=each) for each in small]
            yield first, size, "zero-shot", finals(agent, starts, task.metric)
        if is_missing(first, size, "fine-tuned"):
            agent = make_agent(task, size, network, n_steps=task.config["n_steps"] // 10)
            tuned = []
            for seed, each in enumerate(small):
                begin = agent.init(jax.random.key(seed), hyperparams, start=each)
                tuned.append(agent.train(None, hyperparams, runner=begin)[0])
            yield first, size, "fine-tuned", finals(agent, tuned, task.metric)
    for size in larger:
        if is_missing(size, size, "trained"):
            yield size, size, "trained", finals(*trained(size), task.metric)


def read() -> list[dict[str, str]]:
    """Read the rows of the file."""
    if not FILE.exists():
        return []
    with FILE.open(newline="") as file:
        return list(csv.DictReader(file))


def train(arguments: argparse.Namespace) -> None:
    """Compute what the file lacks."""
    done = {tuple(row[name] for name in COLUMNS[:5]) for row in read()}
    with FILE.open("a", newline="") as file:
        writer = csv.writer(file)
        if not file.tell():
            writer.writerow(COLUMNS)
        for task, network in itertools.product(arguments.tasks, arguments.networks):
            for *where, how, values in rows_of(task, network, arguments.seeds, done):
                if (task, network, *where, how) in done:
                    continue
                print(task, network, *where, how, np.round(values, 2), flush=True)
                rows = ((task, network, *where, how, s, f"{v:.6g}") for s, v in enumerate(values))
                writer.writerows(rows)
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
        text = f"{mean:8.2f} ({low:.2f} to {high:.2f}), worst {min(values):.2f}"
        print(f"{task:8}{network:12}{trained_on:>4} -> {played_on:4}{how:12}{text}")


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
