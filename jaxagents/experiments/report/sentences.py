"""The sentences and key figures of a report, and the numbers in them."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxagents.errors import ExperimentError
from jaxagents.evaluation.bootstrap import (
    interquartile_mean,
    percentile_interval,
    resampled_interquartile_means,
)
from jaxagents.evaluation.comparison import compare_groups, describe_comparison
from jaxagents.evaluation.runs import Run, population_of, root_of
from jaxagents.evaluation.success_rates import success_number, success_text, untold_infos

_MAX_NAMES = 3  # in the title
_MAX_INFOS = 3  # among the key figures
_MEAN_AND_INTERVAL = ("mean", "ci_low", "ci_high")

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

    A member's name follows its population's.
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


def episodes_of(evaluation: Mapping[str, Any]) -> str:
    """Say how many episodes an evaluation played, as in "1 greedy episode"."""
    kind = "greedy" if evaluation["greedy"] else "sampled"
    return counted(evaluation["n_evals"], f"{kind} episode")


def listed(words: Sequence[str]) -> str:
    """Enumerate words, as in "a, b and c"."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def summary_sentence(groups: Groups) -> str:
    """Summarize the outcome of the runs."""
    runs = all_runs(groups)
    envs = listed(list(dict.fromkeys(run.config["env"] for run in runs)))
    if len(groups) > 1:
        return f"{len(runs)} runs in {len(groups)} groups on {envs}."
    if len(runs) > 1:
        seeds = listed([str(run.config.get("seed", 0)) for run in runs])
        return f"{len(runs)} runs on {envs} with seeds {seeds}{_return_of_group(runs)}."
    (run,) = runs
    if run.summary is None:
        return f"A run on {envs}{_latest_return(run)}."
    evaluation, training, checkpoint = (
        run.summary[key] for key in ("evaluation", "training", "checkpoint")
    )
    return (
        f"Trained for {training['n_environment_steps']:,} environment steps on {envs}. The "
        f"policies of the {evaluation['mode']} checkpoint (step "
        f"{checkpoint['n_environment_steps']:,}) reach a mean return of {_return_of_run(run)} over "
        f"{episodes_of(evaluation)}{_success_of_run(run)}."
    )


def title(groups: Groups) -> str:
    """Return the title of the report."""
    return listed(list(groups)) if len(groups) <= _MAX_NAMES else f"{len(groups)} groups of runs"


def comparisons(groups: Groups) -> list[str]:
    """Compare the returns of each pair of groups on the same environment."""
    sentences = []
    for of_env in by_environment(groups).values():
        if len(of_env) > 1:
            with contextlib.suppress(ExperimentError):  # a run has not been evaluated yet
                sentences += map(describe_comparison, compare_groups(of_env))
    return sentences


def _return_of_run(run: Run) -> str:
    summary: Any = run.summary
    rows = rows_of_actors(summary["returns"], _MEAN_AND_INTERVAL)
    if len(rows) > 1:
        return f"{between([mean for _, (mean, *_) in rows])}, depending on the actor,"
    ((_, (mean, low, high)),) = rows
    return f"{number(mean)} (95 % interval {number(low)} to {number(high)})"


def _success_of_run(run: Run) -> str:
    success = (run.summary or {}).get("success")
    return "" if success is None else f"; {success_text(success)}"


def _return_of_group(runs: Sequence[Run]) -> str:
    rows = estimates(runs)
    if not rows or rows[0][1].low is None:  # fewer than two have been evaluated
        return ""
    if len(rows) > 1:
        means = between([each.iqm for _, each in rows])
        return f": the interquartile mean of their returns is {means}, depending on the actor"
    ((_, estimate),) = rows
    return (
        f": the interquartile mean of their returns is {number(estimate.iqm)} (95 % interval "
        f"{number(estimate.low)} to {number(estimate.high)})"
    )


def _latest_return(run: Run) -> str:
    latest = run.records[-1].get("return_mean") if run.records else None
    if not latest:
        return " that has not been evaluated yet"
    steps = run.records[-1]["n_environment_steps"]
    mean = between(latest)
    return f": after {steps:,} environment steps, its policies reach a mean return of {mean}"


def unfinished_notes(groups: Groups) -> list[str]:
    """Write a note about each unfinished run, with its progress."""
    notes = []
    for run in (each for each in all_runs(groups) if each.is_unfinished):
        done, planned = progress(run)
        notes.append(
            f"{name_of(run)} is unfinished: {done:,} of {counted(planned, 'update')} are "
            "recorded. It is still training or was interrupted."
        )
    return notes


def diagnoses(groups: Groups) -> list[str]:
    """List the problems that the runs' diagnoses found."""
    runs = all_runs(groups)
    return [
        f"{name_of(run)}: {sentence}" if len(runs) > 1 else sentence
        for run in runs
        if run.summary
        for sentence in run.summary.get("diagnosis", [])
    ]


def key_figures(groups: Groups) -> list[tuple[str, str, str]]:
    """List the few numbers that matter most: each a title, a value and a remark."""
    runs = all_runs(groups)
    summaries = [run.summary for run in runs if run.summary]
    figures = []
    if len(runs) > 1:
        figures.append(("Runs", str(len(runs)), f"{n_evaluated(runs)} evaluated"))
    elif summaries:
        figures += _evaluation_figures(summaries[0])
    steps = sum(run.records[-1]["n_environment_steps"] for run in runs if run.records)
    figures.append(("Environment steps", f"{steps:,}", _updates(runs)))
    if summaries:
        # All members of a population have the time of its training.
        trainings = {
            root_of(run.directory): run.summary["training"] for run in runs if run.summary
        }.values()
        seconds = sum(each["seconds"] for each in trainings)
        rate = sum(each["environment_steps_per_second"] for each in trainings) / len(trainings)
        figures.append(("Training time", clock(seconds), f"{rate:,.0f} steps per second"))
    return figures


def _evaluation_figures(summary: Any) -> list[tuple[str, str, str]]:
    """List title, value and remark of the key figures of an evaluation."""
    rows = rows_of_actors(summary["returns"], _MEAN_AND_INTERVAL)
    if len(rows) == 1:
        (_, (mean, low, high)) = rows[0]
        figures = [("Return", number(mean), f"95 % CI: {number(low)} to {number(high)}")]
    else:
        figures = [("Return", between([mean for _, (mean, *_) in rows]), "depending on the actor")]
    success = summary.get("success")
    if success is not None and success["mean"] is not None:
        value = success_number(success, success["mean"])
        ends = [success_number(success, success[end]).removesuffix(" %") for end in ("low", "high")]
        figures.append((success["title"].capitalize(), value, f"95 % CI: {' to '.join(ends)}"))
    for name, mean in list(untold_infos(summary).items())[:_MAX_INFOS]:
        title = name.replace("_", " ").capitalize()
        figures.append((title, number(mean), "mean at episode end"))
    length = number(summary["means"]["episode_lengths"])
    return [*figures, ("Episode length", length, "steps on average")]


def _updates(runs: Sequence[Run]) -> str:
    done, planned = (sum(counts) for counts in zip(*map(progress, runs), strict=True))
    text = counted(planned, "update")
    return text if done == planned else f"{done:,} of {text}"
