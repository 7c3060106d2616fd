"""Several agents by Gymnasium's Tuples, as lbforaging and rware have them."""

import functools

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import jaxagents as ja
from jaxagents.environments.host import WrongValueError
from jaxagents.environments.host.adapters import adapt
from jaxagents.environments.spaces import Discrete
from tests.agents import FAST, assert_trees_equal, tiny
from tests.environments.host.probes import Crew, Observed

NO = [False, False, False]


def explored(env):
    adapter = adapt(env)
    adapter.explore(32)
    env.actions.clear()
    return adapter


def test_each_entry_of_the_tuples_is_an_actor():
    adapter = explored(Crew())

    assert (adapter.name, adapter.arrays.n_actors, adapter.teams) == ("Crew", 3, [0, 0, 0])
    assert adapter.actor_names == ["agent_0", "agent_1", "agent_2"]
    assert adapter.arrays.space == Discrete(3)
    observation, alive = adapter.reset(seed=14)
    np.testing.assert_allclose(observation.features, [[1.4, 0, 0], [2.4, 0, 0], [3.4, 0, 9]])
    np.testing.assert_array_equal(observation.action_mask, [[1, 1, 0], [1, 1, 0], [1, 1, 1]])
    assert alive.all()
    outcome = adapter.step(np.array([1, 0, 2]))
    assert outcome.reward.tolist() == [11, 20, 32]
    np.testing.assert_allclose(
        outcome.observation.features, [[1.4, 1, 0], [2.4, 1, 0], [3.4, 1, 9]]
    )
    assert outcome.alive.all()


def test_who_has_ended_repeats_its_action_and_earns_nothing():
    env = Crew(ends=(1, 2, 100), limit=3)
    adapter = explored(env)
    adapter.reset(0)

    steps = [adapter.step(np.array(action)) for action in ([1, 0, 0], [0, 1, 2], [0, 0, 1])]

    assert [(step.terminated.tolist(), step.truncated.tolist()) for step in steps] == [
        ([True, False, False], NO),
        ([True, True, False], NO),
        ([True, True, False], [False, False, True]),
    ]
    alive = [[False, True, True], [False, False, True], NO]
    assert [step.alive.tolist() for step in steps] == alive
    assert [step.reward.tolist() for step in steps] == [[11, 20, 30], [0, 21, 32], [0, 0, 31]]
    assert env.actions == [(1, 0, 0), (1, 1, 2), (1, 1, 1)]
    # The last observation is seen; only then there are zeros.
    seen = [step.observation.features[0].tolist() for step in steps]
    assert seen == [[1, 1, 0], [0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("as_one", [True, False], ids=["one for all", "one each"])
def test_terminations_come_before_truncations_and_end_the_episode_for_all(as_one):
    adapter = explored(Crew(ends=(2, 2, 2), limit=2, as_one=as_one))
    adapter.reset(0)
    adapter.step(np.array([0, 0, 0]))
    outcome = adapter.step(np.array([1, 0, 0]))
    assert (outcome.terminated.tolist(), outcome.truncated.tolist()) == ([True] * 3, NO)
    assert not outcome.alive.any()
    assert outcome.reward.tolist() == ([11, 11, 11] if as_one else [11, 20, 30])


def test_gymnasiums_time_limit_truncates_all():
    assert adapt(Crew()).max_episode_steps is None
    adapter = adapt(gymnasium.wrappers.TimeLimit(Crew(), 2))
    assert adapter.max_episode_steps == 2
    adapter.reset(0)
    assert not adapter.step(np.array([0, 0, 0])).truncated.any()
    outcome = adapter.step(np.array([0, 0, 0]))
    assert (outcome.truncated.tolist(), outcome.terminated.tolist()) == ([True] * 3, NO)


@pytest.mark.parametrize(
    "infos",
    [
        {"score": 3.0, "action_mask": ([0, 1], [1, 1], [1, 0, 1])},
        [{"score": 3.0, "action_mask": mask} for mask in ([0, 1], [1, 1], [1, 0, 1])],
    ],
    ids=["one for all", "one each"],
)
def test_infos_and_masks_reach_their_actors(infos):
    adapter = explored(Crew(infos=infos))
    observation, _ = adapter.reset(0)
    masks = [[0, 1, 0], [1, 1, 0], [1, 0, 1]]
    np.testing.assert_array_equal(observation.action_mask, masks)
    outcome = adapter.step(np.array([1, 0, 0]))
    np.testing.assert_array_equal(outcome.observation.action_mask, masks)
    assert [outcome.infos[actor]["score"] for actor in range(3)] == [3.0, 3.0, 3.0]


@pytest.mark.parametrize(
    ("index", "wrong", "message"),
    [
        (0, [np.zeros(2, np.float32)], "returned 1 observations for 3 agents"),
        (0, np.float32(1), "returned float32 as observations of 3 agents, not one each"),
        (1, [1.0, 2.0], "returned 2 rewards for 3 agents"),
        (2, np.zeros(4, bool), "returned 4 terminations for 3 agents"),
        (3, (True, True), "returned 2 truncations for 3 agents"),
        (4, [{}], "returned 1 infos for 3 agents"),
        (4, {"action_mask": [[1, 1]]}, "returned 1 action masks for 3 agents"),
    ],
)
def test_a_value_that_some_agents_lack_is_an_error(index, wrong, message):
    env = Crew()
    adapter = explored(env)
    adapter.reset(0)
    outcome = list(env.step((0, 0, 0)))
    outcome[index] = wrong
    env.step = lambda _: outcome
    with pytest.raises(WrongValueError, match=message):
        adapter.step(np.array([0, 0, 0]))


PAIR = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2)])
BOX = spaces.Box(-1, 1, (2,), np.float32)


