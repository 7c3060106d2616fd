"""From one policy's transitions to its batch: weights, targets, chunks and normalisation."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.hyperparameters import HyperParameters
from jaxagents.ppo import batches
from jaxagents.ppo.batches import Valuation, cut, normalize_targets, with_estimates
from jaxagents.ppo.normalization import (
    Normalizers,
    RewardScale,
    RunningStatistics,
    empty_statistics,
)
from jaxagents.ppo.statistics import explained_variance
from jaxagents.types import Observation, Transition
from tests.agents import chunked

make_batch = jax.jit(batches.make_batch, static_argnames=("config", "rewards_after_death"))

# With a discount of 1/2: δ = 1 + 2/2 - 1, 2 + 4/2 - 2, 4 + 8/2 - 4 = 1, 2, 4.
REWARD = np.array([1.0, 2.0, 4.0], np.float32)
VALUE = np.array([1.0, 2.0, 4.0], np.float32)
NEXT_VALUE = np.array([2.0, 4.0, 8.0], np.float32)


def transition(reward, terminated=False, truncated=False, active=True, episode_over=False):
    """Make transitions of rewards ``[time, envs, actors]``; number observations and actions."""
    reward = np.asarray(reward, np.float32)
    marks = np.arange(reward.size, dtype=np.float32).reshape(reward.shape)
    flags = (
        np.broadcast_to(flag, reward.shape)
        for flag in (terminated, truncated, active, episode_over)
    )
    terminated, truncated, active, episode_over = flags
    step = Transition(
        observation=Observation(features=marks[..., None]),
        memory={"actor": 1000 + marks[..., None]},
        action=marks.astype(np.int32),
        log_prob=-marks,
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        active=active,
        begins=episode_over,
        final_observation=Observation(features=-marks[..., None]),
    )
    return jax.tree.map(jnp.asarray, step)


def valuation_of(step, value=0.0, next_value=0.0):
    """Give the critic 100 more than the actor's features, and a recurrent state of 2000 more."""
    features = step.observation.features
    return Valuation(
        features=100 + features,
        memory={"critic": 2000 + features},
        value=jnp.asarray(np.broadcast_to(value, step.reward.shape), jnp.float32),
        next_value=jnp.asarray(np.broadcast_to(next_value, step.reward.shape), jnp.float32),
    )


NOT_NORMALIZED = Normalizers()


def learn_from(
    step,
    value=0.0,
    next_value=0.0,
    membership=None,
    rewards_after_death=False,
    normalizers=NOT_NORMALIZED,
    chunk_length=None,
    **hyperparams,
):
    """Return the batch and the normalizers."""
    n_actors = step.reward.shape[2]
    membership = np.ones(n_actors) if membership is None else membership
    return make_batch(
        step,
        valuation_of(step, value, next_value),
        normalizers,
        jnp.asarray(membership, jnp.float32),
        HyperParameters(**hyperparams),
        config=chunked(
            len(step.reward),
            chunk_length or len(step.reward),
            centralized_critic=normalizers.critic_features is not None,
        ),
        rewards_after_death=rewards_after_death,
    )


def batch_of(step, *args, **kwargs):
    """Return the batch and the explained variance of its values."""
    batch, normalizers = learn_from(step, *args, **kwargs)
    assert normalizers == NOT_NORMALIZED
    return batch, explained_variance(batch.trajectory.value, batch.value_target, batch.value_weight)


def one_env_one_actor(values):
    return np.asarray(values)[:, None, None]


def test_value_targets_are_the_unnormalised_advantages_plus_the_values():
    batch, _ = batch_of(
        transition(one_env_one_actor(REWARD)),
        one_env_one_actor(VALUE),
        one_env_one_actor(NEXT_VALUE),
        gamma=0.5,
        gae_lambda=0.5,
    )
    np.testing.assert_array_equal(batch.value_target[:, 0, 0], [2.75, 5.0, 8.0])


