"""NaN and infinities: noticed where they arise, reported by name, and kept out of the policies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.training.checkpoints import Checkpoints
from tests.agents import (
    FAST,
    all_finite,
    assert_trees_close,
    assert_trees_equal,
    begin,
    largest_change,
    of_policy,
    shared_agent,
)
from tests.probes import Walk

HUGE = ja.OptimizerParams(learning_rate=1e30)
NORMALIZED = {"on_nonfinite": "skip", "normalize_observations": True, "scale_rewards": True}


class PoisonedWalk(Walk):
    """Walk that adds the poison in its state to actor 1's last reward; resets remove the poison."""

    def reset_env(self, rng, params):
        observation, state = super().reset_env(rng, params)
        return observation, state | {"poison": jnp.zeros(())}

    def step_env(self, rng, state, action, params):
        observation, after, reward, terminated, truncated, info = super().step_env(
            rng, state, action, params
        )
        after = after | {"poison": state["poison"]}
        reward = reward.at[1].add(jnp.where(truncated[1], state["poison"], 0.0))
        return observation, after, reward, terminated, truncated, info


POISONED = PoisonedWalk()


def poisonable_agent(**changes) -> ja.DiscreteIPPO:
    return shared_agent(POISONED, n_steps=4, progress_bar=True, **changes)


def with_poisoned_reward(runner: ja.Runner, value: float) -> ja.Runner:
    """Make the first update's rewards of actor 1 end with a value."""
    poison = jnp.full_like(runner.env_state.env_state["poison"], value)
    env_state = runner.env_state.env_state | {"poison": poison}
    return runner.replace(env_state=runner.env_state._replace(env_state=env_state))


def with_poisoned_observation(runner: ja.Runner, value: float) -> ja.Runner:
    """Make the first observation a value."""
    features = jnp.full_like(runner.observation.features, value)
    return runner.replace(observation=runner.observation._replace(features=features))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """An agent with checkpoints, and the error of its training with learning rates of 1e30."""
    directory = tmp_path_factory.mktemp("run")
    agent = poisonable_agent(checkpoint_dir=directory)
    hyperparams = FAST.replace(actor_optimizer_params=HUGE, critic_optimizer_params=HUGE)
    with pytest.raises(ja.NonFiniteError) as raised:
        agent.train(jax.random.key(0), hyperparams)
    return agent, directory, str(raised.value)


@pytest.mark.slow
def test_a_learning_rate_of_1e30_ends_training_in_the_first_update_with_a_finite_checkpoint(
    recorded,
):
    agent, directory, message = recorded
    assert message.startswith("update 1 has NaN or infinity in the critic's ")
    assert "of policy 0; lower the learning rate" in message
    assert Checkpoints(directory).steps() == [0]
    runner, _ = agent.restore("last")
    assert all_finite((runner.actor, runner.critic))


@pytest.mark.slow
def test_a_failed_run_is_resumed_with_a_lower_learning_rate(recorded):
    agent, *_ = recorded
    runner, metrics = agent.resume(FAST)
    assert int(runner.n_updates_done) == 4
    assert all_finite((runner.actor, runner.critic, metrics["critic_loss"][1:]))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(
    ("sharing", "policy"),
    [pytest.param("shared", 0, marks=pytest.mark.slow), ("independent", 1)],
    ids=["shared", "independent"],
)
def test_a_nonfinite_reward_is_reported_with_update_and_policy(sharing, policy, value):
    agent = poisonable_agent(parameter_sharing=sharing)
    runner = with_poisoned_reward(begin(agent), value)
    with pytest.raises(
        ja.NonFiniteError, match=f"update 1 has NaN or infinity in the rewards of policy {policy};"
    ):
        agent.train(None, FAST, runner=runner)


@pytest.mark.slow
def test_a_nonfinite_observation_is_reported():
    agent = poisonable_agent()
    runner = with_poisoned_observation(begin(agent), jnp.nan)
    with pytest.raises(
        ja.NonFiniteError, match="update 1 has NaN or infinity in the observations of"
    ):
        agent.train(None, FAST, runner=runner)


