"""What each side of a comparison does: train once to compile, then once for each line it reads.

Runs in every peer's environment, and so imports nothing but the standard library.
"""

import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

# Libraries print to the same stream: what is for the driver follows this.
MARK = "measured: "


def serve(train: Callable[[int], object], n_environment_steps: int) -> None:
    """Train from seed 0, then from each seed read, and print what it took.

    Args:
        train: Trains from a seed, and returns when the results are there.
        n_environment_steps: Environment steps of one training, whatever the number of actors.
    """
    _measure(train, 0, n_environment_steps)
    for line in sys.stdin:
        _measure(train, int(line), n_environment_steps)


def _measure(train: Callable[[int], object], seed: int, n_environment_steps: int) -> None:
    started, cpu_started = time.perf_counter(), time.process_time()
    train(seed)
    measurement = {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - cpu_started,
        "n_environment_steps": n_environment_steps,
        "peak_megabytes": _peak_megabytes(),
    }
    print(f"\n{MARK}{json.dumps(measurement)}", flush=True)


def _peak_megabytes() -> float:
    # Not `resource.getrusage`, which counts what the process was forked from.
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:  # not on Linux
        return float("nan")
    kibibytes = re.search(r"VmHWM:\s*(\d+) kB", status)
    return int(kibibytes[1]) * 1024 / 1e6 if kibibytes else float("nan")
