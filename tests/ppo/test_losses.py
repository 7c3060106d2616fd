"""The losses and their gradients, by hand."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ppo.losses import (
    LARGEST_LOG_RATIO,
    actor_loss,
    critic_loss,
    huber_error,
    kl_divergence,
    probability_ratio,
    squared_error,
)


@jax.jit
def actor(log_ratio, advantage, entropy, weight, eps_clip, ent_coeff, old_log_prob):
    """Compute ((loss, statistics), gradients) by the log ratio and the entropy."""

    def loss(log_ratio, entropy):
        return actor_loss(
            log_prob=old_log_prob + log_ratio,
            old_log_prob=old_log_prob,
            advantage=advantage,
            entropy=entropy,
            weight=weight,
            eps_clip=eps_clip,
            ent_coeff=ent_coeff,
        )

    return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(log_ratio, entropy)


critic = jax.jit(jax.value_and_grad(critic_loss))


class Loss(NamedTuple):
    loss: Any
    stats: Any
    by_log_prob: Any  # the gradient: dρ / d log π = ρ
    by_entropy: Any


def loss_of(
    ratio, advantage, entropy=0.0, weight=1.0, eps_clip=0.2, ent_coeff=0.0, old_log_prob=0.0
):
    """Compute the actor loss from the samples' ratios of new to old probability."""
    samples = np.broadcast_arrays(np.log(ratio), advantage, entropy, weight)
    log_ratio, advantage, entropy, weight = (jnp.asarray(leaf, jnp.float32) for leaf in samples)
    old_log_prob = jnp.full_like(log_ratio, old_log_prob)
    (loss, stats), gradients = actor(
        log_ratio, advantage, entropy, weight, eps_clip, ent_coeff, old_log_prob
    )
    return Loss(loss, stats, *gradients)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.5, 2.0, -2.4, 0.0),  # raised enough: clipped at 1.2
        (1.1, 2.0, -2.2, -2.2),
        (0.5, 2.0, -1.0, -1.0),  # lowered by mistake: never clipped
        (1.5, -2.0, 3.0, 3.0),  # raised by mistake: never clipped
        (0.9, -2.0, 1.8, 1.8),
        (0.5, -2.0, 1.6, 0.0),  # lowered enough: clipped at 0.8
    ],
)
def test_the_surrogate_is_clipped_only_where_clipping_lowers_it(ratio, advantage, loss, gradient):
    computed = loss_of([ratio], [advantage])
    np.testing.assert_allclose(computed.loss, loss, rtol=1e-5)
    np.testing.assert_allclose(computed.by_log_prob, [gradient], rtol=1e-5)


def test_the_actor_loss_is_a_mean_over_samples():
    # -(2.4 + 1 - 3 - 1.6) / 4.
    computed = loss_of([1.5, 0.5, 1.5, 0.5], [2.0, 2.0, -2.0, -2.0])
    np.testing.assert_allclose(computed.loss, 0.3, rtol=1e-5)
    np.testing.assert_allclose(computed.by_log_prob, [0.0, -0.25, 0.75, 0.0], rtol=1e-5)


def test_the_behaviour_policy_has_ratio_one_and_zero_kl():
    computed = loss_of([1.0, 1.0], [3.0, -1.0], old_log_prob=-123.4)
    assert (computed.loss, computed.stats.kl, computed.stats.clip_fraction) == (-1.0, 0.0, 0.0)
    np.testing.assert_array_equal(computed.by_log_prob, [-1.5, 0.5])


@pytest.mark.parametrize(
    ("eps_clip", "loss", "gradient"), [(0.2, -2.4, 0.0), (0.4, -2.8, 0.0), (0.6, -3.0, -3.0)]
)
def test_eps_clip_changes_the_loss_and_its_gradient(eps_clip, loss, gradient):
    computed = loss_of([1.5], [2.0], eps_clip=eps_clip)
    np.testing.assert_allclose(computed.loss, loss, rtol=1e-5)
    np.testing.assert_allclose(computed.by_log_prob, [gradient], rtol=1e-5)


@pytest.mark.parametrize("ent_coeff", [0.0, 0.5, 2.0])
def test_the_entropy_bonus_lowers_the_loss_by_its_coefficient_times_the_mean(ent_coeff):
    computed = loss_of([1.0, 1.0], [4.0, 6.0], entropy=[1.0, 3.0], ent_coeff=ent_coeff)
    assert (computed.loss, computed.stats.entropy) == (-5.0 - 2.0 * ent_coeff, 2.0)
    np.testing.assert_array_equal(computed.by_entropy, [-ent_coeff / 2, -ent_coeff / 2])


