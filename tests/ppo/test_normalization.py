"""Running statistics and what they normalise, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.config import AgentConfig
from jaxagents.ppo import normalization
from jaxagents.ppo.normalization import (
    RewardScale,
    RunningStatistics,
    empty_statistics,
    init_normalizers,
)

update_statistics = jax.jit(normalization.update_statistics)
normalize = jax.jit(normalization.normalize)
normalize_features = jax.jit(normalization.normalize_features)
denormalize = jax.jit(normalization.denormalize)
scale_rewards = jax.jit(normalization.scale_rewards)
rescaling = jax.jit(normalization.rescaling)


def statistics_of(*pieces, weights=None, decay=1.0):
    """Update statistics by pieces ``[samples, *shape]``, one after the other."""
    statistics = empty_statistics(np.shape(pieces[0])[1:])
    for index, piece in enumerate(pieces):
        weight = np.ones(len(piece)) if weights is None else weights[index]
        statistics = update_statistics(
            statistics, jnp.asarray(piece), jnp.asarray(weight, jnp.float32), decay
        )
    return statistics


def known(mean, variance):
    mean, variance = (jnp.asarray(number, jnp.float32) for number in (mean, variance))
    return RunningStatistics(weight=jnp.float32(1.0), mean=mean, variance=variance)


def test_statistics_are_the_mean_and_the_variance_of_all_samples():
    # Of 1, 3, 5, 7 the mean is 4 and the variance (9 + 1 + 1 + 9) / 4.
    assert statistics_of([1.0, 3.0]) == (2.0, 2.0, 1.0)
    assert statistics_of([1.0, 3.0], [5.0, 7.0]) == (4.0, 4.0, 5.0)


@pytest.mark.parametrize("sizes", [(10,), (4, 6), (1, 7, 2), (1,) * 10], ids=str)
def test_statistics_do_not_depend_on_how_samples_are_cut_into_pieces(sizes):
    generator = np.random.default_rng(0)
    samples = generator.normal([3.0, -20.0], [1.0, 50.0], size=(10, 2)).astype(np.float32)
    statistics = statistics_of(*np.split(samples, np.cumsum(sizes)[:-1]))
    assert statistics.weight == 10.0
    np.testing.assert_allclose(statistics.mean, samples.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(statistics.variance, samples.var(axis=0), rtol=1e-5)


def test_the_axes_of_the_weights_are_those_of_the_samples():
    samples = np.random.default_rng(0).normal(size=(6, 4, 3, 5, 2)).astype(np.float32)
    statistics = update_statistics(empty_statistics((5, 2)), samples, jnp.ones((6, 4, 3)))
    assert statistics.weight == 72.0
    np.testing.assert_allclose(statistics.mean, samples.mean(axis=(0, 1, 2)), atol=1e-6)
    np.testing.assert_allclose(statistics.variance, samples.var(axis=(0, 1, 2)), rtol=1e-5)


def test_samples_count_by_their_weights():
    generator = np.random.default_rng(1)
    samples = generator.normal(5.0, 2.0, size=(40, 3)).astype(np.float32)
    weights = generator.choice([0.0, 0.5, 1.0, 2.0], size=40)
    statistics = statistics_of(
        *np.split(samples, 4), weights=[*np.split(weights.astype(np.float32), 4)]
    )
    mean = np.average(samples, axis=0, weights=weights)
    variance = np.average((samples - mean) ** 2, axis=0, weights=weights)
    np.testing.assert_allclose(statistics.weight, weights.sum(), rtol=1e-6)
    np.testing.assert_allclose(statistics.mean, mean, rtol=1e-5)
    np.testing.assert_allclose(statistics.variance, variance, rtol=1e-5)


@pytest.mark.parametrize("unused", [1e6, np.inf, np.nan])
def test_samples_of_weight_zero_may_hold_anything(unused):
    weights = [[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]
    statistics = statistics_of([1.0, unused, 3.0], [unused, 5.0, 7.0], weights=weights)
    assert statistics == (4.0, 4.0, 5.0)


def test_a_piece_without_any_weight_changes_nothing():
    statistics = statistics_of([1.0, 3.0], [np.nan, 9.0], weights=[[1.0, 1.0], [0.0, 0.0]])
    assert statistics == (2.0, 2.0, 1.0)
    nothing = statistics_of([np.nan, 9.0], weights=[[0.0, 0.0]])
    assert nothing == (0.0, 0.0, 0.0)


def test_with_decay_earlier_samples_count_less():
    """0 and 2 count half beside 4 and 6: (1 + 4 + 6) / 3, and of squares (2 + 16 + 36) / 3."""
    statistics = statistics_of([0.0, 2.0], [4.0, 6.0], decay=0.5)
    assert statistics.weight == 3.0
    np.testing.assert_allclose(statistics.mean, 11 / 3, rtol=1e-6)
    np.testing.assert_allclose(statistics.variance, 54 / 3 - (11 / 3) ** 2, rtol=1e-5)


@pytest.mark.parametrize("decay", [0.5, 0.99])
def test_with_decay_statistics_are_the_debiased_moving_average_of_the_pieces(decay):
    """As Adam's: m = d m + (1 - d) x, divided by 1 - dⁿ, of the samples and of their squares."""
    pieces = np.random.default_rng(2).normal(3.0, 2.0, size=(7, 20)).astype(np.float32)
    moments = np.zeros(2)
    for piece in pieces.astype(np.float64):
        moments = decay * moments + (1 - decay) * np.array([piece.mean(), (piece**2).mean()])
    mean, mean_square = moments / (1 - decay ** len(pieces))
    statistics = statistics_of(*pieces, decay=decay)
    np.testing.assert_allclose(statistics.mean, mean, rtol=1e-5)
    np.testing.assert_allclose(statistics.variance, mean_square - mean**2, rtol=1e-4)


