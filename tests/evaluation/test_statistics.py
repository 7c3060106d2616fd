"""Statistics of a metric over episodes."""

import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxagents.evaluation.statistics import summarize
from jaxagents.types import MetricStats

SUMMARY = [name for name in MetricStats._fields if name not in ("has_nans", "episodes")]


def test_summary_of_one_actor_has_scalars():
    stats = summarize([1.0, 2.0, 3.0, 4.0, 10.0, 10.0, 10.0, 16.0])
    assert (stats.mean, stats.min, stats.max, stats.median) == (7.0, 1.0, 16.0, 7.0)
    assert stats.var == (36 + 25 + 16 + 9 + 9 + 9 + 9 + 81) / 8
    assert stats.std == np.sqrt(stats.var)
    assert stats.iqm == (3 + 4 + 10 + 10) / 4
    assert stats.has_nans is np.False_
    assert all(np.ndim(getattr(stats, name)) == 0 for name in SUMMARY)


def test_summary_is_per_actor_and_over_episodes():
    stats = summarize(jnp.array([[1.0, 10.0], [3.0, 50.0], [5.0, 0.0]]))
    np.testing.assert_array_equal(stats.mean, [3.0, 20.0])
    np.testing.assert_array_equal(stats.median, [3.0, 10.0])
    np.testing.assert_array_equal(stats.min, [1.0, 0.0])
    np.testing.assert_array_equal(stats.max, [5.0, 50.0])
    np.testing.assert_array_equal(stats.episodes, [[1.0, 10.0], [3.0, 50.0], [5.0, 0.0]])


def test_summary_of_many_evaluations_is_the_summary_of_each():
    values = np.random.default_rng(1).normal(size=(3, 20, 2))
    together = summarize(values)
    for evaluation, episodes in enumerate(values):
        alone = summarize(episodes)
        for name in SUMMARY:
            np.testing.assert_allclose(
                getattr(together, name)[evaluation], getattr(alone, name), rtol=1e-12
            )
    assert together.mean.shape == together.has_nans.shape == (3, 2)


def test_summary_leaves_episodes_of_nan_out_and_marks_them():
    stats = summarize([[1.0, 1.0], [np.nan, 2.0], [5.0, 6.0], [np.nan, 7.0]])
    np.testing.assert_array_equal(stats.has_nans, [True, False])
    np.testing.assert_array_equal(stats.mean, [3.0, 4.0])
    np.testing.assert_array_equal(stats.median, [3.0, 4.0])
    np.testing.assert_array_equal(stats.std, [2.0, np.sqrt(26 / 4)])
    np.testing.assert_array_equal(stats.iqm, [3.0, 4.0])
    np.testing.assert_array_equal(stats.ci_low[0], 1.0)
    np.testing.assert_array_equal(stats.ci_high[0], 5.0)


@pytest.mark.filterwarnings("error")
def test_an_evaluation_that_never_ran_gives_nan_without_warnings():
    stats = summarize(np.stack([np.ones((4, 2)), np.full((4, 2), np.nan)]))
    np.testing.assert_array_equal(stats.has_nans, [[False, False], [True, True]])
    for name in SUMMARY:
        value = 0.0 if name in ("std", "var") else 1.0
        np.testing.assert_array_equal(getattr(stats, name), [[value, value], [np.nan, np.nan]])


@pytest.mark.filterwarnings("error")
def test_an_infinite_return_gives_no_warnings():
    stats = summarize([[1.0, 1.0], [2.0, np.inf], [3.0, 3.0]])
    np.testing.assert_array_equal(stats.mean, [2.0, np.inf])
    np.testing.assert_array_equal(stats.max, [3.0, np.inf])
    np.testing.assert_array_equal(stats.median, [2.0, 3.0])
    assert np.isnan(stats.std[1])
    assert not np.isnan(stats.ci_low[0])


def test_interval_agrees_with_the_bootstrap_of_scipy():
    episodes = np.random.default_rng(2).exponential(size=60)
    expected = scipy.stats.bootstrap(
        (episodes,), np.mean, method="percentile", rng=np.random.default_rng(3)
    ).confidence_interval
    stats = summarize(episodes)
    np.testing.assert_allclose([stats.ci_low, stats.ci_high], expected, atol=0.02)
    assert stats.ci_low < stats.mean < stats.ci_high


def test_interval_covers_the_true_mean_about_as_often_as_it_claims():
    episodes = np.random.default_rng(4).normal(loc=5.0, size=(50, 400))
    stats = summarize(episodes)
    covered = np.mean((stats.ci_low < 5.0) & (stats.ci_high > 5.0))
    assert 0.90 < covered < 0.98


def test_interval_is_deterministic():
    episodes = np.random.default_rng(5).normal(size=(30, 2))
    np.testing.assert_array_equal(summarize(episodes).ci_low, summarize(episodes).ci_low)


@pytest.mark.parametrize("n_episodes", [1, 2, 7, 10])
def test_identical_episodes_have_no_spread_at_all(n_episodes):
    stats = summarize(np.full(n_episodes, 0.1))
    assert stats.mean == stats.iqm == stats.median == stats.ci_low == stats.ci_high == 0.1
    assert stats.std == stats.var == 0.0


def test_summary_of_flags_is_their_rate():
    assert summarize(jnp.array([True, False, True, True])).mean == 0.75


@pytest.mark.parametrize("shape", [(), (2, 3, 4, 5)])
def test_other_ranks_are_refused(shape):
    with pytest.raises(ValueError, match=r"are not \[episodes\]"):
        summarize(np.ones(shape))


@pytest.mark.parametrize("shape", [(0,), (0, 2), (3, 0, 2), (0, 3, 2), (3, 0)])
def test_no_episodes_are_refused(shape):
    with pytest.raises(ValueError, match="hold no episodes"):
        summarize(np.ones(shape))


def test_importing_statistics_does_not_import_scipy_stats():
    code = "import sys, jaxagents.evaluation.statistics; print('scipy.stats' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