@pytest.mark.parametrize("space", [BOX, spaces.Tuple([BOX] * 3)], ids=["box", "longer tuple"])
def test_a_tuple_of_one_agents_actions_is_refused(space):
    message = "entries are agents only if the observation space is a Tuple of the same length"
    with pytest.raises(TypeError, match=message):
        adapt(Observed(space, space.sample(), action_space=PAIR))


def test_a_vector_of_such_environments_is_refused():
    def vector(n_envs):
        return SyncVectorEnv([Crew] * n_envs, autoreset_mode=AutoresetMode.SAME_STEP)

    with pytest.raises(TypeError, match="several agents, which has one reward for all; leave out"):
        ja.HostEnvironment(vector, vectorized=True)


@pytest.mark.parametrize("n_workers", [0, 2])
def test_workers_step_them_and_begin_new_episodes(n_workers):
    env = ja.HostEnvironment(functools.partial(Crew, ends=(1, 2, 2)), n_workers=n_workers)
    with env:
        pool = env.make_pool(2, None, has_state=False)
        seeds = np.array([12, 13], np.uint32)
        first = pool.reset(seeds)["features"].copy()
        pool.step(np.array([[1, 0, 0], [0, 0, 0]], np.int32), seeds)
        frame = pool.step(np.array([[0, 1, 2], [0, 0, 1]], np.int32), seeds + 4)
        np.testing.assert_allclose(first[:, :, 0], [[1.2, 2.2, 3.2], [1.3, 2.3, 3.3]])
        assert frame["reward"].tolist() == [[0, 21, 32], [0, 20, 31]]
        assert frame["over"].tolist() == [True, True]
        np.testing.assert_allclose(
            frame["final_features"][0], [[0, 0, 0], [2.2, 2, 0], [3.2, 2, 9]]
        )
        np.testing.assert_allclose(frame["features"][0], [[1.6, 0, 0], [2.6, 0, 0], [3.6, 0, 9]])
        assert frame["alive"].all()


@pytest.mark.slow
def test_they_train_and_are_drawn():
    env = ja.HostEnvironment(functools.partial(Crew, limit=3), n_workers=0)
    assert env.frames_per_second == 7
    assert env.picture is not None
    assert env.picture.shape == (4, 6, 3)
    agent = ja.DiscreteIPPO(env, None, tiny(n_steps=2, max_episode_steps=3))
    runner, _ = agent.train(jax.random.key(0), FAST)
    result = agent.eval(jax.random.key(1), 4, runner=runner)
    np.testing.assert_array_equal(result["episode_lengths"], 3)
    returns = np.asarray(result["returns"])
    assert returns.shape == (4, 3)
    assert (returns >= [30, 60, 90]).all()
    assert (returns <= [33, 63, 96]).all()  # three actions of at most 1, 1 and 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "env_id", "n_features", "n_actions"),
    [("lbforaging", "Foraging-8x8-2p-1f-v3", 9, 6), ("rware", "rware-tiny-2ag-v2", 71, 5)],
)
def test_environments_of_epymarl_train_by_id(package, env_id, n_features, n_actions):
    pytest.importorskip(package)
    results = []
    for _ in range(2):  # anew: lbforaging's resets depend on where players stood before
        env, _ = ja.make(f"gymnasium/{package}:{env_id}", n_workers=1, max_episode_steps=6)
        assert (env.name, env.n_actors, env.teams) == (env_id, 2, [0, 0])
        assert env.observation["features"].shape == (2, n_features)
        assert (env.action_space(), env.max_episode_steps) == (Discrete(n_actions), 6)
        with env:
            agent = ja.DiscreteIPPO(env, None, tiny(n_steps=2, max_episode_steps=6))
            runner, _ = agent.train(jax.random.key(0), FAST)
            results.append(agent.eval(jax.random.key(1), 3, runner=runner))
    assert_trees_equal(*results)
    assert results[0]["returns"].shape == (3, 2)
    assert (np.asarray(results[0]["episode_lengths"]) <= 6).all()