def test_the_statistics_are_means_over_the_samples():
    # Of the ratios 2, 1/2, 0.81, 1 two are outside; the divergences of the first two add up to
    # (1 - log 2) + (-1/2 + log 2) = 1/2, that of 0.81 is -0.19 - log 0.81.
    loss, stats, *_ = loss_of([2.0, 0.5, 0.81, 1.0], 1.0, entropy=[1.0, 2.0, 3.0, 6.0])
    np.testing.assert_allclose(stats.kl, (0.31 - np.log(0.81)) / 4, rtol=1e-5)
    assert (stats.clip_fraction, stats.entropy, stats.actor_loss) == (0.5, 3.0, loss)


def test_the_kl_estimate_is_the_ratio_minus_one_minus_its_logarithm():
    log_two = np.log(2.0)
    divergence = kl_divergence(jnp.array([log_two, 0.0, -log_two], jnp.float32))
    np.testing.assert_allclose(divergence, [1 - log_two, 0.0, log_two - 0.5], rtol=1e-6)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_kl_estimate_is_never_negative_for_tiny_log_ratios(sign):
    log_ratio = jnp.asarray(sign * np.logspace(-12, -1, 20_001), jnp.float32)
    for divergence in (kl_divergence(log_ratio), jax.jit(kl_divergence)(log_ratio)):
        assert np.all(np.asarray(divergence) >= 0.0)


def test_the_kl_estimate_of_a_small_log_ratio_is_half_its_square():
    np.testing.assert_allclose(kl_divergence(jnp.array([1e-3, -1e-3])), 5e-7, rtol=2e-3)


