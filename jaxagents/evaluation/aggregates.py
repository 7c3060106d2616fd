"""Comparison of methods over several environments, by scores over seeds.

A score of 0 is the mean return of random actions, or of evaluations before training if random
actions were not measured; a score of 1 is the highest interquartile mean of any method on that
environment. Bootstraps resample the runs within each environment.

Source: Agarwal et al. 2021, https://arxiv.org/abs/2108.13264.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxagents.errors import ExperimentError
from jaxagents.evaluation.bootstrap import interquartile_mean, percentile_interval
from jaxagents.evaluation.comparison import (
    SIGNIFICANCE,
    Interval,
    PerformanceProfile,
    are_enough_runs,
    differing_keys,
    final_return,
    probability_of_improvement,
    warning_of,
)
from jaxagents.evaluation.runs import Run

_N_RESAMPLES = 2_000
_RESAMPLES_AT_ONCE = 200  # bounds the memory


class Aggregate(NamedTuple):
    """A method's results on all environments."""

    label: str
    returns: dict[str, Float[np.ndarray, "runs"]]  # final mean returns, by environment
    scores: dict[str, Float[np.ndarray, "runs"]]
    iqm: float  # interquartile mean of all scores
    interval: Interval | None  # of it; None: an environment has a single run
    configs: Mapping[str, Mapping[str, Any]]  # of a run, by environment


class Improvement(NamedTuple):
    """How often a run of one method earns more than one of another on the same environment."""

    first: str
    second: str
    probability: float  # mean over environments
    interval: Interval | None
    p_value: float  # how often names drawn for the runs on each environment differ as much
    has_enough_runs: bool  # see `are_enough_runs`; environments where all tie do not count
    differing: Sequence[str]  # settings of the task and evaluation that differ on an environment

    @property
    def may_be_chance(self) -> bool:
        """True if the runs are too few, or either test finds nothing at the level of 5 %.

        The interval alone finds too much: with two runs of each on three environments, one half
        lies outside of it in 16 % of cases where there is no difference.
        """
        if not self.has_enough_runs or self.interval is None:
            return True
        return self.interval.low <= 0.5 <= self.interval.high or self.p_value > SIGNIFICANCE


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
    return [_aggregate(name, own, scales, by_method[name]) for name, own in returns.items()]


def improvements(methods: Sequence[Aggregate]) -> list[Improvement]:
    """Compare each pair of methods."""
    return [_improvement(*pair) for pair in itertools.combinations(methods, 2)]


def describe_improvement(improvement: Improvement) -> str:
    """Describe in a sentence which method earns more, how often, and if that may be by chance."""
    first, second, probability, interval = improvement[:4]
    if probability < 0.5:
        first, second, probability = second, first, 1 - probability
        interval = interval and Interval(1 - interval.high, 1 - interval.low)
    claim = (
        f"{first} earns more than {second} in {100 * probability:.0f} % of pairs of runs on the "
        "same environment"
    )
    if interval is None:
        text = f"{claim}, but a single seed says nothing about others: train with several seeds"
    else:
        text = f"{claim} (95 % interval {100 * interval.low:.0f} to {100 * interval.high:.0f} %)"
        if not improvement.has_enough_runs:
            text += ", but these are too few seeds to tell: train with 4 or more of each"
        elif improvement.may_be_chance:
            text += ", which may be chance"
    return f"{text}.{warning_of(improvement.differing)}"


def aggregate_profiles(
    methods: Sequence[Aggregate], n_scores: int = 101
) -> dict[str, PerformanceProfile]:
    """Return the performance profile of each method's scores over all environments."""
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
    label: str,
    returns: dict[str, np.ndarray],
    scales: Mapping[str, tuple[float, float]],
    runs: Mapping[str, Sequence[Run]],
) -> Aggregate:
    scores = {env: (own - scales[env][0]) / scales[env][1] for env, own in returns.items()}
    interval = None
    if _has_several(scores):
        iqms = [interquartile_mean(resample.T) for resample in _resamples(scores)]
        interval = Interval(*percentile_interval(np.concatenate(iqms)).tolist())
    configs = {env: each[0].config for env, each in runs.items()}
    iqm = float(interquartile_mean(_all(scores)))
    return Aggregate(label, returns, scores, iqm, interval, configs)


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
    sizes = [(len(a), len(b)) for a, b in pairs if len({*a, *b}) > 1]
    found = [differing_keys(first.configs[env], second.configs[env]) for env in first.scores]
    return Improvement(
        first.label,
        second.label,
        probability,
        interval,
        _permutation_test(pairs, probability),
        are_enough_runs(sizes),
        list(dict.fromkeys(key for keys in found for key in keys)),
    )


def _permutation_test(pairs: Sequence[tuple[np.ndarray, np.ndarray]], probability: float) -> float:
    """Return the p-value of a mean probability of improvement that differs from one half."""
    generator = np.random.default_rng(0)
    drawn = np.zeros(_N_RESAMPLES)
    for first, second in pairs:
        runs, n = np.concatenate([first, second]), len(first)
        n_below = ((1 + np.sign(runs[:, None] - runs)) / 2).sum(axis=1)  # ties count half
        named = generator.permuted(np.tile(n_below, (_N_RESAMPLES, 1)), axis=1)[:, :n]
        # Pairs of runs with the same name count n²/2 in all.
        drawn += (named.sum(axis=1) - n**2 / 2) / (n * len(second)) / len(pairs)
    as_far = np.abs(drawn - 0.5) >= abs(probability - 0.5) - 1e-9
    return float((1 + as_far.sum()) / (1 + _N_RESAMPLES))


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
