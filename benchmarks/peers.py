"""Environment steps per second, compared with those of peers from PyPI.

Each side trains in a process of its own, in turns, while the others wait. The first training of
each compiles; the median of the ratios, round by round, holds even where the machine's speed
drifts. The share of the processor that other programs take meanwhile is printed. Nothing is
evaluated.

    python benchmarks/peers/make_environment.py rejax        # once
    python benchmarks/peers.py rejax --pairs 9
"""

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from peers.processes import Side, Worker

HERE = Path(__file__).parent / "peers"
ENVIRONMENTS = HERE.parent.parent / "build" / "peers"
FOREIGN_SHARE = 0.05  # of the processors' time: more than this spoils a measurement


class Comparison(NamedTuple):
    """A peer, and one or several agents of ours beside it."""

    title: str
    peer: Side
    ours: tuple[Side, ...]


def _peer(name: str, environment: str) -> Side:
    python = ENVIRONMENTS / environment / "bin" / "python"
    # -E: a PYTHONPATH that leads to our package would hide the peer of the same name.
    return Side(name, (str(python), "-E", str(HERE / f"{environment}_worker.py")))


def _ours(name: str, config: str, *overrides: str) -> Side:
    worker = HERE / "jaxagents_worker.py"
    return Side(name, (sys.executable, str(worker), str(HERE / config), *overrides))


COMPARISONS = {
    "rejax": Comparison(
        "PPO on CartPole: 4 environments, 128 steps, 4 epochs of 4 minibatches",
        _peer("rejax 0.1.3", "rejax"),
        (
            _ours("jaxagents", "cartpole.yaml"),
            _ours("jaxagents, steps", "cartpole.yaml", "--agent.minibatch_unit", "step"),
        ),
    ),
    "jaxagents_0_2_5": Comparison(
        "IPPO on hunting: 128 environments, 200 steps, 9 + 10 epochs of 8 minibatches",
        _peer("jaxagents 0.2.5", "jaxagents_0_2_5"),
        (
            _ours("jaxagents", "hunting.yaml"),
            _ours("jaxagents, shared", "hunting.yaml", "--agent.parameter_sharing", "shared"),
        ),
    ),
    "skrl": Comparison(
        "IPPO on simple_spread: 128 steps, 4 epochs; in skrl one environment, one minibatch",
        _peer("skrl 2.1.1", "skrl"),
        (
            _ours("jaxagents, the same", "simple_spread.yaml"),
            _ours(
                "jaxagents, 16 x 4",
                "simple_spread.yaml",
                *("--agent.batch_size", "16", "--agent.minibatch_size", "4"),
            ),
            _ours(
                "jaxagents, mpe2, 16 x 4",  # PettingZoo's environment, in worker processes
                "simple_spread.yaml",
                *("--env", "pettingzoo/mpe2:simple_spread_v3", "--agent.n_steps", "20"),
                *("--agent.batch_size", "16", "--agent.minibatch_size", "4"),
            ),
        ),
    ),
    "stable_baselines3": Comparison(
        "PPO on Gymnasium's CartPole: 16 environments, 128 steps, 4 epochs of 4 minibatches",
        _peer("Stable-Baselines3 2.9.2", "stable_baselines3"),
        (
            _ours("jaxagents", "gymnasium_cartpole.yaml"),
            _ours("jaxagents, 1 worker", "gymnasium_cartpole.yaml", "--env_kwargs.n_workers", "1"),
            _ours(
                "jaxagents, no workers", "gymnasium_cartpole.yaml", "--env_kwargs.n_workers", "0"
            ),
            _ours(  # all at once, by Gymnasium's own vector of CartPoles
                "jaxagents, vectorized",
                "gymnasium_cartpole.yaml",
                *("--env_kwargs.vectorized", "true"),
            ),
        ),
    ),
}


def compare(comparison: Comparison, n_pairs: int) -> None:
    """Train all sides in turns, and print the table."""
    workers: list[Worker] = []
    try:
        for side in (comparison.peer, *comparison.ours):
            workers.append(Worker(side))
        for pair in range(n_pairs):
            # Every other round backwards, so that none is always first.
            for worker in workers if pair % 2 == 0 else reversed(workers):
                worker.train(seed=pair + 1)
    finally:
        for worker in workers:
            worker.stop()
    print(comparison.title)
    print(f"{'':22}{'environment steps/s':>34}{'compile':>10}{'memory':>10}{'ratio':>24}")
    for worker in workers:
        print(_row(worker, workers[0]))
    print(_foreign_load([each.foreign_share for worker in workers for each in worker.trainings]))


def _row(worker: Worker, peer: Worker) -> str:
    speeds = [each.speed for each in worker.trainings]
    ratios = [
        ours.speed / theirs.speed
        for ours, theirs in zip(worker.trainings, peer.trainings, strict=True)
    ]
    memory = max(each.peak_megabytes for each in worker.trainings)
    row = (
        f"{worker.name:22}{_summary(speeds, ',.0f'):>34}{worker.compile_seconds:8.1f} s"
        f"{memory:7.0f} MB"
    )
    return row if worker is peer else f"{row}{_summary(ratios, '.3g'):>24}"


def _summary(values: Sequence[float], form: str) -> str:
    median = format(statistics.median(values), form)
    return f"{median} ({min(values):{form}} to {max(values):{form}})"


def _foreign_load(shares: Sequence[float]) -> str:
    if any(map(math.isnan, shares)):
        return "What others took of the processors' time is not known on this system."
    median, worst = statistics.median(shares), max(shares)
    text = f"Others took {median:.0%} of the processors' time (median), {worst:.0%} at worst."
    return f"{text} WARNING: too much to trust." if median > FOREIGN_SHARE else text


def main() -> None:
    """Compare with one peer."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("peer", choices=COMPARISONS)
    parser.add_argument("--pairs", type=int, default=9)
    arguments = parser.parse_args()
    compare(COMPARISONS[arguments.peer], arguments.pairs)


if __name__ == "__main__":
    main()
