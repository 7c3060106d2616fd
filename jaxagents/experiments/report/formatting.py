"""Numbers of a report: reading them from runs, and writing them as text."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxagents.evaluation.bootstrap import (
    interquartile_mean,
    percentile_interval,
    resampled_interquartile_means,
)
from jaxagents.evaluation.runs import Run, population_of

Groups = Mapping[str, Sequence[Run]]
"""Groups of runs that differ only in their seed, by label."""


class Estimate(NamedTuple):
    """Interquartile mean of the returns of runs with different seeds.

    Bounds are those of its 95 % bootstrap interval over runs; None for a single run.
    """

    iqm: float
    low: float | None
    high: float | None


def all_runs(groups: Groups) -> list[Run]:
    """List the runs of all groups."""
    return [run for runs in groups.values() for run in runs]


def by_environment(groups: Groups) -> dict[str, dict[str, Sequence[Run]]]:
    """Collect the groups of each environment: returns and losses are comparable only within one."""
    envs: dict[str, dict[str, Sequence[Run]]] = {}
    for label, runs in groups.items():
        envs.setdefault(runs[0].config["env"], {})[label] = runs
    return envs


def name_of(run: Run) -> str:
    """Return the name of a run's directory, which is unique among runs of one configured name.

    A member of a population has that of the population before its own.
    """
    directory = run.directory.resolve()  # resolved, as the directory may be given as "."
    population = population_of(directory)
    return directory.name if population is None else f"{population[0].name}, member {population[1]}"


def progress(run: Run) -> tuple[int, int]:
    """Return the number of updates that a run has done, and the number configured."""
    return run.n_updates_done, run.config["agent"]["n_steps"]


def n_evaluated(runs: Sequence[Run]) -> int:
    """Count the runs that have been evaluated after training."""
    return sum(run.final_summary is not None for run in runs)


def rows_of_actors(
    statistics: Mapping[str, Any], names: Sequence[str]
) -> list[tuple[str, list[Any]]]:
    """Return a label and the statistics of each actor; one row if all actors have equal ones.

    Args:
        statistics: Lists of one value per actor, by name.
        names: The statistics to return.
    """
    n_actors = len(statistics[names[0]])
    rows = [[statistics[name][i] for name in names] for i in range(n_actors)]
    if all(row == rows[0] for row in rows):
        return [("the actor" if n_actors == 1 else f"each of {n_actors} actors", rows[0])]
    return [(f"actor {i}", row) for i, row in enumerate(rows)]


def estimates(runs: Sequence[Run]) -> list[tuple[str, Estimate]]:
    """Estimate the returns over seeds, per actor; one row if all actors have equal estimates.

    Uses evaluations after training only. Returns nothing if any return is NaN or infinite.
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


def number(value: float | None) -> str:
    """Write a number with two decimals, or two significant digits if its magnitude is below 0.1."""
    if value is None:
        return "-"
    return f"{value:,.2f}" if value == 0 or abs(value) >= 0.1 else f"{value:.2g}"


def between(values: Sequence[float | None]) -> str:
    """Write the range of the values; None stands for NaN or infinity."""
    finite = [value for value in values if value is not None]
    if not finite:
        return "NaN or infinity"
    lowest, highest = number(min(finite)), number(max(finite))
    return lowest if lowest == highest else f"{lowest} to {highest}"


def clock(seconds: float) -> str:
    """Write a duration as h:mm:ss, or as m:ss if it is below an hour."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def counted(count: int, noun: str) -> str:
    """Write a count and its noun, as in "1 run" or "3 runs"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def listed(words: Sequence[str]) -> str:
    """Enumerate words, as in "a, b and c"."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
