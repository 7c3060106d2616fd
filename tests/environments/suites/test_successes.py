"""What episodes of the suites are judged by, in states made by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja


def step(env, state, action, params=None):
    """Return the infos and the reward of a step."""
    _, _, reward, *_, info = env.step_env(jax.random.key(0), state, jnp.asarray(action), params)
    return info, reward


@pytest.mark.slow
def test_food_is_eaten_item_by_item_whatever_its_level():
    pytest.importorskip("jumanji")
    env, _ = ja.make("jumanji/LevelBasedForaging-v0", scenario="8x8-2p-4f")
    _, state = env.reset_env(jax.random.key(0), None)
    food = state.food_items.replace(eaten=jnp.array([True, False, True, True]))
    info, _ = step(env, state.replace(food_items=food), [0, 0])
    assert float(info["food_eaten"]) == 0.75
    assert float(info["percent_eaten"]) == 75.0  # the library's own
    assert (env.success.info, env.success.kind) == ("food_eaten", "share")


@pytest.mark.slow
def test_every_requested_shelf_at_a_goal_is_delivered_once():
    pytest.importorskip("jumanji")
    env, _ = ja.make("jumanji/RobotWarehouse-v0", scenario="tiny-2ag")
    _, state = env.reset_env(jax.random.key(0), None)
    (first_y, first_x), (second_y, second_x) = np.asarray(env.env.goals)
    one, two = np.asarray(state.request_queue)[:2] + 1
    shelves = 0  # layer of the grid
    grid = state.grid.at[shelves, first_x, first_y].set(int(one))
    info, reward = step(env, state.replace(grid=grid), [0, 0])
    assert (float(info["delivered"]), reward.tolist()) == (1.0, [1.0, 1.0])
    grid = grid.at[shelves, second_x, second_y].set(int(two))
    assert float(step(env, state.replace(grid=grid), [0, 0])[0]["delivered"]) == 2.0
    assert float(step(env, state, [0, 0])[0]["delivered"]) == 0.0
    assert (env.success.kind, env.success.of_episode) == ("count", "sum")


def test_the_actors_of_connector_that_reach_their_targets_are_connected():
    pytest.importorskip("jumanji")
    env, _ = ja.make("jumanji/Connector-v3", scenario="con-6x6x3a")

    def episode(rng):
        def act(carry, rng):
            observation, state = carry
            action = jax.random.categorical(rng, jnp.where(observation.action_mask, 0.0, -jnp.inf))
            observation, state, reward, *_, info = env.step_env(rng, state, action, None)
            return (observation, state), (reward, info[env.success.info])

        rngs = jax.random.split(rng, 20)
        return jax.lax.scan(act, env.reset_env(rng, None), rngs)[1]

    reward, connected = jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(0), 16))
    # The library pays 1 for each connection, once, and takes a little for each step.
    n_connected = (np.asarray(reward) > 0.5).sum(axis=(1, 2))
    assert 0 < n_connected.sum() < 48
    np.testing.assert_allclose(connected[:, -1], n_connected / 3, rtol=1e-6)


@pytest.mark.slow
def test_mazes_cleaners_and_rescuers_report_what_the_library_counts():
    pytest.importorskip("jumanji")
    maze, _ = ja.make("jumanji/Maze-v0")
    _, state = maze.reset_env(jax.random.key(0), None)
    info, reward = step(maze, state, [0])
    assert float(info["reached_target"]) == float(reward[0]) == 0.0
    there = state.replace(target_position=state.agent_position, action_mask=jnp.zeros(4, bool))
    info, reward = step(maze, there, [0])  # it stays, as no move is allowed
    assert float(info["reached_target"]) == float(reward[0]) == 1.0

    cleaner, _ = ja.make("jumanji/Cleaner-v0")
    observation, state = cleaner.reset_env(jax.random.key(0), None)
    info, _ = step(cleaner, state, jnp.argmax(observation.action_mask, axis=-1))
    assert float(info["cleaned"]) == pytest.approx(1 - float(info["ratio_dirty_tiles"]))

    rescue, _ = ja.make("jumanji/SearchAndRescue-v0")
    _, state = rescue.reset_env(jax.random.key(0), None)
    found = jnp.arange(len(state.targets.found)) % 4 == 0
    state = state.replace(targets=state.targets.replace(found=found))
    info, _ = step(rescue, state, jnp.zeros((rescue.n_actors, 2)))
    assert float(info["targets_found"]) >= 0.25


@pytest.mark.slow
def test_a_cube_is_solved_if_all_its_faces_have_one_colour():
    pytest.importorskip("jumanji")
    from jumanji.environments.logic.rubiks_cube.utils import make_solved_cube

    env, _ = ja.make("jumanji/RubiksCube-partly-scrambled-v0")
    _, state = env.reset_env(jax.random.key(0), None)
    solved = state.replace(cube=make_solved_cube(cube_size=3))
    turned = env.step_env(jax.random.key(0), solved, jnp.zeros((1, 3), jnp.int32), None)
    assert float(turned[-1]["solved"]) == float(turned[2][0]) == 0.0
    info, reward = step(env, turned[1], [[0, 0, 1]])  # the same face back
    assert float(info["solved"]) == float(reward[0]) == 1.0


@pytest.mark.parametrize(
    ("library", "env_id", "forward"),
    [
        ("navix", "navix/Navix-Empty-5x5-v0", 2),
        ("xminigrid", "xminigrid/MiniGrid-Empty-5x5", 0),
    ],
)
def test_a_goal_of_a_gridworld_is_reached_where_it_is_rewarded(library, env_id, forward):
    pytest.importorskip(library)
    env, params = ja.make(env_id)
    _, state = env.reset_env(jax.random.key(0), params)
    reached, right = [], 1
    for action in (forward, forward, right, forward, forward):  # to the other corner
        _, state, reward, terminated, _, info = env.step_env(
            jax.random.key(0), state, jnp.array([action]), params
        )
        reached.append(float(info["reached_goal"]))
        assert reached[-1] == float(reward[0] > 0) == float(terminated[0])
    assert reached == [0.0, 0.0, 0.0, 0.0, 1.0]


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "n"), [("Craftax-Classic", 22), ("Craftax", 67)])
def test_achievements_of_craftax_are_counted(variant, n):
    pytest.importorskip("craftax")
    env, params = ja.make(f"craftax/{variant}-Symbolic-v1")
    assert env.success.title == f"achievements of {n}"
    _, state = env.reset_env(jax.random.key(0), params)
    assert state.achievements.shape == (n,)
    unlocked = state.replace(achievements=state.achievements.at[jnp.arange(3)].set(True))
    info, _ = step(env, unlocked, [0], params)
    assert float(info["achievements"]) == 3.0


def test_games_of_pgx_are_won_drawn_or_lost_by_a_side():
    pytest.importorskip("pgx")
    env, _ = ja.make("pgx/tic_tac_toe")
    side = ja.Side(env, [0], [ja.RandomOpponent()])
    agent = ja.IPPO(side, None, ja.AgentConfig(n_steps=1, n_evals=2, progress_bar=False))
    metrics = jax.device_get(agent.eval_random(jax.random.key(0), 40))
    outcome = metrics["returns"][:, 0]  # pgx pays 1, 0 or -1
    assert set(outcome) == {-1.0, 0.0, 1.0}
    np.testing.assert_array_equal(metrics["success"], outcome == 1)
    np.testing.assert_array_equal(metrics["info_games_drawn"], outcome == 0)
    np.testing.assert_array_equal(metrics["info_games_lost"], outcome == -1)
    assert ja.IPPO(env, None, agent.config).environments.success is None  # it plays both sides