def test_large_offsets_cost_no_accuracy():
    # As a difference of means of squares, the variance would drown in a rounding of 1e8 / 2²⁴.
    samples = np.random.default_rng(3).normal(1e4, 1.0, size=(20, 500, 2)).astype(np.float32)
    statistics = statistics_of(*samples)
    exact = samples.astype(np.float64)
    np.testing.assert_allclose(statistics.mean, exact.mean(axis=(0, 1)), atol=5e-3)
    np.testing.assert_allclose(statistics.variance, exact.var(axis=(0, 1)), rtol=1e-3)
    normalised = np.asarray(normalize(statistics, jnp.asarray(samples)))
    np.testing.assert_allclose(normalised.mean(axis=(0, 1)), 0.0, atol=5e-3)
    np.testing.assert_allclose(normalised.std(axis=(0, 1)), 1.0, rtol=1e-3)


@pytest.mark.parametrize("offset", [0.0, 2e5, 2e6, 4.5e6, 1.5e7])
def test_two_values_far_from_zero_are_normalised_to_plus_and_minus_1(offset):
    """Offset and offset + 4 are exact in float32, and so is their mean."""
    half = np.resize([0.0, 4.0], (4096, 1))
    samples = (offset + half).astype(np.float32)
    statistics = statistics_of(samples, samples, samples)
    np.testing.assert_allclose(statistics.mean, offset + 2)
    normalised = normalize_features(statistics, jnp.asarray(samples))
    np.testing.assert_allclose(normalised, half / 2 - 1, rtol=1e-5)


def test_the_jitter_of_one_rounding_step_is_normalised_to_zero():
    samples = np.resize([np.float32(0.3), np.nextafter(np.float32(0.3), 1)], (4096, 1))
    statistics = statistics_of(samples)
    np.testing.assert_array_equal(normalize_features(statistics, jnp.asarray(samples)), 0.0)


