"""Whether some runs earn more than others, and how sure one can be: statistics over seeds.

Source: Agarwal et al. 2021, https://arxiv.org/abs/2108.13264.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from jaxagents.errors import ExperimentError
from jaxagents.evaluation.bootstrap import (
    interquartile_mean,
    percentile_interval,
    resampled_interquartile_means,
)
from jaxagents.evaluation.runs import Run

_MAY_BE_CHANCE = 0.05
_JUDGED_BY = ("env_kwargs", "env_params", "evaluation")  # of a configuration


class Group(NamedTuple):
    """Runs that differ in their seed only."""

    label: str
    returns: Float[np.ndarray, "runs"]  # of the final evaluations, averaged over actors

    @property
    def iqm(self) -> float:
        """Interquartile mean over the runs."""
        return float(interquartile_mean(self.returns))


class Interval(NamedTuple):
    """Bounds between which a value lies with 95 % confidence."""

    low: float
    high: float


class Comparison(NamedTuple):
    """How the runs of one group did against those of another."""

    first: Group
    second: Group
    difference: float  # of the interquartile means, the first's less the second's
    probability: float  # that a run of the first earns more than one of the second
    interval: Interval | None  # of the difference, over seeds; None where a group is a single run
    judged_alike: bool  # in the same environment, by the same kind of evaluation

    @property
    def has_enough_runs(self) -> bool:
        """Whether runs as many as these could tell two groups apart.

        If there is no difference, one group still earns more in all its runs than the other in
        any with a probability of 2 / binomial(n + m, n). Unless that is at most 5 %, as with 4
        runs each, nothing that so few runs do is evidence.
        """
        n, m = len(self.first.returns), len(self.second.returns)
        return min(n, m) > 1 and 2 / math.comb(n + m, n) <= _MAY_BE_CHANCE


def compare_groups(groups: Mapping[str, Sequence[Run]]) -> list[Comparison]:
    """Compare each pair of groups, by the returns in the summaries of their runs.

    Raises:
        ExperimentError: There is one group only; a run has no summary, or one without a finite
            return; two groups are of different environments.
    """
    if len(groups) < 2:
        raise ExperimentError(
            f"these runs differ in their seed only, if at all, and are one group "
            f"({', '.join(groups)}); give runs of another configuration to compare them with."
        )
    labelled = {label: _group(label, runs) for label, runs in groups.items()}
    comparisons = []
    for first, second in itertools.combinations(groups, 2):
        configs = [groups[label][0].config for label in (first, second)]
        if configs[0]["env"] != configs[1]["env"]:
            raise ExperimentError(
                f"{first} is of {configs[0]['env']} and {second} of {configs[1]['env']}; returns "
                "of different environments cannot be compared."
            )
        alike = all(configs[0].get(key) == configs[1].get(key) for key in _JUDGED_BY)
        comparisons.append(compare(labelled[first], labelled[second], judged_alike=alike))
    return comparisons


def compare(first: Group, second: Group, judged_alike: bool = True) -> Comparison:
    """Compare two groups; the interval is the same for the same returns."""
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
    """Estimate the probability that a run of the first kind earns more than one of the second.

    The share of the pairs of runs in which it does, ties half: Mann and Whitney's U over the
    number of pairs.
    """
    difference = first[:, None] - second[None, :]
    return float(np.mean((1 + np.sign(difference)) / 2))


def sentence(comparison: Comparison) -> str:
    """Say which of two groups of runs earns more, and whether that may be chance."""
    first, second = comparison.first, comparison.second
    difference, probability = comparison.difference, comparison.probability
    interval = comparison.interval
    if difference < 0:
        first, second = second, first
        difference, probability = -difference, 1 - probability
        interval = interval and (-interval[1], -interval[0])
    claim = f"{first.label} earns {_written(difference)} more than {second.label}"
    if difference == 0:
        claim = f"{first.label} and {second.label} earn the same"
    if interval is None:
        text = f"{claim}, but a single seed tells nothing about others: train with several seeds"
    else:
        text = (
            f"{claim} (95 % interval {_written(interval[0])} to {_written(interval[1])}; better in "
            f"{100 * probability:.0f} % of pairs of seeds)"
        )
        if not comparison.has_enough_runs:
            text += ", but so few seeds cannot tell: train with 4 or more of each"
        elif interval[0] <= 0:
            text += ", which may be chance"
    differing = "" if comparison.judged_alike else " They were not evaluated alike."
    return f"{text}.{differing}"


def _interval(first: Group, second: Group) -> Interval:
    """Bound the difference by the bootstrap, in which both groups' seeds are drawn anew."""
    generator = np.random.default_rng(0)
    of_first, of_second = (
        resampled_interquartile_means(group.returns, generator) for group in (first, second)
    )
    low, high = percentile_interval(of_first - of_second)
    return Interval(float(low), float(high))


def _group(label: str, runs: Sequence[Run]) -> Group:
    return Group(label, np.array([_final_return(run) for run in runs]))


def _final_return(run: Run) -> float:
    """Read the return of a run's final evaluation, averaged over its actors."""
    if run.final_summary is None:
        lacks = "has no summary.json" if run.summary is None else "has gone on since its summary"
        raise ExperimentError(
            f"{run.directory} {lacks}, as its training has not ended; "
            f"go on with it by: jaxagents resume {run.directory}"
        )
    means = run.final_summary["returns"]["mean"]
    if None in means:
        raise ExperimentError(f"{run.directory}/summary.json has returns that are not finite.")
    return float(np.mean(means))


def _written(value: float) -> str:
    return f"{value:,.2f}"
