"""Trainings in turn: each side's time, and the ratio of the times round by round."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from accelerator.clock import Clock
from accelerator.table import Row, error_text

_FEWEST_ROUNDS, _MOST_ROUNDS = 3, 9
_SECONDS = 12.0  # of a case's rounds, if the fewest take less
_LONGER = 1.2  # a round may take this much longer than the one before


class Side(NamedTuple):
    """One way to train, of those that a case compares."""

    name: str
    train: Callable[[int], Any]  # from a seed; the first call compiles
    n_updates: int  # of a call, of each member
    n_steps: int  # environment steps of an update, of all members
    compile_seconds: float | None = None  # if it has been compiled already


class Outcome(NamedTuple):
    """What a case has measured, and what that took."""

    rows: list[Row]
    n_calls: int = 0  # of each side
    call_seconds: float = 0.0  # of all sides together, once compiled


class Case(NamedTuple):
    """Something to measure; a section has several.

    Attributes:
        name: Name of the case.
        run: Measures it in the time that a clock has.
        size: The work of a call relative to that of the section's other cases.
    """

    name: str
    run: Callable[[str, Clock], Outcome]
    size: float = 1.0


def in_turns(
    name: str, make_sides: Sequence[Callable[[], Side]], size: float = 1.0, is_small: bool = False
) -> Case:
    """Make a case of sides that train in turn.

    Args:
        name: Name of the case.
        make_sides: Build the sides; the others' times are divided by those of the first.
        size: As in `Case`.
        is_small: A single round.
    """

    def run(section: str, clock: Clock) -> Outcome:
        timings = [Timing(make_side) for make_side in make_sides]
        n_rounds = _take_turns(timings, clock, 1 if is_small else _MOST_ROUNDS)
        reference = timings[0].seconds
        rows = [each.row(section, name, each is not timings[0], reference) for each in timings]
        return Outcome(rows, 1 + n_rounds, sum(each.call_seconds() for each in timings))

    return Case(name, run, size)


class Timing:
    """The times of one side."""

    def __init__(self, make_side: Callable[[], Side]):
        """Build the side and train once, which compiles; keep the error if that fails."""
        self.side: Side | None = None
        self.note = ""
        self.first = math.nan
        self.seconds: list[float] = []  # per update
        try:
            self.side = make_side()
            self.first = seconds_of(self.side, 0)
        except Exception as error:
            self.note = error_text(error)

    def row(self, section: str, case: str, has_ratio: bool, reference: Sequence[float]) -> Row:
        """Summarise the times."""
        side = self.side
        if side is None:
            return Row(section, case, note=self.note)
        if not self.seconds:
            return Row(section, case, side.name, note=self.note or "no time for a round")
        per_update = statistics.median(self.seconds)
        return Row(
            section,
            case,
            side.name,
            milliseconds=f"{1e3 * per_update:.4g}",
            steps=f"{side.n_steps / per_update:,.0f}",
            ratio=ratio_text(self.seconds, reference) if has_ratio else "",
            compile_seconds=f"{self._compile_seconds():.1f}",
            note=self.note or _peak_text(),
        )

    def call_seconds(self) -> float:
        """Return the median of a call; 0 if it has failed."""
        if self.side is None or not self.seconds:
            return 0.0
        return statistics.median(self.seconds) * self.side.n_updates

    def _compile_seconds(self) -> float:
        known = self.side and self.side.compile_seconds
        return self.first - self.call_seconds() if known is None else known


def seconds_of(side: Side, seed: int) -> float:
    """Time a training, results included."""
    started = time.perf_counter()
    jax.block_until_ready(side.train(seed))
    return time.perf_counter() - started


def ratio_text(seconds: Sequence[float], reference: Sequence[float]) -> str:
    """Return the median of the ratios, round by round, with quartiles and the rounds' number."""
    ratios = [own / other for own, other in zip(seconds, reference, strict=False)]
    if not ratios:
        return ""
    low, median, high = np.percentile(ratios, (25, 50, 75))
    return f"{median:.3g} ({low:.3g} to {high:.3g}), {len(ratios)}"


def _take_turns(timings: Sequence[Timing], clock: Clock, most_rounds: int) -> int:
    """Let the sides train in turn; every other round backwards, so that none is always first.

    Returns:
        The number of rounds.
    """
    started, longest = time.perf_counter(), 0.0
    for i in range(most_rounds):
        elapsed = time.perf_counter() - started
        if i >= _FEWEST_ROUNDS and elapsed > _SECONDS:
            break
        if i and clock.left() < _LONGER * longest:
            break
        order = timings if i % 2 == 0 else timings[::-1]
        for timing in order:
            try:
                if timing.side is not None and not timing.note:  # it has not failed
                    seconds = seconds_of(timing.side, i + 1)
                    timing.seconds.append(seconds / timing.side.n_updates)
            except Exception as error:
                timing.note = error_text(error)
        longest = max(longest, time.perf_counter() - started - elapsed)
    else:
        return most_rounds
    return i


def _peak_text() -> str:
    """Return the device's peak memory so far, if it is known."""
    stats = jax.local_devices()[0].memory_stats() or {}
    peak = stats.get("peak_bytes_in_use")
    return "" if peak is None else f"device's peak so far {peak / 1e6:,.0f} MB"
