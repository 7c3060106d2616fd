"""Complete episodes, whose returns and lengths are known by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.jax_batch import JaxEnvironmentBatch
from jaxagents.environments.protocol import Environment
from jaxagents.environments.spaces import Discrete
from jaxagents.evaluation.episodes import play_episodes
from tests.agents import assert_trees_equal
from tests.probes import Coordination, Team, Walk

DEATH = 3


class Draw(Environment):
    """Episodes of 1 to 6 steps, drawn at the reset; at step k actor i earns k · (i + 1).

    Actor 0 dies at the third step and still earns rewards; actor 1 is truncated at the end.
    """

    n_actors = 2

    def __init__(self, repeats_ends: bool = True):
        self._repeats_ends = repeats_ends

    def action_space(self, params):
        return Discrete(3)

    def reset_env(self, rng, params):
        state = {"length": jax.random.randint(rng, (), 1, 7), "time": jnp.zeros((), jnp.int32)}
        return jnp.zeros((2, 1)), state

    def step_env(self, rng, state, action, params):
        time = state["time"] + 1
        died = time >= DEATH if self._repeats_ends else time == DEATH
        terminated = jnp.array([died, False])
        truncated = (time == state["length"]) & ~terminated
        reward = time * jnp.array([1.0, 2.0])
        info = {"length": state["length"], "time": time, "early": time < DEATH, "row": reward}
        return jnp.zeros((2, 1)), state | {"time": time}, reward, terminated, truncated, info


@functools.cache
def always(action):
    """Make a policy that always takes one action."""

    def act(rng, observation, memory):
        return jnp.full(observation.features.shape[:2], action, jnp.int32), memory

    return act


def play(env, act, n_episodes=1, seed=0, max_episode_steps=None, memory=()):
    # Calls with and without a seed share a compiled program if it is always passed.
    return _play(env, act, n_episodes, seed, max_episode_steps, memory)


@functools.partial(jax.jit, static_argnames=("env", "act", "n_episodes", "max_episode_steps"))
def _play(env, act, n_episodes, seed, max_episode_steps, memory):
    environments = JaxEnvironmentBatch(env, None, max_episode_steps)
    return play_episodes(environments, act, lambda _: memory, jax.random.key(seed), n_episodes)


def test_an_episode_is_played_from_its_reset_to_its_end():
    # Everybody earns 2 a step; the first actor dies at its second and earns nothing from then on.
    episodes = play(Walk(deaths=(2, 100), limit=4), always(2))
    np.testing.assert_array_equal(episodes.returns, [[4.0, 8.0]])
    np.testing.assert_array_equal(episodes.final_rewards, [[0.0, 2.0]])
    np.testing.assert_array_equal(episodes.terminated, [[True, False]])
    np.testing.assert_array_equal(episodes.truncated, [[False, True]])
    np.testing.assert_array_equal(episodes.episode_lengths, [4])
    assert episodes.info == {}


DRAW, DRAW_REPORTING_ENDS_ONCE = Draw(), Draw(repeats_ends=False)


@pytest.mark.parametrize("env", [DRAW, DRAW_REPORTING_ENDS_ONCE])
def test_episodes_of_different_lengths_are_each_counted_up_to_their_own_end(env):
    episodes = jax.tree.map(np.asarray, play(env, always(0), n_episodes=24))
    length = episodes.info["length"]
    assert set(length) == {1, 2, 3, 4, 5, 6}

    np.testing.assert_array_equal(episodes.episode_lengths, length)
    total = length * (length + 1) / 2  # 1 + 2 + ... + length
    np.testing.assert_array_equal(episodes.returns, np.stack([total, 2 * total], axis=1))
    np.testing.assert_array_equal(episodes.final_rewards, np.stack([length, 2 * length], axis=1))
    died, never = length >= DEATH, np.zeros(24, bool)
    np.testing.assert_array_equal(episodes.terminated, np.stack([died, never], axis=1))
    np.testing.assert_array_equal(episodes.truncated, np.stack([~died, ~never], axis=1))


def test_infos_are_those_of_the_last_step_scalars_in_their_own_types():
    info = jax.tree.map(np.asarray, play(DRAW, always(0), n_episodes=24).info)
    assert set(info) == {"length", "time", "early", "row"}
    np.testing.assert_array_equal(info["time"], info["length"])
    np.testing.assert_array_equal(info["early"], info["length"] < DEATH)
    assert (info["time"].dtype, info["early"].dtype) == (np.int32, np.bool_)
    died = np.minimum(info["length"], DEATH)  # each actor's last step counts
    np.testing.assert_array_equal(info["row"], np.stack([died, 2 * info["length"]], axis=1))


@pytest.mark.parametrize("repeats_ends", [True, False])
def test_a_dead_actor_is_not_truncated_with_the_others(repeats_ends):
    class Endless(Draw):
        def reset_env(self, rng, params):
            observation, state = super().reset_env(rng, params)
            return observation, state | {"length": jnp.array(100, jnp.int32)}

    episodes = play(Endless(repeats_ends), always(0), max_episode_steps=5)
    np.testing.assert_array_equal(episodes.terminated, [[True, False]])
    np.testing.assert_array_equal(episodes.truncated, [[False, True]])
    np.testing.assert_array_equal(episodes.episode_lengths, [5])
    np.testing.assert_array_equal(episodes.returns, [[15.0, 30.0]])


@pytest.mark.parametrize(("deaths", "died"), [((2, 100), False), ((2, 4), True)])
def test_dead_actors_that_earn_rewards_end_with_the_episode(deaths, died):
    # The first actor dies at the second of four steps and earns 1 in each of them.
    episodes = play(Team(deaths, limit=4), always(0))
    np.testing.assert_array_equal(episodes.returns, [[4.0, 4.0]])
    np.testing.assert_array_equal(episodes.terminated, [[died, died]])
    np.testing.assert_array_equal(episodes.truncated, [[not died, not died]])


@pytest.mark.parametrize(("offset", "earned"), [(0, 1.0), (1, 0.0)])
def test_each_actor_acts_on_its_own_observation(offset, earned):
    def act(rng, observation, memory):
        return (jnp.argmax(observation.features, axis=-1) + offset) % 3, memory

    episodes = play(Coordination(n_actors=2), act, n_episodes=8)
    np.testing.assert_array_equal(episodes.returns, np.full((8, 2), earned))
    np.testing.assert_array_equal(episodes.info["won"], np.full(8, earned))
    np.testing.assert_array_equal(episodes.terminated, np.ones((8, 2), bool))


def test_actions_follow_the_observations_of_every_step():
    class Stairs(Environment):
        """Shows the step's number and pays the action, for three steps."""

        n_actors = 1

        def action_space(self, params):
            return Discrete(10)

        def reset_env(self, rng, params):
            return jnp.ones((1, 1)), jnp.ones((), jnp.int32)

        def step_env(self, rng, state, action, params):
            over = state[None] == 3
            shown = jnp.full((1, 1), state + 1.0)
            return shown, state + 1, action.astype(jnp.float32), over, ~over & False, {}

    def act(rng, observation, memory):
        return observation.features[..., 0].astype(jnp.int32) ** 2, memory

    episodes = play(Stairs(), act)
    assert (episodes.returns.item(), episodes.final_rewards.item()) == (1.0 + 4.0 + 9.0, 9.0)


