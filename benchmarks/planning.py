"""Does `jaxagents plan` keep its word? Plans of ten trainings against what they took.

Each training and each plan is a process of its own. A training's memory is the peak of its process;
its time is from the call of ``train`` to its end, as its summary says. Compiled programs are not
kept on disk: the second process would find those of the first.

    python benchmarks/planning.py
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

CONFIGS = Path(__file__).parent.parent / "configs"


class Case(NamedTuple):
    """A configuration, and the updates that take some half a minute."""

    config: str
    n_updates: int
    overrides: tuple[str, ...] = ()


CASES = {
    "cartpole": Case("cartpole", 4000),
    "pendulum": Case("pendulum", 2000),
    "simple_spread": Case("simple_spread", 2400),
    "simple_spread, 1,024 environments": Case(
        "simple_spread", 40, ("--agent.batch_size", "1024", "--agent.minibatch_size", "256")
    ),
    "simple_spread, a policy each": Case(
        "simple_spread", 1200, ("--agent.parameter_sharing", "independent")
    ),
    "simple_spread, GRU": Case("simple_spread_recurrent", 150),
    "memory_chain, GRU": Case("memory_chain", 200),
    "breakout, convolutions": Case("breakout", 60),
    "smax_3m": Case("smax_3m", 60),
    "overcooked": Case("overcooked", 30),
}
PLAN = """
import json, sys
from jaxagents.experiments.config_files.file import load_config
from jaxagents.experiments.experiment import Experiment
from jaxagents.experiments.planning import plan
config = load_config(sys.argv[1], sys.argv[2:])
result = plan(Experiment(config, progress_bar=False).agent, config.hyperparams)
print(json.dumps({"seconds": result.seconds, "memory": result.memory}))
"""


def run(command: list[str]) -> tuple[str, int]:
    """Run a command; return its output, and its peak memory in bytes."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"},
    )
    output = process.stdout.read() if process.stdout else ""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed; run it to see why.")
    return output, usage.ru_maxrss * 1024


def compare(case: Case, runs_dir: str) -> tuple[float, float, float, float]:
    """Return the planned and the taken seconds, and the planned and the taken bytes."""
    arguments = [str(CONFIGS / f"{case.config}.yaml"), "--agent.n_steps", str(case.n_updates)]
    arguments += ["--agent.eval_frequency", str(max(1, case.n_updates // 5)), *case.overrides]
    output, _ = run([sys.executable, "-c", PLAN, *arguments])
    planned = json.loads(output.splitlines()[-1])
    command = [sys.executable, "-m", "jaxagents", "train", *arguments, "--quiet"]
    _, memory = run([*command, "--runs_dir", runs_dir])
    (summary,) = Path(runs_dir).glob("*/summary.json")
    seconds = json.loads(summary.read_text())["training"]["seconds"]
    return planned["seconds"], seconds, planned["memory"], memory


def main() -> None:
    """Compare each case, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parsed = parser.parse_args()
    print("| Case | s planned | s taken | ratio | MB planned | MB taken | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for name in parsed.cases:
        with tempfile.TemporaryDirectory() as runs_dir:
            seconds, taken, memory, had = compare(CASES[name], runs_dir)
        cells = [
            *(f"{seconds:.1f}", f"{taken:.1f}", f"{seconds / taken:.2f}"),
            *(f"{memory / 1e6:,.0f}", f"{had / 1e6:,.0f}", f"{memory / had:.2f}"),
        ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
