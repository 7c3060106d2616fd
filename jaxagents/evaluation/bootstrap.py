"""Interquartile means and bootstrap intervals.

A bootstrap resample of n values draws n of them with replacement. It is represented by the number
of times each value was drawn, so that statistics of resamples are matrix products.

Source: Agarwal et al. 2021, https://arxiv.org/abs/2108.13264.
"""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int

_CONFIDENCE = 0.95
_N_RESAMPLES = 5_000
_RESAMPLES_AT_ONCE = 500  # bounds the memory
_TRIMMED = 0.25  # share of the values at either end


def resampled_counts(
    n_values: int, generator: np.random.Generator
) -> Iterator[Int[np.ndarray, "resamples values"]]:
    """Yield 5,000 resamples in parts, as the number of times each value was drawn."""
    uniform = np.full(n_values, 1 / n_values)
    for _ in range(_N_RESAMPLES // _RESAMPLES_AT_ONCE):
        yield generator.multinomial(n_values, uniform, size=_RESAMPLES_AT_ONCE)


def percentile_interval(
    resamples: Float[np.ndarray, "resamples *columns"],
) -> Float[np.ndarray, "2 *columns"]:
    """Return the 2.5th and 97.5th percentiles of a statistic over resamples."""
    tail = (1 - _CONFIDENCE) / 2
    return np.quantile(resamples, [tail, 1 - tail], axis=0)


def resampled_means(
    values: Float[np.ndarray, "values *columns"],
) -> Float[np.ndarray, "resamples *columns"]:
    """Return the means of bootstrap resamples; the bootstrap is seeded."""
    resamples = resampled_counts(len(values), np.random.default_rng(0))
    return np.concatenate([counts @ values / len(values) for counts in resamples])


def interquartile_mean(
    values: Float[np.ndarray, "values *columns"],
) -> Float[np.ndarray, "*columns"]:
    """Average the middle half of each column's values.

    A quarter of the values, rounded down, is left out at either end; with fewer than 4 values, none
    is.
    """
    n_trimmed = _n_trimmed(len(values))
    median = np.median(values, axis=0)
    # Subtracting the median makes the mean of equal values exact.
    deviation = np.sort(values - median, axis=0)
    return np.asarray(median + deviation[n_trimmed : len(values) - n_trimmed].mean(axis=0))


def resampled_interquartile_means(
    values: Float[np.ndarray, "values *columns"], generator: np.random.Generator
) -> Float[np.ndarray, "resamples *columns"]:
    """Return the interquartile means of bootstrap resamples."""
    n_values, n_trimmed = len(values), _n_trimmed(len(values))
    median = np.median(values, axis=0)
    deviation = np.sort(values - median, axis=0).reshape(n_values, -1)
    means = []
    for counts in resampled_counts(n_values, generator):
        # The values are sorted: clipping the cumulative counts trims a resample at both ends.
        cumulative = np.clip(counts.cumsum(axis=1), n_trimmed, n_values - n_trimmed)
        kept = np.diff(cumulative, axis=1, prepend=n_trimmed)
        means.append(kept @ deviation / (n_values - 2 * n_trimmed))
    return median + np.concatenate(means).reshape(-1, *values.shape[1:])


def _n_trimmed(n_values: int) -> int:
    return int(_TRIMMED * n_values)