@pytest.mark.parametrize("constant", [0.0, 0.1, -7.7, 1e-6, 1e4 + 0.1, 1e8])
@pytest.mark.parametrize("share", [1.0, 0.7])
def test_constants_are_normalised_to_zero(constant, share):
    """The rounding of the mean of many equal numbers is not a deviation to divide by."""
    pieces = np.full((10, 6144, 2), constant, np.float32)
    weights = np.random.default_rng(4).random(pieces.shape[:2]) < share
    statistics = statistics_of(*pieces, weights=weights)
    np.testing.assert_array_equal(normalize(statistics, jnp.asarray(pieces[0])), 0.0)


def test_the_first_change_after_a_long_constant_stays_within_the_limit():
    always_0 = statistics_of(np.zeros((1000, 1)))
    np.testing.assert_array_equal(normalize_features(always_0, jnp.array([[1e6]])), [[0.0]])
    once_1 = statistics_of(np.zeros((1000, 1)), np.ones((1, 1)))
    # Of standard deviation 0.03: 31 deviations off.
    np.testing.assert_allclose(normalize(once_1, jnp.array([[1.0]])), [[31.6]], rtol=1e-2)
    np.testing.assert_array_equal(normalize_features(once_1, jnp.array([[1.0]])), [[10.0]])
    np.testing.assert_array_equal(normalize_features(once_1, jnp.array([[-1.0]])), [[-10.0]])


def test_normalised_values_count_standard_deviations_from_the_mean():
    statistics = known(mean=[4.0, -1.0], variance=[4.0, 0.25])
    normalised = normalize(statistics, jnp.array([[4.0, -1.0], [6.0, -2.0], [1.0, 0.0]]))
    np.testing.assert_array_equal(normalised, [[0.0, 0.0], [1.0, -2.0], [-1.5, 2.0]])


def test_a_limit_clips_at_both_ends():
    statistics = known(mean=4.0, variance=4.0)
    np.testing.assert_array_equal(normalize(statistics, jnp.array([14.0, -6.0])), [5.0, -5.0])
    np.testing.assert_array_equal(
        normalize(statistics, jnp.array([14.0, -6.0, 6.0]), 3.0), [3.0, -3.0, 1.0]
    )


def test_denormalising_undoes_normalising():
    values = jnp.array([-30.0, 0.0, 1e-3, 500.0])
    statistics = known(mean=17.0, variance=9.0)
    np.testing.assert_array_equal(
        denormalize(statistics, jnp.array([0.0, 1.0, -2.0])), [17, 20, 11]
    )
    there_and_back = denormalize(statistics, normalize(statistics, values))
    np.testing.assert_allclose(there_and_back, values, atol=1e-4)
    back_and_there = normalize(statistics, denormalize(statistics, values))
    np.testing.assert_allclose(back_and_there, values, atol=1e-4)


def test_without_a_sample_everything_is_zero():
    np.testing.assert_array_equal(normalize(empty_statistics((2,)), jnp.full((3, 2), 1e6)), 0.0)
    np.testing.assert_array_equal(denormalize(empty_statistics(()), jnp.full(3, 1e6)), 0.0)


def test_rescaled_values_keep_what_they_mean():
    """0.5 deviations of 4 above 10 are 12, and those are (12 - 20) / 2 deviations from 20."""
    before, after = known(10.0, 16.0), known(20.0, 4.0)
    rescale = rescaling(before, after)
    assert rescale == (2.0, -5.0)
    values = jnp.array([0.5, -1.0])
    np.testing.assert_array_equal(rescale(values), [-4.0, -7.0])
    np.testing.assert_array_equal(denormalize(after, rescale(values)), denormalize(before, values))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (empty_statistics(()), known(20.0, 4.0)),  # the first targets
        (known(10.0, 16.0), known(10.0, 0.0)),  # a constant from now on
        (known(5.0, 0.0), known(6.0, 4.0)),  # a constant until now
    ],
    ids=["the first", "constant now", "constant before"],
)
def test_statistics_without_a_deviation_rescale_nothing(before, after):
    assert rescaling(before, after) == (1.0, 0.0)


