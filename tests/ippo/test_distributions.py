"""Distributions over actions: log probabilities, entropies and actions, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.spaces import Box, Discrete, MultiDiscrete
from jaxagents.ippo.distributions import (
    Categorical,
    CategoricalProduct,
    ClippedGaussian,
    NormalParams,
    SquashedGaussian,
    log_tanh_slope,
)

GAUSSIANS = {"clipped": ClippedGaussian, "squashed": SquashedGaussian}
any_gaussian = pytest.mark.parametrize("gaussian", GAUSSIANS.values(), ids=GAUSSIANS)


def box(n_dimensions=2, low=-1.0, high=1.0):
    return Box(low, high, (n_dimensions,))


def gaussian_params(distribution, log_std, mean=(0.0, 0.0), exists=None):
    """Return the dist_params of one sample, or of a batch of means."""
    params = distribution.with_own_params({"kernel": jnp.ones(3)})
    params |= {"log_std": jnp.broadcast_to(log_std, (distribution.n_outputs,))}
    return distribution.parametrize(params, jnp.asarray(mean), exists)


# Categorical.


def test_the_actions_of_a_categorical_have_the_probabilities_of_its_logits():
    """Of logits log 1, log 2 and log 5 the probabilities are 1/8, 1/4 and 5/8."""
    distribution, logits = Categorical(Discrete(3)), jnp.log(jnp.array([1.0, 2.0, 5.0]))
    dist_params = distribution.parametrize({}, logits, None)
    probabilities = np.array([1, 2, 5]) / 8
    log_probs = [distribution.log_prob(dist_params, jnp.int32(action)) for action in range(3)]
    np.testing.assert_allclose(log_probs, np.log(probabilities), rtol=1e-5)
    entropy = -np.sum(probabilities * np.log(probabilities))
    np.testing.assert_allclose(distribution.entropy(dist_params), entropy, rtol=1e-5)
    assert distribution.mode(dist_params) == 2
    noise = distribution.draw_noise(jax.random.key(0), (20_000, 3))
    actions = distribution.sample(jnp.broadcast_to(dist_params, noise.shape), noise)
    assert actions.dtype == jnp.int32
    np.testing.assert_allclose(np.bincount(actions) / 20_000, probabilities, atol=0.01)
    np.testing.assert_array_equal(distribution.to_environment(actions), actions)


def test_masked_actions_are_never_drawn_and_the_others_share_their_probability():
    distribution = Categorical(Discrete(3))
    mask = jnp.array([[True, True, False], [False, False, True]])
    dist_params = distribution.parametrize({}, jnp.zeros((2, 3)), mask)
    noise = distribution.draw_noise(jax.random.key(0), (1_000, 2, 3))
    actions = np.asarray(distribution.sample(jnp.broadcast_to(dist_params, noise.shape), noise))
    assert set(actions[:, 0]) == {0, 1}
    assert set(actions[:, 1]) == {2}
    log_prob = distribution.log_prob(dist_params, jnp.array([0, 2]))
    np.testing.assert_allclose(log_prob, [np.log(0.5), 0.0])
    np.testing.assert_allclose(distribution.entropy(dist_params), [np.log(2.0), 0.0], atol=1e-6)


def test_a_row_without_available_actions_stays_finite():
    distribution = Categorical(Discrete(3))

    def loss(logits):
        dist_params = distribution.parametrize({}, logits, jnp.zeros((2, 3), bool))
        log_prob = distribution.log_prob(dist_params, jnp.array([0, 1]))
        return jnp.sum(distribution.entropy(dist_params) + log_prob)

    value, gradient = jax.value_and_grad(loss)(jnp.ones((2, 3)))
    assert np.isfinite(value)
    assert np.all(np.isfinite(gradient))


def test_a_categorical_has_no_parameters_of_its_own():
    distribution, params = Categorical(Discrete(3)), {"kernel": jnp.ones(2)}
    assert distribution.n_outputs == 3
    assert distribution.network_params(distribution.with_own_params(params)) is params


# Products of categoricals.


def test_choices_of_a_product_are_independent():
    """Probabilities 1/4 and 3/4 of the first choice, 1/8, 2/8 and 5/8 of the second."""
    distribution = CategoricalProduct(MultiDiscrete((2, 3)))
    assert distribution.n_outputs == 5
    logits = jnp.log(jnp.array([1.0, 3.0, 1.0, 2.0, 5.0]))
    dist_params = distribution.parametrize({}, logits, None)
    first, second = np.array([1, 3]) / 4, np.array([1, 2, 5]) / 8
    for i, j in np.ndindex(2, 3):
        log_prob = distribution.log_prob(dist_params, jnp.array([i, j]))
        np.testing.assert_allclose(log_prob, np.log(first[i] * second[j]), rtol=1e-5)
    entropy = -np.sum(first * np.log(first)) - np.sum(second * np.log(second))
    np.testing.assert_allclose(distribution.entropy(dist_params), entropy, rtol=1e-5)
    np.testing.assert_array_equal(distribution.mode(dist_params), [1, 2])
    noise = distribution.draw_noise(jax.random.key(0), (20_000, 5))
    actions = distribution.sample(jnp.broadcast_to(dist_params, noise.shape), noise)
    assert (actions.shape, actions.dtype) == ((20_000, 2), jnp.int32)
    shares = np.zeros((2, 3))
    np.add.at(shares, tuple(np.asarray(actions).T), 1 / 20_000)
    np.testing.assert_allclose(shares, np.outer(first, second), atol=0.015)


def test_each_choice_of_a_product_has_its_own_mask():
    distribution = CategoricalProduct(MultiDiscrete((2, 3)))
    mask = jnp.array([False, True, True, True, False])
    dist_params = distribution.parametrize({}, jnp.zeros(5), mask)
    np.testing.assert_allclose(distribution.log_prob(dist_params, jnp.array([1, 0])), np.log(0.5))
    np.testing.assert_allclose(distribution.entropy(dist_params), np.log(2.0), rtol=1e-6)
    noise = distribution.draw_noise(jax.random.key(0), (1_000, 5))
    actions = np.asarray(distribution.sample(jnp.broadcast_to(dist_params, noise.shape), noise))
    assert set(actions[:, 0]) == {1}
    assert set(actions[:, 1]) == {0, 1}


# Gaussians.


@any_gaussian
def test_the_log_standard_deviation_is_a_parameter_of_its_own_that_starts_at_0(gaussian):
    distribution, network_params = gaussian(Box(-1.0, 1.0, (3, 2))), {"kernel": jnp.ones(2)}
    params = distribution.with_own_params(network_params)
    assert distribution.n_outputs == 6
    np.testing.assert_array_equal(params["log_std"], np.zeros(6))
    assert distribution.network_params(params) is network_params


@any_gaussian
def test_the_standard_deviation_is_bounded_and_keeps_its_gradient(gaussian):
    distribution = gaussian(box())
    np.testing.assert_allclose(gaussian_params(distribution, 9.0).log_std, 2.0)
    np.testing.assert_allclose(gaussian_params(distribution, -9.0).log_std, -5.0)
    gradient = jax.grad(lambda log_std: gaussian_params(distribution, log_std).log_std.sum())
    np.testing.assert_allclose(gradient(jnp.full(2, 9.0)), 1.0)


def test_the_log_probability_and_entropy_of_a_gaussian_by_hand():
    """At the mean: -d log(σ √2π); entropy d (1 + log 2πσ²) / 2; d = 2, σ = e."""
    distribution = ClippedGaussian(box())
    dist_params = gaussian_params(distribution, 1.0, np.zeros((1, 2)))
    expected = -2 * (1 + 0.5 * np.log(2 * np.pi))
    log_prob = distribution.log_prob(dist_params, jnp.zeros((1, 2)))
    np.testing.assert_allclose(log_prob, [expected], rtol=1e-6)
    np.testing.assert_allclose(
        distribution.entropy(dist_params), [1 + np.log(2 * np.pi) + 2], rtol=1e-6
    )


@any_gaussian
def test_gaussian_actions_scatter_around_the_mean_by_the_standard_deviation(gaussian):
    distribution = gaussian(box())
    dist_params = gaussian_params(distribution, jnp.log(jnp.array([0.5, 3.0])), [1.0, -2.0])
    actions = distribution.sample(
        dist_params, distribution.draw_noise(jax.random.key(0), (20_000, 2))
    )
    np.testing.assert_allclose(np.mean(actions, axis=0), [1.0, -2.0], atol=0.05)
    np.testing.assert_allclose(np.std(actions, axis=0), [0.5, 3.0], rtol=0.02)
    np.testing.assert_array_equal(distribution.mode(dist_params), [1.0, -2.0])


def test_squashed_log_probabilities_integrate_to_1_over_the_box():
    """The density of the action that the environment gets, over a box whose size is not 2."""
    distribution = SquashedGaussian(box(2, -3.0, 1.0))
    edges = np.linspace(-3.0, 1.0, 402)[1:-1]
    first, second = np.meshgrid(edges, edges)
    actions = jnp.stack([first.ravel(), second.ravel()], axis=-1)
    drawn = jnp.arctanh((actions + 1.0) / 2.0)
    dist_params = gaussian_params(distribution, -1.0, jnp.zeros(drawn.shape))
    density = jnp.exp(distribution.log_prob(dist_params, drawn))
    np.testing.assert_allclose(density.sum() * (edges[1] - edges[0]) ** 2, 1.0, atol=1e-3)
    np.testing.assert_allclose(distribution.to_environment(drawn), actions, atol=1e-3)


@pytest.mark.parametrize(
    ("gaussian", "drawn", "expected"),
    [
        (ClippedGaussian, [9.0, -9.0], [1.0, -3.0]),
        (SquashedGaussian, [9.0, 0.0], [1.0, -1.0]),
    ],
)
def test_the_environment_gets_clipped_or_squashed_actions(gaussian, drawn, expected):
    actions = gaussian(box(2, -3.0, 1.0)).to_environment(jnp.array(drawn))
    np.testing.assert_allclose(actions, expected, atol=1e-5)


@any_gaussian
def test_the_environment_gets_actions_of_its_own_shape_and_bounds_per_dimension(gaussian):
    low, high = np.array([[-1.0, 0.0], [0.0, -4.0]]), np.array([[1.0, 9.0], [2.0, 4.0]])
    distribution = gaussian(Box(low, high, (2, 2)))
    for drawn, expected in ((-99.0, low), (99.0, high)):
        actions = distribution.to_environment(jnp.full((5, 4), drawn))
        np.testing.assert_allclose(actions, np.broadcast_to(expected, (5, 2, 2)))


# Dimensions that an actor lacks, which pad the actions of heterogeneous actors.

MEAN = jnp.array([[0.5, -1.0, 2.0], [0.1, 0.2, 0.3]])
LOG_STD = jnp.array([0.3, -0.7, 0.1])
DRAWN = jnp.array([[0.2, 1.5, -0.4], [0.6, -0.2, 0.0]])
EXISTS = jnp.array([[True, False, True], [False, False, True]])


def likelihood(distribution, exists, mean, log_std, drawn):
    dist_params = NormalParams(
        mean=mean, log_std=jnp.broadcast_to(log_std, mean.shape), exists=exists
    )
    return distribution.log_prob(dist_params, drawn), distribution.entropy(dist_params)


@any_gaussian
@pytest.mark.parametrize("held", [0.0, 7.0, -1e6])
def test_dimensions_that_an_actor_lacks_count_for_nothing_whatever_they_hold(gaussian, held):
    """Log probability and entropy are those of a Gaussian of the other dimensions."""
    mean, drawn = (jnp.where(EXISTS, values, held) for values in (MEAN, DRAWN))
    found = likelihood(gaussian(box(3)), EXISTS, mean, LOG_STD, drawn)
    for actor, dimensions in enumerate(([0, 2], [2])):
        kept = np.array(dimensions)
        expected = likelihood(
            gaussian(box(len(kept))), None, MEAN[actor, kept], LOG_STD[kept], DRAWN[actor, kept]
        )
        for value, of_the_smaller in zip(found, expected, strict=True):
            np.testing.assert_allclose(value[actor], of_the_smaller, rtol=1e-5)


@any_gaussian
def test_dimensions_that_an_actor_lacks_have_zero_gradient(gaussian):
    def loss(mean, log_std):
        log_prob, entropy = likelihood(gaussian(box(3)), EXISTS, mean, log_std, DRAWN)
        return jnp.sum(log_prob + entropy)

    by_mean, by_log_std = jax.grad(loss, argnums=(0, 1))(MEAN, LOG_STD)
    np.testing.assert_array_equal(by_mean != 0.0, EXISTS)
    # No actor has the second dimension, one the first, both the third.
    np.testing.assert_array_equal(by_log_std != 0.0, [True, False, True])


@any_gaussian
def test_the_action_mask_names_the_dimensions_that_an_actor_has(gaussian):
    distribution = gaussian(box(3))
    dist_params = gaussian_params(distribution, 0.0, jnp.zeros((2, 3)), EXISTS)
    # One dimension's entropy at a deviation of 1 is (1 + log 2π) / 2.
    one = (1 + np.log(2 * np.pi)) / 2
    np.testing.assert_allclose(distribution.entropy(dist_params), [2 * one, one], rtol=1e-6)


def test_the_slope_of_tanh_is_finite_where_tanh_saturates():
    np.testing.assert_allclose(log_tanh_slope(jnp.float32(0.0)), 0.0, atol=1e-7)
    np.testing.assert_allclose(log_tanh_slope(jnp.float32(1.0)), np.log(1 - np.tanh(1.0) ** 2))
    np.testing.assert_allclose(log_tanh_slope(jnp.float32(50.0)), 2 * np.log(2) - 100)
    np.testing.assert_allclose(log_tanh_slope(jnp.float32(-50.0)), 2 * np.log(2) - 100)


@any_gaussian
def test_what_the_environment_took_becomes_what_was_sampled(gaussian):
    low, high = np.array([[-1.0, 0.0], [0.0, -4.0]]), np.array([[1.0, 9.0], [2.0, 4.0]])
    distribution = gaussian(Box(low, high, (2, 2)))
    taken = low + np.array([[0.5, 0.25], [0.1, 0.9]]) * (high - low)
    drawn = distribution.from_environment(jnp.broadcast_to(taken, (5, 2, 2)))
    assert drawn.shape == (5, 4)
    np.testing.assert_allclose(
        distribution.to_environment(drawn), np.broadcast_to(taken, (5, 2, 2)), atol=1e-5
    )


def test_squashed_actions_at_a_bound_become_finite():
    drawn = SquashedGaussian(box(2, -3.0, 1.0)).from_environment(jnp.array([-3.0, 1.0]))
    np.testing.assert_allclose(jnp.tanh(drawn), [-0.9998, 0.9998], rtol=1e-5)
