"""Recurrent agents: what they remember, and that they learn by it."""

import functools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.config import Layers
from jaxagents.hyperparameters import per_policy
from jaxagents.ippo.base import each_policy
from tests.ippo.test_training import FAST, assert_trees_equal, tiny
from tests.probes import RealWalk, Recall, Walk

CELLS = ("gru", "lstm", "mingru")
SMALL = Layers(hidden_sizes=(8,), memory_size=8)
BOTH_SMALL = {"actor_layers": SMALL, "critic_layers": SMALL}


def recurrent(agent_class, env, cell="gru", **changes) -> ja.IPPOBase:
    return agent_class(env, None, tiny(**{"recurrent": cell, **BOTH_SMALL, **changes}))


def opinionated(runner: ja.Runner) -> ja.Runner:
    """Draw parameters so large that every observation and every memory shows in what is done."""

    def redraw(params, seed):
        leaves, treedef = jax.tree.flatten(params)
        rngs = jax.random.split(jax.random.key(seed), len(leaves))
        drawn = [
            jax.random.normal(*pair) for pair in zip(rngs, map(jnp.shape, leaves), strict=True)
        ]
        return treedef.unflatten(drawn)

    return runner.replace(
        actor=runner.actor._replace(params=redraw(runner.actor.params, 1)),
        critic=runner.critic._replace(params=redraw(runner.critic.params, 2)),
    )


def collect_twice(agent: ja.IPPOBase):
    """Return the runner, the batch of a second rollout, whose memories come from the first one,
    the log ratios of what was done in it, and the values of what was seen."""

    @jax.jit
    def collect(runner):
        hyperparams = per_policy(runner.hyperparams, agent.policies.n_policies)
        for seed in (3, 4):
            runner, transitions = agent._collect_rollout(runner, jax.random.key(seed))
            runner, batch = agent._make_batch(runner, transitions, hyperparams)
        return runner, batch, jax.vmap(agent._log_ratio)(runner.actor.params, batch)

    return collect(opinionated(agent.init(jax.random.key(0), FAST)))


def values(agent, params, batch):
    memory = jax.tree.map(lambda leaf: leaf[:, 0], batch.memory.critic)
    return jax.vmap(agent.critic_network)(params, batch.critic_features, memory, batch.begins)[0]


# Sharing and chunks are the same code for every cell: all four ways are gone with one of them.
@pytest.mark.parametrize(
    ("cell", "sharing", "chunk_length"),
    [
        ("gru", "shared", None),
        ("gru", "shared", 3),
        ("gru", "independent", None),
        ("gru", "independent", 3),
        ("lstm", "shared", None),
        ("lstm", "independent", 3),
        ("mingru", "shared", None),
        ("mingru", "independent", 3),
    ],
)
def test_what_was_done_step_by_step_has_ratio_1_in_sequences(cell, sharing, chunk_length):
    """Episodes of five steps begin and end within rollouts of six, and chunks of three.

    Of the actors one lives on to the end of each, and two die, in different steps.
    """
    agent = recurrent(
        ja.DiscreteIPPO,
        Walk((2, 100, 3), limit=5),
        cell,
        recurrent_chunk_length=chunk_length,
        parameter_sharing=sharing,
    )
    runner, batch, log_ratio = collect_twice(agent)
    weighty = batch.weight > 0
    np.testing.assert_allclose(log_ratio[weighty], 0.0, atol=1e-4)
    value = values(agent, runner.critic.params, batch)
    np.testing.assert_allclose(value[weighty], batch.value[weighty], rtol=1e-4, atol=1e-4)


@functools.cache
def walked():
    agent = recurrent(ja.DiscreteIPPO, Walk(limit=5), recurrent_chunk_length=3)
    return agent, *collect_twice(agent)


@pytest.mark.parametrize("change", ["begins", "memory"])
def test_the_ratio_is_1_only_with_the_right_memories(change):
    """Without its resets, or without what was remembered at its start, no sequence is the same."""
    agent, runner, batch, log_ratio = walked()
    wrong = batch._replace(**{change: jax.tree.map(jnp.zeros_like, getattr(batch, change))})
    wrong_ratio = jax.vmap(agent._log_ratio)(runner.actor.params, wrong)
    assert jnp.max(jnp.abs(log_ratio)) < 1e-4
    assert jnp.max(jnp.abs(wrong_ratio)) > 0.01
    wrong_value = values(agent, runner.critic.params, wrong)
    assert jnp.max(jnp.abs(wrong_value - batch.value)) > 0.01


