import functools

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.environments.registry import arguments_of
from jaxagents.environments.spaces import action_shape
from jaxagents.networks.entities import entities_in

jumanji = pytest.importorskip("jumanji")
from jaxagents.environments.suites.jumanji import arguments_of_scenario  # noqa: E402


@functools.cache
def foraging():
    """Three actors and two pieces of food, for three steps."""
    return ja.make("jumanji/LevelBasedForaging-v0", scenario="8x8-3p-2f", time_limit=3)[0]


def steps(env, actions, seed=0):
    """Step through actions ``[time, actors, ...]`` without resets."""
    reset, step = compiled(env)
    results = [reset(jax.random.key(seed))]
    for action in actions:
        results.append(step(results[-1][1], action))
    return results


@functools.cache
def compiled(env):
    """Return the environment's reset from a key and its step, which need no parameters here."""
    step = jax.jit(lambda state, action: env.step_env(jax.random.key(0), state, action, None))
    return jax.jit(lambda rng: env.reset_env(rng, None)), step


def test_the_time_limit_of_lbf_truncates_and_that_of_a_warehouse_terminates():
    lbf = foraging()
    assert (lbf.n_actors, lbf.time_limits, lbf.max_episode_steps()) == (3, "bootstrap", 3)
    flags = [step[3:5] for step in steps(lbf, jnp.zeros((3, 3), jnp.int32))[1:]]
    np.testing.assert_array_equal(flags, [[[False] * 3] * 2] * 2 + [[[False] * 3, [True] * 3]])

    warehouse, _ = ja.make("jumanji/RobotWarehouse-v0", scenario="tiny-2ag", time_limit=2)
    assert (warehouse.n_actors, warehouse.time_limits) == (2, "terminal")
    flags = [step[3:5] for step in steps(warehouse, jnp.zeros((2, 2), jnp.int32))[1:]]
    np.testing.assert_array_equal(flags, [[[False] * 2] * 2, [[True] * 2, [False] * 2]])


@pytest.mark.parametrize(
    ("env_id", "env_kwargs"),
    [
        ("jumanji/Tetris-v0", {"time_limit": 10}),  # its observations always say 0
        ("jumanji/PacMan-v1", {}),  # its observations do not tell
        ("jumanji/MultiCVRP-v0", {}),  # its states begin with 1
        ("matrax/Climbing-stateless-v0", {"time_limit": 5}),
    ],
)
def test_observations_tell_the_steps_since_the_reset(env_id, env_kwargs):
    if env_id.startswith("matrax/"):
        pytest.importorskip("matrax")
    env, _ = ja.make(env_id, **env_kwargs)
    shape = (2, env.n_actors, *action_shape(env.action_space()))
    played = steps(env, jnp.zeros(shape, jnp.int32))
    assert [int(step[0].elapsed) for step in played] == [0, 1, 2]


@pytest.mark.slow
def test_a_reward_of_the_team_counts_for_every_actor():
    env, _ = ja.make("jumanji/Cleaner-v0")
    # Two actors beside each other's start clean new tiles: all three earn the sum less the penalty.
    observation, state = env.reset_env(jax.random.key(0), None)
    action = jnp.argmax(observation.action_mask, axis=-1)
    _, timestep = env.env.step(state, action)
    reward = env.step_env(jax.random.key(0), state, action, None)[2]
    np.testing.assert_array_equal(reward, [float(timestep.reward)] * 3)
    assert float(timestep.reward) == pytest.approx(0.5)  # all three clean the same tile


