"""Recurrent agents: their recurrent states, and what they learn by them."""

import functools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from tests.agents import (
    FAST,
    all_finite,
    assert_trees_equal,
    begin,
    collect,
    log_ratio,
    opinionated_runner,
    shared_agent,
    tiny,
)
from tests.probes import RealWalk, Recall, Walk

CELLS = ("gru", "lstm", "mingru")
WALK_OF_FIVE = Walk(limit=5)


def recurrent(env=WALK_OF_FIVE, cell="gru", agent_class=ja.DiscreteIPPO, **changes) -> ja.IPPOBase:
    return shared_agent(env, agent_class, recurrent=cell, **changes)


def collect_twice(agent: ja.IPPOBase):
    """Return the runner and the batch of a second rollout, which continues episodes of the first,
    and the log ratios of its actions."""
    runner = opinionated_runner(agent)
    for seed in (3, 4):
        runner, _, batch = collect(agent, runner, jax.random.key(seed))
    return runner, batch, log_ratio(agent, runner, batch)


def values(agent, params, batch):
    memory = jax.tree.map(lambda leaf: leaf[:, 0], batch.memory.critic)
    return jax.vmap(agent.networks.critic)(params, batch.critic_features, memory, batch.begins)[0]


MORTAL_WALK = Walk((2, 100, 3), limit=5)


@functools.cache
def collected(cell, sharing, chunk_length):
    agent = recurrent(
        MORTAL_WALK, cell, recurrent_chunk_length=chunk_length, parameter_sharing=sharing
    )
    return agent, *collect_twice(agent)


# Sharing and chunks are the same code for every cell; tests of learning have the GRU.
REPRESENTATIVES = [("mingru", "shared", None)]
CASES = [
    pytest.param(*case, marks=[] if case in REPRESENTATIVES else pytest.mark.slow, id=str(case))
    for case in (
        (cell, sharing, chunk_length)
        for cell in CELLS
        for sharing in ("shared", "independent")
        for chunk_length in (None, 3)
    )
]


@pytest.mark.parametrize(("cell", "sharing", "chunk_length"), CASES)
def test_sequences_reproduce_the_log_probabilities_and_values_of_the_rollout(
    cell, sharing, chunk_length
):
    """Episodes of five steps begin and end within rollouts of six, and chunks of three.

    Of the three actors, one lives until the end of each episode and two die, at different steps.
    """
    agent, runner, batch, log_ratios = collected(cell, sharing, chunk_length)
    has_weight = batch.weight > 0
    np.testing.assert_allclose(log_ratios[has_weight], 0.0, atol=1e-4)
    value = values(agent, runner.critic.params, batch)
    np.testing.assert_allclose(value[has_weight], batch.value[has_weight], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("change", ["begins", "memory"])
def test_the_ratio_is_1_only_with_the_right_recurrent_states(change):
    """Without its resets, or without its initial recurrent state, a sequence is another one."""
    agent, runner, batch, log_ratios = collected("gru", "shared", 3)
    has_weight = batch.weight > 0
    wrong = batch._replace(**{change: jax.tree.map(jnp.zeros_like, getattr(batch, change))})
    wrong_ratios = log_ratio(agent, runner, wrong)
    assert jnp.max(jnp.abs(log_ratios[has_weight])) < 1e-4
    assert jnp.max(jnp.abs(wrong_ratios[has_weight])) > 0.01
    wrong_value = values(agent, runner.critic.params, wrong)
    assert jnp.max(jnp.abs(wrong_value - batch.value)[has_weight]) > 0.01


class SixOrSeven(Walk):
    """Walk in which each episode lasts six or seven steps, by chance."""

    def reset_env(self, rng, params):
        observation, state = super().reset_env(rng, params)
        return observation, state | {"limit": jax.random.randint(rng, (), 6, 8)}

    def step_env(self, rng, state, action, params):
        observation, moved, reward, terminated, _, info = super().step_env(
            rng, state, action, params
        )
        truncated = (moved["time"] >= state["limit"]) & ~terminated
        moved |= {"limit": state["limit"]}
        return observation, moved, reward, terminated, truncated, info


class RealSixOrSeven(SixOrSeven, RealWalk):
    """Likewise, with an action of one real number."""


KINDS = {
    "discrete": (SixOrSeven((2, 100)), ja.DiscreteIPPO, "gru"),
    "continuous": (RealSixOrSeven((2, 100)), ja.ContinuousIPPO, "mingru"),
}


def agent_of_one_epoch(kind, sharing):
    """Return an agent that takes one gradient step per update, from the whole batch."""
    env, agent_class, cell = KINDS[kind]
    return recurrent(
        env,
        cell,
        agent_class,
        minibatch_size=4,
        actor_epochs=1,
        recurrent_chunk_length=3,
        parameter_sharing=sharing,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "sharing"),
    [
        ("discrete", "shared"),
        ("continuous", "independent"),
        ("discrete", "independent"),
        ("continuous", "shared"),
    ],
)
def test_the_first_minibatch_has_ratio_1_and_kl_0(kind, sharing):
    agent = agent_of_one_epoch(kind, sharing)
    runner = begin(agent)
    for _ in range(3):
        runner, metrics = agent.step(runner)
        np.testing.assert_allclose(metrics["kl"], 0.0, atol=1e-6)
        np.testing.assert_array_equal(metrics["clip_fraction"], 0.0)


