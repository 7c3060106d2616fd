"""Learning curves of runs: metrics over training, aggregated over actors and seeds."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Float

from jaxagents.errors import ExperimentError, did_you_mean
from jaxagents.evaluation.bootstrap import (
    interquartile_mean,
    percentile_interval,
    resampled_interquartile_means,
)
from jaxagents.evaluation.runs import Run

# Metrics that show whether training is healthy.
_HEALTH = (
    "explained_variance",
    "clip_fraction",
    "entropy",
    "actor_gradient_norm",
    "critic_gradient_norm",
)
_MOST_DIFFERENT = 6  # actors with panels of their own; beyond that, a policy's actors share one
_MOST_PANELS = 12  # panels of a metric; beyond that, one panel shows the mean
_NOT_METRICS = ("n_updates_done", "n_environment_steps", "seconds")
X = Literal["steps", "updates", "time"]
"""The horizontal axis of a curve: environment steps, updates, or seconds of training."""
Actors = Literal["mean", "each", "team"]
"""Which actors share a panel: all, those with equal values, or those of a team."""
_PER_ACTOR = ("return", "final_rewards", "terminated", "truncated")


class GroupCurve(NamedTuple):
    """A metric of a group of runs over training.

    For several runs, the line is their interquartile mean and the band its 95 % bootstrap interval.
    For a single run, the line is the recorded metric. If the metric is the return, and equal for
    all actors of the panel, the band is one standard deviation over episodes to either side, and
    the extremes are the lowest and highest episodes.
    """

    x: Float[np.ndarray, "points"]
    line: Float[np.ndarray, "points"]
    band: Float[np.ndarray, "2 points"] | None = None
    extremes: Float[np.ndarray, "2 points"] | None = None


def health_metrics(groups: Mapping[str, Sequence[Run]]) -> list[str]:
    """Return the metrics that show whether training is healthy, if all runs recorded them."""
    runs = [run for of_group in groups.values() for run in of_group]
    return [
        name
        for name in _HEALTH
        if all(any(record.get(name) for record in run.records) for run in runs)
    ]


class Panel(NamedTuple):
    """The curves in one pair of axes."""

    metric: str
    subject: str  # whose metric: "actor 0", "each of 3 actors", "policy 1", or ""
    curves: dict[str, GroupCurve]  # by group label
    random: float | None = None  # mean return of random actions, if all runs know it


class _Part(NamedTuple):
    """Actors or policies that share a panel."""

    subject: str
    columns: list[int] | None  # None: all, because runs have different numbers of them
    alike: bool  # their values are equal in all runs


class _Recorded(NamedTuple):
    """A metric as a run recorded it."""

    x: Float[np.ndarray, "evaluations"]
    values: Float[np.ndarray, "evaluations columns"]
    # For returns: standard deviation, minimum and maximum over episodes.
    spread: Float[np.ndarray, "3 evaluations columns"] | None


def metric_names(run: Run) -> list[str]:
    """List the metrics with at least one finite value in a run."""
    names = {
        _metric_name(key)
        for record in run.records
        for key, value in record.items()
        if key not in _NOT_METRICS and np.isfinite(np.array(value, np.float64)).any()
    }
    return sorted(names)


def make_panels(
    groups: Mapping[str, Sequence[Run]],
    metric: str,
    *,
    x: X = "steps",
    smooth: int = 1,
    actors: Actors = "each",
) -> list[Panel]:
    """Aggregate a metric over each group's runs, in one or more panels.

    With "each", actors with equal values in all runs share a panel. If more than a few differ, one
    panel per policy shows the mean over its actors. If there are still too many panels, or runs
    differ in their numbers of actors or policies, a single panel shows the mean over all of them.
    "mean" always shows that panel. "team" shows the mean of each team's actors.

    Runs of a group that were evaluated at different points of training are interpolated linearly
    at all these points. A curve covers the part of training that all its runs cover, so that
    nothing is extrapolated and every point aggregates the same runs.

    Args:
        groups: Runs by label.
        metric: A name as in ``metrics.jsonl``, with or without ``_mean``.
        x: What the curves are drawn over.
        smooth: Each point of a run is the mean of this many evaluations around it, or fewer at
            either end.
        actors: Which actors share a panel.

    Raises:
        ExperimentError: A run has not recorded the metric or its teams, no evaluation is finite,
            the runs of a group cover no common part of training, or an option has no such value.
    """
    _check_choice("x", x, get_args(X))
    _check_choice("actors", actors, get_args(Actors))
    if smooth < 1:
        raise ExperimentError(f"smooth={smooth} evaluations make no mean; choose 1 or more.")
    metric = metric.removesuffix("_mean")
    recorded = {
        label: [_read_metric(run, metric, x) for run in group] for label, group in groups.items()
    }
    panels = []
    for part in _divide_into_parts(metric, groups, recorded, actors):
        curves = {
            label: _aggregate(label, group, part, smooth) for label, group in recorded.items()
        }
        present = {label: curve for label, curve in curves.items() if curve is not None}
        if present:
            random = _random_return(groups, metric, part)
            panels.append(Panel(metric, part.subject, present, random))
    if not panels:
        raise ExperimentError(f"no curve can be drawn: {metric!r} is nowhere finite throughout.")
    return panels


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ExperimentError(f"{name}={value!r} is none of {', '.join(choices)}.")


def _random_return(groups: Mapping[str, Sequence[Run]], metric: str, part: _Part) -> float | None:
    """Average the returns of random actions over the runs of one environment."""
    runs = [run for group in groups.values() for run in group]
    known = [run.random_returns for run in runs if run.random_returns]
    one_environment = len({run.config["env"] for run in runs}) == 1
    if metric != "return" or len(known) < len(runs) or not one_environment:
        return None
    columns = part.columns
    own = [np.mean(each if columns is None else np.take(each, columns)) for each in known]
    return float(np.mean(own))


def _metric_name(key: str) -> str:
    """Return a metric's name without its reduction over episodes."""
    if key in ("return_min", "return_max", "return_std"):
        return "return"
    return key.removesuffix("_mean")


