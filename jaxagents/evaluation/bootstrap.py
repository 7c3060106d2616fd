"""Interquartile means, and what statistics might have been with other seeds or other episodes.

A bootstrap resample draws as many values as there are, with replacement. It is represented by how
often each value was drawn, so that statistics of resamples are matrix products.

Source: Agarwal et al. 2021, https://arxiv.org/abs/2108.13264.
"""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int

_CONFIDENCE = 0.95
_N_RESAMPLES = 5_000
_RESAMPLES_AT_ONCE = 500  # bounds the memory that very many values need
_TRIMMED = 0.25  # of the values at either end


def resampled_counts(
    n_values: int, generator: np.random.Generator
) -> Iterator[Int[np.ndarray, "resamples values"]]:
    """Draw resamples, a part of them at a time: how often each holds each value."""
    uniform = np.full(n_values, 1 / n_values)
    for _ in range(_N_RESAMPLES // _RESAMPLES_AT_ONCE):
        yield generator.multinomial(n_values, uniform, size=_RESAMPLES_AT_ONCE)


def percentile_interval(
    resamples: Float[np.ndarray, "resamples *columns"],
) -> Float[np.ndarray, "2 *columns"]:
    """Bound a statistic by the percentiles of its resamples between which 95 % of them lie."""
    tail = (1 - _CONFIDENCE) / 2
    return np.quantile(resamples, [tail, 1 - tail], axis=0)


def interquartile_mean(
    values: Float[np.ndarray, "values *columns"],
) -> Float[np.ndarray, "*columns"]:
    """Average the middle half of the values of each column.

    A quarter of them, rounded down, is left out at either end: up to 3 values, it is their mean.
    """
    n_trimmed = _n_trimmed(len(values))
    median = np.median(values, axis=0)
    # Around the median, equal values give their own value exactly.
    deviation = np.sort(values - median, axis=0)
    return np.asarray(median + deviation[n_trimmed : len(values) - n_trimmed].mean(axis=0))


def resampled_interquartile_means(
    values: Float[np.ndarray, "values *columns"], generator: np.random.Generator
) -> Float[np.ndarray, "resamples *columns"]:
    """Compute the interquartile means of resamples of the values."""
    n_values, n_trimmed = len(values), _n_trimmed(len(values))
    median = np.median(values, axis=0)
    deviation = np.sort(values - median, axis=0).reshape(n_values, -1)
    means = []
    for counts in resampled_counts(n_values, generator):
        # As the values are sorted, the ends of a resample are the ends of its cumulated counts.
        upto = np.clip(counts.cumsum(axis=1), n_trimmed, n_values - n_trimmed)
        kept = np.diff(upto, axis=1, prepend=n_trimmed)
        means.append(kept @ deviation / (n_values - 2 * n_trimmed))
    return median + np.concatenate(means).reshape(-1, *values.shape[1:])


def _n_trimmed(n_values: int) -> int:
    return int(_TRIMMED * n_values)
