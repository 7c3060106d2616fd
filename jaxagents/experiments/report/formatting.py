"""The numbers of a report, and how they are written."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxagents.evaluation.bootstrap import (
    interquartile_mean,
    percentile_interval,
    resampled_interquartile_means,
)
from jaxagents.evaluation.runs import Run

Groups = Mapping[str, Sequence[Run]]
"""Runs that differ in their seed only, by what they are called."""


class Estimate(NamedTuple):
    """What runs of different seeds have in common: the interquartile mean of their returns."""

    iqm: float
    low: float | None  # of its 95 % interval over runs; a single one has none
    high: float | None


def all_runs(groups: Groups) -> list[Run]:
    """List the runs of all groups."""
    return [run for runs in groups.values() for run in runs]


def by_environment(groups: Groups) -> dict[str, dict[str, Sequence[Run]]]:
    """Put the groups of an environment together: their returns and losses can be compared."""
    envs: dict[str, dict[str, Sequence[Run]]] = {}
    for label, runs in groups.items():
        envs.setdefault(runs[0].config["env"], {})[label] = runs
    return envs


def name_of(run: Run) -> str:
    """Tell a run from others of its name: by its directory's, which "." has too."""
    return run.directory.resolve().name


def progress(run: Run) -> tuple[int, int]:
    """Return the updates that a run has done, and those that it is to do."""
    return run.n_updates_done, run.config["agent"]["n_steps"]


def n_evaluated(runs: Sequence[Run]) -> int:
    """Count the runs that have been evaluated at their end."""
    return sum(run.final_summary is not None for run in runs)


def rows_of_actors(
    statistics: Mapping[str, Any], names: Sequence[str]
) -> list[tuple[str, list[Any]]]:
    """Return what actors are called and their statistics; one row where all have the same.

    Args:
        statistics: Holds a list of one value per actor by each of the names.
        names: Of the statistics.
    """
    n_actors = len(statistics[names[0]])
    rows = [[statistics[name][i] for name in names] for i in range(n_actors)]
    if all(row == rows[0] for row in rows):
        return [("the actor" if n_actors == 1 else f"each of {n_actors} actors", rows[0])]
    return [(f"actor {i}", row) for i, row in enumerate(rows)]


def estimates(runs: Sequence[Run]) -> list[tuple[str, Estimate]]:
    """Estimate returns over runs of different seeds, per actor; one row where all are equal.

    Only what was evaluated after training counts. Nothing is estimated where returns are not
    finite.
    """
    means = [run.final_summary["returns"]["mean"] for run in runs if run.final_summary]
    if not means or any(None in row for row in means):
        return []
    values: Float[np.ndarray, "runs actors"] = np.array(means, np.float64)
    low = high = [None] * values.shape[1]
    if len(means) > 1:
        resamples = resampled_interquartile_means(values, np.random.default_rng(0))
        low, high = percentile_interval(resamples).tolist()
    columns = {"iqm": interquartile_mean(values).tolist(), "low": low, "high": high}
    return [(subject, Estimate(*row)) for subject, row in rows_of_actors(columns, list(columns))]


# How they are written.


def number(value: float | None) -> str:
    """Write a number to two decimals, or to two digits where that would leave none."""
    if value is None:
        return "-"
    return f"{value:,.2f}" if value == 0 or abs(value) >= 0.1 else f"{value:.2g}"


def between(values: Sequence[float | None]) -> str:
    """Write from where to where numbers reach."""
    known = [value for value in values if value is not None]
    if not known:
        return "no finite number"
    lowest, highest = number(min(known)), number(max(known))
    return lowest if lowest == highest else f"{lowest} to {highest}"


def clock(seconds: float) -> str:
    """Write a time in hours, minutes and seconds."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def counted(count: int, noun: str) -> str:
    """Write how many there are of something."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def listed(words: Sequence[str]) -> str:
    """Put words in a row, as in "a, b and c"."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
