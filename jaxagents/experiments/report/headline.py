"""The top of a report: title, summary, notes and key figures."""

import contextlib
from collections.abc import Sequence
from typing import Any

from jaxagents.errors import ExperimentError
from jaxagents.evaluation.comparison import compare_groups, describe
from jaxagents.evaluation.runs import Run
from jaxagents.experiments.report.formatting import (
    Groups,
    all_runs,
    between,
    by_environment,
    clock,
    counted,
    estimates,
    listed,
    n_evaluated,
    name_of,
    number,
    progress,
    rows_of_actors,
)
from jaxagents.experiments.report.markup import Markup, element

_MAX_NAMES = 3  # in the title
_MAX_INFOS = 3  # among the key figures
_MEAN_AND_INTERVAL = ("mean", "ci_low", "ci_high")


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
    episodes = counted(
        evaluation["n_evals"], f"{'greedy' if evaluation['greedy'] else 'sampled'} episode"
    )
    return (
        f"Trained for {training['n_environment_steps']:,} environment steps on {envs}. The "
        f"policies of the {evaluation['mode']} checkpoint (step "
        f"{checkpoint['n_environment_steps']:,}) reach a mean return of {_return_of_run(run)} over "
        f"{episodes}."
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
                sentences += map(describe, compare_groups(of_env))
    return sentences


def _return_of_run(run: Run) -> str:
    summary: Any = run.summary
    rows = rows_of_actors(summary["returns"], _MEAN_AND_INTERVAL)
    if len(rows) > 1:
        return f"{between([mean for _, (mean, *_) in rows])}, depending on the actor,"
    ((_, (mean, low, high)),) = rows
    return f"{number(mean)} (95 % interval {number(low)} to {number(high)})"


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


def key_figures(groups: Groups) -> Markup:
    """List the few numbers that matter most."""
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
        trainings = [summary["training"] for summary in summaries]
        seconds = sum(each["seconds"] for each in trainings)
        rate = sum(each["environment_steps_per_second"] for each in trainings) / len(trainings)
        figures.append(("Training time", clock(seconds), f"{rate:,.0f} steps per second"))
    return element("dl", *(_figure(*figure) for figure in figures), class_="figures")


def _figure(title: str, value: str, remark: str) -> Markup:
    return element(
        "div",
        element("dt", title),
        element("dd", value, class_="value"),
        element("dd", remark, class_="faint"),
    )


def _evaluation_figures(summary: Any) -> list[tuple[str, str, str]]:
    """List title, value and remark of the key figures of an evaluation."""
    rows = rows_of_actors(summary["returns"], _MEAN_AND_INTERVAL)
    if len(rows) == 1:
        (_, (mean, low, high)) = rows[0]
        figures = [("Return", number(mean), f"95 % CI: {number(low)} to {number(high)}")]
    else:
        figures = [("Return", between([mean for _, (mean, *_) in rows]), "depending on the actor")]
    for name in [name for name in summary["means"] if name.startswith("info_")][:_MAX_INFOS]:
        title = name.removeprefix("info_").replace("_", " ").capitalize()
        figures.append((title, number(summary["means"][name]), "mean at episode end"))
    length = number(summary["means"]["episode_lengths"])
    return [*figures, ("Episode length", length, "steps on average")]


def _updates(runs: Sequence[Run]) -> str:
    done, planned = (sum(counts) for counts in zip(*map(progress, runs), strict=True))
    text = counted(planned, "update")
    return text if done == planned else f"{done:,} of {text}"
