"""Behaviour cloning, by hand: policies of zero parameters choose uniformly."""

import re

import jax
import numpy as np
import pytest

import jaxagents as ja
from tests.agents import assert_trees_equal, begin, opinionated_runner, rate, shared_agent
from tests.ippo.test_by_hand import SHAPE, logged
from tests.probes import RealWalk, Walk

ONE_STEP = {"minibatch_size": 4}  # an epoch of one rollout is one minibatch


def to_clone(**changes):
    return logged(log_prob=None, **changes)


def uniform(agent, **hyperparams):
    """Return a runner whose actors have parameters of 0."""
    runner = opinionated_runner(agent)
    return runner.replace(
        actor=jax.tree.map(np.zeros_like, runner.actor),
        hyperparams=runner.hyperparams.replace(**hyperparams),
    )


def test_the_loss_of_a_uniform_policy_is_the_logarithm_of_the_number_of_actions():
    """Three actions; the most probable of equals is action 0."""
    agent = shared_agent(**ONE_STEP)
    rollout = to_clone()
    _, metrics = agent.pretrain(uniform(agent), [rollout], n_epochs=2)
    np.testing.assert_allclose(metrics["cloning_loss"][0], [np.log(3)], rtol=1e-6)
    share = np.mean(rollout.action == 0)
    np.testing.assert_allclose(metrics["cloning_accuracy"][0], [share], rtol=1e-6)
    assert {name: each.shape for name, each in metrics.items()} == {
        "cloning_loss": (2, 1),
        "cloning_accuracy": (2, 1),
    }


def test_masked_actions_have_no_probability():
    """Two of three are available."""
    agent = shared_agent(Walk(masked=True), **ONE_STEP)
    mask = np.ones((*SHAPE, 3), bool)
    mask[..., 1] = False
    observation = ja.Observation(np.ones((*SHAPE, 2), np.float32), mask)
    rollout = to_clone(observation=observation, action=np.full(SHAPE, 2))
    _, metrics = agent.pretrain(uniform(agent), [rollout], n_epochs=1)
    np.testing.assert_allclose(metrics["cloning_loss"], [[np.log(2)]], rtol=1e-6)


def test_dead_actors_are_not_cloned():
    """All observe 0, the living choose 2, the dead 0: mixed, the loss stays above log 2."""
    agent = shared_agent(**ONE_STEP)
    active, action = np.ones(SHAPE, bool), np.full(SHAPE, 2)
    active[..., 1], action[..., 1] = False, 0
    observation = np.zeros((*SHAPE, 2), np.float32)
    rollout = to_clone(observation=observation, active=active, action=action)
    runner = uniform(agent, actor_optimizer_params=rate(0.1))
    runner, metrics = agent.pretrain(runner, [rollout], n_epochs=30)
    accuracy = metrics["cloning_accuracy"]
    assert (accuracy[0], accuracy[-1]) == (0.0, 1.0)
    assert metrics["cloning_loss"][-1] < np.log(2) / 2
    assert agent.policy(runner, observation[0, 0]).tolist() == [2, 2]


def continuous(agent, action):
    """Make a rollout of observations of 1 and one action throughout."""
    shape = (6, 4, agent.environments.n_actors)
    n_features = agent.environments.observation.features.shape[-1]
    return ja.Rollout(
        observation=np.ones((*shape, n_features), np.float32),
        action=np.full((*shape, *agent.distribution.action_shape), action, np.float32),
        log_prob=None,
        reward=np.zeros(shape),
        terminated=np.zeros(shape, bool),
        truncated=np.zeros(shape, bool),
        last_observation=np.ones((*shape[1:], n_features), np.float32),
    )


def test_the_loss_of_a_standard_normal_policy():
    """log(2π) / 2 + a² / 2 in each of 2 dimensions; nothing is accurate to the bit."""
    agent = shared_agent(RealWalk(), ja.ContinuousIPPO, **ONE_STEP)
    _, metrics = agent.pretrain(uniform(agent), [continuous(agent, 2.0)], n_epochs=1)
    expected = agent.distribution.action_shape[0] * (np.log(2 * np.pi) / 2 + 2.0)
    np.testing.assert_allclose(metrics["cloning_loss"], [[expected]], rtol=1e-6)
    assert metrics.keys() == {"cloning_loss"}


