import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxagents.ppo.statistics import explained_variance, standardize, weighted_mean, weighted_means
from jaxagents.evaluation.statistics import summarize
from jaxagents.types import MetricStats

SUMMARY = [name for name in MetricStats._fields if name not in ("has_nans", "episodes")]


def test_weighted_mean_weighs_each_sample():
    assert weighted_mean(jnp.array([1.0, 4.0]), jnp.array([3.0, 1.0])) == 1.75


def test_weighted_mean_divides_by_weights_that_add_up_to_less_than_one():
    np.testing.assert_allclose(weighted_mean(jnp.array([4.0]), jnp.array([0.1])), 4.0, rtol=1e-6)


@pytest.mark.parametrize("unused", [jnp.inf, -jnp.inf, jnp.nan])
def test_weighted_mean_never_sees_samples_of_weight_zero(unused):
    values, weight = jnp.array([[2.0, unused], [4.0, unused]]), jnp.array([[1.0, 0.0], [1.0, 0.0]])
    mean, gradient = jax.value_and_grad(weighted_mean)(values, weight)
    assert mean == 3.0
    np.testing.assert_array_equal(gradient, [[0.5, 0.0], [0.5, 0.0]])


def test_weighted_mean_without_any_weight_is_zero():
    mean, gradient = jax.value_and_grad(weighted_mean)(jnp.array([jnp.nan, 5.0]), jnp.zeros(2))
    assert mean == 0.0
    np.testing.assert_array_equal(gradient, [0.0, 0.0])


def test_weighted_means_are_those_of_each_quantity():
    values, weight = jnp.array([[1.0, 4.0], [-2.0, 6.0]]), jnp.array([3.0, 1.0])
    np.testing.assert_array_equal(weighted_means(tuple(values), weight), [1.75, 0.0])


@pytest.mark.parametrize("unused", [jnp.inf, -jnp.inf, jnp.nan])
def test_weighted_means_never_see_samples_of_weight_zero(unused):
    def first_mean(*values):
        means = weighted_means(values, jnp.array([[2.0], [0.0]]))
        return means[0], means

    values = jnp.array([[3.0], [unused]]), jnp.array([[5.0], [unused]])
    gradients, means = jax.grad(first_mean, argnums=(0, 1), has_aux=True)(*values)
    np.testing.assert_array_equal(means, [3.0, 5.0])
    np.testing.assert_array_equal(gradients, [[[1.0], [0.0]], [[0.0], [0.0]]])


def test_weighted_means_without_any_weight_are_zero():
    np.testing.assert_array_equal(weighted_means((jnp.array([jnp.nan, 5.0]),), jnp.zeros(2)), [0.0])


def test_standardize_uses_mean_and_population_deviation_of_the_weighted_samples():
    values = jnp.array([[1.0, 3.0], [jnp.nan, jnp.inf]])
    standardized = standardize(values, jnp.array([[1.0, 1.0], [0.0, 0.0]]))
    np.testing.assert_allclose(standardized, [[-1.0, 1.0], [0.0, 0.0]], rtol=1e-6)


def test_standardize_counts_a_sample_of_weight_three_thrice():
    # Of 0, 0, 0 and 4 the mean is 1 and the variance (3 · 1 + 9) / 4 = 3.
    standardized = standardize(jnp.array([0.0, 4.0]), jnp.array([3.0, 1.0]))
    np.testing.assert_allclose(standardized, [-1 / np.sqrt(3), 3 / np.sqrt(3)], rtol=1e-6)


@pytest.mark.parametrize("weight", [1.0, 0.3, 0.7])
def test_standardize_turns_one_sample_into_zero(weight):
    values = jnp.array([0.1, 5.0, 1e6])
    for sample in jnp.eye(3):
        np.testing.assert_array_equal(standardize(values, weight * sample), jnp.zeros(3))


def test_standardize_without_any_weight_is_zero():
    np.testing.assert_array_equal(standardize(jnp.array([1.0, jnp.nan]), jnp.zeros(2)), [0, 0])