def random_action(rng, observation, memory):
    return jax.random.randint(rng, observation.features.shape[:2], 0, 3), memory


def test_recurrent_state_is_carried_to_the_next_step_of_its_episode():
    """Walk pays the action, here the counter: 1 + 2 + 3 + 4, or 40 more if it starts at 10."""

    def count(rng, observation, memory):
        memory = {"steps": memory["steps"] + 1}
        return memory["steps"], memory

    memory = {"steps": jnp.array([[0, 10], [100, 0], [0, 0]])}
    episodes = play(Walk(limit=4), count, n_episodes=3, memory=memory)
    np.testing.assert_array_equal(episodes.returns, [[10.0, 50.0], [410.0, 10.0], [10.0, 10.0]])
    np.testing.assert_array_equal(episodes.final_rewards, [[4.0, 14.0], [104.0, 4.0], [4.0, 4.0]])


WALK = Walk(limit=8)


def test_every_step_gives_the_policy_a_new_key():
    episodes = play(WALK, random_action, n_episodes=4)
    repeated = 8 * np.asarray(episodes.final_rewards)
    assert not np.any(np.all(np.asarray(episodes.returns) == repeated, axis=0))


def test_equal_keys_play_equal_episodes_and_other_keys_play_others():
    one, same, other = (
        play(WALK, random_action, n_episodes=4, seed=seed).returns for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


def test_keys_decide_the_initial_states():
    one, other = (play(DRAW, always(0), n_episodes=24, seed=seed) for seed in (0, 1))
    assert not np.array_equal(one.episode_lengths, other.episode_lengths)


def test_metrics_are_named_like_the_fields_and_infos_with_a_prefix():
    episodes = play(Coordination(), always(0), n_episodes=5)
    metrics = episodes.as_metrics()
    assert {name: value.shape for name, value in metrics.items()} == {
        "returns": (5, 2),
        "final_rewards": (5, 2),
        "terminated": (5, 2),
        "truncated": (5, 2),
        "episode_lengths": (5,),
        "info_won": (5,),
    }
    np.testing.assert_array_equal(metrics["returns"], episodes.returns)
    np.testing.assert_array_equal(metrics["info_won"], episodes.info["won"])


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="only a CPU rounds up")
@pytest.mark.parametrize(
    ("env", "n_episodes", "n_copies"),
    [
        (Draw(), 9, 16),
        pytest.param(Draw(), 1, 1, marks=pytest.mark.slow),
        pytest.param(Coordination(), 20, 24, marks=pytest.mark.slow),
        pytest.param(Draw(), 8, 8, marks=pytest.mark.slow),
        pytest.param(Draw(), 20, 24, marks=pytest.mark.slow),
        pytest.param(Coordination(), 1, 1, marks=pytest.mark.slow),
        pytest.param(Coordination(), 9, 16, marks=pytest.mark.slow),
    ],
)
def test_more_environments_than_episodes_change_nothing(env, n_episodes, n_copies, monkeypatch):
    def act(rng, observation, memory):
        return jax.random.randint(rng, observation.features.shape[:2], 0, 2), memory + 1

    def played():
        environments = JaxEnvironmentBatch(env, None)
        sizes.append(environments.n_copies(n_episodes))
        return play_episodes(environments, act, jnp.zeros, jax.random.key(0), n_episodes)

    sizes = []
    found = played()
    monkeypatch.setattr(JaxEnvironmentBatch, "n_copies", lambda self, n_envs: n_envs)
    assert_trees_equal(found, played())
    assert sizes == [n_copies, n_episodes]
    assert len(found.returns) == n_episodes
