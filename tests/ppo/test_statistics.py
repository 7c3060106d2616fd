"""Weighted means, standardized values, explained variance and values, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ppo.losses import weighted_mean
from jaxagents.ppo.statistics import (
    explained_variance,
    relative_deviation,
    standardize,
    value_statistics,
)


def test_a_weighted_mean_by_hand():
    assert weighted_mean(jnp.array([1.0, 4.0]), jnp.array([3.0, 1.0])) == 1.75


def test_a_weighted_mean_divides_by_weights_that_sum_to_less_than_one():
    np.testing.assert_allclose(weighted_mean(jnp.array([4.0]), jnp.array([0.1])), 4.0, rtol=1e-6)


@pytest.mark.parametrize("unused", [jnp.inf, -jnp.inf, jnp.nan])
def test_samples_of_weight_zero_affect_neither_the_mean_nor_its_gradient(unused):
    values, weight = jnp.array([[2.0, unused], [4.0, unused]]), jnp.array([[1.0, 0.0], [1.0, 0.0]])
    mean, gradient = jax.value_and_grad(weighted_mean)(values, weight)
    assert mean == 3.0
    np.testing.assert_array_equal(gradient, [[0.5, 0.0], [0.5, 0.0]])


def test_a_weighted_mean_without_any_weight_is_zero():
    mean, gradient = jax.value_and_grad(weighted_mean)(jnp.array([jnp.nan, 5.0]), jnp.zeros(2))
    assert mean == 0.0
    np.testing.assert_array_equal(gradient, [0.0, 0.0])


def test_standardize_uses_the_mean_and_population_deviation_of_samples_with_weight():
    values = jnp.array([[1.0, 3.0], [jnp.nan, jnp.inf]])
    standardized = standardize(values, jnp.array([[1.0, 1.0], [0.0, 0.0]]))
    np.testing.assert_allclose(standardized, [[-1.0, 1.0], [0.0, 0.0]], rtol=1e-6)


def test_standardize_counts_a_sample_of_weight_three_three_times():
    # Of 0, 0, 0 and 4 the mean is 1 and the variance (3 · 1 + 9) / 4 = 3.
    standardized = standardize(jnp.array([0.0, 4.0]), jnp.array([3.0, 1.0]))
    np.testing.assert_allclose(standardized, [-1 / np.sqrt(3), 3 / np.sqrt(3)], rtol=1e-6)


@pytest.mark.parametrize("factor", [1.0, 1e-3, 1e4])
def test_the_relative_deviation_is_a_ratio_of_standard_deviations_of_at_most_1(factor):
    # The standard deviations are 0.5 and 2, whatever the unit and the means.
    small = factor * jnp.array([0.5, -0.5, jnp.nan])
    large = factor * jnp.array([9.0, 5.0, jnp.inf])
    weight = jnp.array([1.0, 1.0, 0.0])
    np.testing.assert_allclose(relative_deviation(small, large, weight), 0.25, rtol=1e-5)
    assert relative_deviation(large, small, weight) == 1.0


def test_equal_rewards_leave_the_relative_deviation_at_1():
    weight = jnp.ones(2)
    assert relative_deviation(jnp.array([0.1, 0.2]), jnp.array([7.0, 7.0]), weight) == 1.0
    assert relative_deviation(jnp.zeros(2), jnp.array([7.0, 7.0]), weight) == 1.0
    assert relative_deviation(jnp.zeros(2), jnp.array([7.0, 6.0]), weight) == 0.0


@pytest.mark.parametrize("weight", [1.0, 0.3, 0.7])
def test_standardize_maps_a_single_sample_to_zero(weight):
    values = jnp.array([0.1, 5.0, 1e6])
    for sample in jnp.eye(3):
        np.testing.assert_array_equal(standardize(values, weight * sample), jnp.zeros(3))


def test_standardize_without_any_weight_is_zero():
    np.testing.assert_array_equal(standardize(jnp.array([1.0, jnp.nan]), jnp.zeros(2)), [0, 0])


@pytest.mark.parametrize("constant", [0.1, -1234.567, 3e6])
def test_standardize_does_not_amplify_the_rounding_of_equal_samples(constant):
    values = jnp.full((1000, 7), constant)
    np.testing.assert_array_equal(jax.jit(standardize)(values, jnp.ones((1000, 7))), 0.0)


def test_standardize_keeps_a_small_spread_around_a_large_mean():
    values = 1e4 + jnp.tile(jnp.array([-0.25, 0.25]), 500)
    standardized = jax.jit(standardize)(values, jnp.ones(1000))
    np.testing.assert_allclose(standardized[:2], [-1.0, 1.0], rtol=1e-3)


def test_explained_variance_of_targets_minus_a_constant_is_one():
    value_target = jnp.array([1.0, 2.0, 4.0])
    assert explained_variance(value_target - 7.0, value_target, jnp.ones(3)) == 1.0


def test_explained_variance_of_a_constant_value_is_zero():
    assert explained_variance(jnp.full(2, 9.0), jnp.array([1.0, 3.0]), jnp.ones(2)) == 0.0


def test_explained_variance_of_values_of_the_wrong_sign_is_negative():
    # Residuals are 2 · target: four times the variance.
    value_target = jnp.array([-1.0, 1.0])
    assert explained_variance(-value_target, value_target, jnp.ones(2)) == -3.0


def test_explained_variance_ignores_samples_of_weight_zero():
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


def test_values_are_described_beside_their_targets_and_rewards():
    """Of the values 1 and 3 the mean is 2, the deviation 1; of the targets -4 and 2 it is 3."""
    unused = jnp.nan
    stats = value_statistics(
        value=jnp.array([1.0, 3.0, unused]),
        value_target=jnp.array([-4.0, 2.0, unused]),
        reward=jnp.array([-5.0, 0.5, unused]),
        weight=jnp.array([1.0, 1.0, 0.0]),
    )
    np.testing.assert_allclose(stats, (2.0, 1.0, 3.0, 3.0, 5.0), rtol=1e-6)


def test_equal_values_do_not_deviate():
    equal = jnp.full(1000, 0.1)
    stats = value_statistics(equal, equal, equal, jnp.ones(1000))
    assert (stats.value_std, stats.target_std) == (0.0, 0.0)


def test_values_deviate_as_much_far_from_zero():
    values = 1e4 + jnp.resize(jnp.array([-1.0, 1.0]), 1000)
    stats = value_statistics(values, 2 * values, values, jnp.ones(1000))
    np.testing.assert_allclose((stats.value_std, stats.target_std), (1.0, 2.0), rtol=1e-3)
