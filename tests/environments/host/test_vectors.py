"""Vectors of environments that Gymnasium steps itself."""

import functools

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import jaxagents as ja
from jaxagents.environments.host import HostEnvironmentError
from tests.agents import FAST, assert_trees_equal, tiny
from tests.environments.host.probes import Faulty, Observed, Stairs

MODES = [mode.name for mode in AutoresetMode]
SEEDS = np.array([12, 0], np.uint32)


def vector_of(make_env, mode, n_envs):
    return SyncVectorEnv([make_env] * n_envs, autoreset_mode=AutoresetMode[mode])


def vectorized(make_env=Stairs, mode="NEXT_STEP", **settings):
    make_vector = functools.partial(vector_of, make_env, mode)
    return ja.HostEnvironment(make_vector, vectorized=True, **settings)


def pool_of(make_env, mode="NEXT_STEP", n_envs=2):
    return vectorized(make_env, mode).make_pool(n_envs, None, has_state=False)


def act(pool, *actions):
    """Step, and return a copy of the frame."""
    frame = pool.step(np.array(actions, np.int32)[:, None], SEEDS)
    return {name: array.copy() for name, array in frame.items()}


@pytest.mark.parametrize("mode", ["SAME_STEP", "DISABLED"])
def test_a_reset_in_the_step_of_the_end_keeps_the_final_observation(mode):
    pool = pool_of(functools.partial(Stairs, top=1.25), mode)
    first = pool.reset(SEEDS)  # the environments are seeded by 12 and 13
    np.testing.assert_allclose(first["features"][:, 0], [[0.2, 0], [0.3, 0]])

    frame = act(pool, 0, 1)

    assert frame["terminated"][:, 0].tolist() == frame["over"].tolist() == [False, True]
    assert not frame["truncated"].any()
    assert frame["alive"].all()
    assert frame["reward"][:, 0].tolist() == [0, 1]
    np.testing.assert_allclose(frame["final_features"][1, 0], [1.3, 1])
    np.testing.assert_allclose(frame["features"][:, 0], [[0.2, 1], [0, 0]])
    after = act(pool, 0, 0)
    assert not after["over"].any()
    np.testing.assert_allclose(after["features"][:, 0], [[0.2, 2], [0, 1]])


def test_a_reset_in_a_step_of_its_own_is_a_step_without_actors():
    pool = pool_of(functools.partial(Stairs, top=1.25, limit=3))
    pool.reset(SEEDS)

    frame = act(pool, 0, 1)

    assert frame["terminated"][:, 0].tolist() == [False, True]
    assert not frame["over"].any()
    assert frame["alive"][:, 0].tolist() == [True, False]
    np.testing.assert_allclose(frame["features"][:, 0], [[0.2, 1], [1.3, 1]])
    frame = act(pool, 0, 1)  # the second action is ignored
    assert frame["over"].tolist() == frame["terminated"][:, 0].tolist() == [False, True]
    assert frame["alive"].all()
    assert frame["reward"][:, 0].tolist() == [0, 0]
    np.testing.assert_allclose(frame["final_features"][1, 0], [1.3, 1])
    np.testing.assert_allclose(frame["features"][:, 0], [[0.2, 2], [0, 0]])
    frame = act(pool, 0, 1)
    assert frame["truncated"][:, 0].tolist() == [True, False]
    assert not frame["terminated"].any()
    assert frame["reward"][:, 0].tolist() == [0, 1]


def test_what_a_reset_step_pays_and_ends_counts_for_nothing():
    pool = pool_of(functools.partial(Stairs, top=1.25))
    pool.reset(SEEDS)
    act(pool, 0, 1)  # the second has ended
    vector = pool.workers[0].stepper.vector
    step = vector.step

    def generous(actions):
        observations, rewards, terminated, _truncated, infos = step(actions)
        return observations, rewards + 5, terminated, np.array([False, True]), infos

    vector.step = generous
    frame = act(pool, 1, 1)
    assert frame["reward"][:, 0].tolist() == [6, 0]
    assert not frame["truncated"].any()