def test_an_actor_of_connector_sees_its_own_path_apart_from_others():
    env, _ = ja.make("jumanji/Connector-v3", scenario="con-5x5x3a")
    ((observation, state),) = steps(env, [], seed=3)
    features = np.asarray(observation.features)
    assert features.shape == (3, 5, 5, 6)
    for actor in range(3):
        head, target = features[actor, ..., 1], features[actor, ..., 2]
        assert head.sum() == target.sum() == 1
        assert tuple(np.argwhere(head)[0]) == tuple(np.asarray(state.agents.position[actor]))
        assert tuple(np.argwhere(target)[0]) == tuple(np.asarray(state.agents.target[actor]))
        # Path, head and target of both others.
        np.testing.assert_array_equal(features[actor, ..., 3:].sum((0, 1)), [0, 2, 2])


@pytest.mark.slow
def test_a_blocked_actor_of_connector_pays_until_all_actors_have_ended():
    env, _ = ja.make("jumanji/Connector-v3")
    assert env.rewards_after_death
    reset, step = compiled(env)
    observation, state = reset(jax.random.key(0))
    ended, paid_after = np.zeros(10, bool), 0.0
    while not ended.all():
        action = jnp.argmax(observation.action_mask.at[:, 0].set(False), axis=-1)
        observation, state, reward, terminated, truncated, _ = step(state, action)
        paid_after += float(reward[ended].sum())
        ended = np.asarray(terminated | truncated)
    assert paid_after < 0


@pytest.mark.slow
def test_an_actor_of_cleaner_sees_itself():
    env, _ = ja.make("jumanji/Cleaner-v0")
    itself, dirty, walls, everyone = np.moveaxis(steps(env, [])[0][0].features[0], -1, 0)
    assert (itself[0, 0], itself.sum(), everyone[0, 0], everyone.sum()) == (1, 1, 3, 3)
    assert dirty[0, 0] == 0  # the starting tile is clean
    assert dirty.sum() + walls.sum() == 99


def test_choices_with_one_mask_become_one_choice():
    env, _ = ja.make("jumanji/Tetris-v0")
    assert env.action_space() == ja.Discrete(4 * 10)
    # The number counts rotations of 10 columns: 23 is the third rotation, column 3.
    (observation, state), (_, after, *_) = steps(env, jnp.array([[23]]))
    np.testing.assert_array_equal(observation.action_mask[0], state.action_mask.ravel())
    direct, _ = jax.jit(env.env.step)(state, jnp.array([2, 3]))
    np.testing.assert_array_equal(after.grid_padded, direct.grid_padded)


@pytest.mark.slow
def test_choices_with_a_mask_each_stay_several_choices():
    env, _ = ja.make("jumanji/JobShop-v0")
    observation, state = env.reset_env(jax.random.key(0), None)
    assert env.action_space() == ja.MultiDiscrete((21,) * 10)
    np.testing.assert_array_equal(observation.action_mask[0], state.action_mask.ravel())


def test_where_the_library_allows_nothing_everything_is_allowed():
    env, _ = ja.make("jumanji/Knapsack-v1", total_budget=0.5)
    reset, step = compiled(env)
    observation, state = reset(jax.random.key(0))
    while not bool(jnp.all(observation.action_mask)):
        assert bool(jnp.any(observation.action_mask))
        action = jnp.argmax(observation.action_mask, axis=-1)
        observation, state, _, terminated, *_ = step(state, action)
    assert bool(terminated[0])


def test_a_tile_of_2048_is_seen_by_its_exponent():
    env, _ = ja.make("jumanji/Game2048-v1")
    ((observation, state),) = steps(env, [])
    np.testing.assert_array_equal(jnp.argmax(observation.features[0], axis=-1), state.board)


def test_states_are_drawn_where_the_library_returns_nothing_and_no_figure_stays_open():
    env, _ = ja.make("jumanji/Snake-v1")
    ((_, state),) = steps(env, [])
    open_figures = plt.get_fignums()
    picture = env.draw(state, None)
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 1
    assert plt.get_fignums() == open_figures


