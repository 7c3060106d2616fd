"""Where the seconds of a process go: every instant belongs to the innermost of the open spans.

Runs in the peers' environments too, and so imports only the standard library until `listen`.
"""

import contextlib
import functools
import importlib.machinery
import itertools
import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

MARK = "ledger: "
"""Prefix of the lines of a process that the driver reads."""
_OF_JAX = {
    "/jax/core/compile/jaxpr_trace_duration": "tracing",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowering",
    "/jax/core/compile/backend_compile_duration": "compilation",
}


class Span(NamedTuple):
    """A stage of a process, in seconds of `time.time`."""

    stage: str
    start: float
    end: float


class Ledger:
    """The spans of this process.

    Args:
        started: When the process was started, as `time.time` said there.
    """

    def __init__(self, started: float):
        self._spans = [Span("interpreter", started, time.time())]
        self._started = started
        self._programs: list[tuple[str, float]] = []
        self._marks: dict[str, float] = {}
        self._n_compiled = 0
        self._imports_open = 0
        for loader, method in (
            (importlib.machinery.SourceFileLoader, "exec_module"),
            (importlib.machinery.ExtensionFileLoader, "create_module"),
        ):
            setattr(loader, method, self._importing(getattr(loader, method)))

    def listen(self) -> None:
        """Note what jax traces, lowers and compiles from here on."""
        import jax

        jax.monitoring.register_event_time_span_listener(self._note)
        jax.monitoring.register_event_listener(self._count)

    def watch(self, owner: Any, name: str, stage: str) -> None:
        """Note each call of a function, by replacing it."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def watched(*arguments: Any, **keywords: Any) -> Any:
            with self.stage(stage):
                return function(*arguments, **keywords)

        setattr(owner, name, watched)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Note the time within this context."""
        start = time.time()
        try:
            yield
        finally:
            self._spans.append(Span(name, start, time.time()))

    def mark(self, name: str) -> None:
        """Note that something has happened, unless it has before."""
        self._marks.setdefault(name, time.time() - self._started)

    def tell(self) -> None:
        """Print the ledger for the driver."""
        self.mark("end")
        told = {
            "marks": self._marks,
            "stages": by_innermost([Span("other", self._started, time.time()), *self._spans]),
            "programs": self._programs,
            "n_compiled": self._n_compiled,
            "peak_megabytes": _peak_megabytes(),
        }
        print(f"\n{MARK}{json.dumps(told)}", flush=True)

    def _importing(self, load: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(load)
        def timed(*arguments: Any) -> Any:
            self._imports_open += 1
            try:
                if self._imports_open > 1:
                    return load(*arguments)
                with self.stage("imports"):
                    return load(*arguments)
            finally:
                self._imports_open -= 1

        return timed

    def _note(self, event: str, start: float, end: float, **details: Any) -> None:
        if stage := _OF_JAX.get(event):
            self._spans.append(Span(stage, start, end))
            if stage == "compilation":
                self._programs.append((str(details.get("fun_name")), end - start))

    def _count(self, event: str, **_: Any) -> None:
        self._n_compiled += event == "/jax/compilation_cache/cache_misses"


def by_innermost(spans: list[Span]) -> dict[str, float]:
    """Assign each instant to the open span that began last; sum by stage."""
    ends = sorted({each.start for each in spans} | {each.end for each in spans})
    seconds: dict[str, float] = defaultdict(float)
    opened = sorted(spans, key=lambda span: span.start)
    for start, end in itertools.pairwise(ends):
        around = [each for each in opened if each.start <= start and each.end >= end]
        if around:
            seconds[around[-1].stage] += end - start
    return dict(seconds)


def _peak_megabytes() -> float:
    # Not `resource.getrusage`, which counts what the process was forked from.
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:  # not on Linux
        return float("nan")
    kibibytes = re.search(r"VmHWM:\s*(\d+) kB", status)
    return int(kibibytes[1]) * 1024 / 1e6 if kibibytes else float("nan")
