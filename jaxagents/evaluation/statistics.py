"""Statistics of a metric over episodes, computed on the host in float64."""

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike

from jaxagents.evaluation.bootstrap import interquartile_mean, percentile_interval, resampled_means
from jaxagents.types import MetricStats


def summarize(values: ArrayLike) -> MetricStats:
    """Compute statistics of a metric over episodes, per actor.

    NaN values are left out, and ``has_nans`` marks where there were any. If all are NaN, as
    for an evaluation that never ran, the statistics are NaN. Standard deviation and variance are
    the population's. The interval is the mean's 95 % percentile bootstrap interval; the bootstrap
    is seeded, so equal values give equal intervals.

    Args:
        values: ``[episodes]``, ``[episodes, actors]`` or ``[evaluations, episodes, actors]``.

    Returns:
        Statistics of shape ``[]``, ``[actors]`` or ``[evaluations, actors]``.

    Raises:
        ValueError: The values have another rank, or there are none.

    Source: for the interquartile mean and bootstrap intervals, Agarwal et al. 2021,
    https://arxiv.org/abs/2108.13264.
    """
    episodes = np.asarray(values)
    if episodes.ndim not in (1, 2, 3):
        raise ValueError(
            f"values of shape {episodes.shape} are not [episodes], [episodes, actors] or "
            "[evaluations, episodes, actors]; summarize one run's metric at a time."
        )
    if episodes.size == 0:
        raise ValueError(
            f"values of shape {episodes.shape} hold no episodes to summarize; "
            "evaluate with n_evals of at least 1."
        )
    episodes_first = np.moveaxis(episodes, 1, 0) if episodes.ndim == 3 else episodes
    shape = episodes_first.shape[1:]
    columns = episodes_first.reshape(len(episodes_first), -1).astype(np.float64)
    statistics = {name: row.reshape(shape)[()] for name, row in _summarize_columns(columns).items()}
    return MetricStats(**statistics, episodes=episodes)


def _summarize_columns(
    columns: Float[np.ndarray, "episodes columns"],
) -> dict[str, Float[np.ndarray, "columns"] | Bool[np.ndarray, "columns"]]:
    """Compute every statistic of each column, without its NaNs."""
    missing = np.isnan(columns)
    present_first = np.argsort(missing, axis=0, kind="stable")
    columns = np.take_along_axis(columns, present_first, axis=0)
    n_present = (~missing).sum(axis=0)
    names = [name for name in MetricStats._fields if name not in ("has_nans", "episodes")]
    statistics = {name: np.full(columns.shape[1], np.nan) for name in names}
    # Columns with the same number of episodes, usually all columns, are computed together.
    for n_episodes in np.unique(n_present[n_present > 0]):
        chosen = n_present == n_episodes
        for name, row in _summarize_without_nans(columns[:n_episodes, chosen]).items():
            statistics[name][chosen] = row
    return {**statistics, "has_nans": n_present < len(columns)}


def _summarize_without_nans(
    columns: Float[np.ndarray, "episodes columns"],
) -> dict[str, Float[np.ndarray, "columns"]]:
    median = np.median(columns, axis=0)
    with np.errstate(invalid="ignore"):  # the deviation of an infinite return is NaN
        # Subtracting the median makes mean and deviation of equal episodes exact.
        deviation = columns - median
        ci_low, ci_high = median + percentile_interval(resampled_means(deviation))
        return {
            "mean": median + deviation.mean(axis=0),
            "std": deviation.std(axis=0),
            "var": deviation.var(axis=0),
            "min": columns.min(axis=0),
            "max": columns.max(axis=0),
            "median": median,
            "iqm": interquartile_mean(columns),
            "ci_low": ci_low,
            "ci_high": ci_high,
        }