@pytest.mark.parametrize("sharing", ["shared", "independent"])
@pytest.mark.parametrize("kind", [(ja.DiscreteIPPO, Walk), (ja.ContinuousIPPO, RealWalk)])
def test_the_first_minibatch_has_kl_0(kind, sharing):
    agent_class, env_class = kind
    agent = recurrent(
        agent_class,
        env_class((2, 100), limit=5),
        minibatch_size=4,
        actor_epochs=1,
        recurrent_chunk_length=3,
        parameter_sharing=sharing,
    )
    runner = agent.init(jax.random.key(0), FAST)
    for _ in range(3):
        runner, metrics = agent.step(runner)
        np.testing.assert_allclose(metrics["kl"], 0.0, atol=1e-6)
        np.testing.assert_array_equal(metrics["clip_fraction"], 0.0)


@pytest.mark.parametrize("cell", CELLS)
def test_an_episode_played_with_the_public_carry_is_the_evaluations(cell):
    agent = recurrent(
        ja.DiscreteIPPO, Walk((100, 3), limit=5), cell, parameter_sharing="independent"
    )
    runner = opinionated(agent.init(jax.random.key(0), FAST))
    metrics = agent.eval(jax.random.key(5), n_evals=1, runner=runner)
    # The evaluation's own way from its key to the first observation.
    _, rng_reset = jax.random.split(jax.random.key(5))
    observation, state = agent.environments.reset(rng_reset, 1)
    carry, returns = agent.initial_carry(), 0.0
    for _ in range(5):
        one = jax.tree.map(lambda leaf: leaf[0], observation)
        action, carry = agent.policy(runner, one, carry)
        step, state = agent.environments.step(jax.random.key(0), state, action[None])
        observation, returns = step.observation, returns + step.reward[0]
    np.testing.assert_allclose(metrics["returns"][0], returns, rtol=1e-5)


def test_a_carry_is_emptied_for_those_whose_episode_begins():
    agent = recurrent(ja.DiscreteIPPO, Walk(limit=5), "lstm")
    runner = opinionated(agent.init(jax.random.key(0), FAST))
    _, carry = agent.policy(runner, runner.observation.features[0], agent.initial_carry())
    reset = agent.reset_carry(carry, jnp.array([True, False]))
    assert_trees_equal(jax.tree.map(lambda leaf: leaf[0], reset),
                       jax.tree.map(lambda leaf: leaf[0], agent.initial_carry()))  # fmt: skip
    assert_trees_equal(jax.tree.map(lambda leaf: leaf[1], reset),
                       jax.tree.map(lambda leaf: leaf[1], carry))  # fmt: skip
    assert all(bool(jnp.all(leaf[1] != 0)) for leaf in jax.tree.leaves(carry))


def test_what_is_valued_depends_on_what_is_remembered():
    agent = recurrent(ja.DiscreteIPPO, Walk(limit=5))
    runner = opinionated(agent.init(jax.random.key(0), FAST))
    features = runner.observation.features[0]
    _, carry = agent.policy(runner, features, agent.initial_carry())
    fresh, later = (agent.value(runner, features, each) for each in (agent.initial_carry(), carry))
    assert fresh.shape == (2,)
    assert jnp.all(jnp.abs(fresh - later) > 1e-3)


def test_truncated_steps_bootstrap_with_the_memory_of_their_own_episode():
    """V of the observation before the reset, by the memory that led there."""
    agent = recurrent(ja.DiscreteIPPO, Walk(limit=5), "lstm")
    runner = opinionated(agent.init(jax.random.key(0), FAST))
    _, transitions = jax.jit(agent._collect_rollout)(runner, jax.random.key(3))
    _, batch = jax.jit(agent._make_batch)(runner, transitions, per_policy(FAST, 1))
    assert bool(transitions.truncated[4].all())
    carry = agent.initial_carry()
    for time in range(5):
        _, carry = agent.policy(runner, transitions.observation.features[time, 0], carry)
    value = agent.value(runner, transitions.final_observation.features[4, 0], carry)
    np.testing.assert_allclose(batch.path.next_value[0, 4, 0], value, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        batch.path.next_value[0, 3], batch.path.value[0, 4], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    ("cell", "carry", "message"),
    [("gru", None, "needs a carry"), (None, ja.types.Memory(), "the agent is not recurrent")],
)
def test_a_carry_that_is_missing_or_of_no_use_is_an_error(cell, carry, message):
    agent = recurrent(ja.DiscreteIPPO, Walk(), cell)
    runner = agent.init(jax.random.key(0), FAST)
    with pytest.raises(ValueError, match=message):
        agent.policy(runner, runner.observation.features[0], carry)
    with pytest.raises(ValueError, match=message):
        agent.value(runner, runner.observation.features[0], carry)