def test_constants_are_denormalised_to_themselves():
    # As for a critic whose targets have always been 5.
    statistics = statistics_of([5.0, 5.0, 5.0])
    np.testing.assert_array_equal(normalize(statistics, jnp.array([5.0])), [0.0])
    np.testing.assert_array_equal(denormalize(statistics, jnp.array([-3.0, 0.0])), [5.0, 5.0])


def test_features_without_statistics_stay_as_they_are():
    features = jnp.array([[200, 0]], jnp.uint8)
    assert normalize_features(None, features).dtype == jnp.uint8
    np.testing.assert_array_equal(normalize_features(None, features), [[200, 0]])


def test_integer_images_do_not_overflow():
    pixels = np.array([[100], [200]], np.uint8)
    statistics = statistics_of(pixels)
    np.testing.assert_array_equal(statistics.mean, [150.0])
    np.testing.assert_array_equal(statistics.variance, [2500.0])
    np.testing.assert_array_equal(normalize_features(statistics, jnp.asarray(pixels)), [[-1], [1]])


# Rewards, [time, envs, actors].


def column(values, dtype=np.float32):
    return jnp.asarray(np.asarray(values, dtype)[:, None, None])


def scaled(*rollouts, over=None, weight=None, discount=0.5):
    """Scale the rewards of one actor in one environment, rollout after rollout."""
    scale = RewardScale(empty_statistics(()), jnp.zeros((1, 1)))
    rewards = []
    for index, reward in enumerate(rollouts):
        flags = np.zeros(len(reward)) if over is None else over[index]
        weights = np.ones(len(reward)) if weight is None else weight[index]
        scale, reward = scale_rewards(
            scale, column(reward), column(flags, bool), column(weights), discount
        )
        rewards.append(np.asarray(reward)[:, 0, 0])
    return scale, np.concatenate(rewards)


def test_rewards_are_divided_by_the_standard_deviation_of_their_discounted_sums():
    # The sums are 1 and 1/2 + 1: of mean 1.25 and standard deviation 1/4.
    scale, rewards = scaled([1.0, 1.0])
    assert scale.statistics == (2.0, 1.25, 0.0625)
    np.testing.assert_array_equal(rewards, [4.0, 4.0])


def test_discounted_sums_restart_with_every_episode():
    # 1 and 3 instead of 1 and 1/2 + 3; then 3/2 + 0.
    scale, rewards = scaled([1.0, 3.0], over=[[True, False]])
    assert scale.statistics == (2.0, 2.0, 1.0)
    np.testing.assert_array_equal(scale.discounted_return, [[3.0]])
    np.testing.assert_array_equal(rewards, [1.0, 3.0])
    scale, _ = scaled([1.0, 3.0], over=[[False, True]])
    np.testing.assert_array_equal(scale.discounted_return, [[0.0]])


def test_discounted_sums_continue_across_rollouts():
    whole, rewards = scaled([1.0, -2.0, 4.0, 3.0], over=[[False, False, True, False]])
    parts, in_parts = scaled([1.0, -2.0], [4.0, 3.0], over=[[False, False], [True, False]])
    # 1, 1/2 - 2, -1.5/2 + 4, 3.
    sums = np.array([1.0, -1.5, 3.25, 3.0])
    for scale in (whole, parts):
        np.testing.assert_allclose(scale.statistics.mean, sums.mean(), rtol=1e-6)
        np.testing.assert_allclose(scale.statistics.variance, sums.var(), rtol=1e-6)
        np.testing.assert_array_equal(scale.discounted_return, [[3.0]])
    np.testing.assert_allclose(rewards, np.array([1.0, -2.0, 4.0, 3.0]) / sums.std(), rtol=1e-6)
    # Each rollout is scaled by the statistics at its end: 1 and -1.5 have standard deviation 1.25.
    np.testing.assert_allclose(in_parts, [0.8, -1.6, *rewards[2:]], rtol=1e-6)


