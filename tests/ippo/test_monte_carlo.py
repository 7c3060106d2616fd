"""Entropies and KL divergences against means over samples, within 4 standard errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.spaces import Box, Discrete, MultiDiscrete
from jaxagents.ippo.distributions import (
    Categorical,
    CategoricalProduct,
    ClippedGaussian,
    SquashedGaussian,
)
from jaxagents.ppo.losses import kl_divergence

N_SAMPLES = 50_000
BOX = Box(np.array([-1.0, 0.0, -2.0]), np.array([1.0, 5.0, 0.0]), (3,))
LOG_STD = np.array([-0.7, 0.3, 0.9])

# The distribution, a mask, the log standard deviation of Gaussians.
CASES = {
    "categorical": (Categorical(Discrete(5)), None, None),
    "masked categorical": (Categorical(Discrete(5)), [True, False, True, True, False], None),
    "choices": (CategoricalProduct(MultiDiscrete((2, 4))), None, None),
    "masked choices": (
        CategoricalProduct(MultiDiscrete((2, 4))),
        [True, True, False, True, True, True],
        None,
    ),
    "Gaussian": (ClippedGaussian(BOX), None, LOG_STD),
    "Gaussian of two dimensions": (ClippedGaussian(BOX), [True, False, True], LOG_STD),
    "squashed Gaussian": (SquashedGaussian(BOX), None, LOG_STD),
}
any_distribution = pytest.mark.parametrize("name", CASES)


def two_dist_params(name):
    """Return a distribution and two sets of its parameters."""
    distribution, mask, log_std = CASES[name]
    outputs, change = np.random.default_rng(0).normal(size=(2, distribution.n_outputs))
    own = {} if log_std is None else {"network": {}, "log_std": jnp.asarray(log_std)}
    moved = own if log_std is None else {**own, "log_std": own["log_std"] + 0.2}
    mask = None if mask is None else jnp.asarray(mask)
    before = distribution.parametrize(own, jnp.asarray(outputs), mask)
    after = distribution.parametrize(moved, jnp.asarray(outputs + 0.5 * change), mask)
    return distribution, before, after


def draw(distribution, dist_params):
    noise = distribution.draw_noise(jax.random.key(1), (N_SAMPLES, distribution.n_outputs))
    return jax.vmap(distribution.sample, in_axes=(None, 0))(dist_params, noise)


def log_probs(distribution, dist_params, actions):
    return jax.vmap(distribution.log_prob, in_axes=(None, 0))(dist_params, actions)


def assert_mean_is(samples, expected):
    """The mean of the samples lies within 4 standard errors of what is expected.

    For these distributions that is at most 1 % of the entropy, or 7 % of the divergence.
    """
    samples = np.asarray(samples, np.float64)
    standard_error = samples.std() / np.sqrt(len(samples))
    assert standard_error > 0
    assert abs(samples.mean() - expected) < 4 * standard_error


@pytest.mark.slow
@any_distribution
def test_the_entropy_is_the_mean_negative_log_probability(name):
    distribution, dist_params, _ = two_dist_params(name)
    actions = draw(distribution, dist_params)
    if isinstance(distribution, SquashedGaussian):
        # Its entropy is documented as that of the Gaussian before the squashing.
        distribution = ClippedGaussian(BOX)
    assert_mean_is(
        -log_probs(distribution, dist_params, actions), float(distribution.entropy(dist_params))
    )


@any_distribution
def test_the_estimated_divergence_has_the_mean_of_the_exact_one(name):
    """That of the policy before from the policy after, whose estimator an update reports."""
    distribution, before, after = two_dist_params(name)
    actions = draw(distribution, before)
    log_ratio = log_probs(distribution, after, actions) - log_probs(distribution, before, actions)
    assert_mean_is(kl_divergence(log_ratio), exact_divergence(distribution, before, after))


def exact_divergence(distribution, before, after):
    """Compute Σ p log(p / q), or the integral of it, in float64."""
    if isinstance(distribution, ClippedGaussian | SquashedGaussian):
        (mean, log_std), (its_mean, its_log_std) = (
            (np.asarray(dist_params.mean, np.float64), np.asarray(dist_params.log_std, np.float64))
            for dist_params in (before, after)
        )
        ratio = np.exp(2 * (log_std - its_log_std))
        shift = (mean - its_mean) ** 2 / np.exp(2 * its_log_std)
        divergence = (ratio + shift - 1) / 2 - (log_std - its_log_std)
        return divergence.sum(where=True if before.exists is None else np.asarray(before.exists))
    sizes = [2] if isinstance(distribution, CategoricalProduct) else []
    total = 0.0
    for logits, its_logits in zip(np.split(before, sizes), np.split(after, sizes), strict=True):
        log_p, log_q = (np.asarray(each, np.float64) for each in (logits, its_logits))
        log_p, log_q = (each - np.logaddexp.reduce(each) for each in (log_p, log_q))
        total += np.sum(np.exp(log_p) * (log_p - log_q))
    return total
