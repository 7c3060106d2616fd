"""A life of an actor is an episode of its own: actors that come back begin anew."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.environments.batch import EnvironmentBatch
from tests.agents import assert_trees_close, collect, log_ratio, opinionated_runner, shared_agent
from tests.probes import RealReturning, Returning

RETURNING, REAL_RETURNING = Returning(), RealReturning()
BEGINS = [  # after each step of an episode
    [False, False],
    [False, False],
    [False, False],
    [False, True],  # it comes back
    [True, False],  # another takes its position
    [False, False],
    [True, True],  # the reset
]
ALIVE = [[True, step not in (2, 3)] for step in range(7)]


def whole_episode(env=RETURNING, agent_class=ja.DiscreteIPPO, **changes) -> ja.IPPOBase:
    return shared_agent(env, agent_class, rollout_length=7, **changes)


def steps_of_an_episode(environments: EnvironmentBatch, n_steps: int = 7):
    observation, state = environments.reset(jax.random.key(0), 3)
    action = jnp.zeros((3, environments.n_actors), jnp.int32)
    step_environments = jax.jit(environments.step)
    steps = []
    for i in range(n_steps):
        step, state = step_environments(jax.random.key(i), state, action)
        steps.append(step)
    return observation, steps


def test_a_life_begins_at_resets_and_where_an_actor_comes_back():
    _, steps = steps_of_an_episode(whole_episode().environments)
    assert np.array([step.begins[0] for step in steps]).tolist() == BEGINS
    assert np.array([step.active[0] for step in steps]).tolist() == ALIVE
    assert [bool(step.episode_over[0]) for step in steps] == [False] * 6 + [True]


def test_every_actor_observes_the_time_of_its_own_life():
    agent = whole_episode(observe_time=True)
    observation, steps = steps_of_an_episode(agent.environments)
    ages = [
        observation.features[0, :, -1],
        *(step.observation.features[0, :, -1] for step in steps),
    ]
    expected = [[0, 0], [1, 1], [2, 2], [3, 3], [4, 0], [0, 1], [1, 2], [0, 0]]
    np.testing.assert_allclose(np.array(ages) * 7, expected, rtol=1e-6)
    finals = [step.final_observation.features[0, :, -1] for step in steps]
    np.testing.assert_allclose(np.array(finals)[4] * 7, [5, 1], rtol=1e-6)


def test_the_global_state_holds_the_time_of_the_episode():
    agent = whole_episode(observe_time=True, centralized_critic=True)
    _, steps = steps_of_an_episode(agent.environments)
    times = np.array([step.observation.global_state[0, -1] for step in steps]) * 7
    np.testing.assert_allclose(times, [1, 2, 3, 4, 5, 6, 0], rtol=1e-6)


CASES = [
    pytest.param("gru", RETURNING, ja.DiscreteIPPO, None, marks=pytest.mark.slow),
    pytest.param("lstm", RETURNING, ja.DiscreteIPPO, 7, marks=pytest.mark.slow),
    ("mingru", REAL_RETURNING, ja.ContinuousIPPO, None),
    pytest.param("gru", REAL_RETURNING, ja.ContinuousIPPO, 1, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("cell", "env", "agent_class", "chunk_length"), CASES)
def test_replayed_sequences_have_ratio_1_and_the_values_of_the_rollout(
    cell, env, agent_class, chunk_length
):
    agent = shared_agent(
        env, agent_class, recurrent=cell, recurrent_chunk_length=chunk_length, rollout_length=14
    )
    runner = opinionated_runner(agent)
    runner, transitions, batch = collect(agent, runner, jax.random.key(3))
    has_weight = batch.weight > 0
    assert jnp.sum(~has_weight) == 4 * 4
    np.testing.assert_allclose(log_ratio(agent, runner, batch)[has_weight], 0.0, atol=1e-4)
    memory = jax.tree.map(lambda leaf: leaf[:, 0], batch.memory.critic)
    value = jax.vmap(agent.networks.critic)(
        runner.critic.params, batch.critic_features, memory, batch.begins
    )[0]
    np.testing.assert_allclose(value[has_weight], batch.value[has_weight], rtol=1e-4, atol=1e-4)
    # Of the rollout: the hidden states are reset before the step after each entry of BEGINS.
    first = jax.tree.leaves(transitions.memory)[0][:7, 0]
    is_reset = np.all(np.asarray(first) == 0, axis=-1)
    assert is_reset.tolist() == [[True, True], *BEGINS[:-1]]


def test_an_episode_by_hand_is_the_recorded_one():
    """A hidden state is reset by `reset_carry` where evaluations reset theirs."""
    agent = whole_episode(recurrent="gru")
    runner = opinionated_runner(agent)
    (trajectory,) = agent.record(jax.random.key(5), 1, runner=runner)
    carry, begins = agent.initial_carry(), jnp.zeros(2, bool)
    carries = []
    for step in range(7):
        carry = agent.reset_carry(carry, begins)
        features = trajectory.observation.features[step]
        action, carry = agent.policy(runner, features, carry)
        carries.append(carry.actor)
        np.testing.assert_array_equal(action, trajectory.action[step])
        begins = jnp.array(BEGINS[step])


def test_evaluations_reset_hidden_states_where_a_life_begins():
    agent = whole_episode(recurrent="gru")
    runner = opinionated_runner(agent)
    actor = agent.networks.actor_of(runner)
    play = agent.player.begin_play(jax.random.key(0), actor, 2, True)
    for step in range(6):
        play, _ = agent.player.record_step(actor, play, 2, True)
        is_reset = np.all(np.asarray(play.memory[0]) == 0, axis=-1)
        assert is_reset.tolist() == BEGINS[step]


@pytest.mark.slow
def test_opponents_remember_nothing_of_an_earlier_life():
    agent = whole_episode(recurrent="gru")
    opponent = ja.FrozenPolicies(agent, opinionated_runner(agent))
    side = shared_agent(ja.Side(RETURNING, [0], opponents=[opponent]), rollout_length=7)
    _, state = side.environments.reset(jax.random.key(0), 2)
    action = jnp.zeros((2, 1), jnp.int32)
    for i in range(6):
        step, state = side.environments.step(jax.random.key(i), state, action)
        is_reset = np.all(np.asarray(state.env_state.memory[0][0]) == 0, axis=-1)
        assert is_reset.tolist() == BEGINS[i]
        assert step.begins[0].tolist() == BEGINS[i][:1]


@pytest.mark.slow
def test_an_update_by_hand_equals_a_step_where_actors_come_back():
    agent = shared_agent(RETURNING, recurrent="gru", rollout_length=4, scale_rewards=True)
    runner = agent.init(jax.random.key(0), ja.HyperParameters())
    expected, _ = agent.step(runner)
    observation, env_state = runner.observation, runner.env_state
    carry, records, steps = None, [], []
    for _ in range(4):
        action, record = agent.act(runner, observation, carry)
        step, env_state = agent.environments.step(record.rng, env_state, action)
        carry = agent.reset_carry(record.carry, step.begins)
        observation = step.observation
        records.append(record)
        steps.append(step)
    names = ("reward", "terminated", "truncated", "active", "episode_over", "final_observation")
    rollout = ja.Rollout.from_records(
        records,
        **{name: [getattr(step, name) for step in steps] for name in names},
        last_observation=observation,
        last_active=env_state.active,
    )
    updated, _ = agent.update(runner, rollout)
    assert_trees_close(updated.memory.actor, expected.memory.actor, rtol=1e-5, atol=1e-6)
    assert_trees_close(updated.memory.critic, expected.memory.critic, rtol=1e-5, atol=1e-6)
    assert_trees_close(updated.normalizers, expected.normalizers, rtol=1e-5, atol=1e-6)


class Visits(ja.Environment):
    """Visits to the first actor's position take 3 steps each, and the third ends the episode.

    The first actor sees the number of the visit, and the second sees 100.
    """

    n_actors = 2

    def action_space(self, params):
        return ja.Discrete(2)

    def reset_env(self, rng, params):
        return self._seen(jnp.int32(0)), jnp.int32(0)

    def step_env(self, rng, state, action, params):
        step = state + 1
        over = step >= 9
        info = {"acts_next": jnp.full(2, ~over), "final_observation": self._seen(state)}
        truncated = jnp.stack([step % 3 == 0, over])
        return self._seen(step), step, jnp.ones(2), jnp.zeros(2, bool), truncated, info

    def _seen(self, step):
        return jnp.stack([1.0 + step // 3, 100.0 + 0 * step])[:, None]


class VisitsByThemselves(Visits):
    """Likewise, but reset by its own step."""

    def step(self, rng, state, action, params=None):
        return super().step(rng, state, action, params)


@pytest.mark.parametrize("env", [Visits(), VisitsByThemselves()])
def test_a_truncated_actor_that_is_replaced_keeps_its_own_final_observation(env):
    _, steps = steps_of_an_episode(shared_agent(env).environments, n_steps=9)
    seen = [step.observation.features[0, :, 0].tolist() for step in steps[2::3]]
    final = [step.final_observation.features[0, :, 0].tolist() for step in steps[2::3]]
    truncated = [step.truncated[0].tolist() for step in steps[2::3]]
    assert truncated == [[True, False], [True, False], [True, True]]
    assert seen == [[2, 100], [3, 100], [1, 100]]
    assert final == [[1, 100], [2, 100], [3, 100]]


def test_a_final_observation_that_differs_from_observations_is_named():
    class Wrong(Visits):
        def step_env(self, rng, state, action, params):
            *results, info = super().step_env(rng, state, action, params)
            return *results, {**info, "final_observation": jnp.zeros((2, 3))}

    with pytest.raises(TypeError, match=r"a final_observation whose features is .*\[2, 3\]"):
        shared_agent(Wrong())


def test_a_wrong_acts_next_is_named():
    class Wrong(Returning):
        def step_env(self, rng, state, action, params):
            *results, _ = super().step_env(rng, state, action, params)
            return *results, {"acts_next": jnp.ones(2)}

    with pytest.raises(TypeError, match=r"acts_next of shape \(2,\) and dtype float32; .* bool"):
        shared_agent(Wrong())
