"""Critics that see through the actor's torso: what they see, and whom they leave alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.hyperparameters import per_policy
from jaxagents.networks.feed_forward import MLP, PolicyNetwork
from tests.ippo.test_memory import collect_twice, opinionated, success_at_recall
from tests.ippo.test_training import FAST, assert_trees_equal, largest_change, tiny
from tests.probes import RealWalk, Walk

LAYERS = {
    "actor_layers": ja.Layers((8,), memory_size=6),
    "critic_layers": ja.Layers((5,)),
}
MEMORIES = [None, "gru", "lstm", "mingru"]
OBSERVATION = jnp.array([[0.5, -0.5], [1.0, 2.0]])


def make(env=None, agent_class=ja.DiscreteIPPO, **options):
    env = Walk((3, 100), limit=5) if env is None else env
    return agent_class(env, None, tiny(shared_torso=True, **{**LAYERS, **options}))


def begin(agent, **hyperparams):
    return agent.init(jax.random.key(0), FAST.replace(**hyperparams))


def layer(parameters, features):
    return features @ np.asarray(parameters["kernel"][0]) + np.asarray(parameters["bias"][0])


def test_a_value_is_the_critics_layers_upon_the_actors_hidden_ones():
    agent = make(RealWalk(), ja.ContinuousIPPO)
    runner = opinionated(begin(agent))
    actor = runner.actor.params["network"]["params"]["torso"]
    critic = runner.critic.params["params"]
    hidden = np.tanh(layer(actor["Dense_0"], np.asarray(OBSERVATION)))
    hidden = np.tanh(layer(critic["torso"]["Dense_0"], hidden))
    expected = layer(critic["Dense_0"], hidden)[:, 0]
    np.testing.assert_allclose(agent.value(runner, OBSERVATION), expected, rtol=1e-4)
    assert critic["torso"]["Dense_0"]["kernel"].shape == (1, 8, 5)


@pytest.mark.parametrize("cell", ["gru", "lstm", "mingru"])
def test_a_critic_sees_what_the_actor_shows_of_its_memory(cell):
    agent = make(recurrent=cell)
    assert agent.critic_network.observation.shape == (6,)
    assert not agent.critic_network.recurrent
    runner = opinionated(begin(agent))
    assert runner.critic.params["params"]["torso"]["Dense_0"]["kernel"].shape == (1, 6, 5)
    observation = jnp.ones((2, *agent.actor_network.observation.shape))
    carry = agent.initial_carry()
    first = agent.value(runner, observation, carry)
    _, carry = agent.policy(runner, observation, carry)
    jax.tree.map(np.testing.assert_allclose, carry.critic, carry.actor)
    assert jnp.all(jnp.abs(agent.value(runner, observation, carry) - first) > 1e-3)


@pytest.mark.parametrize("sharing", ["shared", "independent"])
@pytest.mark.parametrize("chunk_length", [None, 3])
@pytest.mark.parametrize("cell", MEMORIES)
def test_what_a_critic_learns_from_is_what_its_values_were_made_of(cell, chunk_length, sharing):
    chunk_length = chunk_length if cell else None
    agent = make(recurrent=cell, recurrent_chunk_length=chunk_length, parameter_sharing=sharing)
    runner, batch, log_ratio = collect_twice(agent)
    weighty = batch.weight > 0
    assert not bool(jnp.all(weighty))
    np.testing.assert_allclose(log_ratio[weighty], 0.0, atol=1e-4)
    seen = jax.vmap(agent._with_critic_features)(runner.actor.params, batch)
    value = jax.vmap(lambda params, features: agent.critic_network.step(params, features, ())[0])(
        runner.critic.params, seen.critic_features
    )
    np.testing.assert_allclose(value[weighty], batch.value[weighty], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("cell", [None, "gru"])
def test_a_critic_learns_upon_the_torso_that_the_actor_has_just_trained(cell):
    agent = make(recurrent=cell)
    runner, batch, _ = collect_twice(agent)
    hyperparams = per_policy(runner.hyperparams, 1)
    moved = jax.tree.map(lambda leaf: leaf + 0.1, runner.actor)

    def learnt_from(actor):
        made = jax.vmap(agent._make_targets)(actor, batch, runner.normalizers.value, hyperparams)
        return made[0].critic_features

    def seen_with(actor):
        return jax.vmap(agent._with_critic_features)(actor.params, batch).critic_features

    np.testing.assert_allclose(learnt_from(moved), seen_with(moved), rtol=1e-5, atol=1e-6)
    assert jnp.max(jnp.abs(learnt_from(moved) - seen_with(runner.actor))) > 1e-2


@pytest.mark.parametrize("cell", [None, "gru"])
def test_a_critic_trains_its_own_layers_and_never_the_torso(cell):
    agent = make(recurrent=cell)
    still = ja.OptimizerParams(learning_rate=0.0)
    before = begin(agent, actor_optimizer_params=still)
    after, metrics = agent.step(before)
    assert_trees_equal(before.actor.params, after.actor.params)
    assert largest_change(before.critic.params, after.critic.params) > 1e-3
    assert float(metrics["critic_gradient_norm"][0]) > 0
    before = begin(agent, critic_optimizer_params=still)
    after, _ = agent.step(before)
    assert largest_change(before.actor.params, after.actor.params) > 1e-3
    assert_trees_equal(before.critic.params, after.critic.params)


def test_normalised_observations_reach_the_torso_once():
    agent = make(RealWalk(), ja.ContinuousIPPO, normalize_observations=True)
    runner = begin(agent)
    for _ in range(2):
        runner, _ = agent.step(runner)
    statistics = runner.normalizers.observation
    assert runner.normalizers.critic_features is None
    raw = make(RealWalk(), ja.ContinuousIPPO)
    scaled = (OBSERVATION - statistics.mean[0]) / jnp.sqrt(statistics.variance[0])
    assert jnp.max(jnp.abs(scaled)) < 10.0  # where observations are clipped
    unnormalised = runner.replace(normalizers=raw.init(jax.random.key(0), FAST).normalizers)
    np.testing.assert_allclose(
        agent.value(runner, OBSERVATION), raw.value(unnormalised, scaled), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    "options",
    [
        {"advantages": "vtrace", "normalize_values": True, "scale_rewards": True},
        {"recurrent": "lstm", "recurrent_chunk_length": 2, "clip_values": True},
        {"minibatch_unit": "step", "normalize_observations": True, "agent_id": True},
    ],
    ids=str,
)
def test_a_shared_torso_goes_with_other_options(options):
    agent = make(**options)
    runner = begin(agent)
    for _ in range(2):
        before = runner
        runner, metrics = agent.step(runner)
        assert largest_change(before.critic.params, runner.critic.params) > 1e-4
    leaves = jax.tree.leaves((runner.actor, runner.critic, metrics))
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in leaves)


def test_a_shared_torso_with_memory_learns_what_needs_memory():
    assert success_at_recall("gru", shared_torso=True) > 0.95


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"centralized_critic": True}, "shared_torso=True gives critics .*; choose one"),
        ({"actor_network": PolicyNetwork(2, MLP())}, "knows no torso of actor_network="),
    ],
)
def test_what_a_shared_torso_excludes_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)