@pytest.mark.parametrize("ratio", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("advantage", [-1e6, 0.0, 1e6])
def test_samples_of_weight_zero_contribute_nothing_to_the_actor(ratio, advantage):
    computed = loss_of(
        ratio=[1.1, ratio, ratio],
        advantage=[2.0, advantage, advantage],
        entropy=[2.0, 7.0, 9.0],
        weight=[1.0, 0.0, 0.0],
        ent_coeff=0.5,
    )
    np.testing.assert_allclose(computed.loss, -2.2 - 0.5 * 2.0, rtol=1e-5)
    np.testing.assert_allclose(computed.stats.kl, 0.1 - np.log(1.1), rtol=1e-4)
    assert (computed.stats.entropy, computed.stats.clip_fraction) == (2.0, 0.0)
    np.testing.assert_allclose(computed.by_log_prob, [-2.2, 0.0, 0.0], rtol=1e-5)
    np.testing.assert_array_equal(computed.by_entropy, [-0.5, 0.0, 0.0])


def test_the_critic_loss_is_the_mean_squared_error():
    # The errors are 1 and 3.
    loss, gradient = critic(jnp.array([1.0, 4.0]), jnp.array([0.0, 1.0]), jnp.ones(2), 1.0)
    assert loss == (1.0 + 9.0) / 2
    np.testing.assert_array_equal(gradient, [1.0, 3.0])


@pytest.mark.parametrize("vf_coeff", [0.0, 0.5, 2.0])
def test_vf_coeff_scales_the_critic_loss_and_its_gradient(vf_coeff):
    loss, gradient = critic(jnp.array([1.0, 4.0]), jnp.array([0.0, 1.0]), jnp.ones(2), vf_coeff)
    assert loss == 5.0 * vf_coeff
    np.testing.assert_array_equal(gradient, [vf_coeff, 3.0 * vf_coeff])


@pytest.mark.parametrize("target", [0.0, 1e6])
def test_samples_of_weight_zero_contribute_nothing_to_the_critic(target):
    targets, weight = jnp.array([0.0, target]), jnp.array([1.0, 0.0])
    loss, gradient = critic(jnp.array([1.0, 5.0]), targets, weight, 0.5)
    assert loss == 0.5
    np.testing.assert_array_equal(gradient, [1.0, 0.0])


def test_losses_without_any_weight_are_zero_with_zero_gradients():
    computed = loss_of([1.1, 0.5], [2.0, 2.0], entropy=1.0, weight=0.0, ent_coeff=0.5)
    assert (computed.loss, *computed.stats) == (0.0, 0.0, 0.0, 0.0, 0.0)
    np.testing.assert_array_equal(computed.by_log_prob, [0.0, 0.0])
    loss, gradient = critic(jnp.array([1.0, 2.0]), jnp.array([-1.0, -2.0]), jnp.zeros(2), 0.5)
    assert loss == 0.0
    np.testing.assert_array_equal(gradient, [0.0, 0.0])


def test_nan_in_samples_without_weight_does_not_reach_the_gradients():
    def both_losses(log_prob, value):
        policy, _ = actor_loss(
            log_prob=log_prob,
            old_log_prob=jnp.zeros(3),
            advantage=jnp.array([1.0, jnp.nan, jnp.inf]),
            entropy=jnp.array([1.0, jnp.nan, 1.0]),
            weight=jnp.array([1.0, 0.0, 0.0]),
            eps_clip=0.2,
            ent_coeff=0.1,
        )
        target = jnp.array([0.0, jnp.nan, jnp.inf])
        return policy + critic_loss(value, target, jnp.array([1.0, 0.0, 0.0]), 1.0)

    log_prob = jnp.array([0.0, 100.0, jnp.nan])
    gradients = jax.grad(both_losses, argnums=(0, 1))(log_prob, jnp.array([3.0, 0.0, 0.0]))
    np.testing.assert_allclose(gradients[0], [-1.0, 0.0, 0.0])
    np.testing.assert_allclose(gradients[1], [6.0, 0.0, 0.0])


def test_a_ratio_beyond_float32_is_clipped_like_any_other():
    def loss(log_prob):
        ones = jnp.ones(2)
        return actor_loss(log_prob, jnp.zeros(2), ones, ones, ones, 0.2, 0.0)[0]

    np.testing.assert_allclose(jax.grad(loss)(jnp.array([0.0, 100.0])), [-0.5, 0.0])


def test_a_probability_ratio_is_the_exponential_as_long_as_it_is_finite():
    log_ratio = jnp.array([np.log(2.0), 0.0, -np.inf, LARGEST_LOG_RATIO, 1e3, np.inf])
    largest = np.exp(np.float32(LARGEST_LOG_RATIO))
    expected = [2.0, 1.0, 0.0, largest, largest, largest]
    np.testing.assert_allclose(probability_ratio(log_ratio), expected, rtol=1e-5)


huber = jax.jit(jax.vmap(jax.value_and_grad(huber_error), in_axes=(0, None)))


def test_huber_is_the_square_up_to_delta_and_its_tangent_beyond():
    # The tangent of e² at 2 is 4 e - 4.
    cost, gradient = huber(jnp.array([0.0, 1.0, -1.5, 2.0, 3.0, -3.0, 10.0]), 2.0)
    np.testing.assert_array_equal(cost, [0.0, 1.0, 2.25, 4.0, 8.0, 8.0, 36.0])
    np.testing.assert_array_equal(gradient, [0.0, 2.0, -3.0, 4.0, 4.0, -4.0, 4.0])


@pytest.mark.parametrize("delta", [0.1, 1.0, 10.0])
def test_the_gradient_of_huber_is_that_of_the_square_up_to_twice_delta(delta):
    errors = jnp.linspace(-30.0, 30.0, 604)
    cost, gradient = huber(errors, delta)
    np.testing.assert_allclose(gradient, np.clip(2 * errors, -2 * delta, 2 * delta), rtol=1e-5)
    inside = np.abs(errors) <= delta
    np.testing.assert_allclose(cost[inside], np.square(errors[inside]), rtol=1e-6)
    assert np.all(cost[~inside] < np.square(errors[~inside]))


@pytest.mark.parametrize("delta", [1e30, np.inf])
def test_huber_with_delta_beyond_all_errors_is_the_square(delta):
    cost, gradient = huber(jnp.array([0.0, -3.0, 1e3]), delta)
    np.testing.assert_array_equal(cost, [0.0, 9.0, 1e6])
    np.testing.assert_array_equal(gradient, [0.0, -6.0, 2e3])


@jax.jit
def clipped_critic(value, value_target, old_value, weight, eps_clip):
    """Compute (loss, gradient); arguments are ``[samples]``."""

    def loss(value):
        return critic_loss(value, value_target, weight, 1.0, old_value=old_value, eps_clip=eps_clip)

    return jax.value_and_grad(loss)(value)


@pytest.mark.parametrize(
    ("value", "target", "loss", "gradient"),
    [
        (1.5, 4.0, 6.25, -5.0),  # near the old value of 1: the squared error of -2.5
        (0.5, -4.0, 20.25, 9.0),
        (3.0, 4.0, 4.0, 0.0),  # far towards its target: as if it had stopped at 2
        (-1.0, -4.0, 16.0, 0.0),  # as if it had stopped at 0
        (3.0, 2.0, 1.0, 2.0),  # beyond its target, at which it should have stopped
        (3.0, -1.0, 16.0, 8.0),  # far away from its target
        (-1.0, 4.0, 25.0, -10.0),
    ],
)
def test_values_gain_nothing_by_moving_farther_than_eps_clip(value, target, loss, gradient):
    actual = clipped_critic(*jnp.array([[value], [target], [1.0], [1.0]]), 1.0)
    np.testing.assert_array_equal(actual[0], loss)
    np.testing.assert_array_equal(actual[1], [gradient])


@pytest.mark.parametrize(("eps_clip", "gradient"), [(0.5, 0.0), (1.5, 0.0), (2.5, -2.0)])
def test_eps_clip_bounds_how_far_values_move(eps_clip, gradient):
    _, actual = clipped_critic(*jnp.array([[3.0], [4.0], [1.0], [1.0]]), eps_clip)
    np.testing.assert_array_equal(actual, [gradient])


def test_values_that_have_not_moved_are_not_clipped():
    value, target, weight = jnp.array([1.0, 4.0]), jnp.array([0.0, 1.0]), jnp.ones(2)
    clipped = clipped_critic(value, target, value, weight, 0.2)
    jax.tree.map(np.testing.assert_array_equal, clipped, critic(value, target, weight, 1.0))


@pytest.mark.parametrize("unused", [np.inf, np.nan])
def test_nan_in_clipped_values_of_weight_zero_reaches_neither_loss_nor_gradient(unused):
    for holder in range(3):  # the value, its target, the old value
        numbers = np.array([[1.5, 0.0], [4.0, 0.0], [1.0, 0.0]], np.float32)
        numbers[holder, 1] = unused
        loss, gradient = clipped_critic(*jnp.asarray(numbers), jnp.array([1.0, 0.0]), 1.0)
        assert loss == 6.25
        np.testing.assert_array_equal(gradient, [-5.0, 0.0])


def test_value_clipping_works_with_the_huber_loss():
    # Errors of 3 and, clipped to the old value + 1, of 2: 2 · 1 · 3 - 1 and 2 · 1 · 2 - 1.
    value, target, ones = jnp.array([5.0]), jnp.array([2.0]), jnp.ones(1)
    cost = partial(huber_error, delta=1.0)
    assert critic_loss(value, target, ones, 0.5, cost) == 0.5 * 5.0
    assert critic_loss(value, target, ones, 0.5, cost, old_value=3 * ones, eps_clip=1.0) == 2.5
    # Farther towards a target of 9, an error of 4 costs what the clipped one of 5 does.
    target = jnp.array([9.0])
    assert critic_loss(value, target, ones, 0.5, cost, old_value=3 * ones, eps_clip=1.0) == 4.5


def test_the_default_critic_loss_is_squared_and_unclipped():
    value, target, weight = jnp.array([1.0, 400.0]), jnp.array([0.0, 1.0]), jnp.ones(2)
    expected = critic_loss(value, target, weight, 0.5, squared_error, None, jnp.inf)
    assert critic_loss(value, target, weight, 0.5) == expected == 0.25 * (1.0 + 399.0**2)


def test_weights_of_the_kl_divergence_leave_the_loss_as_it_is():
    """Ratios 1/2 and 2, of weights 2 and 0: k3 of 1/2 is log 2 - 1/2, twice, in a mean of two."""
    log_ratio = jnp.log(jnp.array([0.5, 2.0]))
    others = {
        "old_log_prob": jnp.zeros(2),
        "advantage": jnp.array([1.0, -1.0]),
        "entropy": jnp.zeros(2),
        "weight": jnp.ones(2),
        "eps_clip": 0.2,
        "ent_coeff": 0.0,
    }
    loss, stats = actor_loss(log_ratio, **others, kl_weight=jnp.array([2.0, 0.0]))
    expected_loss, expected = actor_loss(log_ratio, **others)
    np.testing.assert_allclose(stats.kl, np.log(2) - 0.5, rtol=1e-6)
    np.testing.assert_allclose(expected.kl, 0.25, rtol=1e-6)  # (log 2 - 1/2 + 1 - log 2) / 2
    assert float(loss) == float(expected_loss)
    assert stats._replace(kl=expected.kl) == expected


def test_samples_without_weight_in_the_kl_divergence_may_have_any_ratio():
    """To a policy of long ago, for which k3 overflows."""
    _, stats = actor_loss(
        jnp.array([0.0, 0.0]),
        jnp.array([0.0, -200.0]),
        jnp.zeros(2),
        jnp.zeros(2),
        jnp.ones(2),
        eps_clip=0.2,
        ent_coeff=0.0,
        kl_weight=jnp.array([2.0, 0.0]),
    )
    assert float(stats.kl) == 0.0