def test_recurrent_states_last_from_update_to_update_and_end_with_the_episode():
    """Of episodes of six or seven steps, those of six end with the rollout."""
    agent = agent_of_one_epoch("discrete", "shared")
    runner, _ = agent.step(opinionated_runner(agent))
    has_ended = np.asarray(runner.env_state.env_state["time"] == 0)
    assert 0 < has_ended.sum() < len(has_ended)
    for leaf in jax.tree.leaves(runner.memory):
        assert np.all(leaf[has_ended] == 0)
        assert np.all(leaf[~has_ended] != 0)


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["lstm", "gru", "mingru"])
def test_an_episode_played_with_the_public_carry_is_the_evaluations(cell):
    agent = recurrent(cell=cell, parameter_sharing="independent")
    runner = opinionated_runner(agent)
    metrics = agent.eval(jax.random.key(5), n_evals=1, runner=runner)
    # As the evaluation derives its first observation from its key.
    _, rng_reset = jax.random.split(jax.random.key(5))
    observation, state = agent.environments.reset(rng_reset, 1)
    carry, returns = agent.initial_carry(), 0.0
    for _ in range(5):
        one = jax.tree.map(lambda leaf: leaf[0], observation)
        action, carry = agent.policy(runner, one, carry)
        step, state = agent.environments.step(jax.random.key(0), state, action[None])
        observation, returns = step.observation, returns + step.reward[0]
    np.testing.assert_allclose(metrics["returns"][0], returns, rtol=1e-5)


def test_a_carry_is_reset_for_actors_whose_episode_begins():
    agent = recurrent(cell="lstm")
    runner = opinionated_runner(agent)
    _, carry = agent.policy(runner, runner.observation.features[0], agent.initial_carry())
    reset = agent.reset_carry(carry, jnp.array([True, False]))
    assert_trees_equal(jax.tree.map(lambda leaf: leaf[0], reset),
                       jax.tree.map(lambda leaf: leaf[0], agent.initial_carry()))  # fmt: skip
    assert_trees_equal(jax.tree.map(lambda leaf: leaf[1], reset),
                       jax.tree.map(lambda leaf: leaf[1], carry))  # fmt: skip
    assert all(bool(jnp.all(leaf[1] != 0)) for leaf in jax.tree.leaves(carry))


def test_values_depend_on_the_recurrent_state():
    agent = recurrent(cell="lstm")
    runner = opinionated_runner(agent)
    features = runner.observation.features[0]
    _, carry = agent.policy(runner, features, agent.initial_carry())
    fresh, later = (agent.value(runner, features, each) for each in (agent.initial_carry(), carry))
    assert fresh.shape == (2,)
    assert jnp.all(jnp.abs(fresh - later) > 1e-3)


def test_truncated_steps_bootstrap_with_the_recurrent_state_of_their_own_episode():
    """V of the observation before the reset, by the recurrent state that led to it."""
    agent = recurrent(cell="lstm")
    runner = opinionated_runner(agent)
    _, transitions, batch = collect(agent, runner, jax.random.key(3))
    assert bool(transitions.truncated[4].all())
    carry = agent.initial_carry()
    for time in range(5):
        _, carry = agent.policy(runner, transitions.observation.features[time, 0], carry)
    value = agent.value(runner, transitions.final_observation.features[4, 0], carry)
    np.testing.assert_allclose(batch.trajectory.next_value[0, 4, 0], value, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        batch.trajectory.next_value[0, 3], batch.trajectory.value[0, 4], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    ("cell", "carry", "message"),
    [("lstm", None, "needs a carry"), (None, ja.types.Memory(), "the agent is not recurrent")],
)
def test_a_missing_or_useless_carry_is_an_error(cell, carry, message):
    agent, runner = recurrent(cell=cell), opinionated_runner(recurrent(cell="lstm"))
    with pytest.raises(ValueError, match=message):
        agent.policy(runner, runner.observation.features[0], carry)
    with pytest.raises(ValueError, match=message):
        agent.value(runner, runner.observation.features[0], carry)


@pytest.mark.slow
def test_a_recurrent_run_is_resumed_bit_for_bit(tmp_path):
    config = tiny(recurrent="lstm", n_evals=0, checkpoint_dir=tmp_path, keep_latest=9)
    agent = ja.DiscreteIPPO(WALK_OF_FIVE, None, config)
    whole, _ = agent.train(jax.random.key(0), FAST)
    later = [path for path in tmp_path.iterdir() if path.name.isdigit() and int(path.name) > 2]
    assert later
    for path in later:  # as if the training had been interrupted
        shutil.rmtree(path)
    resumed, _ = agent.resume()
    assert_trees_equal(resumed, whole)
    assert all_finite(whole.memory)
    assert any(bool(jnp.any(leaf != 0)) for leaf in jax.tree.leaves(whole.memory))


def success_at_recall(cell: str | None, **changes) -> float:
    config = tiny(
        n_steps=80,
        eval_frequency=80,
        batch_size=32,
        minibatch_size=8,
        rollout_length=8,
        n_evals=200,
        initial_evaluation=False,
        anneal_learning_rate=True,  # at a constant high rate it may be forgotten again
        recurrent=cell,
        actor_layers=ja.Layers(hidden_sizes=(), memory_size=16),
        critic_layers=ja.Layers(hidden_sizes=(), memory_size=16),
        **changes,
    )
    _, metrics = ja.DiscreteIPPO(Recall(), None, config).train(jax.random.key(0), FAST)
    return float(metrics["returns"].mean())


@pytest.mark.slow
def test_a_task_that_needs_memory_is_learnt_in_chunks_that_hold_cue_and_question():
    assert success_at_recall("gru", recurrent_chunk_length=4) > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS)
def test_a_task_that_needs_memory_is_learnt_by_every_cell(cell):
    assert success_at_recall(cell) > 0.95


@pytest.mark.slow
def test_without_memory_a_task_that_needs_it_is_solved_only_by_chance():
    assert 0.35 < success_at_recall(None) < 0.65