def _read_metric(run: Run, metric: str, x: X) -> _Recorded:
    keys = {key for record in run.records for key in record if _is_key_of(key, metric)}
    key = next(iter(keys), "")
    has_value = [record.get(key) is not None for record in run.records]
    records = list(itertools.compress(run.records, has_value))
    if not records or not np.isfinite(_as_columns(records, key)).any():
        if not (metrics := run.directory / "metrics.jsonl").is_file():
            raise ExperimentError(f"{metrics} is missing: the run's evaluations are lost to plots.")
        names = metric_names(run)
        raise ExperimentError(
            f"{run.directory} has recorded no {metric!r}; it has "
            f"{', '.join(names) or 'nothing yet'}.{did_you_mean(metric, names)}"
        )
    spread = None
    if key == "return_mean":
        spread_keys = ("return_std", "return_min", "return_max")
        spread = np.stack([_as_columns(records, each) for each in spread_keys])
    return _Recorded(_x_of(run, x)[has_value], _as_columns(records, key), spread)


def _x_of(run: Run, x: X) -> Float[np.ndarray, "evaluations"]:
    if x == "time":
        return run.seconds
    key = {"steps": "n_environment_steps", "updates": "n_updates_done"}[x]
    return np.array([record[key] for record in run.records], np.float64)


def _is_key_of(key: str, metric: str) -> bool:
    return key in (metric, f"{metric}_mean") and key not in _NOT_METRICS


def _as_columns(
    records: Sequence[Mapping[str, Any]], key: str
) -> Float[np.ndarray, "records columns"]:
    """Read a metric with a column per actor or policy, or a single column; null becomes NaN."""
    return np.array([np.ravel(record[key]) for record in records], np.float64)


# Which actors or policies share a panel.


def _divide_into_parts(
    metric: str,
    groups: Mapping[str, Sequence[Run]],
    recorded: Mapping[str, Sequence[_Recorded]],
    actors: Actors,
) -> list[_Part]:
    everything = [each for group in recorded.values() for each in group]
    counts = {each.values.shape[1] for each in everything}
    of_actors = metric.startswith(_PER_ACTOR)
    noun = "actor" if of_actors else "policy"
    if len(counts) > 1:
        return [_Part(f"mean of all {_plural(noun)}", None, alike=False)]
    (n_columns,) = counts
    if n_columns == 1:
        return [_Part("", [0], alike=True)]
    parts = [list(range(n_columns))]
    if actors == "team" and of_actors:
        parts = _members_of(_teams(groups))
    elif actors != "mean":
        different = _group_equal_columns(everything)
        if len(different) > _MOST_DIFFERENT and of_actors:
            different = _actors_of_policies(groups, n_columns) or different
        parts = different if len(different) <= _MOST_PANELS else parts
    return [_make_part(noun, columns, n_columns, everything) for columns in parts]


def _make_part(
    noun: str, columns: list[int], n_columns: int, recorded: Sequence[_Recorded]
) -> _Part:
    alike = all(_are_equal(each, columns[0], i) for each in recorded for i in columns)
    if len(columns) == 1:
        subject = f"{noun} {columns[0]}"
    elif len(columns) == n_columns:
        subject = f"{'each' if alike else 'mean'} of {n_columns} {_plural(noun)}"
    else:
        subject = f"{'' if alike else 'mean of '}{_plural(noun)} {_format_indices(columns)}"
    return _Part(subject, columns, alike)


def _plural(noun: str) -> str:
    return {"actor": "actors", "policy": "policies"}[noun]