def test_value_targets_distinguish_termination_from_truncation():
    step = transition([[[1.0, 1.0, 1.0]]], [False, True, False], [False, False, True])
    batch, _ = batch_of(step, next_value=4.0, gamma=0.5)
    np.testing.assert_array_equal(batch.value_target[0, 0], [3.0, 1.0, 3.0])


def test_a_policys_advantages_are_normalised_over_all_its_samples():
    # Of 1, 3, 1, 3 the mean is 2 and the standard deviation 1.
    batch, _ = batch_of(transition([[[1.0, 3.0]], [[1.0, 3.0]]]), gamma=0.0)
    np.testing.assert_allclose(batch.advantage, [[[-1.0, 1.0]], [[-1.0, 1.0]]], rtol=1e-6)


def test_waiting_actors_act_for_nothing_and_their_critic_learns_as_ever():
    # Of 1 and 3, the actor's own turns, the mean is 2 and the standard deviation 1.
    step = transition(one_env_one_actor([1.0, 7.0, 3.0, 7.0]))
    has_turn = jnp.asarray(one_env_one_actor([True, False, True, False]))
    step = step._replace(observation=step.observation._replace(has_turn=has_turn))
    batch, _ = batch_of(step, gamma=0.0)
    np.testing.assert_array_equal(batch.weight[:, 0, 0], [1, 0, 1, 0])
    np.testing.assert_allclose(batch.advantage[:, 0, 0], [-1, 0, 1, 0], rtol=1e-6)
    np.testing.assert_array_equal(batch.value_weight[:, 0, 0], 1)
    np.testing.assert_array_equal(batch.value_target[:, 0, 0], [1, 7, 3, 7])
    # Recurrent networks see all steps again.
    np.testing.assert_array_equal(batch.observation.features[:, 0, 0, 0], [0, 1, 2, 3])


def test_each_policy_normalises_its_own_advantages_by_its_own_hyperparameters():
    reward = np.array([[1.0, 3.0], [10.0, 10.0]])[:, :, None, None]
    steps = transition(reward)  # [policies, time, envs, actors]
    hyperparams = HyperParameters(gamma=jnp.array([0.0, 0.5]), gae_lambda=jnp.ones(2))
    hyperparams = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (2,)), hyperparams)
    batch, _ = jax.vmap(partial(make_batch, config=chunked(2, 2)))(
        steps, valuation_of(steps), NOT_NORMALIZED, jnp.ones((2, 1)), hyperparams
    )
    np.testing.assert_array_equal(batch.value_target[:, :, 0, 0], [[1.0, 3.0], [15.0, 10.0]])
    np.testing.assert_allclose(batch.advantage[:, :, 0, 0], [[-1.0, 1.0], [1.0, -1.0]], rtol=1e-6)


def test_inactive_actors_and_padding_have_zero_weight_in_the_normalisation():
    step = transition([[[1.0, 3.0, 900.0, 70.0]]], active=[True, True, False, True])
    batch, _ = batch_of(step, membership=[1.0, 1.0, 1.0, 0.0], gamma=0.0)
    np.testing.assert_array_equal(batch.weight, [[[1.0, 1.0, 0.0, 0.0]]])
    np.testing.assert_allclose(batch.advantage, [[[-1.0, 1.0, 0.0, 0.0]]], rtol=1e-6)


@pytest.mark.parametrize("mean", [0.0, -7.0])
def test_advantages_that_are_small_beside_the_rewards_scale_the_loss_down(mean):
    # The rewards' standard deviation is 3, wherever their mean is; the advantages are ±0.01.
    reward = one_env_one_actor([mean + 3.0, mean - 3.0])
    error = one_env_one_actor([0.01, -0.01])
    batch, _ = batch_of(transition(reward), value=reward - error, gamma=0.0)
    np.testing.assert_allclose(batch.advantage[:, 0, 0], [1.0, -1.0], rtol=1e-3)
    np.testing.assert_allclose(batch.loss_scale, 0.01 / 3, rtol=1e-3)


