"""Kill trainings at random moments, resume them, and compare with trainings left alone, bit by bit.

python benchmarks/kills.py --kills 32
"""

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from jaxagents.training.checkpoints import Checkpoints

COMMON = """
name: {name}
env: {env}
seed: 3
seeds: {seeds}
agent:
  n_steps: {n_steps}
  batch_size: 8
  minibatch_size: 4
  rollout_length: 32
  eval_frequency: 5
  n_evals: 8
  {options}
evaluation: {{mode: last, n_evals: 4}}
"""
CASES = {
    "discrete": ("jaxmarl/MPE_simple_spread_v3", 300, "normalize_values: true"),
    "continuous": ("gymnax/Pendulum-v1", 300, "squash: true\n  normalize_observations: true"),
    "independent": ("hunting/discrete", 300, "parameter_sharing: independent"),
    "recurrent": ("hunting/continuous", 150, "recurrent: gru\n  learning_rate_schedule: kl"),
    "population": ("jaxmarl/MPE_simple_spread_v3", 80, "normalize_values: true"),
    "recurrent population": ("gymnax/MemoryChain-bsuite", 80, "recurrent: gru"),
    "selected population": (
        "jaxmarl/MPE_simple_spread_v3",
        80,
        "normalize_values: true\npopulation_based_training: {vary: {ent_coeff: [0.0001, 0.1]}}",
    ),
}
SEEDS = 8  # of populations


def train(folder: Path, *arguments: str) -> subprocess.Popen:
    """Start the command."""
    command = [sys.executable, "-m", "jaxagents", *arguments, "--quiet"]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def finish(folder: Path, *arguments: str) -> None:
    """Run the command to its end.

    Raises:
        RuntimeError: it failed.
    """
    process = train(folder, *arguments)
    output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{' '.join(arguments)} ended with {process.returncode}:\n{output}")


def train_and_kill(folder: Path, n_kills: int, rng: random.Random) -> tuple[Path, list[int]]:
    """Train, killing the process over and over; return the run, and the updates it had reached."""
    process = train(folder, "train", "case.yaml")
    got_to = []
    while len(got_to) < n_kills:
        runs = list((folder / "runs").glob("*/checkpoints"))
        before = Checkpoints(runs[0]).steps()[-1:] if runs else []
        # Wait until it trains, so that kills fall on updates, evaluations and writing, then longer.
        while process.poll() is None:
            runs = list((folder / "runs").glob("*/checkpoints"))
            if runs and Checkpoints(runs[0]).steps()[-1:] != before:
                break
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.5))
        if process.poll() is not None:  # it was faster
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        run = runs[0].parent
        got_to.append(Checkpoints(runs[0]).last_step())
        process = train(folder, "resume", str(run))
    output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"resume ended with {process.returncode}:\n{output}")
    return run, got_to


def differences(run: Path, other: Path) -> list[str]:
    """Name what differs between the last checkpoints of two runs."""
    one, two = (Checkpoints(each / "checkpoints") for each in (run, other))
    if one.last_step() != two.last_step():
        return [f"updates {one.last_step()} and {two.last_step()}"]
    pairs = [
        (method(one)(one.last_step()), method(two)(two.last_step()))
        for method in (lambda each: each.read_runner, lambda each: each.read_history)
    ]
    return [
        name
        for leaves, others in pairs
        for name in sorted(leaves.keys() | others.keys())
        if name not in leaves
        or name not in others
        or not np.array_equal(leaves[name], others[name], equal_nan=leaves[name].dtype.kind == "f")
    ]


def main() -> None:
    """Print, for each case, the kills and whether all results are bit-identical."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=32, help="of all cases together")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    arguments = parser.parse_args()
    rng, total, failed = random.Random(arguments.seed), 0, 0
    for name in arguments.cases:
        env, n_steps, options = CASES[name]
        seeds = SEEDS if "population" in name else 1
        with tempfile.TemporaryDirectory() as alone, tempfile.TemporaryDirectory() as killed:
            text = COMMON.format(
                name=name.replace(" ", "_"),
                env=env,
                n_steps=n_steps,
                options=options,
                seeds=seeds,
            )
            for folder in (alone, killed):
                (Path(folder) / "case.yaml").write_text(text)
            finish(Path(alone), "train", "case.yaml")
            (whole,) = (Path(alone) / "runs").iterdir()
            run, got_to = train_and_kill(
                Path(killed), -(-arguments.kills // len(arguments.cases)), rng
            )
            different = differences(run, whole)
            total, failed = total + len(got_to), failed + bool(different)
            print(
                f"{name:20} killed {len(got_to)} times, after updates {got_to} of {n_steps}: "
                f"{'DIFFERENT: ' + ', '.join(different) if different else 'bit-identical'}",
                flush=True,
            )
    print(f"{total} kills, {failed} of {len(arguments.cases)} cases different")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