@pytest.mark.slow
def test_an_update_by_hand_skips_and_counts_a_policy_without_touching_the_others():
    agent = poisonable_agent(parameter_sharing="independent")
    assert agent.config.on_nonfinite == "stop"  # which ends training only
    start = begin(agent)
    poisoned, _ = agent.step(with_poisoned_reward(start, np.nan))
    clean, _ = agent.step(start)
    assert int(poisoned.n_updates_done) == 1
    np.testing.assert_array_equal(poisoned.n_updates_skipped, [0, 1])
    np.testing.assert_array_equal(clean.n_updates_skipped, [0, 0])
    for name in ("actor", "critic"):
        before, after, expected = (getattr(each, name) for each in (start, poisoned, clean))
        assert_trees_equal(of_policy(after, 1), of_policy(before, 1))
        after, expected = of_policy(after.params, 0), of_policy(expected.params, 0)
        assert_trees_close(after, expected, rtol=1e-4, atol=1e-6)
        assert largest_change(of_policy(before.params, 0), after) > 1e-4


@pytest.mark.parametrize("cell", ["gru", pytest.param("lstm", marks=pytest.mark.slow)])
def test_recurrent_agents_forget_what_was_nonfinite(cell):
    agent = shared_agent(Walk(limit=100), recurrent=cell, on_nonfinite="skip")
    runner, _ = agent.step(with_poisoned_observation(begin(agent), jnp.nan))
    assert all_finite(runner.memory)
    runner, _ = agent.step(runner)
    assert int(runner.n_updates_skipped[0]) == 1  # the first


@pytest.mark.slow
def test_means_over_a_block_leave_skipped_updates_out():
    agent = poisonable_agent(**NORMALIZED)
    start = with_poisoned_observation(begin(agent), jnp.nan)
    runner, metrics = agent.train(None, FAST, runner=start)
    assert int(runner.n_updates_skipped[0]) == 1
    assert all_finite(metrics["actor_loss"][1:])
    # The first of the first block's two updates was skipped: the means are those of the second.
    first, _ = agent.step(start)
    _, expected = agent.step(first)
    np.testing.assert_allclose(metrics["actor_loss"][1], expected["actor_loss"], rtol=1e-5)


@pytest.mark.parametrize("poison", [with_poisoned_observation, with_poisoned_reward])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_values_that_normalization_would_hide_are_noticed_and_kept_out_of_its_statistics(
    poison, value
):
    """1e30 is as bad as NaN: the variance is infinite, and normalised values are then 0."""
    agent = poisonable_agent(**NORMALIZED)
    runner = begin(agent)
    # An update before it, so that there are statistics to normalise with.
    runner, _ = agent.step(runner)
    assert int(runner.n_updates_skipped[0]) == 0
    after, _ = agent.step(poison(runner, value))
    assert int(after.n_updates_skipped[0]) == 1
    assert all_finite((after.actor, after.critic, after.normalizers))


@pytest.mark.slow
def test_rewards_of_dead_actors_may_be_nan():
    """An actor's reward after its death has no effect."""

    class Haunted(Walk):
        def step_env(self, rng, state, action, params):
            dead = state["time"] >= self._deaths
            observation, state, reward, *rest = super().step_env(rng, state, action, params)
            return observation, state, jnp.where(dead, jnp.nan, reward), *rest

    agent = shared_agent(Haunted((2, 100)))
    runner, metrics = agent.step(begin(agent))
    assert int(runner.n_updates_skipped[0]) == 0
    assert all_finite((runner.actor, runner.critic, metrics))


@pytest.mark.slow
def test_under_vmap_a_failing_member_leaves_the_others_alone():
    agent = poisonable_agent()
    rates = jnp.array([1e-2, 1e30])
    hyperparams = FAST.replace(
        critic_optimizer_params=ja.OptimizerParams(learning_rate=rates, eps=1e-5, grad_clip=0.5)
    )
    axes = jax.tree.map(lambda _: None, FAST)
    axes = axes.replace(
        critic_optimizer_params=axes.critic_optimizer_params.replace(learning_rate=0)
    )
    _, metrics = jax.vmap(agent.train, in_axes=(None, axes))(jax.random.key(0), hyperparams)
    assert all_finite(metrics["returns"][0])
    assert bool(jnp.all(jnp.isnan(metrics["returns"][1, 1:])))
    _, alone = agent.train(jax.random.key(0), FAST)
    np.testing.assert_allclose(metrics["returns"][0], alone["returns"], rtol=1e-5)
