import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.hunting import (
    DIRECTIONS,
    ContinuousHunting,
    DiscreteHunting,
    Hunting,
    HuntingParams,
    HuntingState,
)
from jaxagents.environments.spaces import Box, Discrete

RIGHT, UP, LEFT, DOWN = range(4)
RNG = jax.random.key(0)
DEFAULTS = HuntingParams()
# Powers of two, so that every number below is exact.
PARAMS = HuntingParams(predator_speed=0.25, prey_speed=0.125, capture_radius=0.25)

# Compiled once for all parameters.
step_discrete = jax.jit(DiscreteHunting().step_env)
step_continuous = jax.jit(ContinuousHunting().step_env)
reset_many = jax.jit(jax.vmap(DiscreteHunting().reset_env, in_axes=(0, None)))


def state_of(predator, prey, time=0):
    return HuntingState(positions=jnp.array([predator, prey]), time=jnp.array(time, jnp.int32))


def step(predator, prey, actions, time=0, params=PARAMS):
    """Step `DiscreteHunting` once, from the given positions."""
    state = state_of(predator, prey, time)
    return step_discrete(RNG, state, jnp.array(actions, jnp.int32), params)


@pytest.mark.parametrize(
    ("actions", "predator", "prey"),
    [
        ((RIGHT, UP), (0.25, 0.0), (0.5, 0.625)),
        ((UP, LEFT), (0.0, 0.25), (0.375, 0.5)),
        ((LEFT, DOWN), (-0.25, 0.0), (0.5, 0.375)),
        ((DOWN, RIGHT), (0.0, -0.25), (0.625, 0.5)),
    ],
)
def test_a_discrete_action_moves_each_actor_by_its_own_speed(actions, predator, prey):
    _, state, *_ = step((0.0, 0.0), (0.5, 0.5), actions)
    np.testing.assert_array_equal(state.positions, [predator, prey])
    assert state.time == 1


@pytest.mark.parametrize(
    ("headings", "predator", "prey"),
    [
        ((0.0, math.pi / 2), (0.25, 0.0), (0.5, 0.625)),
        ((math.pi, -math.pi / 2), (-0.25, 0.0), (0.5, 0.375)),
        ((math.pi / 6, -math.pi), (0.25 * math.sqrt(3) / 2, 0.125), (0.375, 0.5)),
    ],
)
def test_a_continuous_action_is_a_heading_anticlockwise_from_right(headings, predator, prey):
    action = jnp.array(headings)[:, None]
    state = state_of((0.0, 0.0), (0.5, 0.5))
    _, state, *_ = step_continuous(RNG, state, action, PARAMS)
    np.testing.assert_allclose(state.positions, [predator, prey], atol=1e-6)


def test_walls_stop_the_actors():
    _, state, *_ = step((-0.875, 0.0), (0.5, 1.0), (LEFT, UP))
    np.testing.assert_array_equal(state.positions, [(-1.0, 0.0), (0.5, 1.0)])


def test_an_actor_slides_along_a_wall():
    heading = math.pi / 6
    state = state_of((0.0, 0.0), (1.0, 0.5))
    _, state, *_ = step_continuous(RNG, state, jnp.full((2, 1), heading), PARAMS)
    np.testing.assert_allclose(state.positions[1], [1.0, 0.5 + 0.125 / 2], atol=1e-6)


def test_the_walls_are_where_the_parameters_put_them():
    params = PARAMS.replace(arena_half_width=4.0)
    _, state, *_ = step((3.0, 0.0), (0.0, -3.9375), (RIGHT, DOWN), params=params)
    np.testing.assert_array_equal(state.positions, [(3.25, 0.0), (0.0, -4.0)])


def test_capture_terminates_both_and_rewards_the_predator():
    # 0.5 apart, they approach each other by 0.375, to within 0.25.
    _, _, reward, terminated, truncated, info = step((0.0, 0.0), (0.5, 0.0), (RIGHT, LEFT))
    np.testing.assert_array_equal(terminated, [True, True])
    np.testing.assert_array_equal(truncated, [False, False])
    np.testing.assert_array_equal(reward, [10.0, 0.0])
    assert info["captured"]


def test_a_prey_at_exactly_the_capture_radius_is_free():
    _, _, _, terminated, _, info = step((0.0, 0.0), (0.625, 0.0), (RIGHT, LEFT))
    np.testing.assert_array_equal(terminated, [False, False])
    assert not info["captured"]


def test_the_prey_is_rewarded_for_a_step_it_survives():
    params = PARAMS.replace(survival_reward=0.5)
    _, _, reward, terminated, truncated, _ = step(
        (0.0, 0.0), (0.5, 0.0), (UP, RIGHT), params=params
    )
    np.testing.assert_array_equal(reward, [0.0, 0.5])
    np.testing.assert_array_equal(terminated | truncated, [False, False])


