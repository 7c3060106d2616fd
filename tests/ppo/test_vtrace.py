"""V-trace: the formula by hand, and its estimates for a batch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from jaxagents.hyperparameters import HyperParameters
from jaxagents.ppo import advantages, batches
from jaxagents.ppo.batches import cut
from jaxagents.types import Batch, Memory, Observation, Trajectory
from tests.agents import chunked
from tests.ppo.test_advantages import (
    NEVER,
    NEXT_VALUE,
    REWARD,
    SECOND,
    VALUE,
    generalized_advantages,
)

vtrace = jax.jit(advantages.vtrace)


@functools.partial(jax.jit, static_argnames="n_chunks")
def with_estimates(batch, hyperparams, n_chunks, log_ratio=None):
    length = len(batch.weight)
    config = chunked(n_chunks * length, length)
    estimate = jax.jit(functools.partial(batches.with_estimates, config=config))
    return estimate(batch, hyperparams, log_ratio=log_ratio)


def estimate(
    reward=REWARD,
    value=VALUE,
    next_value=NEXT_VALUE,
    terminated=NEVER,
    truncated=NEVER,
    ratio=(1.0, 1.0, 1.0),
    discount=0.5,
    gae_lambda=1.0,
    rho_clip=1.0,
    c_clip=1.0,
):
    arrays = (reward, value, next_value, terminated, truncated, np.asarray(ratio, np.float32))
    return vtrace(*map(jnp.asarray, arrays), discount, gae_lambda, rho_clip, c_clip)


def test_two_steps_with_ratios_below_one():
    """δ = 1 + 4/2 - 2, 2 + 8/2 - 4 = 1, 2.

    v₁ = 4 + 2/4 = 4.5 and v₀ = 2 + 1/2 + 1/2 · 1/2 · (4.5 - 4) = 2.625; A₀ = 1 + 4.5/2 - 2.
    """
    estimates = estimate(
        reward=np.array([1.0, 2.0], np.float32),
        value=np.array([2.0, 4.0], np.float32),
        next_value=np.array([4.0, 8.0], np.float32),
        terminated=np.zeros(2, bool),
        truncated=np.zeros(2, bool),
        ratio=[0.5, 0.25],
    )
    np.testing.assert_array_equal(estimates.value_target, [2.625, 4.5])
    np.testing.assert_array_equal(estimates.advantage, [1.25, 2.0])


@pytest.mark.parametrize(
    ("gae_lambda", "value_target", "advantage"),
    [
        # v - V = 1/2 + 1/2 · 1/2 · 2.5, 2 + 1/2 · 1 · 1, 4/4, and A = δ + 1/2 (v - V) of the next.
        (1.0, [2.125, 4.5, 5.0], [2.25, 2.5, 4.0]),
        # The same with 1/4 for 1/2 before all that follows a step.
        (0.5, [1.78125, 4.25, 5.0], [1.5625, 2.25, 4.0]),
        # Only the step itself.
        (0.0, [1.5, 4.0, 5.0], [1.0, 2.0, 4.0]),
    ],
)
def test_three_steps_with_ratios_below_and_above_one(gae_lambda, value_target, advantage):
    estimates = estimate(ratio=[0.5, 2.0, 0.25], gae_lambda=gae_lambda)
    np.testing.assert_array_equal(estimates.value_target, value_target)
    np.testing.assert_array_equal(estimates.advantage, advantage)


@pytest.mark.parametrize(
    ("rho_clip", "c_clip", "excess"),
    [
        (1.0, 1.0, [1.75, 3.0, 4.0]),  # as GAE: 1 + 3/4, 2 + 4/4, 4
        (2.0, 1.0, [3.5, 6.0, 8.0]),  # all errors count double
        (1.0, 2.0, [3.0, 4.0, 4.0]),  # 1 + 4/2, 2 + 4/2, 4: what follows counts double
        (0.5, 1.0, [0.875, 1.5, 2.0]),
        (1.0, 0.5, [1.3125, 2.5, 4.0]),  # 1 + 2.5/8, 2 + 4/8, 4
        (8.0, 1.0, [7.0, 12.0, 16.0]),  # a clip above the ratio of 4 is none
        (1.0, 8.0, [7.0, 6.0, 4.0]),  # 1 + 6, 2 + 4, 4
        (np.inf, np.inf, [28.0, 24.0, 16.0]),  # 4 + 24, 8 + 16, 16
    ],
)
def test_rho_clip_bounds_the_weight_of_a_steps_own_error_and_c_clip_that_of_later_ones(
    rho_clip, c_clip, excess
):
    estimates = estimate(ratio=[4.0] * 3, gae_lambda=0.5, rho_clip=rho_clip, c_clip=c_clip)
    np.testing.assert_array_equal(estimates.value_target - VALUE, excess)
    # The advantage has no weight of its own: PPO's ratio supplies it.
    later = np.array([*excess[1:], 0.0])
    np.testing.assert_array_equal(estimates.advantage, [1.0, 2.0, 4.0] + later / 4)


def test_the_ratio_weights_the_whole_error_and_not_only_the_reward():
    # δ = -3: half of it leaves v = 1.5, where half of a reward of 0 would leave 0.
    estimates = estimate(
        reward=np.zeros(1, np.float32),
        value=np.full(1, 3.0, np.float32),
        next_value=np.zeros(1, np.float32),
        terminated=np.ones(1, bool),
        truncated=np.zeros(1, bool),
        ratio=[0.5],
    )
    np.testing.assert_array_equal(estimates.value_target, [1.5])
    np.testing.assert_array_equal(estimates.advantage, [-3.0])


def test_actions_of_probability_zero_leave_the_values_as_they_are():
    estimates = estimate(ratio=[0.0] * 3)
    np.testing.assert_array_equal(estimates.value_target, VALUE)
    np.testing.assert_array_equal(estimates.advantage, [1.0, 2.0, 4.0])


def test_the_last_step_bootstraps_from_the_value_after_it():
    # Not from the last stored one, which is 4: δ = 4 + 10/2 - 4 = 5.
    estimates = estimate(next_value=np.array([2.0, 4.0, 10.0], np.float32), gae_lambda=0.0)
    np.testing.assert_array_equal(estimates.value_target, [2.0, 4.0, 9.0])
    np.testing.assert_array_equal(estimates.advantage, [1.0, 2.0, 5.0])


def test_termination_zeroes_the_bootstrap_and_cuts_the_trace():
    # The second δ is 2 - 2 = 0, and the last step's error of 4 does not reach it.
    estimates = estimate(terminated=SECOND, ratio=[0.5] * 3)
    np.testing.assert_array_equal(estimates.value_target, [1.5, 2.0, 6.0])
    np.testing.assert_array_equal(estimates.advantage, [1.0, 0.0, 4.0])


def test_truncation_bootstraps_and_cuts_the_trace():
    # 1/2 + 1/2 · 1/2 · 1, 2/2, 4/2.
    estimates = estimate(truncated=SECOND, ratio=[0.5] * 3)
    np.testing.assert_array_equal(estimates.value_target, [1.75, 3.0, 6.0])
    np.testing.assert_array_equal(estimates.advantage, [1.5, 2.0, 4.0])


def test_termination_takes_precedence_over_truncation():
    both = estimate(terminated=SECOND, truncated=SECOND, ratio=[0.5] * 3)
    np.testing.assert_array_equal(both, estimate(terminated=SECOND, ratio=[0.5] * 3))


@pytest.mark.parametrize("unused", [1e6, np.inf, np.nan])
def test_the_value_after_a_termination_is_never_used(unused):
    next_value = np.array([2.0, unused, 8.0], np.float32)
    estimates = estimate(terminated=SECOND, next_value=next_value)
    np.testing.assert_array_equal(estimates, estimate(terminated=SECOND))


@pytest.mark.parametrize("ended", ["terminated", "truncated"])
def test_nan_after_an_end_does_not_reach_earlier_steps(ended):
    holding_nan = {
        "reward": np.array([1.0, 2.0, np.nan], np.float32),
        "value": np.array([1.0, 2.0, np.nan], np.float32),
        "ratio": [1.0, 1.0, np.nan],
    }
    estimates, expected = (
        np.asarray(estimate(**{ended: SECOND}, **numbers)) for numbers in (holding_nan, {})
    )
    np.testing.assert_array_equal(estimates[:, :2], expected[:, :2])


def test_each_environment_and_actor_has_its_own_trace():
    wide = {
        name: np.broadcast_to(leaf[:, None, None], (3, 2, 1))
        for name, leaf in (("reward", REWARD), ("value", VALUE), ("next_value", NEXT_VALUE))
    }
    ends = {
        "terminated": np.stack([NEVER, SECOND], axis=1)[..., None],
        "truncated": np.zeros((3, 2, 1), bool),
    }
    ratio = np.stack([[0.5, 2.0, 0.25], [0.5, 0.5, 0.5]], axis=1)[..., None]
    estimates = estimate(**wide, **ends, ratio=ratio)
    np.testing.assert_array_equal(estimates.value_target[:, 0, 0], [2.125, 4.5, 5.0])
    np.testing.assert_array_equal(estimates.value_target[:, 1, 0], [1.5, 2.0, 6.0])


N_STEPS = 8


def textbook(trajectory, ratio, discount, gae_lambda, rho_clip, c_clip):
    """Compute v backwards in float64, from V of the state after the last step."""
    v_after = trajectory.next_value[-1]
    v, advantage = np.zeros((2, len(trajectory.reward)))
    for t in reversed(range(len(trajectory.reward))):
        state, after = trajectory.value[t], trajectory.next_value[t]
        if trajectory.terminated[t]:
            v_after = after = 0.0
        elif trajectory.truncated[t]:
            v_after = after
        delta = trajectory.reward[t] + discount * after - state
        following = discount * gae_lambda * min(ratio[t], c_clip) * (v_after - after)
        v[t] = state + min(ratio[t], rho_clip) * delta + following
        mixed = gae_lambda * v_after + (1 - gae_lambda) * after
        advantage[t] = trajectory.reward[t] + discount * mixed - state
        v_after = v[t]
    return advantage, v


@st.composite
def paths(draw):
    """Draw a trajectory whose steps begin where the last one led, unless that ended an episode."""
    integers = st_numpy.arrays(np.float32, N_STEPS, elements=st.integers(-5, 5))
    terminated, truncated = draw(st_numpy.arrays(np.bool_, (2, N_STEPS)))
    value, final_value = draw(integers), draw(integers)
    next_value = np.append(value[1:], final_value[-1])
    return Trajectory(
        reward=draw(integers),
        value=value,
        next_value=np.where(terminated | truncated, final_value, next_value),
        terminated=terminated,
        truncated=truncated,
    )


ratios = st_numpy.arrays(
    np.float32, N_STEPS, elements=st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.5, 4.0])
)
fractions = st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0])
clips = st.sampled_from([0.5, 1.0, 2.0, 8.0])


@given(paths(), ratios, fractions, fractions, clips, clips)
@settings(deadline=None, max_examples=60, derandomize=True)
def test_vtrace_equals_the_textbook_for_any_pattern_of_ends_ratios_and_clips(
    trajectory, ratio, discount, gae_lambda, rho_clip, c_clip
):
    coefficients = (discount, gae_lambda, rho_clip, c_clip)
    advantage, value_target = textbook(trajectory, ratio, *coefficients)
    estimates = estimate(*trajectory, ratio, *coefficients)
    size = max(1.0, np.abs(value_target).max())
    np.testing.assert_allclose(estimates.value_target, value_target, atol=1e-5 * size)
    np.testing.assert_allclose(estimates.advantage, advantage, atol=1e-5 * size)


@given(paths(), fractions, fractions, st.sampled_from([1.0, 1.5, np.inf]))
@settings(deadline=None, max_examples=40, derandomize=True)
def test_on_policy_vtrace_equals_gae_for_every_lambda(trajectory, discount, gae_lambda, clip):
    estimates = estimate(*trajectory, np.ones(N_STEPS), discount, gae_lambda, clip, clip)
    advantage = generalized_advantages(*map(jnp.asarray, trajectory), discount, gae_lambda)
    np.testing.assert_allclose(estimates.advantage, advantage, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(
        estimates.value_target, advantage + trajectory.value, rtol=1e-5, atol=1e-4
    )


def test_off_policy_vtrace_differs_from_gae():
    # GAE: A = 1 + 4/2, 2 + 4/2, 4 and targets A + V, whatever the ratios.
    np.testing.assert_array_equal(estimate().advantage, [3.0, 4.0, 4.0])
    np.testing.assert_array_equal(estimate().value_target, [4.0, 6.0, 8.0])
    # v - V = 1/2 + 1.5/4, 2/2 + 2/4, 4/2.
    estimates = estimate(ratio=[0.5] * 3)
    np.testing.assert_array_equal(estimates.advantage, [1.75, 3.0, 4.0])
    np.testing.assert_array_equal(estimates.value_target, [1.875, 3.5, 6.0])


# Estimates for a batch [time, envs, actors].


def batch_of(trajectory, weight):
    """Make a batch of a trajectory ``[time, envs, actors]``; its other fields do not matter."""
    trajectory = jax.tree.map(jnp.asarray, trajectory)
    weight = jnp.asarray(weight, jnp.float32)
    zeros = jnp.zeros(weight.shape)
    return Batch(
        observation=Observation(features=zeros[..., None]),
        critic_features=zeros[..., None],
        actor=zeros.astype(int),
        begins=zeros.astype(bool),
        memory=Memory(),
        action=zeros.astype(int),
        log_prob=zeros,
        trajectory=trajectory,
        advantage=zeros,
        loss_scale=jnp.ones(()),
        value=trajectory.value,
        value_target=zeros,
        weight=weight,
        value_weight=jnp.ones(weight.shape),
    )


def one_actors_batch(reward, terminated, weight, value=0.0, next_value=0.0):
    numbers = (reward, value, next_value, terminated)
    numbers = (np.broadcast_to(each, len(reward)) for each in numbers)
    reward, value, next_value, terminated = (each[:, None, None] for each in numbers)
    trajectory = Trajectory(
        reward=reward.astype(np.float32),
        value=value.astype(np.float32),
        next_value=next_value.astype(np.float32),
        terminated=terminated,
        truncated=np.zeros_like(terminated),
    )
    return batch_of(trajectory, np.asarray(weight)[:, None, None])


def logarithms(*ratio):
    return jnp.log(jnp.asarray(ratio, jnp.float32))[:, None, None]


HALVED = HyperParameters(gamma=0.5, gae_lambda=1.0)
LAST = np.array([False, False, True])


def test_a_batch_is_estimated_from_its_log_ratios_and_hyperparameters():
    batch = one_actors_batch(REWARD, False, [1.0] * 3, VALUE, NEXT_VALUE)
    log_ratio = logarithms(4.0, 4.0, 4.0)
    for rho_clip, c_clip, excess in [(1.0, 2.0, [3.0, 4.0, 4.0]), (2.0, 1.0, [3.5, 6.0, 8.0])]:
        hyperparams = HyperParameters(gamma=0.5, gae_lambda=0.5, rho_clip=rho_clip, c_clip=c_clip)
        learnt = with_estimates(batch, hyperparams, 1, log_ratio)
        np.testing.assert_allclose(learnt.value_target[:, 0, 0], VALUE + excess, rtol=1e-6)
        advantage = np.array([1.0, 2.0, 4.0]) + np.array([*excess[1:], 0.0]) / 4
        standardized = (advantage - advantage.mean()) / advantage.std()
        np.testing.assert_allclose(learnt.advantage[:, 0, 0], standardized, rtol=1e-5)
        # The variance of the rewards 1, 2 and 4 is 14/9.
        scale = min(1.0, advantage.std() / np.sqrt(14 / 9))
        np.testing.assert_allclose(learnt.loss_scale, scale, rtol=1e-5)


def test_without_ratios_a_batch_is_estimated_by_gae():
    # With λ = 1 targets are returns, whatever the values: 1, 1 + 1/2, 1 + 1/2 + 1/4.
    batch = one_actors_batch([1.0, 1.0, 1.0], LAST, [1.0] * 3, VALUE, NEXT_VALUE)
    for clip in (0.1, 1.0):  # which GAE has nothing to do with
        hyperparams = HALVED.replace(rho_clip=clip, c_clip=clip)
        learnt = with_estimates(batch, hyperparams, 1)
        np.testing.assert_array_equal(learnt.value_target[:, 0, 0], [1.75, 1.5, 1.0])
        advantage = np.array([0.75, -0.5, -3.0])
        normalised = (advantage - advantage.mean()) / advantage.std()
        np.testing.assert_allclose(learnt.advantage[:, 0, 0], normalised, rtol=1e-5)


@pytest.mark.parametrize("unused", [0.0, 3.0, -np.inf, np.nan])
def test_actions_of_dead_actors_have_ratio_one(unused):
    """v of the steps of the dead is 1 + 1/2 and 1; the living adds 1/2 · 1 + 1/2 · 1/2 · 1.5."""
    batch = one_actors_batch([1.0, 1.0, 1.0], LAST, [1.0, 0.0, 0.0])
    log_ratio = logarithms(0.5, 1.0, 1.0).at[1:].set(unused)
    learnt = with_estimates(batch, HALVED, 1, log_ratio)
    np.testing.assert_allclose(learnt.value_target[:, 0, 0], [0.875, 1.5, 1.0], rtol=1e-6)


def test_estimated_advantages_are_normalised_over_active_samples():
    # Of 1 and 3 the mean is 2 and the standard deviation 1, whatever the dead actor earns.
    batch = one_actors_batch([1.0, 3.0, 900.0], True, [1.0, 1.0, 0.0])
    learnt = with_estimates(batch, HALVED, 1, logarithms(0.5, 2.0, 0.5))
    np.testing.assert_allclose(learnt.advantage[:, 0, 0], [-1.0, 1.0, 0.0], rtol=1e-6)
    np.testing.assert_allclose(learnt.value_target[:2, 0, 0], [0.5, 3.0], rtol=1e-6)


def test_a_ratio_beyond_float32_is_clipped_like_any_other():
    batch = one_actors_batch([1.0, 1.0, 1.0], LAST, [1.0] * 3)
    extreme = jnp.full((3, 1, 1), 1e4)
    learnt = with_estimates(batch, HALVED, 1, extreme)
    np.testing.assert_array_equal(learnt.value_target[:, 0, 0], [1.75, 1.5, 1.0])


@pytest.mark.parametrize("by_vtrace", [True, False])
def test_chunks_are_estimated_as_the_whole_trajectories_they_were_cut_from(by_vtrace):
    generator = np.random.default_rng(0)
    shape = (6, 2, 3)
    terminated, truncated = generator.random((2, *shape)) < 0.2
    numbers = generator.normal(size=(3, *shape)).astype(np.float32)
    batch = batch_of(Trajectory(*numbers, terminated, truncated), generator.random(shape) < 0.8)
    log_ratio = jnp.asarray(generator.normal(size=shape), jnp.float32) if by_vtrace else None
    hyperparams = HyperParameters(gae_lambda=0.9, rho_clip=1.5, c_clip=1.2)

    whole = with_estimates(batch, hyperparams, 1, log_ratio)
    for length in (1, 2, 3):
        chunks, log_ratio_of_chunks = cut((batch, log_ratio), length)
        learnt = with_estimates(chunks, hyperparams, 6 // length, log_ratio_of_chunks)
        assert learnt.advantage.shape == (length, 12 // length, 3)
        jax.tree.map(
            lambda leaf, expected: np.testing.assert_allclose(leaf, expected, atol=1e-6),
            learnt,
            cut(whole, length),
        )