def test_every_environment_and_actor_has_its_own_sums():
    reward = jnp.array([[[1.0, 2.0], [3.0, 4.0]], [[0.0, 0.0], [0.0, 0.0]]])
    over = jnp.zeros((2, 2, 2), bool).at[0, 1].set(True)
    scale = RewardScale(empty_statistics(()), jnp.zeros((2, 2)))
    scale, _ = scale_rewards(scale, reward, over, jnp.ones((2, 2, 2)), 0.5)
    np.testing.assert_array_equal(scale.discounted_return, [[0.5, 1.0], [0.0, 0.0]])
    sums = np.array([1, 2, 3, 4, 0.5, 1, 0, 0])
    np.testing.assert_allclose(scale.statistics.mean, sums.mean(), rtol=1e-6)
    np.testing.assert_allclose(scale.statistics.variance, sums.var(), rtol=1e-6)


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_scaled_rewards_do_not_depend_on_the_unit_of_rewards(factor):
    rollouts = np.random.default_rng(5).normal(size=(3, 40)).astype(np.float32)
    over = np.random.default_rng(6).random((3, 40)) < 0.2
    _, rewards = scaled(*rollouts, over=over, discount=0.9)
    _, in_other_units = scaled(*(factor * rollouts).astype(np.float32), over=over, discount=0.9)
    np.testing.assert_allclose(in_other_units, rewards, rtol=1e-4)


def test_scaled_rewards_keep_their_signs():
    rewards = np.array([0.0, 5.0, 7.0, -1.0, 6.0, 0.0], np.float32)
    np.testing.assert_array_equal(np.sign(scaled(rewards)[1]), np.sign(rewards))


def test_constant_rewards_stay_as_they_are():
    # In episodes of one step the sums have no standard deviation.
    np.testing.assert_array_equal(scaled([3.0, 3.0], over=[[True, True]])[1], [3.0, 3.0])
    np.testing.assert_array_equal(scaled([0.0, 0.0])[1], [0.0, 0.0])


@pytest.mark.parametrize("unused", [1e6, np.nan])
def test_rewards_without_weight_affect_nothing(unused):
    """An actor dies with its second step, and its episode is over after the fourth."""
    over, weight = [[False, False, False, True, False]], [[1.0, 1.0, 0.0, 0.0, 1.0]]
    scale, rewards = scaled([1.0, 1.0, unused, unused, 2.0], over=over, weight=weight)
    # 1, 1.5 and 2: of mean 1.5 and variance 1/6.
    np.testing.assert_allclose(scale.statistics, [3.0, 1.5, 1 / 6], rtol=1e-6)
    np.testing.assert_array_equal(scale.discounted_return, [[2.0]])
    np.testing.assert_allclose(rewards[[0, 1, 4]], np.sqrt(6) * np.array([1, 1, 2]), rtol=1e-6)


@pytest.mark.parametrize("unused", [1e6, np.nan])
def test_rewards_of_the_dead_do_not_enter_the_sums_of_the_next_rollout(unused):
    # The sums are 1 and 1.5, and half of that remains of an actor that is dead.
    scale, rewards = scaled([1.0, 1.0, unused], weight=[[1.0, 1.0, 0.0]])
    np.testing.assert_array_equal(scale.discounted_return, [[0.75]])
    np.testing.assert_array_equal(rewards[:2], [4.0, 4.0])


@pytest.mark.parametrize("centralized", [False, True])
@pytest.mark.parametrize("state_shape", [(7,), (5, 5, 4)], ids=str)
@pytest.mark.parametrize("shape", [(), (4,), (5, 5, 2)], ids=str)
def test_observations_are_normalised_by_default_but_images_are_not(shape, state_shape, centralized):
    """Neither those of actors, nor the global states of centralised critics."""
    config = AgentConfig(n_steps=1, centralized_critic=centralized)
    normalizers = init_normalizers(config, shape, state_shape, policies_shape=(2, 3))
    of_critic = normalizers.of_critic_features(centralized)
    observed = {"actor": (normalizers.observation, shape)}
    observed["critic"] = (of_critic, state_shape if centralized else shape)
    for statistics, own_shape in observed.values():
        assert (statistics is None) == (len(own_shape) == 3)
        assert statistics is None or statistics.mean.shape == (2, *own_shape)