def test_advantages_are_compared_with_rewards_as_they_are_scaled():
    # Divided by 4 as the advantages are: a standard deviation of 3 / 4 beside theirs of 0.01 / 4.
    reward = one_env_one_actor([3.0, -3.0])
    statistics = RunningStatistics(jnp.array(1e9), jnp.array(0.0), jnp.array(16.0))
    scale = RewardScale(statistics, jnp.zeros((1, 1)))
    value = (reward - one_env_one_actor([0.01, -0.01])) / 4
    batch, _ = learn_from(
        transition(reward), value=value, gamma=0.0, normalizers=Normalizers(reward=scale)
    )
    np.testing.assert_allclose(batch.loss_scale, 0.01 / 3, rtol=1e-2)


def test_rewards_of_dead_actors_do_not_scale_the_loss_down():
    step = transition([[[1.0, 3.0, 900.0]]], active=[True, True, False])
    batch, _ = batch_of(step, gamma=0.0)
    np.testing.assert_allclose(batch.advantage, [[[-1.0, 1.0, 0.0]]], rtol=1e-6)
    np.testing.assert_array_equal(batch.loss_scale, 1.0)


@pytest.mark.parametrize("steps_that_say_dead", [[1], [1, 2, 3]])
def test_rewards_of_a_dead_actor_change_nothing_for_active_samples(steps_that_say_dead):
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
def test_dead_actors_have_weight_in_the_critic_loss_only_if_rewards_go_on(
    rewards_after_death, value_weight
):
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
def test_explained_variance_counts_the_samples_of_the_critic_loss(rewards_after_death, explained):
    # The active samples have targets 0, 4 and no errors. With the dead, the errors 0, 0, 1, -1 have
    # variance 1/2, and the targets 0, 4, 2, 2 variance 2.
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
def test_explained_variance_of_a_batch_by_hand(value, explained):
    # The targets 1, 3 have variance 1; the errors 0, 0; 1, 3; -2, 2 and -1, 0 have 0, 1, 4, 1/4.
    step = transition(one_env_one_actor([1.0, 3.0]))
    _, share = batch_of(step, one_env_one_actor(value), gamma=0.0)
    np.testing.assert_allclose(share, explained, atol=1e-6)


def test_observations_and_actions_are_passed_on_unchanged():
    step = transition([[[1.0, 3.0]], [[2.0, 4.0]]])
    batch, _ = batch_of(step)
    np.testing.assert_array_equal(batch.observation.features, step.observation.features)
    np.testing.assert_array_equal(batch.critic_features, 100 + step.observation.features)
    np.testing.assert_array_equal(batch.action, step.action)
    np.testing.assert_array_equal(batch.log_prob, step.log_prob)


# Four steps of two environments and one actor, in chunks of two: first the environments' first
# chunks, then their second ones.
IN_CHUNKS = np.array([[0, 1, 4, 5], [2, 3, 6, 7]])


def four_steps(**flags):
    return transition(np.random.default_rng(0).normal(size=(4, 2, 1)), **flags)


def test_trajectories_are_cut_into_chunks_that_keep_their_order_in_time():
    step = four_steps()
    batch, _ = learn_from(step, chunk_length=2)
    np.testing.assert_array_equal(batch.action[..., 0], IN_CHUNKS)
    np.testing.assert_array_equal(batch.log_prob[..., 0], -IN_CHUNKS)
    np.testing.assert_array_equal(batch.observation.features[..., 0, 0], IN_CHUNKS)
    np.testing.assert_array_equal(batch.critic_features[..., 0, 0], 100 + IN_CHUNKS)
    np.testing.assert_array_equal(batch.trajectory.reward, cut(step.reward, 2))