def test_the_time_limit_truncates_both_and_the_prey_has_survived():
    params = PARAMS.replace(max_steps_in_episode=7, survival_reward=0.5)
    before, last = (
        step((0.0, 0.0), (0.5, 0.0), (LEFT, RIGHT), time, params)[2:5] for time in (5, 6)
    )
    np.testing.assert_array_equal(before, [[0.0, 0.5], [False, False], [False, False]])
    np.testing.assert_array_equal(last, [[0.0, 0.5], [False, False], [True, True]])


def test_capture_in_the_last_step_is_a_termination_and_no_truncation():
    params = PARAMS.replace(max_steps_in_episode=7)
    _, _, reward, terminated, truncated, _ = step(
        (0.0, 0.0), (0.5, 0.0), (RIGHT, LEFT), time=6, params=params
    )
    np.testing.assert_array_equal(terminated, [True, True])
    np.testing.assert_array_equal(truncated, [False, False])
    np.testing.assert_array_equal(reward, [10.0, 0.0])


@pytest.mark.parametrize(
    ("prey", "time", "expected"),
    [((0.125, 0.0), 3, (True, False)), ((0.5, 0.0), 100, (False, True))],
    ids=["captured", "out of time"],
)
def test_after_its_end_an_episode_does_not_change_and_earns_nothing(prey, time, expected):
    # These actions would take the captured prey out of reach again.
    _, state, reward, terminated, truncated, info = step((0.0, 0.0), prey, (LEFT, RIGHT), time)
    np.testing.assert_array_equal(state.positions, [(0.0, 0.0), prey])
    assert state.time == time
    np.testing.assert_array_equal(reward, [0.0, 0.0])
    np.testing.assert_array_equal(terminated, [expected[0]] * 2)
    np.testing.assert_array_equal(truncated, [expected[1]] * 2)
    assert info["captured"] == expected[0]


def reset_positions(params, n_envs=20_000):
    rngs = jax.random.split(RNG, n_envs)
    _, state = reset_many(rngs, params)
    assert np.all(state.time == 0)
    return np.asarray(state.positions)


@pytest.mark.parametrize("minimum_separation", [0.25, 1.0, 1.9])
def test_a_reset_keeps_exactly_the_minimum_separation(minimum_separation):
    params = HuntingParams(arena_half_width=2.0, minimum_separation=minimum_separation)
    positions = reset_positions(params)
    distances = np.linalg.norm(positions[:, 1] - positions[:, 0], axis=-1)
    assert distances.min() >= minimum_separation - 1e-5
    assert distances.min() < minimum_separation + 0.05
    assert np.abs(positions).max() <= 2.0


def test_a_reset_places_each_actor_uniformly():
    # Each of 4 x 4 cells expects 1/16 of 20 000; the bound is five standard deviations.
    positions = reset_positions(DEFAULTS)
    tolerance = 5 * math.sqrt(1 / 16 * 15 / 16 / len(positions))
    for x, y in positions.transpose(1, 2, 0):
        cells, *_ = np.histogram2d(x, y, bins=4, range=[(-1, 1), (-1, 1)])
        np.testing.assert_allclose(cells / len(positions), 1 / 16, atol=tolerance)


def test_a_reset_places_the_prey_in_every_direction_alike():
    # Wrapped around, the offset is uniform over the outer 12 of 4 x 4 cells.
    positions = reset_positions(DEFAULTS)
    offsets = np.mod(positions[:, 1] - positions[:, 0] + 1, 2) - 1
    cells, *_ = np.histogram2d(*offsets.T, bins=4, range=[(-1, 1), (-1, 1)])
    expected = np.full((4, 4), 1 / 12)
    expected[1:3, 1:3] = 0.0
    tolerance = 5 * math.sqrt(1 / 12 * 11 / 12 / len(positions))
    np.testing.assert_allclose(cells / len(positions), expected, atol=tolerance)


def test_actors_observe_themselves_the_other_and_their_role():
    # The vector from (1, -2) to (-2, 2) is (-3, 4), of length 5; the square is 4 wide.
    params = PARAMS.replace(arena_half_width=2.0, predator_speed=0.0, prey_speed=0.0)
    observation, *_ = step((1.0, -2.0), (-2.0, 2.0), (UP, UP), params=params)
    distance = 5 / (4 * math.sqrt(2))
    np.testing.assert_allclose(
        observation,
        [[0.5, -1.0, -0.75, 1.0, distance, 1.0], [-1.0, 1.0, 0.75, -1.0, distance, -1.0]],
        rtol=1e-6,
    )


def test_observations_reach_one_at_opposite_corners():
    observation, *_ = step((-1.0, -1.0), (1.0, 1.0), (DOWN, UP))
    expected = [[-1, -1, 1, 1, 1, 1], [1, 1, -1, -1, 1, -1]]
    np.testing.assert_allclose(observation, expected, rtol=1e-6)


