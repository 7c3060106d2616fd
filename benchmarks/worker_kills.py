"""Train in worker processes of which one is killed every minute, and watch its resources.

Each line is taken just before a kill: environment steps and restarts so far, the memory of the
training process and of its workers together (resident, MB of 10^6 bytes), open file descriptors,
and processes, ended ones that nobody waited for included.

    python benchmarks/worker_kills.py --minutes 30
"""

import argparse
import random
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import jax
import psutil

import jaxagents as ja
from jaxagents.training.callbacks import Evaluation

_HEADER = ("Minute", "Steps", "Restarts", "MB", "MB of workers", "Files", "Processes")


class Sample(NamedTuple):
    """What a training holds at a time."""

    megabytes: float
    workers_megabytes: float
    n_files: int
    n_processes: int


def sample() -> Sample:
    """Look at this process and its children."""
    this = psutil.Process()
    children = this.children(recursive=True)
    return Sample(
        megabytes=this.memory_info().rss / 1e6,
        workers_megabytes=sum(child.memory_info().rss for child in children) / 1e6,
        n_files=this.num_fds(),
        n_processes=1 + len(children),
    )


class Killer(threading.Thread):
    """Kills a worker of an environment every so often, until it is told to stop."""

    def __init__(self, env: ja.HostEnvironment, seconds: float):
        super().__init__(daemon=True)
        self.n_steps, self.n_restarts = 0, 0  # of environments, as the training tells
        self.samples: list[Sample] = []
        self.ended = threading.Event()
        self._env, self._seconds = env, seconds

    def run(self) -> None:
        """Sample, print and kill."""
        random_number = random.Random(0)
        print("| " + " | ".join(_HEADER) + " |\n|" + " --- |" * len(_HEADER))
        started = time.monotonic()
        while not self.ended.wait(self._seconds):
            now = sample()
            self.samples.append(now)
            minute = (time.monotonic() - started) / 60
            print(
                f"| {minute:.1f} | {self.n_steps:,} | {self.n_restarts} | {now.megabytes:.0f} | "
                f"{now.workers_megabytes:.0f} | {now.n_files} | {now.n_processes} |",
                flush=True,
            )
            victim = random_number.choice(self._env.process_ids)
            psutil.Process(victim).send_signal(signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("env", nargs="?", default="gymnasium/CartPole-v1")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seconds-between-kills", type=float, default=60.0)
    parsed = parser.parse_args()

    env, _ = ja.make(parsed.env, on_worker_failure="restart", n_workers=2)
    killer = Killer(env, parsed.seconds_between_kills)
    until = time.monotonic() + 60 * parsed.minutes

    def watch(evaluation: Evaluation) -> bool:
        killer.n_steps = evaluation.n_environment_steps
        killer.n_restarts = agent.environments.n_restarts
        return time.monotonic() > until

    with tempfile.TemporaryDirectory() as folder, env:
        config = ja.AgentConfig(
            n_steps=1_000_000,
            batch_size=16,
            minibatch_size=4,
            eval_frequency=10,
            n_evals=4,
            checkpoint_dir=str(Path(folder) / "run"),
            progress_bar=False,
        )
        agent = ja.DiscreteIPPO(env, None, config, callbacks=(watch,))
        killer.start()
        agent.train(jax.random.key(0), ja.HyperParameters())
        killer.ended.set()
        killer.join()
    print(f"After the end: {sample().n_processes} process(es).")


if __name__ == "__main__":
    main()