def test_observations_and_masks_of_any_space_are_read():
    space = spaces.Dict({"place": spaces.Discrete(3), "speed": spaces.Box(-1, 1, (2,))})
    value = {"place": 1, "speed": np.array([0.5, -0.5], np.float32)}
    mask = np.array([1, 0, 1], np.int8)
    make_env = functools.partial(Observed, space, value, spaces.Discrete(3, start=5), mask)
    pool = pool_of(make_env, "SAME_STEP")

    first = pool.reset(SEEDS)
    np.testing.assert_array_equal(first["features"], [[[0, 1, 0, 0.5, -0.5]]] * 2)
    np.testing.assert_array_equal(first["action_mask"], [[[True, False, True]]] * 2)
    frame = act(pool, 0, 2)
    np.testing.assert_array_equal(frame["final_features"], first["features"])
    np.testing.assert_array_equal(frame["action_mask"], first["action_mask"])


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("raise", "environments 0-1 at step 1 raised ZeroDivisionError"),
        ("nan", "environment 1 at step 1 returned an observation that is NaN"),
        ("nan reward", "environment 1 at step 1 returned a reward that is NaN"),
    ],
)
def test_faults_are_errors(fault, text):
    pool = pool_of(functools.partial(Faulty, fault))
    pool.reset(SEEDS)
    with pytest.raises(HostEnvironmentError, match=text):
        act(pool, 0, 2)
    assert not pool.is_open


@pytest.mark.parametrize(
    ("position", "value", "text"),
    [
        (1, np.float64(3.0), r"returned reward of shape \(\), not one value for each of 2"),
        (1, np.array([3.0]), r"returned reward of shape \(1,\), not one value for each of 2"),
        (1, np.array([1.0, 2.0 + 5j]), "returned a reward of complex128, which does not convert"),
        (2, False, r"returned terminated of shape \(\), not one value for each of 2"),
        (2, np.array([0.0, np.nan]), "returned terminated that holds nan, neither True nor False"),
        (3, np.array([0, 2]), "returned truncated that holds 2, neither True nor False"),
    ],
)
def test_a_reward_or_flag_of_another_shape_or_kind_is_an_error(position, value, text):
    pool = pool_of(Stairs)
    pool.reset(SEEDS)
    vector = pool.workers[0].stepper.vector
    step = vector.step
    vector.step = lambda actions: (
        *(value if i == position else each for i, each in enumerate(step(actions))),
    )
    with pytest.raises(HostEnvironmentError, match=f"environments 0-1 at step 1 {text}"):
        act(pool, 0, 1)


def test_integers_are_rewards_and_flags():
    pool = pool_of(Stairs, "SAME_STEP")
    pool.reset(SEEDS)
    outcome = np.zeros((2, 2), np.float32), [3, 4], np.array([0, 1]), [0.0, 0.0]
    infos = {"final_obs": np.zeros((2, 2), np.float32)}
    pool.workers[0].stepper.vector.step = lambda actions: (*outcome, infos)
    frame = act(pool, 0, 1)
    assert frame["reward"][:, 0].tolist() == [3.0, 4.0]
    assert frame["terminated"][:, 0].tolist() == [False, True]
    assert not frame["truncated"].any()


def make_cartpoles(n_envs, max_episode_steps=7):
    return gymnasium.make_vec(
        "CartPole-v1",
        n_envs,
        vectorization_mode="vector_entry_point",
        max_episode_steps=max_episode_steps,
    )


def test_the_time_limit_is_the_one_that_the_vector_was_made_with():
    assert ja.HostEnvironment(make_cartpoles, vectorized=True).max_episode_steps == 7
    env, _ = ja.make("gymnasium/CartPole-v1", vectorized=True, max_episode_steps=7)
    assert env.max_episode_steps == 7
    limited = functools.partial(gymnasium.wrappers.TimeLimit, Stairs(), 50)
    assert vectorized(limited).max_episode_steps == 50
    skipping = functools.partial(
        gymnasium.wrappers.MaxAndSkipObservation, gymnasium.make("MountainCar-v0"), skip=4
    )
    assert vectorized(skipping).max_episode_steps == 50  # of 200


def limited_vector(n_envs, max_episode_steps):
    return vector_of(functools.partial(Stairs, limit=max_episode_steps), "SAME_STEP", n_envs)


def test_a_constructor_of_vectors_is_given_the_time_limit():
    env, _ = ja.make(f"gymnasium/{__name__}:limited_vector", vectorized=True, max_episode_steps=9)
    assert env.max_episode_steps == 9