@pytest.mark.parametrize("env", [DiscreteHunting(), ContinuousHunting()])
def test_jit_and_vmap_give_the_promised_shapes_and_types(env):
    params = env.default_params
    action = jnp.zeros((5, 2), jnp.int32)
    if isinstance(env, ContinuousHunting):
        action = jnp.zeros((5, 2, 1))
    rngs = jax.random.split(RNG, 5)
    observation, state = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))(rngs, params)
    assert (observation.shape, observation.dtype) == ((5, 2, 6), jnp.float32)
    vmapped_step = jax.jit(jax.vmap(env.step, in_axes=(0, 0, 0, None)))
    results = vmapped_step(rngs, state, action, params)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), results) == (
        ((5, 2, 6), jnp.float32),
        HuntingState(positions=((5, 2, 2), jnp.float32), time=((5,), jnp.int32)),
        ((5, 2), jnp.float32),
        ((5, 2), jnp.bool_),
        ((5, 2), jnp.bool_),
        {"captured": ((5,), jnp.bool_), "final_observation": ((5, 2, 6), jnp.float32)},
    )


def test_step_resets_after_a_capture_and_returns_the_final_observation():
    env = DiscreteHunting()
    state = state_of((0.0, 0.0), (0.5, 0.0), time=4)
    observation, state, _, terminated, _, info = jax.jit(env.step)(
        RNG, state, jnp.array([RIGHT, LEFT]), PARAMS
    )
    assert terminated.all()
    assert state.time == 0
    np.testing.assert_array_equal(info["final_observation"][:, :2], [(0.25, 0.0), (0.375, 0.0)])
    np.testing.assert_array_equal(observation[:, :2], state.positions)
    assert np.linalg.norm(state.positions[1] - state.positions[0]) >= 0.5 - 1e-6


def test_step_without_an_end_continues_from_the_observed_state():
    state = state_of((0.0, 0.0), (0.5, 0.0), time=4)
    observation, state, *_, info = DiscreteHunting().step(
        RNG, state, jnp.array([LEFT, RIGHT]), PARAMS
    )
    assert state.time == 5
    np.testing.assert_array_equal(observation[:, :2], [(-0.25, 0.0), (0.625, 0.0)])
    np.testing.assert_array_equal(info["final_observation"], observation)


def test_action_spaces_are_four_directions_and_one_angle():
    params = DEFAULTS
    assert DiscreteHunting().action_space(params) == Discrete(4)
    assert ContinuousHunting().action_space(params) == Box(-math.pi, math.pi, (1,))


def test_hunting_itself_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        Hunting()


def wander(rng, to_other):
    return jax.random.randint(rng, (), 0, 4)


def pursue(rng, to_other):
    return jnp.argmax(jnp.array(DIRECTIONS) @ to_other)


def flee(rng, to_other):
    return pursue(rng, -to_other)


def play(rng, predator_policy, prey_policy, env_params=DEFAULTS):
    """Return the first state and those of ``max_steps_in_episode`` steps without a reset."""
    env = DiscreteHunting()

    def next_state(state, rng):
        rng_predator, rng_prey, rng_step = jax.random.split(rng, 3)
        to_prey = state.positions[1] - state.positions[0]
        action = jnp.stack(
            [predator_policy(rng_predator, to_prey), prey_policy(rng_prey, -to_prey)]
        )
        _, state, *_ = env.step_env(rng_step, state, action, env_params)
        return state, state

    rng_reset, rng_steps = jax.random.split(rng)
    _, first = env.reset(rng_reset, env_params)
    rngs = jax.random.split(rng_steps, env_params.max_steps_in_episode)
    _, states = jax.lax.scan(next_state, first, rngs)
    return jax.tree.map(lambda one, others: jnp.concatenate([one[None], others]), first, states)


@functools.cache
def last_states(predator_policy, prey_policy):
    """Play 400 episodes with the default parameters."""
    last = jax.vmap(
        lambda rng: jax.tree.map(lambda x: x[-1], play(rng, predator_policy, prey_policy))
    )
    return last(jax.random.split(RNG, 400))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("predator_policy", "prey_policy", "low", "high"),
    [(wander, wander, 0.005, 0.1), (wander, flee, 0.0, 0.05), (pursue, wander, 0.95, 1.0)],
)
def test_by_default_pursuers_capture_and_random_walkers_seldom_do(
    predator_policy, prey_policy, low, high
):
    last = last_states(predator_policy, prey_policy).positions
    captured = np.linalg.norm(last[:, 1] - last[:, 0], axis=-1) < DEFAULTS.capture_radius
    assert low <= captured.mean() <= high


@pytest.mark.slow
def test_by_default_a_fleeing_prey_lives_longer_than_a_random_walker():
    fleeing, wandering = (last_states(pursue, policy).time.mean() for policy in (flee, wander))
    assert fleeing > 1.25 * wandering