@pytest.mark.parametrize("chunk_length", [1, 2, 4])
def test_chunks_have_the_estimates_of_whole_trajectories(chunk_length):
    truncated = np.zeros((4, 2, 1), bool)
    truncated[1, 0] = True
    value, next_value = np.random.default_rng(1).normal(size=(2, 4, 2, 1))
    step = four_steps(truncated=truncated, episode_over=truncated)
    whole, _ = learn_from(step, value, next_value)
    chunks, _ = learn_from(step, value, next_value, chunk_length=chunk_length)
    for field in ("advantage", "value_target", "value", "weight", "value_weight", "begins"):
        expected = cut(getattr(whole, field), chunk_length)
        np.testing.assert_allclose(getattr(chunks, field), expected, rtol=1e-6, err_msg=field)


def test_an_episode_begins_after_the_end_of_another_but_not_at_the_start_of_the_rollout():
    over = np.zeros((4, 2, 1), bool)
    over[[1, 3, 2], [0, 0, 1]] = True  # after the last step, the next rollout begins
    batch, _ = learn_from(four_steps(episode_over=over), chunk_length=2)
    begins = np.zeros(8, bool)
    begins[[4, 7]] = True  # the third step of the first environment, the fourth of the second
    np.testing.assert_array_equal(batch.begins[..., 0], begins[IN_CHUNKS])


def test_every_chunk_begins_with_the_recurrent_state_of_the_rollout():
    batch, _ = learn_from(four_steps(), chunk_length=2)
    np.testing.assert_array_equal(batch.memory.actor["actor"][..., 0, 0], [1000 + IN_CHUNKS[0]])
    np.testing.assert_array_equal(batch.memory.critic["critic"][..., 0, 0], [2000 + IN_CHUNKS[0]])


@pytest.mark.parametrize("rewards_after_death", [False, True])
def test_samples_with_zero_weight_reach_the_networks_as_zeros(rewards_after_death):
    """The second actor is dead, but its critic may still learn; the third is padding."""
    unknown = jnp.array([0.0, jnp.nan, jnp.nan])
    step = transition([[[1.0, 3.0, 9.0]]], active=[True, False, True])
    step = jax.tree.map(
        lambda leaf: (
            leaf + (unknown if leaf.ndim == 3 else unknown[:, None])
            if leaf.dtype == jnp.float32
            else leaf
        ),
        step,
    )
    batch, _ = learn_from(step, membership=[1.0, 1.0, 0.0], rewards_after_death=rewards_after_death)
    of_actor = batch.observation.features, batch.memory.actor["actor"], batch.action[..., None]
    np.testing.assert_array_equal([leaf[0, 0, 1:, 0] for leaf in of_actor], np.zeros((3, 2)))
    second = jnp.nan if rewards_after_death else 0.0
    for leaf in (batch.critic_features, batch.memory.critic["critic"]):
        np.testing.assert_array_equal(leaf[0, 0, 1:, 0], [second, 0.0])


def statistics(mean, std, weight=1.0):
    numbers = (weight, mean, np.square(std))
    return RunningStatistics(*(jnp.asarray(number, jnp.float32) for number in numbers))


def test_observations_are_normalised_by_the_statistics_of_earlier_rollouts():
    # The actor sees 0 and 1, of the mean 1/2 and the standard deviation 1/2, the critic 100 more.
    step = transition([[[5.0, 7.0]]])
    normalizers = Normalizers(observation=statistics([3.0], [2.0]))
    batch, updated = learn_from(step, normalizers=normalizers)
    np.testing.assert_allclose(batch.observation.features[0, 0, :, 0], [-1.5, -1.0])
    # A critic with other features than the actor's would have its own statistics.
    np.testing.assert_allclose(batch.critic_features[0, 0, :, 0], [10.0, 10.0])
    # Of the old one sample and the two new ones the mean is (3 + 0 + 1) / 3, and the variance
    # (4 + 0 + 1/2) / 3 within, and (1/3)(2/3)(5/2)² between them.
    assert updated.observation.weight == 3.0
    np.testing.assert_allclose(updated.observation.mean, [4 / 3], rtol=1e-6)
    np.testing.assert_allclose(updated.observation.variance, [1.5 + 12.5 / 9], rtol=1e-6)


