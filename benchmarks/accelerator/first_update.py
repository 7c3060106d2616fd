"""Time from the command to the end of the first update, and peak memory: each side by itself."""

import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax

from accelerator.clock import Clock
from accelerator.table import Row
from accelerator.turns import Case, Outcome

SCRIPT = Path(__file__).parents[1] / "accelerator.py"
SIDES = {"ours": "jaxagents", "recipe": "JaxMARL's recipe"}


def cases(is_small: bool) -> Sequence[Case]:
    """A process of its own for each side and size.

    First of all sections: a device that this process holds would not be free for others.
    """
    names = ["ours"] if is_small else list(SIDES)
    # Asking jax for its device here would take it.
    return [
        Case(f"{n_envs:,} environments", partial(_run, n_envs=n_envs, names=names, small=is_small))
        for n_envs in ((16,) if is_small else (16, 1_024))
    ]


def _run(section: str, clock: Clock, n_envs: int, names: Sequence[str], small: bool) -> Outcome:
    case, options = f"{n_envs:,} environments", ["--small"] if small else []
    rows = []
    for name in names:
        row = Row(section, case, SIDES[name])
        command = [sys.executable, str(SCRIPT), "--child", name, str(n_envs), str(time.time())]
        seconds = max(clock.left(), 0.0)
        try:
            finished = subprocess.run(
                [*command, *options], capture_output=True, text=True, timeout=seconds
            )
        except subprocess.TimeoutExpired:
            rows.append(row._replace(note=f"abandoned after {seconds:.0f} s"))
            continue
        if finished.returncode:
            rows.append(row._replace(note=f"failed: {_error_in(finished.stderr)}"))
            continue
        found = json.loads(finished.stdout.splitlines()[-1])
        rows.append(
            row._replace(
                start_seconds=f"{found['seconds']:.1f}",
                memory=f"{found['megabytes']:,.0f}",
                note=f"memory: {found['source']}; process {found['process']:,.0f} MB",
            )
        )
    return Outcome(rows)


def _error_in(text: str) -> str:
    """Return the error at the end of a traceback; jax adds remarks below it."""
    lines = text.strip().splitlines()
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
    return (errors or lines or ["no message"])[-1][:160]


def child(name: str, n_envs: int, started: float, is_small: bool) -> None:
    """Train one update in this process, and print what it took, as JSON."""
    import jaxmarl_recipe

    from accelerator import trainings

    sizes = trainings.sizes_of(n_envs, is_small) | {"n_updates": 1}
    if name == "ours":
        side = trainings.ours(trainings.SPREAD, sizes)
    else:
        side = trainings.recipe(jaxmarl_recipe, jaxmarl_recipe.STOCK, sizes)
    jax.block_until_ready(side.train(0))
    seconds = time.time() - started
    process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    peak = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    if peak is None:
        source, size = "XLA's analysis of the training as one program", program_bytes(side.train)
    else:
        source, size = "the device's peak", peak
    print(
        json.dumps(
            {"seconds": seconds, "megabytes": size / 1e6, "source": source, "process": process}
        )
    )


def program_bytes(train: Any) -> int:
    """Return what XLA plans for a training's arguments, results and temporary arrays."""
    analysis = jax.jit(train).lower(0).compile().memory_analysis()
    own = analysis.argument_size_in_bytes + analysis.output_size_in_bytes
    return own + analysis.temp_size_in_bytes - analysis.alias_size_in_bytes
