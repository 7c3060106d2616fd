"""What each agent's distribution makes of its network's output."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import jaxagents as ja
from jaxagents.ippo.continuous import Gaussian, log_tanh_slope
from jaxagents.types import Inference
from tests.ippo.test_training import FAST, tiny
from tests.probes import Aim, Walk


class Zero(nn.Module):
    """Outputs 0 whatever it sees."""

    width: int

    @nn.compact
    def __call__(self, features):
        return nn.Dense(self.width, kernel_init=nn.initializers.zeros)(features)


def head_of(agent, params, observation):
    """Give the distribution that one policy makes of what it sees."""
    head, _ = agent._step_actor(Inference(params, features=None), observation, ())
    return head


def test_masked_actions_are_never_chosen_and_the_others_share_their_probability():
    agent = ja.DiscreteIPPO(Walk(masked=True), None, tiny(actor_network=Zero(3)))
    runner = agent.init(jax.random.key(0), FAST)
    mask = jnp.array([[True, True, False], [False, False, True]])
    observation = ja.Observation(features=jnp.zeros((2, 2)), action_mask=mask)
    for seed in range(20):
        actions = agent.policy(runner, observation, rng=jax.random.key(seed))
        assert actions[0] in (0, 1)
        assert actions[1] == 2
    params = jax.tree.map(lambda leaf: leaf[0], runner.actor.params)
    head = head_of(agent, params, observation)
    np.testing.assert_allclose(agent._log_prob(head, jnp.array([0, 2])), [np.log(0.5), 0.0])
    np.testing.assert_allclose(agent._entropy(head), [np.log(2.0), 0.0], atol=1e-6)


def test_a_row_without_available_actions_stays_finite():
    agent = ja.DiscreteIPPO(Walk(masked=True), None, tiny(actor_network=Zero(3)))
    params = jax.tree.map(lambda leaf: leaf[0], agent.init(jax.random.key(0), FAST).actor.params)

    def loss(params):
        nothing = jnp.zeros((2, 3), bool)
        head = head_of(agent, params, ja.Observation(jnp.ones((2, 2)), nothing))
        return jnp.sum(agent._entropy(head) + agent._log_prob(head, jnp.array([0, 1])))

    value, gradients = jax.value_and_grad(loss)(params)
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves((value, gradients)))


def gaussian(agent: ja.ContinuousIPPO, log_std: float) -> Gaussian:
    params = jax.tree.map(lambda leaf: leaf[0], agent.init(jax.random.key(0), FAST).actor.params)
    params["log_std"] = jnp.full(2, log_std)
    return head_of(agent, params, ja.Observation(jnp.zeros((1, 2))))


def test_the_standard_deviation_is_bounded_and_keeps_its_gradient():
    agent = ja.ContinuousIPPO(Aim(), None, tiny(actor_network=Zero(2)))
    np.testing.assert_allclose(gaussian(agent, 9.0).log_std, 2.0)
    np.testing.assert_allclose(gaussian(agent, -9.0).log_std, -5.0)
    params = {"network": agent.init(jax.random.key(0), FAST).actor.params["network"]}
    params = jax.tree.map(lambda leaf: leaf[0], params)

    def log_std(value):
        head = head_of(agent, {**params, "log_std": value}, ja.Observation(jnp.zeros((1, 2))))
        return head.log_std.sum()

    np.testing.assert_allclose(jax.grad(log_std)(jnp.full(2, 9.0)), 1.0)


def test_gaussian_log_probability_and_entropy_by_hand():
    """At the mean: -d log(σ √2π); entropy d (1 + log 2πσ²) / 2; d = 2, σ = e."""
    agent = ja.ContinuousIPPO(Aim(), None, tiny(actor_network=Zero(2)))
    head = gaussian(agent, 1.0)
    expected = -2 * (1 + 0.5 * np.log(2 * np.pi))
    np.testing.assert_allclose(agent._log_prob(head, jnp.zeros((1, 2))), [expected], rtol=1e-6)
    np.testing.assert_allclose(agent._entropy(head), [1 + np.log(2 * np.pi) + 2], rtol=1e-6)


def test_squashed_log_probabilities_integrate_to_1_over_the_box():
    """The density of the action that the environment gets, over a box of another size than 2."""
    agent = ja.ContinuousIPPO(Aim(2, -3.0, 1.0), None, tiny(actor_network=Zero(2), squash=True))
    edges = np.linspace(-3.0, 1.0, 402)[1:-1]
    first, second = np.meshgrid(edges, edges)
    actions = jnp.stack([first.ravel(), second.ravel()], axis=-1)
    drawn = jnp.arctanh((actions + 1.0) / 2.0)
    head = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, drawn.shape), gaussian(agent, -1.0))
    density = jnp.exp(agent._log_prob(head, drawn))
    np.testing.assert_allclose(density.sum() * (edges[1] - edges[0]) ** 2, 1.0, atol=1e-3)
    np.testing.assert_allclose(agent._environment_action(drawn), actions, atol=1e-3)


MEAN = jnp.array([[0.5, -1.0, 2.0], [0.1, 0.2, 0.3]])
LOG_STD = jnp.array([0.3, -0.7, 0.1])
DRAWN = jnp.array([[0.2, 1.5, -0.4], [0.6, -0.2, 0.0]])
EXISTS = jnp.array([[True, False, True], [False, False, True]])


def likelihood(agent, exists, mean, log_std, drawn):
    head = Gaussian(mean=mean, log_std=jnp.broadcast_to(log_std, mean.shape), exists=exists)
    return agent._log_prob(head, drawn), agent._entropy(head)


@pytest.mark.parametrize("held", [0.0, 7.0, -1e6])
@pytest.mark.parametrize("squash", [False, True])
def test_dimensions_that_an_actor_lacks_count_for_nothing_whatever_they_hold(squash, held):
    """Its likelihoods are those of the Gaussian of the dimensions that it has."""
    agent = ja.ContinuousIPPO(Aim(n_dimensions=3), None, tiny(squash=squash))
    mean, drawn = (jnp.where(EXISTS, values, held) for values in (MEAN, DRAWN))
    found = likelihood(agent, EXISTS, mean, LOG_STD, drawn)
    for actor, dimensions in enumerate(([0, 2], [2])):
        smaller = ja.ContinuousIPPO(Aim(n_dimensions=len(dimensions)), None, tiny(squash=squash))
        kept = np.array(dimensions)
        expected = likelihood(smaller, None, MEAN[actor, kept], LOG_STD[kept], DRAWN[actor, kept])
        for value, by_the_smaller in zip(found, expected, strict=True):
            np.testing.assert_allclose(value[actor], by_the_smaller, rtol=1e-5)


@pytest.mark.parametrize("squash", [False, True])
def test_dimensions_that_an_actor_lacks_have_no_gradient_at_all(squash):
    agent = ja.ContinuousIPPO(Aim(n_dimensions=3), None, tiny(squash=squash))

    def loss(mean, log_std):
        log_prob, entropy = likelihood(agent, EXISTS, mean, log_std, DRAWN)
        return jnp.sum(log_prob + entropy)

    by_mean, by_log_std = jax.grad(loss, argnums=(0, 1))(MEAN, LOG_STD)
    np.testing.assert_array_equal(by_mean != 0.0, EXISTS)
    # No actor has the second dimension, one the first, both the third.
    np.testing.assert_array_equal(by_log_std != 0.0, [True, False, True])


def test_an_observations_mask_tells_which_dimensions_an_actor_has():
    agent = ja.ContinuousIPPO(Aim(n_dimensions=3), None, tiny(actor_network=Zero(3)))
    params = jax.tree.map(lambda leaf: leaf[0], agent.init(jax.random.key(0), FAST).actor.params)
    head = head_of(agent, params, ja.Observation(jnp.zeros((2, 3)), EXISTS))
    # One dimension's entropy at a deviation of 1 is (1 + log 2π) / 2.
    one = (1 + np.log(2 * np.pi)) / 2
    np.testing.assert_allclose(agent._entropy(head), [2 * one, one], rtol=1e-6)


def test_the_slope_of_tanh_is_finite_where_it_saturates():
    np.testing.assert_allclose(log_tanh_slope(jnp.float32(0.0)), 0.0, atol=1e-7)
    np.testing.assert_allclose(log_tanh_slope(jnp.float32(1.0)), np.log(1 - np.tanh(1.0) ** 2))
    np.testing.assert_allclose(log_tanh_slope(jnp.float32(50.0)), 2 * np.log(2) - 100)
    np.testing.assert_allclose(log_tanh_slope(jnp.float32(-50.0)), 2 * np.log(2) - 100)


@pytest.mark.parametrize(("squash", "expected"), [(False, [1.0, -3.0]), (True, [1.0, -1.0])])
def test_the_environment_gets_clipped_or_squashed_actions(squash, expected):
    agent = ja.ContinuousIPPO(Aim(2, -3.0, 1.0), None, tiny(squash=squash))
    drawn = jnp.array([9.0, -9.0]) if not squash else jnp.array([9.0, 0.0])
    np.testing.assert_allclose(agent._environment_action(drawn), expected, atol=1e-5)


def test_policy_is_greedy_without_a_key_and_value_is_per_actor():
    agent = ja.DiscreteIPPO(Walk(), None, tiny(parameter_sharing="independent"))
    runner = agent.init(jax.random.key(0), FAST)
    observation = jnp.ones((2, 2))
    actions = agent.policy(runner, observation)
    assert actions.shape == (2,)
    assert actions.dtype == jnp.int32
    np.testing.assert_array_equal(actions, agent.policy(runner, observation))
    values = agent.value(runner, observation)
    assert values.shape == (2,)
    assert values[0] != values[1]  # each actor has its own critic
    agent.collect_training(runner)
    np.testing.assert_array_equal(agent.value(None, observation), values)
