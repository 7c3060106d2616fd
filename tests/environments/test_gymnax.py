import copy
import pickle
from typing import NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import spaces

from jaxagents.environments.gymnax import GymnaxEnvironment
from jaxagents.environments.registry import GYMNAX_IDS

COMPILE_FAST = {"xla_backend_optimization_level": 0}
NAMES = [
    pytest.param(each, marks=pytest.mark.skip(reason="downloads its images from the internet"))
    if "MNIST" in each
    else each
    for each in (env_id.removeprefix("gymnax/") for env_id in GYMNAX_IDS)
]
# Discrete and continuous actions; vectors, images and scalars as observations.
REPRESENTATIVES = [
    "CartPole-v1",
    "Pendulum-v1",
    "Breakout-MinAtar",
    "Catch-bsuite",
    "FrozenLake-misc",
    "Reacher-misc",
]


def make(name):
    env, params = gymnax.make(name)
    return GymnaxEnvironment(env), params


def play(env, params, actions, rng=None):
    """Play actions ``[time, actors, ...]``.

    Returns:
        The first observation and state, and the results of all steps, stacked over time.
    """
    rng_reset, rng_steps = jax.random.split(jax.random.key(0) if rng is None else rng)

    def step(state, action_and_rng):
        action, rng_step = action_and_rng
        observation, state, *rest = env.step(rng_step, state, action, params)
        return state, (observation, state, *rest)

    observation, state = env.reset(rng_reset, params)
    keys = jax.random.split(rng_steps, len(actions))
    return observation, state, jax.lax.scan(step, state, (actions, keys))[1]


def types(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type), tree)


def assert_runs_batched_through_a_reset(name):
    env, params = make(name)
    params = params.replace(max_steps_in_episode=3)
    library_observation, _ = jax.eval_shape(env.env.reset, jax.random.key(0), params)
    space = env.action_space(params)
    dtype = jnp.int32 if hasattr(space, "n") else jnp.float32
    actions = jnp.zeros((4, 1, *space.shape), dtype)

    first, _, (observation, state, reward, terminated, truncated, info) = jax.jit(
        jax.vmap(lambda rng: play(env, params, actions, rng)),
        compiler_options=COMPILE_FAST,
    )(jax.random.split(jax.random.key(1), 2))

    shape, dtype = library_observation.shape, library_observation.dtype
    assert (first.shape, first.dtype) == ((2, 1, *shape), dtype)
    assert (observation.shape, observation.dtype) == ((2, 4, 1, *shape), dtype)
    assert types(info["final_observation"]) == types(observation)
    assert (reward.shape, reward.dtype) == ((2, 4, 1), jnp.float32)
    assert (terminated.shape, terminated.dtype) == ((2, 4, 1), jnp.bool)
    assert (truncated.shape, truncated.dtype) == ((2, 4, 1), jnp.bool)
    assert not np.any(terminated & truncated)
    assert all(value.shape == (2, 4) for key, value in info.items() if key != "final_observation")

    ended = np.asarray(terminated | truncated)[..., 0]
    assert ended[:, :3].any(axis=1).all()
    steps_since_reset = np.zeros(2, int)
    for time in range(4):
        steps_since_reset = np.where(ended[:, time], 0, steps_since_reset + 1)
        np.testing.assert_array_equal(state.time[:, time], steps_since_reset)


@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_environments_run_batched_through_a_reset(name):
    assert_runs_batched_through_a_reset(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [each for each in NAMES if each not in REPRESENTATIVES])
def test_all_other_environments_run_batched_through_a_reset(name):
    assert_runs_batched_through_a_reset(name)


@pytest.mark.parametrize("name", NAMES)
def test_states_have_equal_and_strong_types_after_resets_and_steps(name):
    env, params = make(name)
    space = env.action_space(params)
    dtype = jnp.int32 if hasattr(space, "n") else jnp.float32
    action = jnp.zeros((1, *space.shape), dtype)
    rng = jax.random.key(0)

    def reset_and_step():
        reset = env.reset_env(rng, params)
        return reset, env.step_env(rng, reset[1], action, params)[:2]

    reset, step = jax.eval_shape(reset_and_step)

    assert types(reset) == types(step)
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(reset))


def test_a_pole_that_never_falls_is_truncated_at_step_500():
    env, params = make("CartPole-v1")
    params = params.replace(theta_threshold_radians=1e9, x_threshold=1e9)

    *_, (_, _, reward, terminated, truncated, _) = jax.jit(lambda: play(env, params, ALTERNATING))()

    np.testing.assert_array_equal(np.flatnonzero(truncated), [499])
    assert not np.any(terminated)
    np.testing.assert_array_equal(reward, np.ones((501, 1)))


ALTERNATING = jnp.arange(501, dtype=jnp.int32)[:, None] % 2


def test_a_pendulum_is_truncated_at_step_200():
    env, params = make("Pendulum-v1")

    *_, (_, _, _, terminated, truncated, _) = jax.jit(
        lambda: play(env, params, jnp.zeros((201, 1, 1)))
    )()

    np.testing.assert_array_equal(np.flatnonzero(truncated), [199])
    assert not np.any(terminated)


def test_a_falling_pole_terminates():
    env, params = make("CartPole-v1")

    *_, (_, _, _, terminated, truncated, _) = jax.jit(
        lambda: play(env, params, jnp.ones((20, 1), jnp.int32))
    )()

    # Always pushed to the right, the pole falls after some ten steps, and does so again.
    assert 8 <= np.flatnonzero(terminated)[0] + 1 <= 11
    assert not np.any(truncated)


