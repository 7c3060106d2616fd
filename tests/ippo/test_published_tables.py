"""Masked distributions that another project publishes in its tests.

sb3-contrib 2.9.0a2, https://github.com/Stable-Baselines-Team/stable-baselines3-contrib,
tests/test_distributions.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.spaces import Discrete, MultiDiscrete
from jaxagents.ippo.distributions import Categorical, CategoricalProduct

SMALLEST = float(np.finfo(np.float32).eps)  # torch's logit of probability 0 is log(SMALLEST)


def masked(distribution, logits, mask):
    return distribution.parametrize({}, jnp.asarray(logits, jnp.float32), jnp.asarray(mask))


def probabilities(dist_params):
    """Return those of all actions, from their log probabilities."""
    distribution = Categorical(Discrete(dist_params.shape[-1]))
    log_prob = jax.vmap(distribution.log_prob, in_axes=(None, 0))
    return jnp.exp(log_prob(dist_params, jnp.arange(dist_params.shape[-1])))


@pytest.mark.parametrize(
    ("start", "mask", "expected"),
    [
        ([0.2, 0.2, 0.6], [False, True, True], [0.0, 0.25, 0.75]),
        ([1.0, 0.0, 0.0], [False, True, True], [0.0, 0.5, 0.5]),
        ([0.2, 0.2, 0.6], [True, True, False], [0.5, 0.5, 0.0]),
        ([1.0, 0.0, 0.0], [False, True, False], [0.0, 1.0, 0.0]),
    ],
)
def test_available_actions_share_the_probability_as_in_sb3_contrib(start, mask, expected):
    """TestMaskableCategorical, test_applying_mask and test_modifying_mask."""
    logits = np.log(np.clip(start, SMALLEST, 1.0))
    dist_params = masked(Categorical(Discrete(3)), logits, mask)
    np.testing.assert_allclose(probabilities(dist_params), expected, atol=2e-7)


@pytest.mark.parametrize("n_available", [1, 2, 3])
def test_the_entropy_of_equal_logits_is_that_of_the_available_actions(n_available):
    """TestMaskableCategorical, test_masking_affects_entropy."""
    distribution = Categorical(Discrete(3))
    dist_params = masked(distribution, np.zeros(3), np.arange(3) < n_available)
    np.testing.assert_allclose(jnp.exp(distribution.entropy(dist_params)), n_available, rtol=1e-6)


@pytest.mark.parametrize("available", [None, 0, 1])
def test_choices_of_one_available_action_each_have_no_entropy(available):
    """TestMaskableMultiCategoricalDistribution, test_dim_masking: three choices of two actions."""
    distribution = CategoricalProduct(MultiDiscrete((2, 2, 2)))
    mask = (
        np.ones((3, 2), bool) if available is None else np.tile(np.arange(2) == available, (3, 1))
    )
    dist_params = masked(distribution, np.zeros(6), mask.ravel())
    n_combinations = 8 if available is None else 1
    np.testing.assert_allclose(
        jnp.exp(distribution.entropy(dist_params)), n_combinations, rtol=1e-6
    )
    action = jnp.full(3, available or 0)
    probability = jnp.exp(distribution.log_prob(dist_params, action))
    np.testing.assert_allclose(probability, 1 / n_combinations, rtol=1e-6)


def test_of_992_actions_the_only_available_one_is_certain():
    """test_apply_masking_no_simplex_error_with_cached_probs; also for an unlikely action."""
    distribution, logits = Categorical(Discrete(992)), np.full(992, -17.0)
    logits[0] = 0.0
    for available in (0, 991):
        mask = np.arange(992) == available

        def of_logits(logits, mask=mask, available=available):
            dist_params = masked(distribution, logits, mask)
            return distribution.log_prob(dist_params, jnp.int32(available)), distribution.entropy(
                dist_params
            )

        (log_prob, entropy), pullback = jax.vjp(of_logits, jnp.asarray(logits, jnp.float32))
        assert log_prob == 0.0
        assert entropy == 0.0
        np.testing.assert_array_equal(pullback((jnp.ones(()), jnp.ones(())))[0], np.zeros(992))
        dist_params = masked(distribution, logits, mask)
        np.testing.assert_array_equal(probabilities(dist_params), mask)
        assert distribution.mode(dist_params) == available
