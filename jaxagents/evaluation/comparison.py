"""Comparison of groups of runs of one environment by their returns, over their seeds.

Source: Agarwal et al. 2021, https://arxiv.org/abs/2108.13264.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxagents.errors import ExperimentError
from jaxagents.evaluation.bootstrap import (
    interquartile_mean,
    percentile_interval,
    resampled_interquartile_means,
    resampled_means,
)
from jaxagents.evaluation.runs import Run, root_of
from jaxagents.evaluation.success_rates import comparable, success_of_members
from jaxagents.evaluation.zoo import is_policy_alone

SIGNIFICANCE = 0.05
TASK = ("env_kwargs", "env_params", "side", "agent.max_episode_steps")
"""Dotted keys of a configuration that, with the environment, determine what returns measure."""


class Interval(NamedTuple):
    """Bounds of a 95 % confidence interval."""

    low: float
    high: float


class Group(NamedTuple):
    """Runs that differ only in their seed."""

    label: str
    returns: Float[np.ndarray, "runs"]  # final mean returns, averaged over actors
    success: dict[str, Any] | None = None  # mean over the runs; None: a run has none

    @property
    def iqm(self) -> float:
        """Interquartile mean over the runs."""
        return float(interquartile_mean(self.returns))

    @property
    def interval(self) -> Interval | None:
        """95 % bootstrap interval of the interquartile mean; None for a single run."""
        if len(self.returns) < 2:
            return None
        resamples = resampled_interquartile_means(self.returns, np.random.default_rng(0))
        return Interval(*percentile_interval(resamples).tolist())


class Comparison(NamedTuple):
    """The returns of one group of runs compared with those of another."""

    first: Group
    second: Group
    difference: float  # interquartile mean of the first minus that of the second
    probability: float  # that a run of the first earns more than a run of the second
    interval: Interval | None  # of the difference, over seeds; None if a group has a single run
    differing: Sequence[str] = ()  # settings of the task and evaluation that differ

    @property
    def has_enough_runs(self) -> bool:
        """True if a difference between this many runs can be significant, as with 4 runs each."""
        sizes = (len(self.first.returns), len(self.second.returns))
        return min(sizes) > 1 and are_enough_runs([sizes])

    @property
    def may_be_chance(self) -> bool:
        """True if the runs are too few, or 0 lies in the difference's 95 % interval."""
        interval = self.interval
        return not self.has_enough_runs or interval is None or interval.low <= 0 <= interval.high


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
    labelled = {label: make_group(label, runs) for label, runs in groups.items()}
    comparisons = []
    for first, second in itertools.combinations(groups, 2):
        one, other = (groups[label][0].config for label in (first, second))
        if one["env"] != other["env"]:
            raise ExperimentError(
                f"{first} was trained on {one['env']} and {second} on {other['env']}; "
                "returns of different environments cannot be compared."
            )
        comparisons.append(compare(labelled[first], labelled[second], differing_keys(one, other)))
    return comparisons


def differing_keys(
    first: Mapping[str, Any], second: Mapping[str, Any], keys: Sequence[str] = (*TASK, "evaluation")
) -> list[str]:
    """List the dotted keys whose values differ between two configurations."""

    def value(config: Mapping[str, Any], key: str) -> Any:
        group, _, name = key.rpartition(".")
        return (config[group] if group else config).get(name)

    return [key for key in keys if value(first, key) != value(second, key)]


def compare(first: Group, second: Group, differing: Sequence[str] = ()) -> Comparison:
    """Compare two groups; the bootstrap is seeded, so equal returns give equal intervals."""
    has_interval = min(len(first.returns), len(second.returns)) > 1
    return Comparison(
        first=first,
        second=second,
        difference=first.iqm - second.iqm,
        probability=probability_of_improvement(first.returns, second.returns),
        interval=_interval(first, second) if has_interval else None,
        differing=differing,
    )


def are_enough_runs(sizes: Iterable[tuple[int, int]]) -> bool:
    """Return True if a difference between two groups of so many runs can be significant.

    If the groups do not differ, the probability that all runs of one earn more than all runs of the
    other, in each environment, is 2 / Π binomial(n + m, n). It must be at most 5 %.

    Args:
        sizes: Numbers of runs n and m of the groups in each environment.
    """
    return 2 / math.prod(math.comb(n + m, n) for n, m in sizes) <= SIGNIFICANCE


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
        band = percentile_interval(resampled_means(above))
        profiles[group.label] = PerformanceProfile(scores, above.mean(axis=0), band)
    return profiles


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
        elif comparison.may_be_chance:
            text += ", which may be chance"
    return f"{text}.{warning_of(comparison.differing)}"


def warning_of(differing: Sequence[str]) -> str:
    """Return a sentence, to follow another, on settings that differ; empty if none does."""
    if not differing:
        return ""
    names = " and ".join(filter(None, [", ".join(differing[:-1]), differing[-1]]))
    return f" They differ in {names}, so their returns may measure different things."


def _interval(first: Group, second: Group) -> Interval:
    """Bound the difference by a bootstrap that resamples the seeds of both groups."""
    generator = np.random.default_rng(0)
    first_iqms, second_iqms = (
        resampled_interquartile_means(group.returns, generator) for group in (first, second)
    )
    return Interval(*percentile_interval(first_iqms - second_iqms).tolist())


def make_group(label: str, runs: Sequence[Run]) -> Group:
    """Collect the final returns and the success of runs.

    Raises:
        ExperimentError: A run is unfinished, or has NaN or infinite returns.
    """
    successes = comparable([run.success for run in runs])
    success = success_of_members(successes) if successes else None
    return Group(label, np.array([final_return(run) for run in runs]), success)


def final_return(run: Run) -> float:
    """Return a run's final mean return, averaged over its actors."""
    if run.final_summary is None:
        if is_policy_alone(run.directory):
            raise ExperimentError(
                f"{run.directory} is a policy without its training; compare runs. `jaxagents zoo` "
                "lists what the zoo's policies earn."
            )
        no_summary = run.summary is None
        reason = "has no summary.json" if no_summary else "was trained on after its summary"
        raise ExperimentError(
            f"{run.directory} {reason}: its training has not ended; continue it by: "
            f"jaxagents resume {root_of(run.directory)}"
        )
    means = run.final_summary["returns"]["mean"]
    if None in means:
        raise ExperimentError(f"{run.directory}/summary.json has NaN or infinite returns.")
    return float(np.mean(means))


def _format(value: float) -> str:
    return f"{value:,.2f}"
