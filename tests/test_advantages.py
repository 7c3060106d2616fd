import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from jaxagents import advantages
from jaxagents.config import HyperParameters
from jaxagents.types import Observation, Transition

generalized_advantages = jax.jit(advantages.generalized_advantages)
make_batch = jax.jit(advantages.make_batch, static_argnames="rewards_after_death")

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


def transition(reward, terminated=False, truncated=False, active=True):
    """Make transitions of rewards ``[time, envs, actors]``, told apart by what is seen and done."""
    reward = np.asarray(reward, np.float32)
    marks = np.arange(reward.size, dtype=np.float32).reshape(reward.shape)
    flags = (np.broadcast_to(flag, reward.shape) for flag in (terminated, truncated, active))
    terminated, truncated, active = flags
    step = Transition(
        observation=Observation(features=marks[..., None]),
        action=marks.astype(np.int32),
        log_prob=-marks,
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        active=active,
        final_observation=Observation(features=-marks[..., None]),
    )
    return jax.tree.map(jnp.asarray, step)


def batch_of(
    step, value=0.0, next_value=0.0, membership=None, rewards_after_death=False, **hyperparams
):
    n_actors = step.reward.shape[2]
    membership = np.ones(n_actors) if membership is None else membership
    return make_batch(
        step,
        jnp.asarray(np.broadcast_to(value, step.reward.shape), jnp.float32),
        jnp.asarray(np.broadcast_to(next_value, step.reward.shape), jnp.float32),
        jnp.asarray(membership, jnp.float32),
        HyperParameters(**hyperparams),
        rewards_after_death=rewards_after_death,
    )


def one_env_one_actor(values):
    return np.asarray(values)[:, None, None]


def test_every_later_error_counts_less_by_discount_times_lambda():
    # A = δ + A' / 4, from the last step back.
    np.testing.assert_array_equal(estimate(), [1.75, 3.0, 4.0])


def test_lambda_zero_leaves_each_step_its_own_error():
    np.testing.assert_array_equal(estimate(gae_lambda=0.0), [1.0, 2.0, 4.0])


def test_lambda_one_gives_the_discounted_return_less_the_value():
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


def test_termination_decides_where_a_step_is_truncated_too():
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
def test_any_pattern_of_ends_gives_the_discounted_sum_of_errors_up_to_the_next_end(
    reward, value, next_value, terminated, truncated, discount, gae_lambda
):
    step = reward, value, next_value, terminated, truncated, discount, gae_lambda
    np.testing.assert_allclose(estimate(*step), sum_until_the_end(*step), rtol=1e-5, atol=1e-4)


def test_value_targets_are_the_unnormalised_advantages_plus_the_values():
    batch, _ = batch_of(
        transition(one_env_one_actor(REWARD)),
        one_env_one_actor(VALUE),
        one_env_one_actor(NEXT_VALUE),
        gamma=0.5,
        gae_lambda=0.5,
    )
    np.testing.assert_array_equal(batch.value_target[:, 0, 0], [2.75, 5.0, 8.0])


def test_the_value_targets_tell_termination_from_truncation():
    step = transition([[[1.0, 1.0, 1.0]]], [False, True, False], [False, False, True])
    batch, _ = batch_of(step, next_value=4.0, gamma=0.5)
    np.testing.assert_array_equal(batch.value_target[0, 0], [3.0, 1.0, 3.0])


def test_a_policys_advantages_are_normalised_over_all_its_samples():
    # Of 1, 3, 1, 3 the mean is 2 and the standard deviation 1.
    batch, _ = batch_of(transition([[[1.0, 3.0]], [[1.0, 3.0]]]), gamma=0.0)
    np.testing.assert_allclose(batch.advantage, [[[-1.0, 1.0]], [[-1.0, 1.0]]], rtol=1e-6)


def test_each_policy_is_normalised_on_its_own_and_uses_its_own_hyperparameters():
    reward = np.array([[1.0, 3.0], [10.0, 30.0]])[:, :, None, None]
    steps = transition(reward)  # [policies, time, envs, actors]
    zeros = jnp.zeros(reward.shape)
    hyperparams = HyperParameters(gamma=jnp.array([0.0, 0.5]), gae_lambda=jnp.ones(2))
    hyperparams = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (2,)), hyperparams)
    batch, _ = jax.vmap(make_batch)(steps, zeros, zeros, jnp.ones((2, 1)), hyperparams)
    np.testing.assert_array_equal(batch.value_target[:, :, 0, 0], [[1.0, 3.0], [25.0, 30.0]])
    np.testing.assert_allclose(batch.advantage[:, :, 0, 0], [[-1.0, 1.0], [-1.0, 1.0]], rtol=1e-6)


def test_inactive_actors_and_padding_weigh_nothing_in_the_normalisation():
    step = transition([[[1.0, 3.0, 900.0, 70.0]]], active=[True, True, False, True])
    batch, _ = batch_of(step, membership=[1.0, 1.0, 1.0, 0.0], gamma=0.0)
    np.testing.assert_array_equal(batch.weight, [[[1.0, 1.0, 0.0, 0.0]]])
    np.testing.assert_allclose(batch.advantage, [[[-1.0, 1.0, 0.0, 0.0]]], rtol=1e-6)


