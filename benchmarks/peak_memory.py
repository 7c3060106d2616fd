"""Peak memory of trainings of simple_spread's stock workload, evaluations included.

Each trains in a process of its own: a short one, and one that is long enough for actors and
critics to learn at the same time.

    python benchmarks/peak_memory.py --runs 6
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

CONFIG = Path(__file__).parent / "peers" / "jaxmarl_spread.yaml"
N_UPDATES = {"short": 50, "long": 340}
N_EVALS = 16


def train(n_updates: int) -> None:
    """Train, in this process."""
    import jax

    import jaxagents as ja
    from jaxagents.experiments.config_files.file import load_config
    from jaxagents.experiments.make_agent import make_environment

    overrides = ("--agent.n_steps", str(n_updates), "--agent.n_evals", str(N_EVALS))
    config = load_config(CONFIG, (*overrides, "--agent.progress_bar", "false"))
    agent = ja.DiscreteIPPO(*make_environment(config), config.agent)
    jax.block_until_ready(agent.train(jax.random.key(config.seed), config.hyperparams))


def peak_megabytes(n_updates: int) -> float:
    """Train in a process of its own, and return its peak memory."""
    command = [sys.executable, __file__, "--train", str(n_updates)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed; run it to see why.")
    return usage.ru_maxrss * 1024 / 1e6


def main() -> None:
    """Measure each as often as asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="processes of each length")
    parser.add_argument("--train", type=int, metavar="UPDATES", help="train here, once")
    parsed = parser.parse_args()
    if parsed.train:
        train(parsed.train)
        return
    for name, n_updates in N_UPDATES.items():
        peaks = sorted(peak_megabytes(n_updates) for _ in range(parsed.runs))
        print(f"{name:8}{n_updates:5} updates  {', '.join(f'{peak:,.0f}' for peak in peaks)} MB")


if __name__ == "__main__":
    main()