@pytest.mark.parametrize("constant", [0.1, -1234.567, 3e6])
def test_standardize_does_not_blow_up_the_rounding_of_equal_samples(constant):
    values = jnp.full((1000, 7), constant)
    np.testing.assert_array_equal(jax.jit(standardize)(values, jnp.ones((1000, 7))), 0.0)


def test_standardize_keeps_a_small_spread_around_a_large_mean():
    values = 1e4 + jnp.tile(jnp.array([-0.25, 0.25]), 500)
    standardized = jax.jit(standardize)(values, jnp.ones(1000))
    np.testing.assert_allclose(standardized[:2], [-1.0, 1.0], rtol=1e-3)


def test_explained_variance_is_one_up_to_a_constant_offset():
    value_target = jnp.array([1.0, 2.0, 4.0])
    assert explained_variance(value_target - 7.0, value_target, jnp.ones(3)) == 1.0


def test_explained_variance_of_a_constant_value_is_zero():
    assert explained_variance(jnp.full(2, 9.0), jnp.array([1.0, 3.0]), jnp.ones(2)) == 0.0


def test_explained_variance_of_values_of_the_wrong_sign_is_negative():
    # Residuals are 2 · target: four times the variance.
    value_target = jnp.array([-1.0, 1.0])
    assert explained_variance(-value_target, value_target, jnp.ones(2)) == -3.0


def test_explained_variance_leaves_samples_of_weight_zero_out():
    explained = explained_variance(
        value=jnp.array([0.5, -0.5, jnp.nan, 100.0]),
        value_target=jnp.array([1.0, -1.0, jnp.inf, 3.0]),
        weight=jnp.array([1.0, 1.0, 0.0, 0.0]),
    )
    assert explained == 0.75


@pytest.mark.parametrize("constant", [0.0, 0.1, -1234.567])
def test_explained_variance_of_equal_targets_is_zero(constant):
    value = jnp.linspace(-1.0, 1.0, 999)
    assert jax.jit(explained_variance)(value, jnp.full(999, constant), jnp.ones(999)) == 0.0


def test_explained_variance_of_equal_targets_is_zero_however_they_are_weighted():
    rng_target, rng_weight = jax.random.split(jax.random.key(0))
    value, weight = jnp.linspace(-1.0, 1.0, 777), jax.random.uniform(rng_weight, (777,))
    constants = 1000.0 * jax.random.normal(rng_target, (400,))
    explained = jax.lax.map(
        lambda constant: explained_variance(value, jnp.full(777, constant), weight), constants
    )
    np.testing.assert_array_equal(explained, jnp.zeros(400))


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


def test_summary_leaves_nan_episodes_out_and_says_so():
    stats = summarize([[1.0, 1.0], [np.nan, 2.0], [5.0, 6.0], [np.nan, 7.0]])
    np.testing.assert_array_equal(stats.has_nans, [True, False])
    np.testing.assert_array_equal(stats.mean, [3.0, 4.0])
    np.testing.assert_array_equal(stats.median, [3.0, 4.0])
    np.testing.assert_array_equal(stats.std, [2.0, np.sqrt(26 / 4)])
    np.testing.assert_array_equal(stats.iqm, [3.0, 4.0])
    np.testing.assert_array_equal(stats.ci_low[0], 1.0)
    np.testing.assert_array_equal(stats.ci_high[0], 5.0)


@pytest.mark.filterwarnings("error")
def test_evaluation_that_never_ran_gives_nan_without_warnings():
    stats = summarize(np.stack([np.ones((4, 2)), np.full((4, 2), np.nan)]))
    np.testing.assert_array_equal(stats.has_nans, [[False, False], [True, True]])
    for name in SUMMARY:
        value = 0.0 if name in ("std", "var") else 1.0
        np.testing.assert_array_equal(getattr(stats, name), [[value, value], [np.nan, np.nan]])


@pytest.mark.filterwarnings("error")
def test_infinite_return_shows_without_warnings():
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


def test_interval_is_the_same_every_time():
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


def test_importing_statistics_does_not_import_the_whole_of_scipy():
    code = "import sys, jaxagents.statistics; print('scipy.stats' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
