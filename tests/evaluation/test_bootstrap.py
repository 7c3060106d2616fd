"""Interquartile means and bootstrap resamples."""

import numpy as np
import pytest
import scipy.stats

from jaxagents.evaluation.bootstrap import (
    interquartile_mean,
    percentile_interval,
    resampled_counts,
    resampled_interquartile_means,
)


def generator():
    return np.random.default_rng(0)


def test_the_interquartile_mean_leaves_a_quarter_out_at_either_end():
    assert interquartile_mean(np.array([100.0, 1.0, 3.0, -100.0])) == 2.0
    assert interquartile_mean(np.array([0.0, 0.0, 1.0, 2.0, 3.0, 6.0, 9.0, 9.0])) == 3.0


@pytest.mark.parametrize("n_values", [1, 2, 3])
def test_the_interquartile_mean_of_up_to_three_values_is_their_mean(n_values):
    assert interquartile_mean(np.arange(n_values) * 6.0) == 3.0 * (n_values - 1)


def test_the_interquartile_mean_is_per_column():
    values = np.random.default_rng(1).normal(size=(11, 3, 2))
    expected = scipy.stats.trim_mean(values, 0.25, axis=0)
    np.testing.assert_allclose(interquartile_mean(values), expected, rtol=1e-12)


def test_every_resample_draws_n_values_each_once_on_average():
    counts = np.concatenate(list(resampled_counts(4, generator())))
    assert counts.shape == (5_000, 4)
    np.testing.assert_array_equal(counts.sum(axis=1), 4)
    np.testing.assert_allclose(counts.mean(axis=0), 1.0, atol=0.05)


def test_an_interval_leaves_out_2_5_percent_at_either_end():
    np.testing.assert_allclose(percentile_interval(np.arange(201.0)), [5.0, 195.0])


@pytest.mark.parametrize("n_values", [2, 5, 8])
def test_resampled_interquartile_means_are_distributed_like_those_of_drawn_samples(n_values):
    values = np.random.default_rng(2).normal(size=n_values)
    drawn = np.random.default_rng(3).choice(values, size=(20_000, n_values))
    expected = scipy.stats.trim_mean(drawn, 0.25, axis=1)
    resamples = resampled_interquartile_means(values, generator())
    quantiles = [0.1, 0.3, 0.5, 0.7, 0.9]
    np.testing.assert_allclose(
        np.quantile(resamples, quantiles), np.quantile(expected, quantiles), atol=0.06
    )
    assert resamples.min() >= values.min()
    assert resamples.max() <= values.max()


def test_half_of_the_resamples_of_two_values_hold_both():
    resamples = resampled_interquartile_means(np.array([0.0, 10.0]), generator())
    values, counts = np.unique(resamples, return_counts=True)
    np.testing.assert_array_equal(values, [0.0, 5.0, 10.0])
    np.testing.assert_allclose(counts / 5_000, [0.25, 0.5, 0.25], atol=0.03)


def test_equal_values_have_exactly_no_spread():
    resamples = resampled_interquartile_means(np.full((5, 2), 0.1), generator())
    assert (resamples == 0.1).all()
    assert interquartile_mean(np.full(5, 0.1)) == 0.1