def _format_indices(indices: Sequence[int]) -> str:
    """Format indices, with ranges of three or more, as in "0 to 3, 7"."""
    ranges: list[list[int]] = []
    for i in indices:
        if ranges and ranges[-1][-1] == i - 1:
            ranges[-1].append(i)
        else:
            ranges.append([i])
    parts = [f"{r[0]} to {r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in ranges]
    return ", ".join(parts)


def _group_equal_columns(recorded: Sequence[_Recorded]) -> list[list[int]]:
    groups: list[list[int]] = []
    for column in range(recorded[0].values.shape[1]):
        for group in groups:
            if all(_are_equal(each, group[0], column) for each in recorded):
                group.append(column)
                break
        else:
            groups.append([column])
    return groups


def _are_equal(recorded: _Recorded, first: int, second: int) -> bool:
    arrays = [recorded.values, *([] if recorded.spread is None else recorded.spread)]
    return all(np.allclose(a[:, first], a[:, second], equal_nan=True) for a in arrays)


def _actors_of_policies(
    groups: Mapping[str, Sequence[Run]], n_actors: int
) -> list[list[int]] | None:
    """Return the actors of each policy; None if runs differ in them or do not record them."""
    maps = {_policy_of_actor(run, n_actors) for group in groups.values() for run in group}
    known = maps.pop()
    if maps or known is None:
        return None
    return _members_of(known)


def _members_of(owner_of_actor: Sequence[int]) -> list[list[int]]:
    """List the actors of each policy or team."""
    owners = np.array(owner_of_actor)
    return [np.flatnonzero(owners == i).tolist() for i in np.unique(owners)]


def _teams(groups: Mapping[str, Sequence[Run]]) -> list[int]:
    """Return each actor's team, equal in all runs."""
    first, *_ = runs = [run for group in groups.values() for run in group]
    for run in runs:
        if run.teams is None:
            raise ExperimentError(
                f"{run.directory} has not recorded teams; choose actors mean or each."
            )
        if run.teams != first.teams:
            raise ExperimentError(
                f"{first.directory} has the teams {first.teams} and {run.directory} {run.teams}; "
                "plot them one at a time."
            )
    return first.teams or []


def _policy_of_actor(run: Run, n_actors: int) -> tuple[int, ...] | None:
    sharing = run.config["agent"].get("parameter_sharing", "shared")
    if sharing == "shared":
        return (0,) * n_actors
    if sharing == "independent":
        return tuple(range(n_actors))
    if sharing == "team":
        return None if run.teams is None else tuple(run.teams)
    return tuple(sharing)


# Curves of groups.


def _aggregate(
    label: str, recorded: Sequence[_Recorded], part: _Part, smooth: int
) -> GroupCurve | None:
    """Aggregate the runs of a group; None if one of them has no finite value."""
    lines = [_finite_line(each, part, smooth) for each in recorded]
    if not all(len(x) for x, _ in lines):
        return None
    if len(recorded) == 1:
        return _add_spread(GroupCurve(*lines[0]), recorded[0], part, smooth)
    points = np.unique(np.concatenate([x for x, _ in lines]))
    first, last = max(x[0] for x, _ in lines), min(x[-1] for x, _ in lines)
    points = points[(points >= first) & (points <= last)]
    if not len(points):
        raise ExperimentError(
            f"the runs of {label} were evaluated in parts of training that do not overlap; "
            "plot them one at a time."
        )
    values = np.stack([np.interp(points, x, y) for x, y in lines])
    resamples = resampled_interquartile_means(values, np.random.default_rng(0))
    return GroupCurve(points, interquartile_mean(values), percentile_interval(resamples))


def _finite_line(recorded: _Recorded, part: _Part, smooth: int) -> tuple[np.ndarray, np.ndarray]:
    """Return x and the values of a run's finite evaluations."""
    values = recorded.values
    if part.columns is not None:
        values = values[:, part.columns[: 1 if part.alike else None]]
    has_any = np.isfinite(values).any(axis=0)  # a mean is of the actors that have any
    values = (values[:, has_any] if has_any.any() else values).mean(axis=1)
    finite = np.isfinite(values)
    return recorded.x[finite], smoothed(values[finite], smooth)


def smoothed(
    values: Float[np.ndarray, "*rows evaluations"], n: int
) -> Float[np.ndarray, "*rows evaluations"]:
    """Average each value with those around it, ``n`` in all, and fewer at either end."""
    indices = np.arange(values.shape[-1])
    first = np.maximum(indices - (n - 1) // 2, 0)
    last = np.minimum(indices + n // 2, len(indices) - 1)
    windows = [values[..., a : b + 1].mean(axis=-1) for a, b in zip(first, last, strict=True)]
    return np.stack(windows, axis=-1) if windows else values


def _add_spread(curve: GroupCurve, recorded: _Recorded, part: _Part, smooth: int) -> GroupCurve:
    if recorded.spread is None or part.columns is None or not part.alike:
        return curve
    column = part.columns[0]
    spread = recorded.spread[:, np.isfinite(recorded.values[:, column]), column]
    deviation, lowest, highest = smoothed(spread, smooth)
    band = np.clip([curve.line - deviation, curve.line + deviation], lowest, highest)
    return curve._replace(band=band, extremes=np.stack([lowest, highest]))
