"""The driver's side of `worker.py`: processes that train when they are told to."""

import json
import os
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from peers.worker import MARK


class Side(NamedTuple):
    """One side of a comparison: what to call it, and the command that runs its worker."""

    name: str
    command: tuple[str, ...]


@dataclass(frozen=True)
class Measurement:
    """What one training took."""

    seconds: float
    cpu_seconds: float
    n_environment_steps: int
    peak_megabytes: float
    foreign_share: float  # of the processors' time meanwhile; NaN where it is unknown

    @property
    def speed(self) -> float:
        """Environment steps per second."""
        return self.n_environment_steps / self.seconds


class Worker:
    """The process of one side, and what its trainings took."""

    def __init__(self, side: Side):
        """Start it, and wait until its first training has compiled."""
        python = Path(side.command[0])
        if not python.exists():
            raise SystemExit(
                f"{side.name} needs {python}: run "
                f"python benchmarks/peers/make_environment.py {python.parent.parent.name}"
            )
        self.name = side.name
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (the process has it)
        self._process = subprocess.Popen(
            side.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._first = self._receive()
        self.trainings: list[Measurement] = []

    def train(self, seed: int) -> None:
        """Let it train once more."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seed}\n")
        self._process.stdin.flush()
        self.trainings.append(self._receive())

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    @property
    def compile_seconds(self) -> float:
        """How much longer the first training took than those after it."""
        return self._first.seconds - statistics.median(each.seconds for each in self.trainings)

    def _receive(self) -> Measurement:
        assert self._process.stdout is not None
        started, busy_started = time.perf_counter(), _busy_seconds()
        for line in self._process.stdout:
            if MARK in line:
                break
        else:
            self._errors.seek(0)
            raise SystemExit(f"{self.name} ended early:\n{self._errors.read()[-2000:]}")
        taken = json.loads(line.partition(MARK)[2])
        share = foreign_share(
            elapsed=time.perf_counter() - started,
            busy=_busy_seconds() - busy_started,
            own=taken["cpu_seconds"],
        )
        return Measurement(**taken, foreign_share=share)


def foreign_share(elapsed: float, busy: float, own: float) -> float:
    """Return the share of all processors' time that other programs took.

    Args:
        elapsed: Seconds that have passed.
        busy: Seconds that the processors, all together, have worked for anyone.
        own: Seconds of these for the worker that was measured.
    """
    share = (busy - own) / (elapsed * (os.cpu_count() or 1))
    # Ticks are coarse. In this order, NaN stays NaN.
    return max(share, 0.0)


def _busy_seconds() -> float:
    """Return the seconds that all processors have worked for anyone, or been taken away."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    except OSError:
        return float("nan")
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
