"""Statistics of samples, traced inside an update, and of episodes, on the host.

The traced functions serve the losses and the advantages: every mean over samples is a
`weighted_mean`, or one of several `weighted_means`. `summarize` serves the reader of evaluations
and works with NumPy in float64.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from numpy.typing import ArrayLike

from jaxagents.resampling import interquartile_mean, percentile_interval, resampled_counts
from jaxagents.types import MetricStats

_EPSILON = 1e-8  # added to a standard deviation before dividing by it


def weighted_mean(
    values: Float[Array, "*batch"], weight: Float[Array, "*batch"]
) -> Float[Array, ""]:
    """Average over the samples of positive weight; 0 where there are none.

    Samples of weight 0 may hold anything, infinities and NaN included.
    """
    total = jnp.sum(weight)
    return jnp.sum(weight * jnp.where(weight > 0, values, 0)) / jnp.where(total > 0, total, 1)


def weighted_means(
    values: Sequence[Float[Array, "*batch"]], weight: Float[Array, "*batch"]
) -> tuple[Float[Array, ""], ...]:
    """Average several quantities over the samples of positive weight, as `weighted_mean` does one.

    As one matrix product: on a CPU each sum over many samples is three kernels.
    """
    total = jnp.sum(weight)
    rows = jnp.stack([jnp.where(weight > 0, each, 0).reshape(-1) for each in values])
    sums = jnp.matmul(rows, weight.reshape(-1), precision="highest")
    return tuple(sums / jnp.where(total > 0, total, 1))


def sum_last_axis(values: Float[Array, "*batch n"]) -> Float[Array, "*batch"]:
    """Add up a short last axis, as a matrix product.

    On a CPU, a sum over the few choices or dimensions of an action takes as long as a network's
    hidden layer.
    """
    return jnp.matmul(values, jnp.ones(values.shape[-1]), precision="highest")


def standardize(
    values: Float[Array, "*batch"], weight: Float[Array, "*batch"]
) -> Float[Array, "*batch"]:
    """Shift and scale to weighted mean 0 and (population) standard deviation 1.

    Samples of weight 0 come out as 0, and so do all where they are equal, one alone included.
    """
    deviation, variance = _deviation_and_variance(values, weight)
    return jnp.where(variance > 0, deviation / (jnp.sqrt(variance) + _EPSILON), 0)


def explained_variance(
    value: Float[Array, "*batch"],
    value_target: Float[Array, "*batch"],
    weight: Float[Array, "*batch"],
) -> Float[Array, ""]:
    """Tell how much of the targets' variance the values explain.

    1 - Var(target - value) / Var(target): 1 is perfect, 0 no better than a constant, below 0
    worse than that; 0 also where all targets are equal.
    """
    # Both at once, for half the kernels to compile.
    both = jnp.stack([value_target - value, value_target])
    _, (residual, variance) = jax.vmap(_deviation_and_variance, (0, None))(both, weight)
    explained = 1 - residual / jnp.where(variance > 0, variance, 1)
    return jnp.where(variance > 0, explained, 0)


def _deviation_and_variance(
    values: Float[Array, "*batch"], weight: Float[Array, "*batch"]
) -> tuple[Float[Array, "*batch"], Float[Array, ""]]:
    """Return ``values`` less their mean, 0 at weight 0, and their population variance.

    Equal samples have variance 0 exactly, whatever the rounding of their mean: dividing by
    that rounding would turn it into advantages of size 1.
    """
    mean = weighted_mean(values, weight)
    rough = values - mean
    # The rough deviations share the mean's rounding error; their own mean removes it.
    deviation = jnp.where(weight > 0, rough - weighted_mean(rough, weight), 0)
    variance = weighted_mean(deviation**2, weight)
    smallest = jnp.square(jnp.finfo(mean.dtype).eps * mean)
    return deviation, jnp.where(variance > smallest, variance, 0)


def summarize(values: ArrayLike) -> MetricStats:
    """Describe a metric by its statistics over episodes, per actor.

    NaN episodes are left out, and ``has_nans`` tells where there were any; without a single
    other episode (an evaluation that never ran) the statistics are NaN. Standard deviation and
    variance are the population's. The interval is the mean's 95 % percentile bootstrap
    interval, the same for the same values.

    Args:
        values: ``[episodes]``, ``[episodes, actors]`` or ``[evaluations, episodes, actors]``;
            the statistics are scalars, ``[actors]`` or ``[evaluations, actors]``.

    Raises:
        ValueError: The shape is another one, or a part of it is empty.

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
    statistics = {name: row.reshape(shape)[()] for name, row in _of_columns(columns).items()}
    return MetricStats(**statistics, episodes=episodes)


def _of_columns(
    columns: Float[np.ndarray, "episodes columns"],
) -> dict[str, Float[np.ndarray, "columns"] | Bool[np.ndarray, "columns"]]:
    """Compute every statistic of each column, its NaNs left out."""
    missing = np.isnan(columns)
    present_first = np.argsort(missing, axis=0, kind="stable")
    columns = np.take_along_axis(columns, present_first, axis=0)
    n_present = (~missing).sum(axis=0)
    names = [name for name in MetricStats._fields if name not in ("has_nans", "episodes")]
    statistics = {name: np.full(columns.shape[1], np.nan) for name in names}
    # Columns with equally many episodes, usually all of them, are computed together.
    for n_episodes in np.unique(n_present[n_present > 0]):
        alike = n_present == n_episodes
        for name, row in _without_nans(columns[:n_episodes, alike]).items():
            statistics[name][alike] = row
    return {**statistics, "has_nans": n_present < len(columns)}


def _without_nans(
    columns: Float[np.ndarray, "episodes columns"],
) -> dict[str, Float[np.ndarray, "columns"]]:
    median = np.median(columns, axis=0)
    with np.errstate(invalid="ignore"):  # an infinite return has no deviation: NaN says so
        # Around the median, equal episodes give their own value and a spread of 0 exactly.
        deviation = columns - median
        ci_low, ci_high = median + _bootstrap_interval(deviation)
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


def _bootstrap_interval(
    columns: Float[np.ndarray, "episodes columns"],
) -> Float[np.ndarray, "2 columns"]:
    """Bound each column's mean by the percentiles of the means of its resamples."""
    n_episodes = len(columns)
    means = [
        counts @ columns / n_episodes
        for counts in resampled_counts(n_episodes, np.random.default_rng(0))
    ]
    return percentile_interval(np.concatenate(means))
