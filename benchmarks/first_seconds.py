"""Where the first seconds go: from a command to its first update and to its end.

Each run is a process of its own. "empty" begins with an empty cache of compiled programs, "full"
repeats it with what that left, and "changed" repeats it with another learning rate, seed, number of
updates and of evaluations. Peers keep no cache; they train in turn with ours.

    python benchmarks/first_seconds.py                     # the ledger of each workload
    python benchmarks/first_seconds.py cartpole --rounds 5
    python benchmarks/first_seconds.py --updates 1 --rounds 5    # beside peers: first update
    python benchmarks/first_seconds.py --updates 30 --rounds 5   # beside peers: short runs
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from startup.ledger import MARK

HERE = Path(__file__).parent
CONFIGS = HERE.parent / "configs"
WORKLOADS = {
    "cartpole": ("cartpole.yaml",),
    "simple_spread": ("simple_spread.yaml",),
    "smax_3m": ("smax_3m.yaml",),
    "hunting": ("hunting_discrete.yaml",),
    "gru": ("simple_spread_recurrent.yaml", "--agent.recurrent", "gru"),
    "gymnasium": ("gymnasium_cartpole.yaml",),
}
SHORT = ("--agent.n_steps", "30", "--agent.eval_frequency", "15")
CHANGED = (
    *("--agent.n_steps", "32", "--agent.eval_frequency", "8", "--seed", "7"),
    *("--hyperparams.actor_optimizer_params.learning_rate", "0.002"),
)
REJAX = HERE.parent / "build" / "peers" / "rejax" / "bin" / "python"


class Side(NamedTuple):
    """A process that trains a few updates."""

    name: str
    script: str
    arguments: tuple[str, ...]
    python: str = sys.executable


def _ours(name: str, path: Path, *overrides: str) -> Side:
    return Side(name, "our_update.py", (str(path), *overrides))


# The first of each pair is the peer.
PAIRS: dict[str, tuple[Side, Side]] = {
    "cartpole": (
        Side("rejax", "rejax_update.py", (), str(REJAX)),
        _ours("jaxagents", HERE / "peers" / "cartpole.yaml"),
    ),
    "simple_spread": (
        Side("JaxMARL's recipe", "recipe_update.py", ()),
        _ours("jaxagents", HERE / "peers" / "jaxmarl_spread.yaml"),
    ),
    "gru": (
        Side("JaxMARL's recurrent recipe", "recipe_update.py", ("--recurrent",)),
        _ours("jaxagents", CONFIGS / "simple_spread_recurrent.yaml", "--agent.recurrent", "gru"),
    ),
}


def run(script: str, arguments: Sequence[str], cache: str, python: str) -> dict[str, Any]:
    """Run a process, and return its ledger."""
    # -E would also hide a PYTHONPATH that leads to our package.
    own = [] if python == sys.executable else ["-E"]
    command = [python, *own, str(HERE / "startup" / script), repr(time.time()), *arguments]
    # As the command sets them, which here begins after jax was imported.
    settings = {
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    environment = os.environ | settings
    finished = subprocess.run(command, capture_output=True, text=True, env=environment)
    lines = [line for line in finished.stdout.splitlines() if line.startswith(MARK)]
    if finished.returncode or not lines:
        raise SystemExit(f"{' '.join(command)} failed:\n{finished.stderr[-2000:]}")
    return json.loads(lines[-1].removeprefix(MARK))


def ledgers_of(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run a workload's command with an empty cache, a full one, and changed numbers."""
    file, *overrides = WORKLOADS[name]
    with tempfile.TemporaryDirectory() as folder:
        common = ("train", str(CONFIGS / file), *overrides, "--runs_dir", f"{folder}/runs")
        for case, numbers in (("empty", SHORT), ("full", SHORT), ("changed", CHANGED)):
            cache = f"{folder}/cache"
            yield case, run("command.py", (*common, *numbers), cache, sys.executable)


def show_ledgers(names: Sequence[str], n_rounds: int) -> None:
    """Print each workload's stages, medians of the rounds."""
    for name in names:
        rounds = [dict(ledgers_of(name)) for _ in range(n_rounds)]
        print(f"\n{name}: seconds from the command\n")
        _show({case: [each[case] for each in rounds] for case in rounds[0]})


def show_pairs(names: Sequence[str], n_updates: int, n_rounds: int) -> None:
    """Print what a few updates take beside a peer, in turns."""
    for name in names:
        if name not in PAIRS:
            continue
        told: dict[str, list[dict[str, Any]]] = {side.name: [] for side in PAIRS[name]}
        for turn in range(n_rounds):
            order = PAIRS[name] if turn % 2 == 0 else reversed(PAIRS[name])
            for side in order:
                with tempfile.TemporaryDirectory() as cache:
                    arguments = (str(n_updates), *side.arguments)
                    told[side.name].append(run(side.script, arguments, cache, side.python))
        print(f"\n{name}: {n_updates} updates, empty cache, seconds\n")
        _show(told)
        theirs, ours = told.values()
        ratios = [
            own["marks"]["updates"] / other["marks"]["updates"]
            for own, other in zip(ours, theirs, strict=True)
        ]
        print(f"\nratio of the times, ours to theirs: {statistics.median(ratios):.2f}")


def _show(told: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Print a column for each case, and its slowest programs to compile."""
    stages = {
        case: {
            stage: statistics.median(each["stages"].get(stage, 0.0) for each in ledgers)
            for stage in {stage for each in ledgers for stage in each["stages"]}
        }
        for case, ledgers in told.items()
    }
    names = sorted(
        {stage for each in stages.values() for stage in each},
        key=lambda stage: -max(each.get(stage, 0.0) for each in stages.values()),
    )
    print(f"| Stage | {' | '.join(told)} |\n| --- |{' --- |' * len(told)}")
    for stage in names:
        row = " | ".join(f"{each.get(stage, 0.0):.2f}" for each in stages.values())
        print(f"| {stage} | {row} |")
    for label, figure in (
        ("all", lambda each: each["marks"]["end"]),
        ("programs compiled", lambda each: each["n_compiled"]),
        ("peak memory, MB", lambda each: each["peak_megabytes"]),
    ):
        medians = [statistics.median(map(figure, ledgers)) for ledgers in told.values()]
        form = ".2f" if label == "all" else ",.0f"
        print(f"| {label} | {' | '.join(format(each, form) for each in medians)} |")
    for case, ledgers in told.items():
        programs = sorted(ledgers[-1]["programs"], key=lambda each: -each[1])[:6]
        print(f"\n{case}: " + ", ".join(f"{name} {seconds:.2f}" for name, seconds in programs))


def main() -> None:
    """Print the tables asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", help=f"of {', '.join(WORKLOADS)}; default: all")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--updates", type=int, help="train this many, beside peers")
    arguments = parser.parse_args()
    names = arguments.workloads or list(WORKLOADS)
    if unknown := sorted(set(names) - set(WORKLOADS)):
        parser.error(f"unknown workloads: {', '.join(unknown)}")
    if arguments.updates:
        show_pairs(names, arguments.updates, arguments.rounds)
    else:
        show_ledgers(names, arguments.rounds)


if __name__ == "__main__":
    main()
