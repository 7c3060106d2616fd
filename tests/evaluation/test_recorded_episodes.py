"""Recorded episodes are those that evaluations play."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.environments.jax_batch import JaxEnvironmentBatch
from jaxagents.evaluation.episodes import begin_play, record_episodes, record_step
from tests.probes import Team, Walk


class Stairs(Walk):
    """Walk in episodes of 1 to 6 steps, drawn at the reset."""

    def reset_env(self, rng, params):
        observation, state = super().reset_env(rng, params)
        return observation, state | {"length": jax.random.randint(rng, (), 1, 7)}

    def step_env(self, rng, state, action, params):
        length = state["length"]
        observation, state, reward, terminated, _, info = super().step_env(
            rng, state, action, params
        )
        state = state | {"length": length}
        return observation, state, reward, terminated, (state["time"] >= length) & ~terminated, info


class OwnStep(Walk):
    """Walk that steps and resets by itself."""

    def step(self, rng, state, action, params=None):
        return super().step(rng, state, action, params)


def count_steps(rng, observation, memory):
    """Choose the number of steps so far, up to 2."""
    action = jnp.full(observation.features.shape[:2], jnp.minimum(memory, 2), jnp.int32)
    return action, memory + 1


@functools.cache
def record(env, n_episodes=1, n_played=1):
    environments = JaxEnvironmentBatch(env, None)
    start = begin_play(
        environments, count_steps, lambda _: jnp.int32(0), jax.random.key(0), n_played
    )
    step = jax.jit(lambda play: record_step(environments, count_steps, play, n_episodes))
    return record_episodes(environments, start, step, n_episodes)


MORTAL = Walk(deaths=(2, 100), limit=4)


def test_an_episode_is_recorded_from_its_reset_to_its_end():
    (episode,) = record(MORTAL)
    assert (episode.n_steps, episode.n_actors) == (4, 2)
    np.testing.assert_array_equal(episode.action, [[0, 0], [1, 1], [2, 2], [2, 2]])
    np.testing.assert_array_equal(episode.reward, [[0, 0], [1, 1], [0, 2], [0, 2]])
    # The last state and observation are those before the reset.
    np.testing.assert_array_equal(episode.states["time"], [0, 1, 2, 3, 4])
    moves = np.diff(episode.states["position"], axis=0)
    expected = 0.1 * (episode.action - 1) + 0.05
    np.testing.assert_allclose(moves, expected, atol=1e-6)
    np.testing.assert_array_equal(episode.observation.features[..., 0], episode.states["position"])


def test_an_actor_that_has_died_is_inactive_and_ends_once():
    (episode,) = record(MORTAL)
    np.testing.assert_array_equal(episode.active[:, 0], [True, True, False, False])
    assert episode.active[:, 1].all()
    np.testing.assert_array_equal(episode.truncated[:, 1], [False, False, False, True])
    assert episode.terminated[1, 0]
    assert not episode.truncated[:, 0].any()
    assert not episode.terminated[:, 1].any()


def test_dead_actors_that_earn_rewards_are_inactive_and_end_with_the_episode():
    (episode,) = record(Team(deaths=(2, 100), limit=4))
    np.testing.assert_array_equal(episode.active[:, 0], [True, True, False, False])
    np.testing.assert_array_equal(episode.reward[:, 0], np.ones(4))
    np.testing.assert_array_equal(episode.truncated[:, 0], [False, False, False, True])


def test_each_episode_is_recorded_up_to_its_own_end():
    episodes = record(Stairs(limit=100), n_episodes=12, n_played=12)
    lengths = [int(episode.states["length"][0]) for episode in episodes]
    assert len(set(lengths)) > 3
    assert [episode.n_steps for episode in episodes] == lengths
    for episode in episodes:
        assert len(episode.states["time"]) == episode.n_steps + 1
        assert episode.truncated[-1].all()
        assert not episode.truncated[:-1].any()


def test_playing_stops_when_the_recorded_episodes_are_over():
    environments, calls = JaxEnvironmentBatch(Stairs(limit=100), None), []
    start = begin_play(environments, count_steps, lambda _: jnp.int32(0), jax.random.key(0), 12)
    step = jax.jit(lambda play: record_step(environments, count_steps, play, 2))
    both = record_episodes(environments, start, lambda play: calls.append(None) or step(play), 2)
    assert len(calls) == max(episode.n_steps for episode in both)


def test_an_environment_that_resets_itself_hides_its_states_but_not_its_observations():
    (episode,) = record(OwnStep(limit=4))
    assert episode.states is None
    moves = np.diff(episode.observation.features[..., 0], axis=0)
    np.testing.assert_allclose(moves, 0.1 * (episode.action - 1) + 0.05, atol=1e-6)


@functools.cache
def agent_of(recurrent):
    config = ja.AgentConfig(n_steps=1, recurrent=recurrent, n_evals=5, progress_bar=False)
    agent = ja.DiscreteIPPO(Stairs(deaths=(3, 100), limit=100), None, config)
    agent.collect_training(agent.init(jax.random.key(0), ja.HyperParameters()))
    return agent


@pytest.mark.parametrize(
    ("recurrent", "greedy"),
    [
        pytest.param("gru", True, marks=pytest.mark.slow),
        (None, False),
        pytest.param("gru", False, marks=pytest.mark.slow),
    ],
)
def test_an_agent_records_the_first_of_the_episodes_that_it_evaluates(recurrent, greedy):
    agent, rng = agent_of(recurrent), jax.random.key(7)
    evaluation = agent.eval(rng, greedy=greedy)
    episodes = agent.record(rng, n_episodes=3, greedy=greedy)
    for number, episode in enumerate(episodes):
        returns = np.zeros(2, np.float32)
        for reward in episode.reward:  # in the order of the evaluation, for equal rounding
            returns += reward
        np.testing.assert_array_equal(returns, evaluation["returns"][number])
        assert episode.n_steps == evaluation["episode_lengths"][number]
        ended = {
            "terminated": episode.terminated.any(axis=0),
            "truncated": episode.truncated.any(axis=0),
        }
        for name, ends in ended.items():
            np.testing.assert_array_equal(ends, evaluation[name][number])
    other = agent.record(jax.random.key(8), n_episodes=3, greedy=greedy)
    assert any(
        one.states["position"][0, 0] != another.states["position"][0, 0]
        for one, another in zip(episodes, other, strict=True)
    )


def test_recording_no_episode_is_refused():
    with pytest.raises(ValueError, match="n_episodes=0"):
        agent_of(None).record(jax.random.key(0), n_episodes=0)
