"""EnvPool's environments by id, with a small pool of the same interface or EnvPool itself."""

import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from gymnasium import spaces

import jaxagents as ja
from jaxagents.environments.host.envpool import EnvPoolVector
from tests.agents import FAST, assert_trees_equal, tiny

SEEDS = np.array([12, 0], np.uint32)
ENDS = ("terminated", "truncated")


class Counters:
    """Count steps from the seed's last digit to 3; the step after an end is a reset."""

    observation_space = spaces.Box(0.0, 9.0, (1,))

    def __init__(self, num_envs, seed=0, num_threads=0):
        self.start, self.num_threads = np.full(num_envs, seed % 10), num_threads

    def reset(self, options=None):
        self.count, self.is_over = self.start.copy(), np.zeros(len(self.start), bool)
        return self._observe()

    def step(self, actions):
        resets = self.is_over
        self.count = np.where(resets, self.start, self.count + actions)
        self.is_over = (self.count >= 3) & ~resets
        none = np.zeros_like(resets)
        observations, infos = self._observe()
        return observations, np.where(resets, 0.0, actions), self.is_over, none, infos

    def close(self):
        self.start = None

    def _observe(self):
        ids = np.arange(len(self.count))
        infos = {"env_id": ids, "players": {"env_id": ids}, "lives": self.count + 1}
        return self.count[:, None].astype(np.float32), infos


def make_spec(name, num_envs, max_num_players=1, **kwargs):
    return SimpleNamespace(
        gymnasium_observation_space=Counters.observation_space,
        gymnasium_action_space=spaces.Discrete(3),
        config=SimpleNamespace(max_num_players=max_num_players, max_episode_steps=50),
    )


@pytest.fixture
def fake(monkeypatch):
    fake = SimpleNamespace(
        list_all_envs=lambda: ["Count-v0", "Several-v0"],
        make_spec=make_spec,
        make_gymnasium=lambda name, **kwargs: Counters(**kwargs),
    )
    monkeypatch.setitem(sys.modules, "envpool", fake)


def act(pool, *actions):
    frame = pool.step(np.array(actions, np.int32)[:, None], SEEDS)
    return {name: array.copy() for name, array in frame.items()}


@pytest.mark.usefixtures("fake")
def test_the_step_after_an_end_is_a_reset_without_actors():
    env, params = ja.make("envpool/Count-v0", num_threads=1)
    assert params is None
    assert (env.name, env.max_episode_steps, env.has_idle_steps) == ("Count-v0", 50, True)
    pool = env.make_pool(2, None, has_state=False, keeps_infos=True)
    first = pool.reset(SEEDS)
    assert first["features"].ravel().tolist() == [2, 2]  # the seed is 12

    frame = act(pool, 0, 2)
    assert frame["terminated"].ravel().tolist() == [False, True]
    assert frame["alive"].ravel().tolist() == [True, False]
    frame = act(pool, 0, 2)  # the second action is ignored
    assert frame["over"].tolist() == [False, True]
    assert frame["reward"].ravel().tolist() == [0, 0]
    assert frame["final_features"][1].tolist() == [[4]]
    assert frame["features"].ravel().tolist() == [2, 2]
    assert pool.infos() == [{}, {0: {"lives": 5.0}}]
    assert pool.reset(SEEDS + 1)["features"].ravel().tolist() == [3, 3]


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("Cuont-v0", {}, "Did you mean Count-v0"),
        ("Count-v0", {"n_workers": 2}, "n_workers cannot be set"),
        ("Count-v0", {"seed": 3}, "seed cannot be set"),
        ("Several-v0", {"max_num_players": 2}, "up to 2 players"),
    ],
    ids=["name", "workers", "seed", "players"],
)
def test_what_a_pool_cannot_do_is_refused(name, arguments, message):
    with pytest.raises(ValueError, match=message):
        ja.make(f"envpool/{name}", **arguments)


def test_the_extra_is_named_if_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ValueError, match=r'-e "\.\[envpool\]"'):
        ja.make("envpool/CartPole-v1")


@pytest.mark.slow
def test_cartpole_of_envpool_trains_alike_twice_and_counts_each_step():
    pytest.importorskip("envpool")
    env, _ = ja.make("envpool/CartPole-v1", num_threads=1)
    agent = ja.DiscreteIPPO(env, None, tiny(n_steps=2))
    first, second = (agent.train(jax.random.key(0), FAST) for _ in range(2))
    assert_trees_equal(first, second)
    played = agent.eval(jax.random.key(1), 5, runner=first[0])
    np.testing.assert_array_equal(played["returns"][:, 0], played["episode_lengths"])


@pytest.mark.slow
def test_pendulum_of_envpool_is_truncated_at_its_limit():
    pytest.importorskip("envpool")
    env, _ = ja.make("envpool/Pendulum-v1", max_episode_steps=7)
    assert env.max_episode_steps == 7
    pool = env.make_pool(2, None, has_state=False)
    pool.reset(SEEDS)
    for _ in range(7):
        frame = pool.step(np.zeros((2, 1, 1), np.float32), SEEDS)
    assert frame["truncated"].all()
    assert not frame["terminated"].any()
    ended = frame["features"].copy()
    frame = pool.step(np.ones((2, 1, 1), np.float32), SEEDS)
    assert frame["over"].all()
    np.testing.assert_array_equal(frame["final_features"], ended)
    assert not np.array_equal(frame["features"], ended)


@pytest.mark.slow
def test_a_vector_is_reset_to_the_same_by_the_same_seed():
    pytest.importorskip("envpool")
    vector = EnvPoolVector("CartPole-v1", {}, 3)
    first, second, other = (vector.reset(seed=seed)[0] for seed in (7, 7, 2**32 - 1))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)
    assert len(np.unique(first, axis=0)) == 3
