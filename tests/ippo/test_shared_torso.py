"""Critics on the actor's torso: what they observe, and that only the actor trains the torso."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.hyperparameters import per_policy
from jaxagents.networks.network import MLP, PolicyNetwork
from tests.agents import (
    all_finite,
    assert_trees_equal,
    begin,
    largest_change,
    opinionated_runner,
    rate,
    shared_agent,
    with_hyperparams,
)
from tests.ippo.test_memory import collect_twice, success_at_recall
from tests.probes import RealWalk, Walk

LAYERS = {
    "actor_layers": ja.Layers((8,), memory_size=6),
    "critic_layers": ja.Layers((5,)),
}
CELLS = ["gru", "lstm", "mingru"]
OBSERVATION = jnp.array([[0.5, -0.5], [1.0, 2.0]])
MORTAL_WALK, REAL_WALK = Walk((3, 100), limit=5), RealWalk()


def make(env=MORTAL_WALK, agent_class=ja.DiscreteIPPO, **options):
    return shared_agent(env, agent_class, shared_torso=True, **{**LAYERS, **options})


def layer(parameters, features):
    return features @ np.asarray(parameters["kernel"][0]) + np.asarray(parameters["bias"][0])


def test_a_value_is_computed_by_the_critics_layers_from_the_actors_hidden_features():
    agent = make(REAL_WALK, ja.ContinuousIPPO)
    runner = opinionated_runner(agent)
    actor = runner.actor.params["network"]["params"]["torso"]
    critic = runner.critic.params["params"]
    hidden = np.tanh(layer(actor["Dense_0"], np.asarray(OBSERVATION)))
    hidden = np.tanh(layer(critic["torso"]["Dense_0"], hidden))
    expected = layer(critic["Dense_0"], hidden)[:, 0]
    np.testing.assert_allclose(agent.value(runner, OBSERVATION), expected, rtol=1e-4)
    assert critic["torso"]["Dense_0"]["kernel"].shape == (1, 8, 5)


@pytest.mark.parametrize(
    "cell", ["gru", *(pytest.param(each, marks=pytest.mark.slow) for each in CELLS[1:])]
)
def test_a_critic_observes_the_output_of_the_actors_recurrent_cell(cell):
    agent = make(recurrent=cell)
    networks = agent.networks
    assert networks.critic.observation.shape == (6,)
    assert not networks.critic.recurrent
    runner = opinionated_runner(agent)
    assert runner.critic.params["params"]["torso"]["Dense_0"]["kernel"].shape == (1, 6, 5)
    observation = jnp.ones((2, *networks.actor.observation.shape))
    carry = agent.initial_carry()
    first = agent.value(runner, observation, carry)
    _, carry = agent.policy(runner, observation, carry)
    jax.tree.map(np.testing.assert_allclose, carry.critic, carry.actor)
    assert jnp.all(jnp.abs(agent.value(runner, observation, carry) - first) > 1e-3)


@functools.cache
def collected(cell, chunk_length, sharing):
    agent = make(recurrent=cell, recurrent_chunk_length=chunk_length, parameter_sharing=sharing)
    return agent, *collect_twice(agent)


REPRESENTATIVES = [
    (None, None, "shared"),
    ("gru", 3, "independent"),
    ("lstm", 3, "shared"),
    ("mingru", None, "independent"),
]
CASES = [
    pytest.param(*case, marks=[] if case in REPRESENTATIVES else pytest.mark.slow, id=str(case))
    for case in (
        (cell, chunk_length, sharing)
        for cell in (None, *CELLS)
        for chunk_length in ((None, 3) if cell else (None,))
        for sharing in ("shared", "independent")
    )
]


@pytest.mark.slow
@pytest.mark.parametrize(("cell", "chunk_length", "sharing"), CASES)
def test_a_critic_learns_from_the_features_that_its_values_were_computed_from(
    cell, chunk_length, sharing
):
    agent, runner, batch, log_ratios = collected(cell, chunk_length, sharing)
    has_weight = batch.weight > 0
    assert not bool(jnp.all(has_weight))
    np.testing.assert_allclose(log_ratios[has_weight], 0.0, atol=1e-4)
    networks = agent.networks
    seen = jax.vmap(networks.with_torso_features)(runner.actor.params, batch)
    value = jax.vmap(lambda params, features: networks.critic.step(params, features, ())[0])(
        runner.critic.params, seen.critic_features
    )
    np.testing.assert_allclose(value[has_weight], batch.value[has_weight], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "chunk_length", "sharing"), [(None, None, "shared"), ("gru", 3, "independent")]
)
def test_a_critic_learns_on_the_torso_as_the_actors_epochs_have_left_it(
    cell, chunk_length, sharing
):
    agent, runner, batch, _ = collected(cell, chunk_length, sharing)
    hyperparams = per_policy(runner.hyperparams, agent.policies.n_policies)
    moved = jax.tree.map(lambda leaf: leaf + 0.1, runner.actor)

    def learnt_from(actor):
        moved_runner = runner.replace(actor=actor)
        return agent.make_targets(moved_runner, batch, hyperparams)[1].critic_features

    def seen_with(actor):
        seen = jax.vmap(agent.networks.with_torso_features)(actor.params, batch)
        return seen.critic_features

    np.testing.assert_allclose(learnt_from(moved), seen_with(moved), rtol=1e-5, atol=1e-6)
    assert jnp.max(jnp.abs(learnt_from(moved) - seen_with(runner.actor))) > 1e-2


FEED_FORWARD = {
    "advantages": "vtrace",
    "normalize_values": True,
    "scale_rewards": True,
    "minibatch_unit": "step",
    "normalize_observations": True,
    "agent_id": True,
}
RECURRENT = {"recurrent": "mingru", "recurrent_chunk_length": 2, "clip_values": True}
with_other_options = pytest.mark.parametrize(
    "options",
    [
        pytest.param(FEED_FORWARD, marks=pytest.mark.slow, id="feed-forward"),
        pytest.param(RECURRENT, id="recurrent"),
    ],
)


@pytest.mark.slow
@with_other_options
def test_a_shared_torso_works_with_other_options(options):
    agent = make(**options)
    runner = begin(agent)
    for _ in range(2):
        before = runner
        runner, metrics = agent.step(runner)
        assert largest_change(before.critic.params, runner.critic.params) > 1e-4
    assert all_finite((runner.actor, runner.critic, metrics))


@pytest.mark.slow
@with_other_options
def test_a_critic_trains_its_own_layers_and_never_the_torso(options):
    agent = make(**options)
    begun = begin(agent)
    before = with_hyperparams(begun, actor_optimizer_params=rate(0.0))
    after, metrics = agent.step(before)
    assert_trees_equal(before.actor.params, after.actor.params)
    assert largest_change(before.critic.params, after.critic.params) > 1e-3
    assert float(metrics["critic_gradient_norm"][0]) > 0
    before = with_hyperparams(begun, critic_optimizer_params=rate(0.0))
    after, _ = agent.step(before)
    assert largest_change(before.actor.params, after.actor.params) > 1e-3
    assert_trees_equal(before.critic.params, after.critic.params)


@pytest.mark.slow
def test_observations_are_normalised_once_before_the_torso():
    agent = make(REAL_WALK, ja.ContinuousIPPO, normalize_observations=True)
    runner = begin(agent)
    for _ in range(2):
        runner, _ = agent.step(runner)
    statistics = runner.normalizers.observation
    assert runner.normalizers.critic_features is None
    raw = make(REAL_WALK, ja.ContinuousIPPO)
    scaled = (OBSERVATION - statistics.mean[0]) / jnp.sqrt(statistics.variance[0])
    assert jnp.max(jnp.abs(scaled)) < 10.0  # where observations are clipped
    unnormalised = runner.replace(normalizers=opinionated_runner(raw).normalizers)
    np.testing.assert_allclose(
        agent.value(runner, OBSERVATION), raw.value(unnormalised, scaled), rtol=1e-4, atol=1e-5
    )


@pytest.mark.slow
def test_a_task_that_needs_memory_is_learnt_with_a_shared_torso():
    assert success_at_recall("mingru", shared_torso=True) > 0.95


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"centralized_critic": True}, "shared_torso=True gives critics .*; choose one"),
        ({"actor_network": PolicyNetwork(2, MLP())}, "cannot find the torso of actor_network="),
    ],
)
def test_options_that_exclude_a_shared_torso_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)
