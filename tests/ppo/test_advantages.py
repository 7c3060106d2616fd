"""Generalized advantage estimates, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from jaxagents.ppo import advantages

generalized_advantages = jax.jit(advantages.generalized_advantages)

# With a discount of 1/2: δ = 1 + 2/2 - 1, 2 + 4/2 - 2, 4 + 8/2 - 4 = 1, 2, 4.
REWARD = np.array([1.0, 2.0, 4.0], np.float32)
VALUE = np.array([1.0, 2.0, 4.0], np.float32)
NEXT_VALUE = np.array([2.0, 4.0, 8.0], np.float32)
NEVER = np.zeros(3, bool)
SECOND = np.array([False, True, False])


def estimate(
    reward=REWARD,
    value=VALUE,
    next_value=NEXT_VALUE,
    terminated=NEVER,
    truncated=NEVER,
    discount=0.5,
    gae_lambda=0.5,
):
    arrays = map(jnp.asarray, (reward, value, next_value, terminated, truncated))
    return generalized_advantages(*arrays, discount, gae_lambda)


def test_later_errors_decay_by_discount_times_lambda():
    # A = δ + A' / 4, from the last step back.
    np.testing.assert_array_equal(estimate(), [1.75, 3.0, 4.0])


def test_lambda_zero_gives_the_temporal_difference():
    np.testing.assert_array_equal(estimate(gae_lambda=0.0), [1.0, 2.0, 4.0])


def test_lambda_one_gives_the_discounted_return_minus_the_value():
    # The return from the first step is 1 + 2/2 + 4/4 + 8/8, the value 1.
    np.testing.assert_array_equal(estimate(gae_lambda=1.0), [3.0, 4.0, 4.0])


def test_the_last_step_bootstraps_from_the_value_after_it():
    advantage = estimate(next_value=[2.0, 4.0, 10.0], gae_lambda=0.0)
    np.testing.assert_array_equal(advantage, [1.0, 2.0, 5.0])


def test_termination_zeroes_the_bootstrap_and_cuts_the_trace():
    # The second δ is 2 - 2 = 0, and the last step's advantage of 4 does not reach it.
    np.testing.assert_array_equal(estimate(terminated=SECOND), [1.0, 0.0, 4.0])


def test_truncation_bootstraps_and_cuts_the_trace():
    np.testing.assert_array_equal(estimate(truncated=SECOND), [1.5, 2.0, 4.0])


def test_termination_takes_precedence_over_truncation():
    np.testing.assert_array_equal(estimate(terminated=SECOND, truncated=SECOND), [1.0, 0.0, 4.0])


@pytest.mark.parametrize("unused", [1e6, np.inf, np.nan])
def test_the_value_after_a_termination_is_never_used(unused):
    advantage = estimate(terminated=SECOND, next_value=[2.0, unused, 8.0])
    np.testing.assert_array_equal(advantage, [1.0, 0.0, 4.0])


def test_each_environment_and_actor_has_its_own_trace():
    terminated = np.stack([NEVER, SECOND, NEVER, SECOND], axis=1).reshape(3, 2, 2)
    truncated = np.stack([NEVER, NEVER, SECOND, SECOND], axis=1).reshape(3, 2, 2)
    numbers = (
        np.broadcast_to(leaf[:, None, None], (3, 2, 2)) for leaf in (REWARD, VALUE, NEXT_VALUE)
    )
    advantage = estimate(*numbers, terminated, truncated)
    np.testing.assert_array_equal(
        np.reshape(advantage, (3, 4)).T,
        [[1.75, 3.0, 4.0], [1.0, 0.0, 4.0], [1.5, 2.0, 4.0], [1.0, 0.0, 4.0]],
    )


def sum_until_the_end(reward, value, next_value, terminated, truncated, discount, gae_lambda):
    """Add up Σ (γλ)^k δ over the steps up to and with the next end, in float64."""
    n_steps = len(reward)
    advantage = np.zeros(n_steps)
    for start in range(n_steps):
        for step in range(start, n_steps):
            bootstrap = 0.0 if terminated[step] else discount * next_value[step]
            delta = reward[step] + bootstrap - value[step]
            advantage[start] += (discount * gae_lambda) ** (step - start) * delta
            if terminated[step] or truncated[step]:
                break
    return advantage


integers = st_numpy.arrays(np.float32, 8, elements=st.integers(-5, 5))
ends = st_numpy.arrays(np.bool_, 8)
fractions = st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0])


@given(integers, integers, integers, ends, ends, fractions, fractions)
@settings(deadline=None, max_examples=40, derandomize=True)
def test_advantages_are_discounted_sums_of_errors_up_to_the_next_end_of_any_pattern(
    reward, value, next_value, terminated, truncated, discount, gae_lambda
):
    step = reward, value, next_value, terminated, truncated, discount, gae_lambda
    np.testing.assert_allclose(estimate(*step), sum_until_the_end(*step), rtol=1e-5, atol=1e-4)


def test_nan_after_an_end_does_not_reach_earlier_steps():
    advantages = generalized_advantages(
        reward=jnp.array([1.0, jnp.nan]),
        value=jnp.zeros(2),
        next_value=jnp.zeros(2),
        terminated=jnp.array([True, False]),
        truncated=jnp.array([False, False]),
        discount=0.9,
        gae_lambda=0.9,
    )
    np.testing.assert_allclose(advantages[0], 1.0)