def test_a_critic_with_its_own_features_has_its_own_statistics():
    normalizers = Normalizers(
        observation=statistics([3.0], [2.0]), critic_features=statistics([103.0], [4.0])
    )
    batch, updated = learn_from(transition([[[5.0, 7.0]]]), normalizers=normalizers)
    np.testing.assert_allclose(batch.observation.features[0, 0, :, 0], [-1.5, -1.0])
    np.testing.assert_allclose(batch.critic_features[0, 0, :, 0], [-0.75, -0.5])
    np.testing.assert_allclose(updated.observation.mean, [4 / 3], rtol=1e-6)
    np.testing.assert_allclose(updated.critic_features.mean, [304 / 3], rtol=1e-6)


def test_statistics_are_of_the_samples_that_each_network_learns_from():
    """The first actor sees 0, the second, which is dead, 1, the third, which is padding, 2."""
    step = transition([[[5.0, 7.0, 9.0]]], active=[True, False, True])
    nothing = Normalizers(
        observation=empty_statistics((1,)), critic_features=empty_statistics((1,))
    )
    for rewards_after_death, mean in ((False, 100.0), (True, 100.5)):
        _, updated = learn_from(
            step,
            membership=[1.0, 1.0, 0.0],
            rewards_after_death=rewards_after_death,
            normalizers=nothing,
        )
        np.testing.assert_array_equal(updated.observation.mean, [0.0])
        np.testing.assert_allclose(updated.critic_features.mean, [mean])


def test_value_targets_are_in_units_of_reward_if_the_critic_is_normalised():
    # The critic's outputs for the values 1, 2, 4 and next values 2, 4, 8 are (v - 10) / 2.
    normalizers = Normalizers(value=statistics(10.0, 2.0))
    own_value, own_next_value = (one_env_one_actor(v - 10) / 2 for v in (VALUE, NEXT_VALUE))
    batch, updated = learn_from(
        transition(one_env_one_actor(REWARD)),
        own_value,
        own_next_value,
        normalizers=normalizers,
        gamma=0.5,
        gae_lambda=0.5,
    )
    np.testing.assert_allclose(batch.trajectory.value[:, 0, 0], VALUE)
    np.testing.assert_allclose(batch.trajectory.next_value[:, 0, 0], NEXT_VALUE)
    np.testing.assert_allclose(batch.value_target[:, 0, 0], [2.75, 5.0, 8.0])
    np.testing.assert_allclose(batch.value, own_value)
    assert updated.value == normalizers.value  # until the targets are known


def test_scaled_rewards_are_divided_by_the_deviation_of_their_discounted_sums():
    """Without a discount each sum is a reward: 1 and 3, of standard deviation 1, or 2 and 6."""
    nothing = Normalizers(reward=RewardScale(empty_statistics(()), jnp.zeros((1, 1))))
    for factor in (1.0, 2.0):
        step = transition(factor * np.array([[[1.0]], [[3.0]]]))
        batch, updated = learn_from(step, normalizers=nothing, gamma=0.0)
        np.testing.assert_allclose(batch.trajectory.reward[:, 0, 0], [1.0, 3.0])
        np.testing.assert_allclose(batch.value_target[:, 0, 0], [1.0, 3.0])
        np.testing.assert_allclose(updated.reward.statistics.mean, 2.0 * factor)
        np.testing.assert_allclose(updated.reward.discounted_return, [[3.0 * factor]])


