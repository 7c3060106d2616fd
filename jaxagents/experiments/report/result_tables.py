"""The tables of a report: returns per run and per group."""

from collections.abc import Sequence
from typing import Any

from jaxagents.evaluation.runs import Run
from jaxagents.experiments.report.formatting import (
    Groups,
    all_runs,
    counted,
    estimates,
    n_evaluated,
    name_of,
    number,
    rows_of_actors,
)
from jaxagents.experiments.report.markup import Markup, element, joined, table

_STATISTICS = ("mean", "ci_low", "ci_high", "iqm", "std", "min", "median", "max")
_TITLES = ("mean", "CI low", "CI high", "IQM", "std", "min", "median", "max")
_LATEST = ("return_mean", "return_std", "return_min", "return_max")


def evaluation_tables(groups: Groups) -> list[Markup]:
    """Tabulate the returns after training per run and, if there are several runs, per group.

    If no run has been evaluated after training, tabulate the latest evaluation during training.
    """
    runs = all_runs(groups)
    if not any(run.summary for run in runs):
        return [_table_of_latest(runs)]
    if len(runs) == 1:
        return [_table_of_runs(runs, named=False)]
    return [*_table_of_groups(groups), _table_of_runs(runs, named=True)]


def _table_of_runs(runs: Sequence[Run], named: bool) -> Markup:
    rows = []
    for run in runs:
        if run.summary:
            names = [name_of(run)] if named else []
            steps = f"{run.summary['checkpoint']['n_environment_steps']:,}"
            for subject, values in rows_of_actors(run.summary["returns"], _STATISTICS):
                rows.append([*names, subject, *map(_datum, values), steps])
    titles = [*(["run"] if named else []), "return of", *_TITLES, "steps"]
    kinds = dict.fromkeys(_kind_of_evaluation(run.summary) for run in runs if run.summary)
    caption = (
        f"{' '.join(kinds)} Steps: environment steps up to the checkpoint. CI: 95 % interval of "
        "the mean, by bootstrap over episodes."
    )
    return table(titles, rows, caption, n_headers=1 + named)


def _table_of_groups(groups: Groups) -> list[Markup]:
    rows = [
        [label, subject, str(n_evaluated(runs)), *map(_datum, estimate)]
        for label, runs in groups.items()
        for subject, estimate in estimates(runs)
    ]
    titles = ["group", "return of", "runs", "IQM", "CI low", "CI high"]
    caption = (
        "Groups of runs that differ only in their seed. IQM: interquartile mean of the runs' mean "
        "returns. CI: its 95 % interval, by bootstrap over runs."
    )
    return [table(titles, rows, caption, n_headers=2)] if rows else []


def _table_of_latest(runs: Sequence[Run]) -> Markup:
    latest = [(run, run.records[-1]) for run in runs if run.records]
    rows = []
    for run, record in latest:
        if "return_mean" in record:
            name, steps = name_of(run), f"{record['n_environment_steps']:,}"
            for subject, values in rows_of_actors(record, _LATEST):
                rows.append([name, subject, steps, *map(_datum, values)])
    if not rows:
        return element("p", "Nothing has been evaluated yet.")
    titles = ["run", "return of", "environment steps", "mean", "std", "min", "max"]
    return table(titles, rows, "Latest evaluation during training.", n_headers=2)


def _kind_of_evaluation(summary: Any) -> str:
    evaluation = summary["evaluation"]
    kind = "greedy" if evaluation["greedy"] else "sampled"
    episodes = counted(evaluation["n_evals"], f"{kind} episode")
    return f"{episodes} of the {evaluation['mode']} checkpoint."


def _datum(value: float | None) -> Markup:
    """Write a rounded number, with its full precision as value and tooltip."""
    if value is None:
        return joined([number(value)])
    return element("data", number(value), value=repr(value), title=repr(value))
