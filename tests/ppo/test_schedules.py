"""Hyperparameters and rewards over the course of a training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.hyperparameters import flat_items
from jaxagents.ppo import schedules

factor_at = jax.jit(schedules.factor_at, static_argnums=0)
adapt_learning_rate = jax.jit(schedules.adapt_learning_rate)


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ("constant", [1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [1.0, 0.75, 0.5, 0.25, 0.0]),
        # (1 + cos πp) / 2, of 45° and 135°.
        ("cosine", [1.0, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2, 0.0]),
    ],
)
def test_schedules_at_their_quarters(schedule, factors):
    progress = [0.0, 0.25, 0.5, 0.75, 1.0]
    actual = [float(factor_at(schedule, jnp.float32(each))) for each in progress]
    np.testing.assert_allclose(actual, factors, atol=1e-6)
    assert actual[0] == 1.0


@pytest.mark.parametrize(("schedule", "factor"), [("constant", 1), ("linear", 0), ("cosine", 0)])
def test_beyond_its_end_a_schedule_stays_at_its_last_value(schedule, factor):
    # A runner may be stepped further than n_steps: a negative rate would climb the loss.
    assert factor_at(schedule, jnp.float32(1.5)) == factor


HYPERPARAMS = ja.HyperParameters(
    eps_clip=0.4,
    ent_coeff=0.08,
    actor_optimizer_params=ja.OptimizerParams(learning_rate=4e-3),
    critic_optimizer_params=ja.OptimizerParams(learning_rate=8e-3),
)
ACTOR_RATE = "actor_optimizer_params.learning_rate"
CRITIC_RATE = "critic_optimizer_params.learning_rate"


def changes(progress, learning_rate=None, **options):
    """List the hyperparameters that differ from the initial ones."""
    config = ja.AgentConfig(n_steps=4, **options)
    now = schedules.scheduled(HYPERPARAMS, config, jnp.float32(progress), learning_rate)
    before = flat_items(HYPERPARAMS)
    return {
        name: pytest.approx(np.asarray(value).tolist(), rel=1e-6)
        for name, value in flat_items(now).items()
        if not np.array_equal(np.float32(value), np.float32(before[name]))
    }


@pytest.mark.parametrize("progress", [0.0, 0.5, 1.0])
def test_without_a_schedule_nothing_changes(progress):
    assert changes(progress) == {}


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_halfway_a_schedule_has_halved_its_hyperparameters_and_no_others(schedule):
    assert changes(0.5, learning_rate_schedule=schedule) == {ACTOR_RATE: 2e-3, CRITIC_RATE: 4e-3}
    assert changes(0.5, ent_coeff_schedule=schedule) == {"ent_coeff": 0.04}
    assert changes(0.5, eps_clip_schedule=schedule) == {"eps_clip": 0.2}


def test_each_schedule_takes_its_own_course():
    together = changes(
        0.25,
        learning_rate_schedule="linear",
        ent_coeff_schedule="cosine",
        eps_clip_schedule="constant",
    )
    assert together == {
        ACTOR_RATE: 3e-3,
        CRITIC_RATE: 6e-3,
        "ent_coeff": 0.08 * (1 + 0.5**0.5) / 2,
    }


@pytest.mark.parametrize("progress", [0.25, 1.0])
@pytest.mark.parametrize("also", [{}, {"learning_rate_schedule": "linear"}])
def test_annealing_the_learning_rate_is_the_linear_schedule(progress, also):
    linear = changes(progress, learning_rate_schedule="linear")
    assert changes(progress, anneal_learning_rate=True, **also).keys() == linear.keys()
    assert changes(0.25, anneal_learning_rate=True, **also) == {
        ACTOR_RATE: 3e-3,
        CRITIC_RATE: 6e-3,
    }


@pytest.mark.parametrize(
    "options",
    [
        {"learning_rate_schedule": "cosine"},
        {"ent_coeff_schedule": "linear", "eps_clip_schedule": "cosine"},
        {"anneal_learning_rate": True},
    ],
    ids=str,
)
def test_schedules_begin_with_the_given_hyperparameters(options):
    assert changes(0.0, **options) == {}


@pytest.mark.parametrize("progress", [0.0, 0.5, 1.0])
def test_an_adaptive_learning_rate_replaces_only_the_actors(progress):
    adapted = jnp.array([1e-3, 3e-3], jnp.float32)
    kl = changes(progress, adapted, learning_rate_schedule="kl")
    assert kl == {ACTOR_RATE: [1e-3, 3e-3]}


def test_each_policy_is_scheduled_from_its_own_value():
    hyperparams = HYPERPARAMS.replace(ent_coeff=jnp.array([0.02, 0.04]))
    config = ja.AgentConfig(n_steps=4, ent_coeff_schedule="linear")
    now = schedules.scheduled(hyperparams, config, jnp.float32(0.5), None)
    np.testing.assert_allclose(now.ent_coeff, [0.01, 0.02])


@pytest.mark.parametrize(
    ("kl", "learning_rate"),
    [
        (0.0, 3e-3),  # nothing was learnt from, or had changed
        (1e-9, 4.5e-3),
        (0.0039, 4.5e-3),  # below half of the target: faster
        (0.004, 3e-3),
        (0.008, 3e-3),
        (0.016, 3e-3),
        (0.017, 2e-3),  # above twice the target: slower
        (np.inf, 2e-3),
        (np.nan, 3e-3),  # no information
    ],
)
def test_a_learning_rate_adapts_to_its_kl_by_factors_of_one_and_a_half(kl, learning_rate):
    adapted = adapt_learning_rate(jnp.array([3e-3]), jnp.array([kl]), jnp.array([0.008]))
    np.testing.assert_allclose(adapted, [learning_rate], rtol=1e-6)


def test_learning_rates_stay_between_their_bounds():
    rate = jnp.array([9e-3, 1e-2, 1.2e-6, 1e-6])
    kl = jnp.array([1e-9, 1e-9, 1.0, 1.0])
    for _ in range(3):
        rate = adapt_learning_rate(rate, kl, jnp.full(4, 0.008))
        np.testing.assert_allclose(rate, [1e-2, 1e-2, 1e-6, 1e-6], rtol=1e-6)


def test_each_policy_adapts_to_its_own_kl_and_target():
    adapted = adapt_learning_rate(
        jnp.array([1e-3, 2e-3, 3e-3]), jnp.array([0.01, 0.01, 0.01]), jnp.array([0.1, 0.01, 0.001])
    )
    np.testing.assert_allclose(adapted, [1.5e-3, 2e-3, 2e-3], rtol=1e-6)


def test_without_an_adaptive_rate_there_is_nothing_to_adapt():
    assert schedules.adapt_learning_rate(None, jnp.zeros(1), jnp.ones(1)) is None


def reward_after(n_updates_done, shaped_reward_steps, shaped=10.0):
    """Return the reward to learn from, where updates take 24 environment steps."""
    ones = jnp.ones((2, 1))
    shaped_reward = None if shaped is None else shaped * ones
    config = ja.AgentConfig(
        n_steps=4, batch_size=4, rollout_length=6, shaped_reward_steps=shaped_reward_steps
    )
    n_done = jnp.int32(n_updates_done)
    reward = schedules.training_reward(3.0 * ones, shaped_reward, config, n_done)
    np.testing.assert_array_equal(reward, reward[0, 0])
    return float(reward[0, 0])


def test_shaped_rewards_fade_linearly_over_the_environment_steps_done():
    # The second update begins halfway to 48 steps, the third at their end.
    assert [reward_after(n, 48) for n in range(4)] == [13.0, 8.0, 3.0, 3.0]


def test_shaped_rewards_fade_over_more_environment_steps_than_an_int32_counts():
    np.testing.assert_allclose([reward_after(n, 10**10) for n in range(4)], 13.0, rtol=1e-6)
    halfway = 10**10 // (2 * 24)
    np.testing.assert_allclose(reward_after(halfway, 10**10), 8.0, rtol=1e-6)


@pytest.mark.parametrize("n_updates_done", [2**31 // 24 + 1, 2**31 - 1])
def test_shaped_rewards_do_not_return_after_billions_of_steps(n_updates_done):
    assert reward_after(n_updates_done, 48) == 3.0


def test_shaped_rewards_count_only_if_there_are_any_and_they_are_asked_for():
    assert reward_after(0, None) == 3.0
    assert reward_after(0, 48, shaped=None) == 3.0
