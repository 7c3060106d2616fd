"""Comparison of groups of runs by statistics over their seeds.

Runs of one environment are compared by their returns. Over several environments methods are
compared by scores: 0 is the mean return of random actions, or before training where random actions
were not measured, and 1 the highest interquartile mean of a method on that environment. Bootstraps
resample the runs within each environment.

Source: Agarwal et al. 2021, https://arxiv.org/abs/2108.13264.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxagents.errors import ExperimentError
from jaxagents.evaluation.bootstrap import (
    interquartile_mean,
    percentile_interval,
    resampled_counts,
    resampled_interquartile_means,
)
from jaxagents.evaluation.runs import Run
from jaxagents.evaluation.success_rates import comparable, success_of_members

_SIGNIFICANCE = 0.05
_N_RESAMPLES = 2_000  # of scores
_RESAMPLES_AT_ONCE = 200  # bounds the memory
_JUDGED_BY = ("env_kwargs", "env_params", "evaluation")  # keys of a configuration


class Group(NamedTuple):
    """Runs that differ only in their seed."""

    label: str
    returns: Float[np.ndarray, "runs"]  # final mean returns, averaged over actors
    success: dict[str, Any] | None = None  # mean over the runs; None: a run has none

    @property
    def iqm(self) -> float:
        """Interquartile mean over the runs."""
        return float(interquartile_mean(self.returns))


class Interval(NamedTuple):
    """Bounds of a 95 % confidence interval."""

    low: float
    high: float


class Comparison(NamedTuple):
    """The returns of one group of runs compared with those of another."""

    first: Group
    second: Group
    difference: float  # interquartile mean of the first minus that of the second
    probability: float  # that a run of the first earns more than a run of the second
    interval: Interval | None  # of the difference, over seeds; None if a group has a single run
    judged_alike: bool  # environment parameters and evaluation settings are equal

    @property
    def has_enough_runs(self) -> bool:
        """True if a difference between this many runs can be significant.

        If the groups do not differ, the probability that all runs of one earn more than all runs
        of the other is 2 / binomial(n + m, n). It must be at most 5 %, as with 4 runs each.
        """
        n, m = len(self.first.returns), len(self.second.returns)
        return min(n, m) > 1 and 2 / math.comb(n + m, n) <= _SIGNIFICANCE


def compare_groups(groups: Mapping[str, Sequence[Run]]) -> list[Comparison]:
    """Compare each pair of groups by the returns in their runs' summaries.

    Raises:
        ExperimentError: There is only one group; a run is unfinished, or has NaN or infinite
            returns; two groups have different environments.
    """
    if len(groups) < 2:
        raise ExperimentError(
            f"these runs differ at most in their seed and are one group ({', '.join(groups)}); add "
            "runs of another configuration to compare them with."
        )
    labelled = {label: _make_group(label, runs) for label, runs in groups.items()}
    comparisons = []
    for first, second in itertools.combinations(groups, 2):
        configs = [groups[label][0].config for label in (first, second)]
        if configs[0]["env"] != configs[1]["env"]:
            raise ExperimentError(
                f"{first} was trained on {configs[0]['env']} and {second} on {configs[1]['env']}; "
                "returns of different environments cannot be compared."
            )
        judged_alike = all(configs[0].get(key) == configs[1].get(key) for key in _JUDGED_BY)
        comparisons.append(compare(labelled[first], labelled[second], judged_alike))
    return comparisons


def compare(first: Group, second: Group, judged_alike: bool = True) -> Comparison:
    """Compare two groups; the bootstrap is seeded, so equal returns give equal intervals."""
    has_interval = min(len(first.returns), len(second.returns)) > 1
    return Comparison(
        first=first,
        second=second,
        difference=first.iqm - second.iqm,
        probability=probability_of_improvement(first.returns, second.returns),
        interval=_interval(first, second) if has_interval else None,
        judged_alike=judged_alike,
    )


def probability_of_improvement(
    first: Float[np.ndarray, "first_runs"], second: Float[np.ndarray, "second_runs"]
) -> float:
    """Estimate the probability that a run of the first group earns more than one of the second.

    The estimate is the share of pairs of runs in which it does, where ties count half: Mann and
    Whitney's U divided by the number of pairs.
    """
    difference = first[:, None] - second[None, :]
    return float(np.mean((1 + np.sign(difference)) / 2))


class PerformanceProfile(NamedTuple):
    """A group's performance profile: the share of its runs that earn more than each score."""

    scores: Float[np.ndarray, "scores"]
    share: Float[np.ndarray, "scores"]
    band: Float[np.ndarray, "2 scores"]  # 95 % bootstrap interval, over runs