@pytest.mark.slow
def test_pacman_sees_pellets_and_itself_where_there_are_no_walls():
    env, _ = ja.make("jumanji/PacMan-v1")
    free, player, ghosts, pellets, power_ups, _ = np.moveaxis(
        steps(env, [])[0][0].features[0], -1, 0
    )
    assert (player.sum(), ghosts.sum(), power_ups.sum()) == (1, 4, 4)
    later = steps(env, jnp.zeros((3, 1), jnp.int32))[-1]
    assert int(later[1].frightened_state_time) < 0
    np.testing.assert_array_equal(later[0].features[0, ..., 5], 0)
    for plane in (player, pellets, power_ups):
        assert plane.sum() > 0
        assert np.all(free[plane > 0] == 1)


@pytest.mark.parametrize(
    ("env_id", "scenario", "expected"),
    [
        (
            "RobotWarehouse-v0",
            "small-4ag-hard",
            {"shelf_rows": 2, "shelf_columns": 3, "num_agents": 4, "request_queue_size": 2},
        ),
        ("RobotWarehouse-v0", "tiny-2ag", {"shelf_rows": 1, "request_queue_size": 2}),
        (
            "LevelBasedForaging-v0",
            "2s-8x8-2p-2f-coop",
            {"grid_size": 8, "fov": 2, "num_agents": 2, "num_food": 2, "force_coop": True},
        ),
        ("LevelBasedForaging-v0", "15x15-4p-3f", {"fov": 15, "num_food": 3, "force_coop": False}),
        ("Connector-v3", "con-7x7x5a", {"grid_size": 7, "num_agents": 5}),
    ],
)
def test_scenarios_are_those_that_papers_name(env_id, scenario, expected):
    found = arguments_of_scenario(env_id, scenario)
    assert {name: found[name] for name in expected} == expected
    env, _ = ja.make(f"jumanji/{env_id}", scenario=scenario)
    assert env.n_actors == found["num_agents"]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"scenario": "huge-2ag"}, "no scenario 'huge-2ag'; write one such as tiny-2ag"),
        (
            {"shelf_row": 2},
            r"unexpected keyword argument 'shelf_row'; there are .*shelf_rows",
        ),
        ({"shelf_columns": 2}, "must be an odd number"),
    ],
)
def test_wrong_arguments_are_one_clear_line(kwargs, message):
    with pytest.raises(ValueError, match=message) as raised:
        ja.make("jumanji/RobotWarehouse-v0", **kwargs)
    assert "\n" not in str(raised.value)


def test_arguments_of_the_generator_reach_it():
    env, _ = ja.make("jumanji/RobotWarehouse-v0", num_agents=3, time_limit=9)
    assert (env.n_actors, env.max_episode_steps(), env.env.num_agents) == (3, 9, 3)


def test_a_game_of_matrax_pays_its_matrix():
    pytest.importorskip("matrax")
    env, _ = ja.make("matrax/Climbing-stateless-v0", time_limit=2)
    paid = [step[2] for step in steps(env, jnp.array([[0, 0], [0, 1]]))[1:]]
    np.testing.assert_array_equal(paid, [[11, 11], [-30, -30]])


def test_a_configuration_lists_the_generators_arguments():
    listed = {each.name: each.default for each in arguments_of("jumanji/RobotWarehouse-v0")}
    assert listed == {
        "time_limit": 500,
        "shelf_rows": 2,
        "shelf_columns": 3,
        "column_height": 8,
        "num_agents": 4,
        "sensor_range": 1,
        "request_queue_size": 8,
    }


def test_foragers_see_food_and_each_other_as_entities():
    ((observation, state),) = steps(foraging(), [])
    kinds = foraging().entities(None)
    for name, things, n in (("food", state.food_items, 2), ("others", state.agents, 2)):
        each, is_there = entities_in(kinds[name], observation.features[0])
        assert each.shape == (n, 3)
        assert is_there.all()  # nothing is too far away to be seen
        levels = np.asarray(things.level)[-n:]
        assert np.asarray(each)[:, 2].tolist() == levels.tolist()