def test_a_reset_that_observes_nan_is_an_error():
    space = spaces.Box(-1.0, 1.0, (2,))
    pool = pool_of(functools.partial(Observed, space, np.zeros(2, np.float32)))
    pool.workers[0].stepper.vector.reset = lambda seed: (np.full((2, 2), np.nan, np.float32), {})
    with pytest.raises(HostEnvironmentError, match="environment 0 at the reset returned an obs"):
        pool.reset(SEEDS)


class Silent(SyncVectorEnv):
    """A vector that does not say when it resets."""

    def __init__(self, n_envs):
        super().__init__([Stairs] * n_envs)
        self.metadata = {}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ja.HostEnvironment(Silent, vectorized=True), "does not say when it resets"),
        (lambda: vectorized(n_workers=2), "leave these out"),
        (lambda: vectorized(on_worker_failure="restart"), "leave these out"),
        (lambda: ja.make("gymnasium/Pendulum-v1", vectorized=True), "cannot be made"),
        (
            lambda: ja.make("gymnasium/CartPole-v1", vectorized=True, max_episode_steps=-1),
            "max_episode_steps=-1 is too small",
        ),
        (
            lambda: ja.HostEnvironment(
                functools.partial(make_cartpoles, max_episode_steps=-1), vectorized=True
            ),
            "max_episode_steps=-1 is too small",
        ),
        (lambda: ja.make("gymnasium/phys2d/CartPole-v1", vectorized=True), "calls jax"),
        (
            lambda: ja.DiscreteIPPO(
                ja.make("gymnasium/CartPole-v1", vectorized=True)[0],
                None,
                tiny(max_episode_steps=9),
            ),
            "max_episode_steps=9 cannot end episodes of a vector",
        ),
    ],
    ids=[
        "autoreset mode",
        "workers",
        "restarts",
        "no vector",
        "no limit by id",
        "no limit",
        "jax",
        "limit",
    ],
)
def test_what_a_vector_cannot_do_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_an_environment_is_no_vector():
    with pytest.raises(TypeError, match="Stairs, which is not a vector of environments"):
        ja.HostEnvironment(lambda n_envs: Stairs(), vectorized=True)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_episodes_are_as_long_as_those_of_single_environments(mode):
    make_env = functools.partial(Stairs, limit=5)
    config = tiny(n_steps=2, max_episode_steps=5)
    single = ja.HostEnvironment(make_env, n_workers=0, max_episode_steps=5)
    vector = vectorized(make_env, mode, max_episode_steps=5)
    evaluated = []
    for env in (single, vector):
        agent = ja.DiscreteIPPO(env, None, config)
        runner, _ = agent.train(jax.random.key(0), FAST)
        evaluated.append(agent.eval(jax.random.key(1), 6, runner=runner))
    expected, result = evaluated
    np.testing.assert_array_equal(result["episode_lengths"], 5)
    for name in ("episode_lengths", "terminated", "truncated"):
        np.testing.assert_array_equal(result[name], expected[name])


def test_a_single_one_can_be_played_by_hand():
    for mode in MODES:
        game = vectorized(functools.partial(Stairs, limit=2), mode).open()
        observation, alive = game.reset(seed=13)
        np.testing.assert_allclose(observation.features, [[0.3, 0]])
        assert alive.all()
        game.step(np.ones(1, np.int32))
        outcome = game.step(np.ones(1, np.int32))
        np.testing.assert_allclose(outcome.observation.features, [[2.3, 2]], rtol=1e-6)
        assert outcome.truncated.all()
        assert not outcome.alive.any()


@pytest.mark.slow
def test_gymnasium_steps_its_own_vectors_and_draws_single_environments():
    env, _ = ja.make("gymnasium/CartPole-v1", vectorized=True)
    assert (env.name, env.max_episode_steps, env.n_actors) == ("CartPole-v1", 500, 1)
    agent = ja.DiscreteIPPO(env, None, tiny(n_steps=2))
    first, second = (agent.train(jax.random.key(0), FAST) for _ in range(2))
    assert_trees_equal(first, second)
    returns = agent.eval(jax.random.key(1), 5, runner=first[0])
    np.testing.assert_array_equal(returns["returns"][:, 0], returns["episode_lengths"])
    assert isinstance(env.open()._env.action_space, gymnasium.spaces.Discrete)
