"""Kernels of a program, from a profile of XLA's."""

import collections
import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

_N_TOP = 4
_CONTAINERS = ("while", "call", "conditional")  # their own kernels are events as well


class Kernels(NamedTuple):
    """What ran on the device."""

    n: int
    n_copies: int  # from or to the host
    busy: float  # seconds with at least one kernel
    window: float  # seconds from the first kernel to the end of the last
    total: float  # seconds of all kernels, however many at a time
    by_name: dict[str, float]  # seconds

    def text(self, n_updates: int) -> str:
        """Summarise them, per update."""
        top = sorted(self.by_name.items(), key=lambda item: -item[1])[:_N_TOP]
        names = ", ".join(f"{name} {seconds / self.total:.0%}" for name, seconds in top)
        return (
            f"{self.n / n_updates:,.0f} kernels and {self.n_copies / n_updates:,.1f} copies from "
            f"or to the host per update; {1 - self.busy / self.window:.0%} of the time without "
            f"any, {self.total / self.busy:.2f} at a time otherwise; most time: {names}"
        )


def traced(run: Callable[[], Any]) -> Kernels:
    """Run something under XLA's profiler.

    Raises:
        ValueError: the profiler saw no kernel.
    """
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(run())
        (path,) = Path(folder).rglob("*.xplane.pb")
        return kernels_of(jax.profiler.ProfileData.from_file(str(path)).planes)


def kernels_of(planes: Iterable[Any]) -> Kernels:
    """Collect a profile's kernels: those of the devices, or if there are none, of the host."""
    planes = list(planes)
    devices = [plane for plane in planes if re.match(r"/device:[GT]PU", plane.name)]
    if devices:
        lines = [line for plane in devices for line in _lines_of_kernels(plane)]
        events = [event for line in lines for event in line.events]
    else:  # on a CPU, kernels are the host's events that belong to an operation
        lines = [line for plane in planes if plane.name == "/host:CPU" for line in plane.lines]
        events = [event for line in lines for event in line.events if _is_operation(event)]
    events = [event for event in events if not event.name.startswith(_CONTAINERS)]
    if not events:
        raise ValueError("the profiler saw no kernel; it does not know this device.")
    spans = sorted((event.start_ns, event.start_ns + event.duration_ns) for event in events)
    by_name: collections.Counter[str] = collections.Counter()
    for event in events:
        by_name[re.sub(r"([._]\d+)+$", "", event.name)] += event.duration_ns / 1e9
    return Kernels(
        n=len(events),
        n_copies=sum(bool(re.search(r"D2H|H2D|DtoH|HtoD", event.name)) for event in events),
        busy=_union(spans) / 1e9,
        window=(max(end for _, end in spans) - spans[0][0]) / 1e9,
        total=sum(by_name.values()),
        by_name=dict(by_name),
    )


def _is_operation(event: Any) -> bool:
    return any(name == "hlo_op" for name, _ in event.stats)


def _lines_of_kernels(plane: Any) -> list[Any]:
    """Return the lines that hold kernels: a GPU's streams, or a TPU's operations."""
    lines = list(plane.lines)
    for start in ("Stream", "XLA Ops"):
        found = [line for line in lines if line.name.startswith(start)]
        if found:
            return found
    return []


def _union(spans: Sequence[tuple[float, float]]) -> float:
    """Return the length that sorted spans cover together."""
    covered, last = 0.0, -float("inf")
    for start, end in spans:
        covered += max(0.0, end - max(start, last))
        last = max(last, end)
    return covered
