"""The success of JaxMARL's families, in states made by hand or by the library's own rewards."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxmarl.environments.overcooked.common import OBJECT_TO_INDEX
from jaxmarl.environments.overcooked_v2.common import (
    Agent,
    Direction,
    DynamicObject,
    Position,
    StaticObject,
)

import jaxagents as ja
from jaxagents.environments.jaxmarl.adapter import JaxMARLEnvironment, construct
from tests.environments.jaxmarl.test_adapter import begin, compiled, make, stepper

INTERACT = 5  # of both kitchens


def battle(**changes):
    """Step once from a battle of 3 against 3 in which nobody shoots."""
    env = make("HeuristicEnemySMAX", scenario="3m")
    _, state = begin(env)
    state = state.replace(state=state.state.replace(**changes))
    _, _, reward, terminated, _, info = stepper(env)(state, jnp.full(3, 4))
    return float(info["won"]), bool(terminated.all()), reward


def test_a_battle_is_won_once_all_enemies_are_dead():
    allies, enemies = jnp.arange(6) < 3, jnp.arange(6) >= 3
    full = jnp.full(6, 45.0)
    won, over, reward = battle(unit_alive=allies, unit_health=full * allies)
    assert (won, over) == (1.0, True)
    assert float(reward[0]) >= 1.0  # the library's bonus for a battle won
    won, over, reward = battle(unit_alive=enemies, unit_health=full * enemies)
    assert (won, over) == (0.0, True)
    assert float(reward[0]) < 1.0
    assert battle()[:2] == (0.0, False)


def test_who_wins_a_battle_of_two_learning_teams_is_said():
    assert make("SMAX").success.title == "battles won by the allies"
    assert make("HeuristicEnemySMAX").success.title == "battles won"


def test_soups_that_are_delivered_count_and_their_shaped_reward_does_not():
    env = make("overcooked")
    _, state = begin(env)
    goal = state.goal_pos[0]
    state = state.replace(
        agent_pos=state.agent_pos.at[0].set((goal - jnp.array([0, 1])).astype(jnp.uint32)),
        agent_dir=state.agent_dir.at[0].set(jnp.array([0, 1], jnp.int8)),
        agent_dir_idx=state.agent_dir_idx.at[0].set(1),
    )
    dish = state.replace(agent_inv=jnp.array([OBJECT_TO_INDEX["dish"], OBJECT_TO_INDEX["empty"]]))
    onion = state.replace(agent_inv=jnp.array([OBJECT_TO_INDEX["onion"]] * 2))
    actions = jnp.array([INTERACT, 4])

    _, after, reward, *_, info = stepper(env)(dish, actions)
    assert (float(info["delivered"]), float(reward[0])) == (1.0, 20.0)
    assert int(after.agent_inv[0]) == OBJECT_TO_INDEX["empty"]
    assert float(stepper(env)(dish, jnp.array([4, 4]))[-1]["delivered"]) == 0.0
    assert float(stepper(env)(onion, actions)[-1]["delivered"]) == 0.0
    assert env.success.of_episode == "sum"


def kitchen(held, negative_rewards=True):
    """Return a kitchen in which actor 0 faces the goal and actor 1 does not."""
    env = make("overcooked_v2", layout="cramped_room", negative_rewards=negative_rewards)
    _, state = begin(env)
    goal_y, goal_x = np.argwhere(np.asarray(state.grid[..., 0]) == StaticObject.GOAL)[0]
    agents = Agent(
        pos=Position(
            x=state.agents.pos.x.at[0].set(int(goal_x)),
            y=state.agents.pos.y.at[0].set(int(goal_y) - 1),
        ),
        dir=jnp.array([Direction.DOWN, Direction.UP], state.agents.dir.dtype),
        inventory=jnp.full(2, held, state.agents.inventory.dtype),
    )
    return env, state.replace(agents=agents)


def test_right_and_wrong_dishes_are_told_apart_whatever_they_cost():
    _, state = begin(make("overcooked_v2", layout="cramped_room", negative_rewards=True))
    recipe = int(state.recipe)
    plated = DynamicObject.PLATE | DynamicObject.COOKED
    wrong = int(DynamicObject.ingredient(0)) | plated
    cases = [
        (recipe | plated, True, 20.0, (1.0, 0.0)),
        (wrong, True, -20.0, (0.0, 1.0)),
        (wrong, False, 0.0, (0.0, 1.0)),
        (int(DynamicObject.PLATE), True, 0.0, (0.0, 0.0)),
    ]
    for held, negative_rewards, earned, delivered in cases:
        env, state = kitchen(held, negative_rewards)
        _, after, reward, *_, info = stepper(env)(state, jnp.full(2, INTERACT))
        assert float(reward[0]) == earned
        assert (float(info["delivered"]), float(info["wrong_orders"])) == delivered
        assert (int(after.agents.inventory[0]) == 0) == (sum(delivered) > 0)


def test_points_of_hanabi_are_the_librarys_and_lost_with_the_last_life():
    env = make("hanabi")
    _, state = begin(env)
    cards = jnp.zeros_like(state.player_hands[0])
    cards = cards.at[0, 0, 1].set(1).at[1:, 1, 3].set(1)  # the first card fits, no other one does
    state = state.replace(
        cur_player_idx=jnp.array([1.0, 0.0]),
        player_hands=state.player_hands.at[0].set(cards),
        fireworks=state.fireworks.at[0, 0].set(1),
        life_tokens=jnp.array([1.0, 0.0, 0.0]),
        score=jnp.array(1),
    )
    state = jax.tree.map(lambda new, old: new.astype(old.dtype), state, begin(env)[1])
    played = {}
    for name, action in (("fits", 5), ("does not", 6)):  # plays the first and the second card
        _, after, reward, terminated, _, info = stepper(env)(state, jnp.full(2, action))
        played[name] = (float(info["score"]), float(reward[0]), bool(terminated.all()))
        assert float(info["score"]) == float(after.score)
    assert played == {"fits": (2.0, 1.0, False), "does not": (0.0, -1.0, True)}


@pytest.mark.parametrize(
    ("been", "action", "told"),
    [
        ((1, 1, 0), 2, (1.0, 0.0)),  # the third is in the room, and now all have been
        ((1, 0, 0), 2, (0.0, 1.0)),
        ((1, 1, 0), 1, (0.0, 0.0)),
    ],
)
def test_a_riddle_is_told_rightly_wrongly_or_not(been, action, told):
    env = make("switch_riddle")
    _, state = begin(env)
    state = state.replace(has_been=jnp.array(been), agent_in_room=jnp.array(2))
    *_, reward, _, _, info = stepper(env)(state, jnp.full(3, action))
    assert (float(info["told_right"]), float(info["told_wrong"])) == told
    np.testing.assert_array_equal(reward, [told[0] - told[1]] * 3)


def test_coins_of_the_own_colour_are_a_share_of_those_collected():
    env = make("coin_game")
    _, state = begin(env)
    place = jnp.zeros(2, jnp.int32)
    state = state.replace(
        red_pos=place,
        blue_pos=place,
        red_coin_pos=place + 1,
        blue_coin_pos=place + 2,
        red_coop=state.red_coop.at[0].set(2).at[1].set(1),
        red_defect=state.red_defect.at[1].set(1),
    )
    *_, info = stepper(env)(state, jnp.full(2, 4))
    np.testing.assert_array_equal(info["own_coins"], [3 / 4, np.nan])
    state = state.replace(red_coin_pos=place.at[1].set(1))  # to the right of both
    *_, info = stepper(env)(state, jnp.array([0, 4]))
    np.testing.assert_allclose(info["own_coins"], [4 / 5, np.nan])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["storm_2p", pytest.param("storm_np", marks=pytest.mark.slow)])
def test_interactions_with_mostly_cooperation_are_counted_once(name):
    # Each actor is paid for an interaction: 1, and the share of cooperation that it holds.
    payoffs = jnp.array([[[2, 2], [1, 1]], [[2, 1], [2, 1]]])
    env = JaxMARLEnvironment(construct(name, num_agents=2, payoff_matrix=payoffs))
    coins = jnp.array([[2, 1], [1, 2]])

    def episode(rng):
        def step(state, rng):
            rng_action, rng_step = jax.random.split(rng)
            action = jax.random.randint(rng_action, (2,), 0, env.action_space().n)
            _, state, reward, _, _, info = env.step_env(rng_step, state, action, None)
            return state, (reward, info["cooperated"])

        rng, rng_steps = jax.random.split(rng)
        _, state = env.reset_env(rng, None)
        held = {"red_inventory": coins[0], "blue_inventory": coins[1]}
        held |= {"agent_invs": coins}
        held = {
            name: each.astype(getattr(state, name).dtype)
            for name, each in held.items()
            if hasattr(state, name)
        }
        return jax.lax.scan(step, state.replace(**held), jax.random.split(rng_steps, 40))[1]

    rngs = jax.random.split(jax.random.key(0), 256)
    reward, cooperated = map(np.asarray, compiled(jax.vmap(episode))(rngs))
    is_paid, interacts = reward > 0, ~np.isnan(cooperated)
    assert is_paid.sum() > 8
    np.testing.assert_array_equal(interacts[..., 0], interacts[..., 1])
    assert not (is_paid & ~interacts).any()
    if name != "storm_np":  # which pays one of both, and by the other's coins
        np.testing.assert_array_equal(is_paid, interacts)
        np.testing.assert_array_equal(reward[is_paid] > 1.5, cooperated[is_paid] == 1.0)


def test_actors_of_storm_cooperate_by_their_own_coins():
    env = make("storm", num_agents=2)
    _, state = begin(env)
    grid = jnp.where(jnp.isin(state.grid, jnp.array([1, 2])), 0, state.grid)
    state = state.replace(
        grid=grid.at[3, 3].set(1).at[3, 4].set(2).astype(state.grid.dtype),
        agent_positions=jnp.array([[3, 3, 0], [3, 4, 2]], state.agent_positions.dtype),
        agent_inventories=jnp.array([[2, 0], [1, 2]], state.agent_inventories.dtype),
    )
    _, after, *_, info = stepper(env)(state, jnp.full(2, 3))  # they face each other
    np.testing.assert_array_equal(after.agent_freezes, [5, 5])  # the library's freeze_penalty
    np.testing.assert_array_equal(info["cooperated"], [1.0, 0.0])
    *_, info = stepper(env)(after, jnp.full(2, 3))  # they are frozen
    np.testing.assert_array_equal(info["cooperated"], [np.nan, np.nan])


def robots(**changes):
    """Return three robots: at its goal, in a wall, and on its way."""
    env = make("jaxnav", num_agents=3, max_steps=20, **changes)
    _, state = begin(env)
    map_data = jnp.zeros_like(state.map_data).at[jnp.array([0, -1])].set(1)
    map_data = map_data.at[:, jnp.array([0, -1])].set(1)  # walls around an empty room
    return env, state.replace(
        map_data=map_data,
        pos=jnp.array([[2.5, 2.5], [0.5, 5.5], [8.5, 8.5]]),
        goal=jnp.array([[2.5, 2.5], [9.5, 9.5], [2.5, 8.5]]),
        vel=jnp.zeros_like(state.vel),
    )


NAVIGATION = ("reached_goal", "collided", "timed_out")


@pytest.mark.parametrize("evaporating", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_each_robot_ends_once_at_its_goal_in_a_wall_or_at_the_time_limit(evaporating):
    env, state = robots(evaporating=evaporating)
    ends = []
    still = jnp.zeros((3, 2))
    for step in (17, 18, 19):
        *_, info = result = stepper(env)(state.replace(step=step), still)
        state = result[1]
        ends.append([np.asarray(info[name]).tolist() for name in NAVIGATION])
    none = [0.0, 0.0, 0.0]
    assert ends[0] == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], none]
    assert ends[1] == [none, none, none]
    assert ends[2] == [none, none, [0.0, 0.0, 1.0]]


@pytest.mark.slow
def test_the_ends_of_a_robot_sum_to_one():
    env = make("jaxnav", max_steps=40)
    agent = ja.IPPO(env, None, ja.AgentConfig(n_steps=1, n_evals=2, progress_bar=False))
    metrics = jax.device_get(agent.eval_random(jax.random.key(0), 24))
    shares = np.stack([metrics[f"info_{name}"] for name in NAVIGATION])
    np.testing.assert_allclose(shares.sum(axis=0), 1.0)
    np.testing.assert_array_equal(metrics["success"], shares[0])
    assert (shares[1:].sum(axis=1) > 0).all()