@pytest.mark.parametrize("value", [-3.0, np.nan])
def test_what_the_dead_see_and_remember_changes_nothing(value):
    """The first actor dies at the third of six steps, and stays dead: of two chunks, the second
    begins with what it remembers."""
    agent = recurrent(ja.DiscreteIPPO, Walk((3, 100), limit=100), recurrent_chunk_length=3)
    runner = opinionated(agent.init(jax.random.key(0), FAST))
    after, transitions = jax.jit(agent._collect_rollout)(runner, jax.random.key(3))
    hyperparams = per_policy(FAST, 1)

    def altered(tree):
        return jax.tree.map(lambda leaf: leaf.at[3:, :, 0].set(value), tree)

    @jax.jit
    def learn(runner, transitions):
        _, batch = agent._make_batch(runner, transitions, hyperparams)
        rngs = jax.random.split(jax.random.key(2), 1)
        actor = each_policy(agent._update_actor)(runner.actor, batch, hyperparams, rngs)
        return actor, each_policy(agent._update_critic)(runner.critic, batch, hyperparams, rngs)

    fields = ("memory", "reward", "final_observation")
    changes = {name: altered(getattr(transitions, name)) for name in fields}
    observation = transitions.observation
    observation = observation._replace(features=altered(observation.features))
    expected = learn(after, transitions)
    assert_trees_equal(
        learn(after, transitions._replace(observation=observation, **changes)), expected
    )
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(expected))


def test_memories_last_from_update_to_update_and_end_with_the_episode():
    agent = recurrent(ja.DiscreteIPPO, Walk(limit=6))  # as long as a rollout
    runner, _ = agent.step(agent.init(jax.random.key(0), FAST))
    assert_trees_equal(runner.memory, agent._empty_memory(4, 2))
    agent = recurrent(ja.DiscreteIPPO, Walk(limit=7))
    runner, _ = agent.step(agent.init(jax.random.key(0), FAST))
    assert all(bool(jnp.all(leaf != 0)) for leaf in jax.tree.leaves(runner.memory))


def test_a_recurrent_run_is_resumed_bit_for_bit(tmp_path):
    config = tiny(recurrent="lstm", **BOTH_SMALL, checkpoint_dir=tmp_path, keep_latest=9)
    env = Walk(limit=5)
    whole, _ = ja.DiscreteIPPO(env, None, config).train(jax.random.key(0), FAST)
    later = [path for path in tmp_path.iterdir() if path.name.isdigit() and int(path.name) > 2]
    assert later
    for path in later:  # as if the training had ended before
        shutil.rmtree(path)
    resumed, _ = ja.DiscreteIPPO(env, None, config).resume()
    assert_trees_equal(
        jax.tree.map(lambda leaf: np.asarray(leaf), resumed.replace(rng=0)),
        jax.tree.map(lambda leaf: np.asarray(leaf), whole.replace(rng=0)),
    )


def success_at_recall(cell: str | None, **changes) -> float:
    config = tiny(
        n_steps=120,
        eval_frequency=120,
        batch_size=32,
        minibatch_size=8,
        rollout_length=8,
        n_evals=200,
        initial_evaluation=False,
        anneal_learning_rate=True,  # what is learnt at a high rate may be lost again
        recurrent=cell,
        actor_layers=Layers(hidden_sizes=(16,), memory_size=16),
        critic_layers=Layers(hidden_sizes=(16,), memory_size=16),
        **changes,
    )
    _, metrics = ja.DiscreteIPPO(Recall(), None, config).train(jax.random.key(0), FAST)
    return float(metrics["returns"].mean())


@pytest.mark.parametrize("cell", CELLS)
def test_what_needs_memory_is_learnt_with_it(cell):
    assert success_at_recall(cell) > 0.95


def test_what_needs_memory_is_left_to_chance_without_it():
    assert 0.35 < success_at_recall(None) < 0.65


def test_chunks_that_hold_cue_and_question_are_long_enough():
    assert success_at_recall("gru", recurrent_chunk_length=4) > 0.95