def test_the_log_standard_deviation_stops_at_its_bound():
    """The mean is right from the start, so that less deviation is always better."""
    agent = shared_agent(RealWalk(), ja.ContinuousIPPO, **ONE_STEP)
    runner = uniform(agent, actor_optimizer_params=rate(1.0))
    runner, _ = agent.pretrain(runner, [continuous(agent, 0.0)], n_epochs=20)
    np.testing.assert_array_equal(runner.actor.params["log_std"], -5.0)


def test_observation_statistics_learn_from_all_rollouts_first():
    """Of features 1 and 3 in equal shares: mean 2, variance 1. Rewards and values wait."""
    agent = shared_agent(
        normalize_observations=True, normalize_values=True, scale_rewards=True, **ONE_STEP
    )
    before = begin(agent, actor_optimizer_params=rate(0.0))
    rollouts = [
        to_clone(observation=np.full((*SHAPE, 2), feature, np.float32)) for feature in (1.0, 3.0)
    ]
    runner, _ = agent.pretrain(before, rollouts, n_epochs=1)
    statistics = runner.normalizers.observation
    np.testing.assert_allclose(statistics.weight, [2 * np.prod(SHAPE)])
    np.testing.assert_allclose(statistics.mean, [[2.0, 2.0]])
    np.testing.assert_allclose(statistics.variance, [[1.0, 1.0]], rtol=1e-6)
    assert_trees_equal(
        runner.normalizers._replace(observation=()), before.normalizers._replace(observation=())
    )


def test_each_policy_clones_its_own_actors():
    agent = shared_agent(parameter_sharing="independent")
    action = np.zeros(SHAPE, int)
    action[..., 1] = 2
    before = begin(agent)
    runner, metrics = agent.pretrain(before, [to_clone(action=action)] * 2, n_epochs=30)
    assert agent.policy(runner, np.ones((2, 2), np.float32)).tolist() == [0, 2]
    assert metrics["cloning_loss"].shape == (30, 2)
    assert_trees_equal(runner.critic, before.critic)
    assert_trees_equal(runner.actor.opt_state, before.actor.opt_state)  # as of no step
    assert int(runner.n_updates_done) == 0


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["gru", pytest.param("lstm", marks=pytest.mark.slow)])
def test_recurrent_actors_start_with_the_stored_state_or_the_initial_one(cell):
    agent = shared_agent(recurrent=cell, actor_epochs=1, **ONE_STEP)
    runner = opinionated_runner(agent)
    runner = runner.replace(
        hyperparams=runner.hyperparams.replace(actor_optimizer_params=rate(0.0))
    )
    initial = jax.tree.map(np.asarray, agent.networks.actor.empty_memory(*SHAPE))
    losses = []
    for memory in ((), initial, jax.tree.map(lambda leaf: leaf + 0.5, initial)):
        _, metrics = agent.pretrain(runner, [to_clone(memory=memory)], n_epochs=1)
        losses.append(float(metrics["cloning_loss"][0, 0]))
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6)
    assert abs(losses[2] - losses[0]) > 1e-4


@pytest.mark.parametrize(
    ("rollouts", "n_epochs", "message"),
    [
        ([], 1, "pretrain learns from rollouts, and none was given."),
        ([to_clone()], 0, "n_epochs=0; pretrain for at least 1."),
        (
            [to_clone(), to_clone(active=np.ones(SHAPE, bool))],
            1,
            "the rollouts differ in their parts (active, memory, or those of their observations); "
            "pretrain on rollouts of one kind.",
        ),
    ],
)
def test_what_cannot_be_cloned_is_refused(rollouts, n_epochs, message):
    agent = shared_agent(**ONE_STEP)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        agent.pretrain(begin(agent), rollouts, n_epochs)


def test_nan_in_the_observations_is_found():
    agent = shared_agent(**ONE_STEP)
    rollout = to_clone(observation=np.full((*SHAPE, 2), np.nan, np.float32))
    with pytest.raises(ja.NonFiniteError, match="epoch 1 of pretraining has NaN or infinity in"):
        agent.pretrain(begin(agent), [rollout], n_epochs=1)


def test_updates_need_log_probabilities():
    agent = shared_agent(**ONE_STEP)
    message = (
        "the rollout has log_prob=None, and updates weigh actions by the probability with which "
        "they were chosen; give the log probabilities, or learn from it by pretrain."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        agent.update(begin(agent), to_clone())