def estimates_of(log_ratio, chunk_length=3, active=True, **hyperparams):
    """Reestimate the trajectory with δ = 1, 2, 4, discount 1/2 and λ = 1/2."""
    hyperparams = {"gamma": 0.5, "gae_lambda": 0.5, **hyperparams}
    step = transition(one_env_one_actor(REWARD), active=active)
    values = one_env_one_actor(VALUE), one_env_one_actor(NEXT_VALUE)
    batch, _ = learn_from(step, *values, chunk_length=chunk_length, **hyperparams)
    log_ratio = jnp.broadcast_to(jnp.asarray(log_ratio, jnp.float32), (3,))[:, None, None]
    log_ratio, config = cut(log_ratio, chunk_length), chunked(3, chunk_length)
    estimated = with_estimates(batch, HyperParameters(**hyperparams), config, log_ratio=log_ratio)
    return batch, estimated


@pytest.mark.parametrize("chunk_length", [1, 3])
def test_estimates_of_a_policy_that_has_not_moved_equal_gae(chunk_length):
    batch, estimated = estimates_of(0.0, chunk_length)
    np.testing.assert_allclose(estimated.advantage, batch.advantage, rtol=1e-5)
    np.testing.assert_allclose(estimated.value_target, batch.value_target, rtol=1e-6)


@pytest.mark.parametrize("chunk_length", [1, 3])
def test_estimates_of_a_policy_that_has_moved_follow_vtrace_over_whole_trajectories(chunk_length):
    # At ratio 1/2 each step's own error halves, and later ones decay by 1/8 instead of 1/4. From
    # the last step back: 2, 1 + 2/8, 1/2 + 1.25/8.
    _, estimated = estimates_of(np.log(0.5), chunk_length)
    np.testing.assert_allclose(estimated.value_target.ravel(), [1.65625, 3.25, 6.0], rtol=1e-6)
    # Without the actor's own ratio, which PPO's loss supplies: 1 + 1.25/4, 2 + 2/4, 4.
    advantage = np.array([1.3125, 2.5, 4.0])
    standardized = (advantage - advantage.mean()) / advantage.std()
    np.testing.assert_allclose(estimated.advantage.ravel(), standardized, rtol=1e-5)
    np.testing.assert_allclose(estimated.loss_scale, advantage.std() / REWARD.std(), rtol=1e-5)


def test_ratios_above_one_count_up_to_the_clips_of_vtrace():
    _, unclipped = estimates_of(np.log(2.0), rho_clip=2.0, c_clip=2.0)
    # 2 · 4, 2 · 2 + 8/2, 2 · 1 + 8/2.
    np.testing.assert_allclose(unclipped.value_target.ravel(), [7.0, 10.0, 12.0], rtol=1e-6)
    batch, clipped = estimates_of(np.log(2.0))
    np.testing.assert_allclose(clipped.value_target, batch.value_target, rtol=1e-6)


@pytest.mark.parametrize("log_ratio", [-1.0, 1000.0, np.nan])
def test_actions_of_dead_actors_have_ratio_one(log_ratio):
    active = one_env_one_actor([True, True, False])
    _, estimated = estimates_of([0.0, 0.0, log_ratio], active=active)
    _, expected = estimates_of(0.0, active=active)
    np.testing.assert_array_equal(estimated.value_target, expected.value_target)
    np.testing.assert_array_equal(estimated.advantage, expected.advantage)


def test_value_targets_are_normalised_by_statistics_that_include_them():
    batch, _ = batch_of(transition([[[1.0, 3.0, 900.0]]]), membership=[1.0, 1.0, 0.0], gamma=0.0)
    normalized, updated, rescale = normalize_targets(batch, empty_statistics(()))
    assert rescale == (1.0, 0.0)
    np.testing.assert_allclose(normalized.value_target[0, 0, :2], [-1.0, 1.0], rtol=1e-6)
    np.testing.assert_allclose((updated.mean, updated.variance), (2.0, 1.0), rtol=1e-6)
    # The same targets again: mean and variance stay, and earlier samples count 1% less.
    _, updated, _ = normalize_targets(batch, updated)
    np.testing.assert_allclose((updated.mean, updated.variance), (2.0, 1.0), rtol=1e-6)
    np.testing.assert_allclose(updated.weight, 2 * 0.99 + 2, rtol=1e-6)