def performance_profiles(
    groups: Sequence[Group], n_scores: int = 101
) -> dict[str, PerformanceProfile]:
    """Return the performance profile of each group, by its label.

    Args:
        groups: Runs of one environment.
        n_scores: Number of scores, from the lowest return of all groups to the highest.
    """
    everything = np.concatenate([group.returns for group in groups])
    scores = np.linspace(everything.min(), everything.max(), n_scores)
    profiles = {}
    for group in groups:
        above = (group.returns[:, None] > scores).astype(np.float64)
        n_runs = len(above)
        shares = [c @ above / n_runs for c in resampled_counts(n_runs, np.random.default_rng(0))]
        band = percentile_interval(np.concatenate(shares))
        profiles[group.label] = PerformanceProfile(scores, above.mean(axis=0), band)
    return profiles


def table_of(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Return the numbers of comparisons as rows, for a table file."""
    rows = [
        {
            "first": each.first.label,
            "second": each.second.label,
            "n_first": len(each.first.returns),
            "n_second": len(each.second.returns),
            "iqm_first": each.first.iqm,
            "iqm_second": each.second.iqm,
            "difference": each.difference,
            "low": None if each.interval is None else each.interval.low,
            "high": None if each.interval is None else each.interval.high,
            "probability_of_improvement": each.probability,
        }
        for each in comparisons
    ]
    groups = [group for each in comparisons for group in (each.first, each.second)]
    successes = comparable([group.success for group in groups])
    for row, first, second in zip(rows, successes[::2], successes[1::2], strict=False):
        row |= {"success_first": first["mean"], "success_second": second["mean"]}
    return rows


def describe_comparison(comparison: Comparison) -> str:
    """Describe in a sentence which group earns more, and whether that may be by chance."""
    first, second = comparison.first, comparison.second
    difference, probability = comparison.difference, comparison.probability
    interval = comparison.interval
    if difference < 0:
        first, second = second, first
        difference, probability = -difference, 1 - probability
        interval = interval and (-interval[1], -interval[0])
    claim = f"{first.label} earns {_format(difference)} more than {second.label}"
    if difference == 0:
        claim = f"{first.label} and {second.label} earn the same"
    if interval is None:
        text = f"{claim}, but a single seed says nothing about others: train with several seeds"
    else:
        text = (
            f"{claim} (95 % interval {_format(interval[0])} to {_format(interval[1])}; better in "
            f"{100 * probability:.0f} % of pairs of seeds)"
        )
        if not comparison.has_enough_runs:
            text += ", but these are too few seeds to tell: train with 4 or more of each"
        elif interval[0] <= 0:
            text += ", which may be chance"
    differing = (
        ""
        if comparison.judged_alike
        else " Their environment parameters or evaluation settings differ."
    )
    return f"{text}.{differing}"


def _interval(first: Group, second: Group) -> Interval:
    """Bound the difference by a bootstrap that resamples the seeds of both groups."""
    generator = np.random.default_rng(0)
    first_iqms, second_iqms = (
        resampled_interquartile_means(group.returns, generator) for group in (first, second)
    )
    low, high = percentile_interval(first_iqms - second_iqms)
    return Interval(float(low), float(high))


def _make_group(label: str, runs: Sequence[Run]) -> Group:
    successes = comparable([run.success for run in runs])
    success = success_of_members(successes) if successes else None
    return Group(label, np.array([final_return(run) for run in runs]), success)


def final_return(run: Run) -> float:
    """Return a run's final mean return, averaged over its actors."""
    if run.final_summary is None:
        no_summary = run.summary is None
        reason = "has no summary.json" if no_summary else "was trained on after its summary"
        raise ExperimentError(
            f"{run.directory} {reason}: its training has not ended; continue it by: "
            f"jaxagents resume {run.directory}"
        )
    means = run.final_summary["returns"]["mean"]
    if None in means:
        raise ExperimentError(f"{run.directory}/summary.json has NaN or infinite returns.")
    return float(np.mean(means))


def _format(value: float) -> str:
    return f"{value:,.2f}"


class Aggregate(NamedTuple):
    """A method's results on all environments."""

    label: str
    returns: dict[str, Float[np.ndarray, "runs"]]  # final mean returns, by environment
    scores: dict[str, Float[np.ndarray, "runs"]]
    iqm: float  # interquartile mean of all scores
    interval: Interval | None  # of it; None: an environment has a single run


class Improvement(NamedTuple):
    """How often a run of one method earns more than one of another on the same environment."""

    first: str
    second: str
    probability: float  # mean over environments
    interval: Interval | None


def aggregate(groups: Mapping[str, Sequence[Run]]) -> list[Aggregate]:
    """Put the runs of each name on one scale over all environments.

    Args:
        groups: From `read_groups`. Runs of the same name are runs of one method.

    Raises:
        ExperimentError: a method lacks an environment, or has several configurations on it; a run
            is unfinished, or was not evaluated before training; or nothing was learnt.
    """
    by_method: dict[str, dict[str, Sequence[Run]]] = {}
    for runs in groups.values():
        env = runs[0].config["env"]
        if by_method.setdefault(runs[0].name, {}).setdefault(env, runs) is not runs:
            raise ExperimentError(
                f"{runs[0].name} names several configurations on {env}; over several environments "
                "a name stands for one method."
            )
    envs = sorted({env for of_method in by_method.values() for env in of_method})
    for name, of_method in by_method.items():
        if missing := [env for env in envs if env not in of_method]:
            raise ExperimentError(
                f"{name} has no run on {', '.join(missing)}; over several environments methods "
                "are compared by the name of their runs, each on all of them."
            )
    returns = {
        name: {env: np.array([final_return(run) for run in of_method[env]]) for env in envs}
        for name, of_method in by_method.items()
    }
    scales = {env: _scale(env, [each[env] for each in by_method.values()], returns) for env in envs}
    return [_aggregate(name, own, scales) for name, own in returns.items()]


def improvements(methods: Sequence[Aggregate]) -> list[Improvement]:
    """Compare each pair of methods."""
    return [_improvement(*pair) for pair in itertools.combinations(methods, 2)]


def aggregate_profiles(
    methods: Sequence[Aggregate], n_scores: int = 101
) -> dict[str, PerformanceProfile]:
    """Return each method's performance profile over all environments: of its scores."""
    everything = np.concatenate([_all(each.scores) for each in methods])
    thresholds = np.linspace(everything.min(), everything.max(), n_scores)
    profiles = {}
    for each in methods:
        shares = [
            (resample[:, :, None] > thresholds).mean(axis=1) for resample in _resamples(each.scores)
        ]
        share = (_all(each.scores)[:, None] > thresholds).mean(axis=0)
        band = percentile_interval(np.concatenate(shares))
        profiles[each.label] = PerformanceProfile(thresholds, share, band)
    return profiles


def table_of_aggregates(methods: Sequence[Aggregate]) -> list[dict[str, Any]]:
    """Return every run's return and score as rows, for a table file."""
    return [
        {"method": each.label, "env": env, "return": value, "score": score}
        for each in methods
        for env in each.returns
        for value, score in zip(each.returns[env].tolist(), each.scores[env].tolist(), strict=True)
    ]


def _scale(
    env: str, runs: Sequence[Sequence[Run]], returns: Mapping[str, Mapping[str, np.ndarray]]
) -> tuple[float, float]:
    """Return the return without learning, and the best method's gain over it."""
    every = [run for group in runs for run in group]
    measured = [np.mean(run.random_returns) for run in every if run.random_returns]
    is_known = len(measured) == len(every)
    start = "random actions" if is_known else "before training"
    low = float(np.mean(measured if is_known else [_initial_return(run) for run in every]))
    high = max(float(interquartile_mean(of_method[env])) for of_method in returns.values())
    if high <= low:
        raise ExperimentError(f"no method earns more on {env} than {start}; leave its runs out.")
    return low, high - low


def _initial_return(run: Run) -> float:
    if not run.records or run.records[0]["n_updates_done"] != 0:
        raise ExperimentError(
            f"{run.directory} was not evaluated before training (agent.initial_evaluation), which "
            "scores over several environments begin at."
        )
    return float(np.mean(run.records[0]["return_mean"]))


def _aggregate(
    label: str, returns: dict[str, np.ndarray], scales: Mapping[str, tuple[float, float]]
) -> Aggregate:
    scores = {env: (own - scales[env][0]) / scales[env][1] for env, own in returns.items()}
    interval = None
    if _has_several(scores):
        iqms = [interquartile_mean(resample.T) for resample in _resamples(scores)]
        interval = Interval(*percentile_interval(np.concatenate(iqms)).tolist())
    return Aggregate(label, returns, scores, float(interquartile_mean(_all(scores))), interval)


def _improvement(first: Aggregate, second: Aggregate) -> Improvement:
    pairs = [(first.scores[env], second.scores[env]) for env in first.scores]
    probability = float(np.mean([probability_of_improvement(*pair) for pair in pairs]))
    interval = None
    if _has_several(first.scores) and _has_several(second.scores):
        generator = np.random.default_rng(0)
        resampled = [
            np.mean([probability_of_improvement(*(_drawn(x, generator) for x in p)) for p in pairs])
            for _ in range(_N_RESAMPLES)
        ]
        interval = Interval(*percentile_interval(np.array(resampled)).tolist())
    return Improvement(first.label, second.label, probability, interval)


def _resamples(
    scores: Mapping[str, Float[np.ndarray, "runs"]],
) -> Iterator[Float[np.ndarray, "resamples all_runs"]]:
    """Yield resamples of all environments' runs, drawn within each, in parts."""
    generator = np.random.default_rng(0)
    for _ in range(_N_RESAMPLES // _RESAMPLES_AT_ONCE):
        parts = [
            own[generator.integers(len(own), size=(_RESAMPLES_AT_ONCE, len(own)))]
            for own in scores.values()
        ]
        yield np.concatenate(parts, axis=1)


def _drawn(values: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    return values[generator.integers(len(values), size=len(values))]


def _all(scores: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.concatenate(list(scores.values()))


def _has_several(scores: Mapping[str, np.ndarray]) -> bool:
    return min(len(own) for own in scores.values()) > 1