@pytest.mark.parametrize("steps_that_say_dead", [[1], [1, 2, 3]])
def test_what_a_dead_actor_earns_changes_nothing_for_the_living(steps_that_say_dead):
    # The first actor dies at the second step and is revived by the reset after the fourth.
    active = np.ones((5, 1, 2), bool)
    active[2:4, 0, 0] = False
    terminated, truncated = np.zeros((2, 5, 1, 2), bool)
    terminated[steps_that_say_dead, 0, 0] = True
    truncated[3, 0, 1] = True
    numbers = np.random.default_rng(0).normal(size=(3, 5, 1, 2))

    def learn(in_death):
        reward, value, next_value = np.where(active, numbers, in_death)
        return batch_of(transition(reward, terminated, truncated, active), value, next_value)

    (batch, explained), (other_batch, other_explained) = learn(0.0), learn(1e6)
    assert explained == other_explained
    for field in ("advantage", "value_target", "weight"):
        one, other = (np.asarray(getattr(each, field)) for each in (batch, other_batch))
        np.testing.assert_array_equal(one[active], other[active])


@pytest.mark.parametrize(
    ("rewards_after_death", "value_weight"),
    [(False, [1.0, 1.0, 0.0, 0.0, 0.0]), (True, [1.0, 1.0, 1.0, 0.0, 0.0])],
)
def test_the_dead_weigh_in_the_values_only_where_they_earn_on(rewards_after_death, value_weight):
    # The third actor is dead; the last two, one of them dead, pad the policy.
    step = transition([[[1.0, 3.0, 9.0, 5.0, 7.0]]], active=[True, True, False, True, False])
    batch, _ = batch_of(
        step,
        membership=[1.0, 1.0, 1.0, 0.0, 0.0],
        rewards_after_death=rewards_after_death,
        gamma=0.0,
    )
    np.testing.assert_array_equal(batch.weight, [[[1.0, 1.0, 0.0, 0.0, 0.0]]])
    np.testing.assert_array_equal(batch.value_weight, [[value_weight]])
    # Of 1 and 3 the mean is 2 and the standard deviation 1, whatever the dead earn.
    np.testing.assert_allclose(batch.advantage, [[[-1.0, 1.0, 0.0, 0.0, 0.0]]], rtol=1e-6)


@pytest.mark.parametrize(("rewards_after_death", "explained"), [(False, 1.0), (True, 0.75)])
def test_the_values_explain_the_targets_of_those_that_the_critic_learns_from(
    rewards_after_death, explained
):
    # The living have targets 0, 4 and no errors; with the dead, errors 0, 0, 1, -1 of variance 1/2
    # stand against targets 0, 4, 2, 2 of variance 2.
    step = transition([[[0.0, 4.0, 2.0, 2.0]]], active=[True, True, False, False])
    _, share = batch_of(
        step, [[[0.0, 4.0, 1.0, 3.0]]], rewards_after_death=rewards_after_death, gamma=0.0
    )
    np.testing.assert_allclose(share, explained, rtol=1e-6)


def test_a_single_active_sample_has_an_advantage_of_zero():
    batch, _ = batch_of(transition([[[5.0, 7.0]]], active=[True, False]), gamma=0.0)
    np.testing.assert_array_equal(batch.advantage, [[[0.0, 0.0]]])
    assert batch.value_target[0, 0, 0] == 5.0


def test_without_active_samples_nothing_is_nan():
    batch, explained = batch_of(transition([[[5.0, 7.0]]], active=False))
    np.testing.assert_array_equal(batch.advantage, [[[0.0, 0.0]]])
    np.testing.assert_array_equal(batch.weight, [[[0.0, 0.0]]])
    assert explained == 0.0


@pytest.mark.parametrize(
    ("value", "explained"),
    [([1.0, 3.0], 1.0), ([0.0, 0.0], 0.0), ([3.0, 1.0], -3.0), ([2.0, 3.0], 0.75)],
)
def test_the_values_explain_their_share_of_the_targets_variance(value, explained):
    # The targets 1, 3 have variance 1; the errors 0, 0; 1, 3; -2, 2 and -1, 0 have 0, 1, 4, 1/4.
    step = transition(one_env_one_actor([1.0, 3.0]))
    _, share = batch_of(step, one_env_one_actor(value), gamma=0.0)
    np.testing.assert_allclose(share, explained, atol=1e-6)


def test_what_was_seen_and_done_is_passed_on_unchanged():
    step = transition([[[1.0, 3.0]], [[2.0, 4.0]]])
    batch, _ = batch_of(step)
    np.testing.assert_array_equal(batch.observation.features, step.observation.features)
    np.testing.assert_array_equal(batch.action, step.action)
    np.testing.assert_array_equal(batch.log_prob, step.log_prob)


def test_what_follows_an_end_does_not_reach_back_even_as_nan():
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