def test_a_pole_that_falls_at_the_time_limit_is_terminated_and_not_truncated():
    env, params = make("CartPole-v1")
    rng = jax.random.key(0)
    _, state = env.reset(rng, params)
    params = params.replace(theta_threshold_radians=0.0, max_steps_in_episode=1)

    _, _, _, terminated, truncated, _ = env.step_env(rng, state, jnp.array([0]), params)

    assert terminated.tolist() == [True]
    assert truncated.tolist() == [False]


def test_the_final_observation_is_the_librarys_before_the_reset():
    env, params = make("Pendulum-v1")
    params = params.replace(max_steps_in_episode=1)
    rng = jax.random.key(0)
    first, state = env.reset(rng, params)
    action = jnp.array([[0.5]])

    observation, _, reward, _, truncated, info = env.step(rng, state, action, params)
    library_observation, _, library_reward, *_ = env.env.step_env(rng, state, action[0], params)

    assert truncated.tolist() == [True]
    np.testing.assert_allclose(info["final_observation"], library_observation[None], rtol=1e-6)
    np.testing.assert_allclose(reward, library_reward[None], rtol=1e-6)
    assert not np.allclose(observation, info["final_observation"])
    assert first.shape == observation.shape == (1, 3)


def test_parameters_and_action_space_are_the_librarys_own():
    env, params = make("Pendulum-v1")

    assert env.default_params == params
    assert env.action_space(params.replace(max_torque=3.0)).high == 3.0
    assert (env.n_actors, env.name) == (1, "Pendulum-v1")


class CounterState(NamedTuple):
    energy: float  # an int after the reset, because of Python's 0
    time: int


class Counter:
    """Adds action / 4 to its energy. Everything that it returns needs conversion."""

    name = "Counter"
    default_params = None

    def action_space(self, params):
        return spaces.Box(-1.0, 1.0, (1, 1))

    def reset_env(self, rng, params):
        return jnp.zeros((), jnp.uint8), CounterState(energy=0, time=0)

    def step_env(self, rng, state, action, params):
        energy = state.energy + action[0, 0] / 4
        state = CounterState(energy, state.time + 1)
        info = {"energy": energy, "lucky": 7, "vector": jnp.zeros(2), "nested": {"a": energy}}
        return jnp.zeros((), jnp.uint8), state, jnp.array([3], jnp.int32), False, info

    def is_truncated(self, state, params):
        return state.time >= 3


def test_reset_states_have_the_wider_types_of_steps():
    env = GymnaxEnvironment(Counter())

    _, first, (_, state, *_) = play(env, None, jnp.ones((4, 1, 1)))

    assert (first.energy.dtype, first.time.dtype) == (jnp.float32, jnp.int32)
    np.testing.assert_array_equal(state.energy, [0.25, 0.5, 0.0, 0.25])


def test_rewards_become_float32_and_only_scalar_infos_are_kept():
    env = GymnaxEnvironment(Counter())
    rng = jax.random.key(0)
    _, state = env.reset(rng)

    observation, _, reward, _, _, info = env.step_env(rng, state, jnp.ones((1, 1)), None)

    assert (observation.shape, observation.dtype) == ((1,), jnp.uint8)
    np.testing.assert_array_equal(reward, [3.0])
    assert reward.dtype == jnp.float32
    assert {name: float(value) for name, value in info.items()} == {"energy": 0.25, "lucky": 7.0}


def test_the_rule_of_truncation_names_the_limit_if_there_is_one():
    env, _ = make("CartPole-v1")
    assert env.truncation_rule == "time limit: max_steps_in_episode = 500"
    assert GymnaxEnvironment(Counter()).truncation_rule == "the library's is_truncated"


class Noisy(Counter):
    """Keeps a random key in its state."""

    def reset_env(self, rng, params):
        return jnp.zeros(()), {"rng": rng, "time": 0}

    def step_env(self, rng, state, action, params):
        state = {"rng": jax.random.split(state["rng"])[1], "time": state["time"] + 1}
        return jnp.zeros(()), state, 0.0, False, {}

    def is_truncated(self, state, params):
        return state["time"] >= 3


def test_a_random_key_in_the_state_is_left_as_it_is():
    env, rng = GymnaxEnvironment(Noisy()), jax.random.key(3)
    _, first = env.reset_env(rng, None)
    _, state, *_ = env.step_env(jax.random.key(0), first, jnp.ones((1, 1)), None)
    assert first["rng"] == rng
    assert state["rng"] == jax.random.split(rng)[1]
    *_, (_, state, *_) = play(env, None, jnp.ones((4, 1, 1, 1)))
    assert state["time"].tolist() == [1, 2, 0, 1]


def test_action_spaces_other_than_discrete_and_box_are_refused():
    env = Counter()
    env.action_space = lambda params: spaces.Tuple([spaces.Discrete(2)])  # pyright: ignore

    with pytest.raises(TypeError, match="neither Discrete"):
        GymnaxEnvironment(env)


@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_copies_step_as_the_original_does(duplicate):
    env, params = make("CartPole-v1")
    rng = jax.random.key(0)
    _, state = env.reset(rng, params)

    original, copied = (
        each.step(rng, state, jnp.array([1]), params)[0] for each in (env, duplicate(env))
    )

    np.testing.assert_array_equal(original, copied)
