"""What agents learn: tasks by settings by seeds, as a table with intervals.

    python benchmarks/learning_matrix.py train --tasks cartpole pendulum --settings defaults
    python benchmarks/learning_matrix.py table --against defaults

`train` runs each task with each setting in a process of its own, as many at a time as there are
cores, and appends a row per seed to a CSV file. Rows that the file holds already are not trained
again, so a killed study continues where it stopped. `table` and `picture` show the file.
"""

import argparse
import csv
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from matrix.report import draw, read_rows, table
from matrix.tasks import SETTINGS, TASKS

HERE = Path(__file__).parent
RESULTS = HERE / "learning_matrix.csv"
COLUMNS = (
    "task",
    "setting",
    "seed",
    "n_environment_steps",
    "final",
    "area",
    "explained_variance",
    "largest_value_of_possible",
    "n_updates_skipped",
    "won",
    "seconds",
    "revision",
)
_lock = Lock()


def train(arguments: argparse.Namespace) -> None:
    """Train what the file lacks."""
    done = set()
    if arguments.file.exists():
        done = {
            (row["task"], row["setting"], int(row["seed"])) for row in read_rows(arguments.file)
        }
    jobs = []
    for task, setting in itertools.product(arguments.tasks, arguments.settings):
        seeds = [seed for seed in range(arguments.seeds) if (task, setting, seed) not in done]
        if seeds:
            jobs.append((task, setting, seeds))
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for _ in pool.map(lambda job: run(*job, arguments), jobs):
            pass


def run(task: str, setting: str, seeds: Sequence[int], arguments: argparse.Namespace) -> None:
    """Train one task with one setting in a process, and append its rows as they come."""
    n_steps = arguments.steps or TASKS[task].n_environment_steps
    command = [sys.executable, "-m", "matrix.train", task, setting, str(n_steps)]
    command += map(str, seeds)
    # A thread each: that many trainings at a time use the cores better than threads of one.
    flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    environment = os.environ | {"XLA_FLAGS": flags, "NPROC": "1"}
    last_line = ""
    with subprocess.Popen(
        command,
        cwd=HERE,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        for line in process.stdout or ():
            if line.startswith("ROW "):
                row = {"task": task, "setting": setting, "n_environment_steps": n_steps}
                append(arguments.file, row | json.loads(line[4:]) | {"revision": revision()})
            last_line = line.strip() or last_line
    if process.returncode:
        print(f"{task}, {setting}: failed: {last_line}", flush=True)


def append(path: Path, row: dict) -> None:
    """Append a row, with a heading if it is the first; print it."""
    with _lock:
        is_new = not path.exists()
        with path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerow({name: _short(value) for name, value in row.items()})
        print(", ".join(f"{name} {_short(value)}" for name, value in row.items()), flush=True)


def revision() -> str:
    """Return the git revision, marked if what trains differs from it."""
    code = ["../jaxagents", "matrix", Path(__file__).name]
    is_dirty = _git("status", "--porcelain", "--", *code)
    return _git("rev-parse", "--short", "HEAD") + ("-dirty" if is_dirty else "")


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=HERE, capture_output=True, text=True, check=True
    ).stdout.strip()


def _short(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--file", type=Path, default=RESULTS)
    commands = parser.add_subparsers(required=True)
    training = commands.add_parser("train")
    training.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    training.add_argument("--settings", nargs="+", choices=SETTINGS, default=["defaults"])
    training.add_argument("--seeds", type=int, default=8)
    training.add_argument("--steps", type=int, default=0, help="instead of the tasks' own")
    training.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    training.set_defaults(command=train)
    showing = commands.add_parser("table")
    showing.add_argument("--tasks", nargs="+", choices=TASKS)
    showing.add_argument("--against", default="defaults", help="a setting to compare with")
    showing.set_defaults(
        command=lambda arguments: print(
            table(read_rows(arguments.file), arguments.tasks, arguments.against)
        )
    )
    drawing = commands.add_parser("picture")
    drawing.add_argument("path", type=Path)
    drawing.add_argument("--against", default="defaults")
    drawing.set_defaults(
        command=lambda arguments: draw(read_rows(arguments.file), arguments.against, arguments.path)
    )
    arguments = parser.parse_args()
    arguments.command(arguments)


if __name__ == "__main__":
    main()
