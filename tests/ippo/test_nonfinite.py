"""Infinities and NaN: noticed where they arise, named, and kept out of the policies."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.training.checkpoints import Checkpoints
from tests.ippo.test_training import (
    FAST,
    TINY,
    assert_trees_close,
    assert_trees_equal,
    largest_change,
)
from tests.probes import Walk

HUGE = ja.OptimizerParams(learning_rate=1e30)


class Broken(Walk):
    """Pays one of two actors what is no number, at the end of each episode."""

    def __init__(self, value=np.nan):
        super().__init__((100, 100), limit=5)
        self._value = value

    def step_env(self, rng, state, action, params):
        observation, state, reward, terminated, truncated, info = super().step_env(
            rng, state, action, params
        )
        reward = reward.at[1].set(jnp.where(truncated[1], self._value, reward[1]))
        return observation, state, reward, terminated, truncated, info


def make(env=None, **changes):
    config = dataclasses.replace(TINY, n_steps=4, **changes)
    return ja.DiscreteIPPO(Walk() if env is None else env, None, config)


def all_finite(tree):
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in leaves)


def test_a_learning_rate_of_1e30_ends_within_the_first_update_with_a_finite_checkpoint(tmp_path):
    agent = make(checkpoint_dir=tmp_path)
    hyperparams = FAST.replace(actor_optimizer_params=HUGE, critic_optimizer_params=HUGE)
    with pytest.raises(ja.NonFiniteError) as raised:
        agent.train(jax.random.key(0), hyperparams)
    message = str(raised.value)
    assert message.startswith("update 1 is not finite in the critic's ")
    assert "of policy 0; lower the learning rate" in message
    assert Checkpoints(tmp_path).steps() == [0]
    runner, _ = agent.restore("last")
    assert all_finite((runner.actor, runner.critic))


def test_a_run_that_has_failed_goes_on_with_a_lower_learning_rate(tmp_path):
    agent = make(checkpoint_dir=tmp_path)
    with pytest.raises(ja.NonFiniteError):
        agent.train(jax.random.key(0), FAST.replace(critic_optimizer_params=HUGE))
    runner, metrics = agent.resume(FAST)
    assert int(runner.n_updates_done) == 4
    assert all_finite((runner.actor, runner.critic, metrics["critic_loss"][1:]))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(
    ("sharing", "policy"), [("shared", 0), ("independent", 1)], ids=["shared", "independent"]
)
def test_a_reward_that_is_not_finite_is_named_with_update_and_policy(sharing, policy, value):
    agent = make(Broken(value=value), parameter_sharing=sharing)
    with pytest.raises(ja.NonFiniteError, match=f"in the rewards of policy {policy};"):
        agent.train(jax.random.key(0), FAST)


def test_skipped_updates_leave_a_policy_as_it_was_and_others_as_they_would_be():
    broken = make(Broken(), parameter_sharing="independent", on_nonfinite="skip")
    whole = make(Walk((100, 100), limit=5), parameter_sharing="independent")
    start = broken.init(jax.random.key(0), FAST)
    runner, metrics = broken.train(None, FAST, runner=start)
    expected, _ = whole.train(None, FAST, runner=start)
    np.testing.assert_array_equal(runner.n_updates_skipped, [0, 4])
    np.testing.assert_array_equal(metrics["n_updates_skipped"][-1], [0, 4])
    for name in ("actor", "critic"):
        before, after, alone = (getattr(each, name).params for each in (start, runner, expected))
        first, second = (jax.tree.map(lambda leaf, i=i: leaf[i], after) for i in (0, 1))
        assert_trees_close(first, jax.tree.map(lambda leaf: leaf[0], alone), rtol=1e-4, atol=1e-6)
        assert_trees_equal(second, jax.tree.map(lambda leaf: leaf[1], before))
        assert largest_change(before, after) > 1e-4
    np.testing.assert_array_equal(np.isnan(metrics["actor_loss"][1:]), [[False, True]] * 2)


def test_a_step_by_hand_skips_and_counts():
    agent = make(Broken())
    before = agent.init(jax.random.key(0), FAST)
    after, _ = agent.step(before)
    assert_trees_equal((before.actor, before.critic), (after.actor, after.critic))
    assert (int(after.n_updates_done), int(after.n_updates_skipped[0])) == (1, 1)


def poisoned(agent):
    """Begin with an observation that is none, which is gone after the first step."""
    runner = agent.init(jax.random.key(0), FAST)
    features = jnp.full_like(runner.observation.features, jnp.nan)
    return runner.replace(observation=runner.observation._replace(features=features))


def test_what_is_averaged_leaves_skipped_updates_out():
    agent = make(on_nonfinite="skip")
    runner, metrics = agent.train(None, FAST, runner=poisoned(agent))
    assert int(runner.n_updates_skipped[0]) == 1
    assert all_finite(metrics["actor_loss"][1:])
    # Of the first block's two updates it was the first: the means are the second one's.
    first, _ = agent.step(poisoned(agent))
    _, expected = agent.step(first)
    np.testing.assert_allclose(metrics["actor_loss"][1], expected["actor_loss"], rtol=1e-5)


def test_an_observation_that_is_not_finite_is_named():
    agent = make()
    with pytest.raises(ja.NonFiniteError, match="update 1 is not finite in the observations of"):
        agent.train(None, FAST, runner=poisoned(agent))


@pytest.mark.parametrize("normalizer", ["normalize_observations", "scale_rewards"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_what_normalizers_would_hide_is_noticed_and_kept_out_of_them(normalizer, value):
    """Statistics of 1e30 are as bad as those of NaN: their variance is infinite."""
    env = Broken(value) if normalizer == "scale_rewards" else Walk()
    agent = make(env, on_nonfinite="skip", **{normalizer: True})
    runner = agent.init(jax.random.key(0), FAST)
    runner, _ = agent.step(runner)  # a first one, so that observations have statistics
    skipped = int(runner.n_updates_skipped[0])
    assert skipped == (normalizer == "scale_rewards")
    if normalizer == "normalize_observations":
        features = jnp.full_like(runner.observation.features, value)
        runner = runner.replace(observation=runner.observation._replace(features=features))
    after, _ = agent.step(runner)
    assert int(after.n_updates_skipped[0]) == skipped + 1
    assert all_finite((after.actor, after.critic, after.normalizers))


def test_numbers_of_the_dead_may_be_anything():
    """What an actor is paid after its death counts for nothing."""

    class Haunted(Walk):
        def step_env(self, rng, state, action, params):
            dead = state["time"] >= self._deaths
            observation, state, reward, *rest = super().step_env(rng, state, action, params)
            return observation, state, jnp.where(dead, jnp.nan, reward), *rest

    runner, _metrics = make(Haunted((2, 100))).train(jax.random.key(0), FAST)
    assert int(runner.n_updates_done) == 4
    assert all_finite((runner.actor, runner.critic))


def test_under_vmap_one_that_fails_leaves_the_others_alone():
    agent = make(progress_bar=True)
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
