"""Everything that is worth knowing about an accelerator, or a CPU, in one table.

JaxMARL's recipes and ours in turn, by environments and with memory; SMAX; hunting; several seeds;
bfloat16, precisions and generators; kernels and idle time; each tuned form of `jaxagents.compiler`
turned the other way; compile times, the time to the first update, and memory. Sections for which
there is no time are left out, and the table says so. If a section fails, for instance for lack of
memory, the table shows its error.

    python benchmarks/accelerator.py --to build/accelerator.md
"""

import argparse
import importlib
import os
import platform
import shlex
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jaxlib
from accelerator.clock import Clock
from accelerator.table import Row, Table, error_text
from accelerator.turns import Case, Outcome

_FIRST_CASE = 20.0  # seconds: assumed before anything is known of a section's cases
_CALLS = 2  # the fewest of a side: the one that compiles, and one to be timed
_GRACE = 20.0  # seconds of the budget in which a running program may end


class Section(NamedTuple):
    """Cases, and the share of the remaining time that they may use."""

    name: str
    share: float
    function: str  # that lists the cases; in a module that is imported when it is needed


# The most important come first, except for the very first: it needs the device for processes of its
# own, and importing JaxMARL takes the device.
SECTIONS = (
    Section("first update", 0.2, "first_update.cases"),
    Section("environments", 0.4, "trainings.by_environments"),
    Section("kernels", 0.25, "kernels.cases"),
    Section("recurrent", 0.3, "trainings.recurrent"),
    Section("SMAX 3m", 0.3, "trainings.smax"),
    Section("seeds", 0.35, "trainings.by_seeds"),
    Section("options", 0.4, "trainings.by_options"),
    Section("hunting", 0.4, "trainings.hunting"),
    Section("tuned forms", 1.0, "forms.cases"),
)


def measure(section: Section, table: Table, clock: Clock, is_small: bool) -> None:
    """Measure the cases of a section for which there is time; a failure ends its own case only."""
    own = clock.part(section.share)
    try:
        cases = cases_of(section, is_small)
    except Exception as error:
        table.add([Row(section.name, "", note=error_text(error))])
        return
    fixed, by_size = _FIRST_CASE, 0.0
    for case in cases:
        needed = fixed + _CALLS * by_size * case.size
        if own.left() < needed:
            left = max(0.0, own.left())
            note = f"skipped: it needs about {needed:.0f} s, and its section had {left:.0f} s left"
            table.add([Row(section.name, case.name, note=note)])
            continue
        started = time.perf_counter()
        try:
            outcome = case.run(section.name, own)
        except Exception as error:
            outcome = Outcome([Row(section.name, case.name, note=error_text(error))])
        table.add(outcome.rows)
        elapsed = time.perf_counter() - started
        fixed = max(0.0, elapsed - outcome.n_calls * outcome.call_seconds)
        by_size = outcome.call_seconds / case.size


def cases_of(section: Section, is_small: bool) -> Sequence[Case]:
    """List the cases of a section."""
    module, name = section.function.split(".")
    return getattr(importlib.import_module(f"accelerator.{module}"), name)(is_small)


def heading(command: str) -> str:
    """Return the table's heading: command, date, machine and versions."""
    device = jax.devices()[0]
    return "\n".join(
        [
            f"`{command}`, {time.strftime('%Y-%m-%d %H:%M')}",
            "",
            f"{jax.device_count()} x {device.device_kind} ({jax.default_backend()}), "
            f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} cores of {_processor()}, "
            f"{platform.system()}; Python {platform.python_version()}, jax {jax.__version__}, "
            f"jaxlib {jaxlib.__version__}; default generator {jax.config.jax_default_prng_impl}.",
        ]
    )


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "an unknown processor"


def abandon_after(seconds: float, table: Table, pending: list[str]) -> threading.Timer:
    """End this process after some seconds, unless cancelled: compiled programs would go on.

    Args:
        seconds: The time.
        table: Says what has been abandoned and skipped.
        pending: The sections that have not ended, the current one first.
    """

    def abandon() -> None:
        notes = ["abandoned: it ran when the time was over", *["skipped: no time was left"] * 99]
        table.add([Row(name, "", note=note) for name, note in zip(pending, notes, strict=False)])
        os._exit(0)

    timer = threading.Timer(seconds, abandon)
    timer.daemon = True
    timer.start()
    return timer


def main() -> None:
    """Measure, and print the table."""
    started = time.perf_counter()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--to", type=Path, metavar="FILE", help="write the table here, as Markdown")
    parser.add_argument("--minutes", type=float, default=9.0, help="the budget; 9 by default")
    parser.add_argument("--small", action="store_true", help="everything tiny, to test this script")
    parser.add_argument("--sections", nargs="+", metavar="NAME", help="these alone")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.child:
        from accelerator.first_update import child

        name, n_envs, since = parsed.child
        child(name, int(n_envs), float(since), parsed.small)
        return
    if parsed.to is not None and parsed.to.exists():
        parser.error(f"--to {parsed.to} exists; name another file")
    names = [section.name for section in SECTIONS]
    unknown = set(parsed.sections or ()) - set(names)
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}; choose among {', '.join(names)}")
    if parsed.minutes <= 0:
        parser.error(f"--minutes {parsed.minutes:g} leaves no time; give more than 0")
    budget = 60 * parsed.minutes - (time.perf_counter() - started)
    clock = Clock(budget - min(_GRACE, budget / 2))
    table = Table(parsed.to)
    pending = [name for name in names if parsed.sections is None or name in parsed.sections]
    timer = abandon_after(budget, table, pending)
    for section in SECTIONS:
        if section.name in pending:
            measure(section, table, clock, parsed.small)
            jax.clear_caches()  # which keep programs, and agents, in the device's memory
            pending.remove(section.name)
        if not table.heading and section is SECTIONS[0]:
            table.heading = heading(shlex.join(["python", *sys.argv]))
    timer.cancel()
    table.write()
    print(f"\n{table.text()}")


if __name__ == "__main__":
    main()
