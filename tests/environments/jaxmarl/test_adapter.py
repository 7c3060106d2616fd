import contextlib
import copy
import functools
import json
import os
import pickle
import subprocess
import sys
import warnings
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import jaxmarl
import numpy as np
import pytest
from jaxmarl.environments import overcooked_layouts, overcooked_v2_layouts
from jaxmarl.environments.smax.smax_env import MAP_NAME_TO_SCENARIO

from jaxagents.environments.jaxmarl.adapter import JaxMARLEnvironment, construct
from jaxagents.environments.jaxmarl.families import FAMILIES, supported_family
from jaxagents.environments.quiet_import import SILENCE
from jaxagents.environments.registry import JAXMARL_IDS, MABRAX_IDS

MPE = [name for name in jaxmarl.registered_envs if name.startswith("MPE_")]
MABRAX = [env_id.removeprefix("jaxmarl/") for env_id in MABRAX_IDS]
SPREAD = "MPE_simple_spread_v3"
COMPILE_FAST = {"xla_backend_optimization_level": 0}
UNSUPPORTED = ["LearnedPolicyEnemySMAX"] + [
    name for name in jaxmarl.registered_envs if name.startswith("JaxRobotarium_")
]


@functools.cache
def make(name, **env_kwargs):
    """Make an environment, the same one for equal arguments."""
    return JaxMARLEnvironment(construct(name, **env_kwargs))


def compiled(function):
    return jax.jit(function, compiler_options=COMPILE_FAST)


@functools.cache
def begin(env):
    """Return the first observation and state of an episode."""
    return compiled(lambda rng: env.reset_env(rng, None))(jax.random.key(0))


@functools.cache
def stepper(env):
    """Compile a function from a state and actions to the results of `Environment.step_env`."""
    return compiled(lambda state, action: env.step_env(jax.random.key(1), state, action, None))


def play(env, actions, rng):
    """Play actions ``[time, actors, ...]``.

    Returns:
        The first observation and state, and the results of all steps, stacked over time.
    """

    def step(state, action):
        observation, state, *rest = env.step(rng, state, action)
        return state, (observation, state, *rest)

    observation, state = env.reset(rng)
    return observation, state, jax.lax.scan(step, state, actions)[1]


def types(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type), tree)


def any_action(env):
    space = env.action_space()
    if hasattr(space, "n"):
        return jnp.zeros(env.n_actors, jnp.int32)
    return jnp.zeros((env.n_actors, *space.shape))


def library_done(state):
    """Read the library's flag that the episode is over for all actors."""
    state = getattr(state, "state", state)
    return bool(np.all(getattr(state, "ep_done", state.done)))


DISCRETE, CONTINUOUS = {"action_type": "Discrete"}, {"action_type": "Continuous"}

# Representatives of each family and kind of space, and the others.
INTERFACES = [
    ("MPE_simple_v3", CONTINUOUS, [0], (4,), "float32", (5,), False),
    ("MPE_simple_tag_v3", {}, [0, 0, 0, 1], (16,), "float32", 5, False),
    ("MPE_simple_world_comm_v3", {}, [0, 1, 1, 1, 2, 2], (34,), "float32", (9,), True),
    ("MPE_simple_spread_v3", {"num_agents": 2}, [0, 0], (14,), "float32", 5, False),
    ("MPE_simple_speaker_listener_v4", {}, [0, 1], (11,), "float32", 5, True),
    ("MPE_simple_facmac_v1", {}, [0] * 3 + [1], (16,), "float32", (5,), False),
    ("switch_riddle", {}, [0] * 3, (2,), "int32", 3, True),
    ("SMAX", {"scenario": "5m_vs_6m"}, [0] * 5 + [1] * 6, (140,), "float32", 11, True),
    ("HeuristicEnemySMAX", {"action_type": "continuous"}, [0] * 5, (127,), "float32", (4,), False),
    ("storm_np", {}, [0, 0], (5, 5, 14), "float32", 8, False),
    ("hanabi", {}, [0, 0], (658,), "float32", 21, True),
    ("overcooked", {}, [0, 0], (4, 5, 26), "uint8", 6, False),
    ("jaxnav", {}, [0, 0], (205,), "float32", (2,), False),
]
OTHER_INTERFACES = [
    ("MPE_simple_crypto_v3", {}, [0, 1, 2], (8,), "float32", 4, False),
    ("MPE_simple_reference_v3", {}, [0, 0], (21,), "float32", 50, False),
    ("storm", {"num_agents": 3}, [0] * 3, (5, 5, 25), "float32", 5, False),
    ("storm_2p", {}, [0, 0], (5, 5, 16), "float32", 5, False),
    ("overcooked_v2", {}, [0, 0], (4, 5, 30), "int32", 6, False),
    ("coin_game", {}, [0, 0], (36,), "int8", 5, False),
    ("MPE_simple_v3", {}, [0], (4,), "float32", 5, False),
    ("MPE_simple_tag_v3", CONTINUOUS, [0, 0, 0, 1], (16,), "float32", (5,), False),
    ("MPE_simple_world_comm_v3", DISCRETE, [0, 1, 1, 1, 2, 2], (34,), "float32", 20, True),
    ("MPE_simple_spread_v3", {}, [0, 0, 0], (18,), "float32", 5, False),
    ("MPE_simple_spread_v3", CONTINUOUS, [0, 0, 0], (18,), "float32", (5,), False),
    ("MPE_simple_crypto_v3", CONTINUOUS, [0, 1, 2], (8,), "float32", (4,), False),
    ("MPE_simple_speaker_listener_v4", CONTINUOUS, [0, 1], (11,), "float32", (5,), True),
    ("MPE_simple_push_v3", {}, [0, 1], (19,), "float32", 5, False),
    ("MPE_simple_push_v3", CONTINUOUS, [0, 1], (19,), "float32", (5,), False),
    ("MPE_simple_adversary_v3", {}, [0, 1, 1], (10,), "float32", 5, False),
    ("MPE_simple_adversary_v3", CONTINUOUS, [0, 1, 1], (10,), "float32", (5,), False),
    ("MPE_simple_reference_v3", CONTINUOUS, [0, 0], (21,), "float32", (15,), False),
    ("MPE_simple_facmac_3a_v1", {}, [0] * 3 + [1], (16,), "float32", (5,), False),
    ("MPE_simple_facmac_6a_v1", {}, [0] * 6 + [1] * 2, (28,), "float32", (5,), False),
    ("MPE_simple_facmac_9a_v1", {}, [0] * 9 + [1] * 3, (40,), "float32", (5,), False),
    ("HeuristicEnemySMAX", {"scenario": "3m"}, [0] * 3, (75,), "float32", 8, True),
    ("storm", {}, [0, 0], (5, 5, 22), "float32", 5, False),
    ("overcooked", {"layout": "coord_ring"}, [0, 0], (5, 5, 26), "uint8", 6, False),
    ("overcooked_v2", {"observation_type": "featurized"}, [0, 0], (96,), "float32", 6, False),
    ("coin_game", {"cnn": True}, [0, 0], (3, 3, 4), "int8", 5, False),
    ("jaxnav", {"act_type": "Discrete"}, [0, 0], (205,), "float32", 15, False),
]


@pytest.mark.parametrize(
    ("name", "env_kwargs", "teams", "shape", "dtype", "action", "masked"),
    [*INTERFACES, *(pytest.param(*each, marks=pytest.mark.slow) for each in OTHER_INTERFACES)],
)
def test_resets_and_steps_return_the_expected_shapes_and_equal_types(
    name, env_kwargs, teams, shape, dtype, action, masked
):
    env = make(name, **env_kwargs)
    rng = jax.random.key(0)

    observation, state = jax.eval_shape(env.reset, rng)
    stepped = jax.eval_shape(env.step_env, rng, state, any_action(env), None)

    n_actors = len(teams)
    assert (env.n_actors, env.teams) == (n_actors, teams)
    assert observation.features.shape == (n_actors, *shape)
    assert observation.features.dtype == dtype
    space = env.action_space()
    assert (space.n if isinstance(action, int) else space.shape) == action
    size = action if isinstance(action, int) else action[0]
    mask = jax.ShapeDtypeStruct((n_actors, size), bool) if masked else None
    assert observation.action_mask == mask
    assert (observation.global_state is not None) == ("SMAX" in name)
    assert types((observation, state)) == types(stepped[:2])
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(state))
    assert [(each.shape, each.dtype) for each in stepped[2:5]] == [
        ((n_actors,), jnp.float32),
        ((n_actors,), jnp.bool),
        ((n_actors,), jnp.bool),
    ]


def test_every_environment_of_the_library_is_listed_or_known_to_be_unsupported():
    listed = [env_id.removeprefix("jaxmarl/") for env_id in (*JAXMARL_IDS, *MABRAX_IDS)]

    assert sorted([*listed, *UNSUPPORTED]) == sorted(jaxmarl.registered_envs)


def test_mpe_is_truncated_when_the_librarys_step_counter_says_so_and_never_terminates():
    env = make(SPREAD)
    rngs = jax.random.split(jax.random.key(0), 2)

    _, _, (_, state, reward, terminated, truncated, _) = compiled(
        jax.vmap(lambda rng: play(env, jnp.zeros((28, 3), jnp.int32), rng))
    )(rngs)

    # The library counts steps from 0 to max_steps=25, so the 26th step is the last.
    assert env.env.max_steps == 25
    expected = np.zeros((2, 28, 3), bool)
    expected[:, 25] = True
    np.testing.assert_array_equal(truncated, expected)
    assert not np.any(terminated)
    np.testing.assert_array_equal(state.step, [[*range(1, 26), 0, 1, 2]] * 2)
    assert reward.shape == (2, 28, 3)


# Short environments that several tests share.
BATTLE = {"scenario": "3m", "max_steps": 5}
NAVIGATION = {"max_steps": 4, "lidar_num_beams": 8}
REPETITIONS = {"num_inner_steps": 2, "num_outer_steps": 2}


@pytest.mark.parametrize(
    ("name", "env_kwargs", "limit", "action"),
    [
        # The library compares the step count before incrementing it: one step beyond max_steps.
        (SPREAD, {"max_steps": 2}, 3, 0),
        ("HeuristicEnemySMAX", BATTLE, 6, 4),
        # It increments the count first.
        ("switch_riddle", {}, 4 * 3 - 6, 0),
        ("overcooked", {"max_steps": 2}, 2, 4),
        pytest.param("overcooked_v2", {"max_steps": 2}, 2, 4, marks=pytest.mark.slow),
        pytest.param("jaxnav", NAVIGATION, 4, 0, marks=pytest.mark.slow),
        pytest.param("coin_game", REPETITIONS, 4, 0, marks=pytest.mark.slow),
        pytest.param("storm_2p", REPETITIONS, 4, 4, marks=pytest.mark.slow),
        pytest.param("storm", REPETITIONS, 4, 4, marks=pytest.mark.slow),
        pytest.param("storm_np", REPETITIONS, 4, 4, marks=pytest.mark.slow),
    ],
)
def test_all_actors_are_truncated_on_the_librarys_last_step_and_not_before(
    name, env_kwargs, limit, action
):
    env = make(name, **env_kwargs)
    step = stepper(env)
    _, state = begin(env)

    for count in range(1, limit + 1):
        _, state, _, terminated, truncated, _ = step(state, any_action(env) + action)

        assert library_done(state) == (count == limit)
        assert np.all(truncated == (count == limit))
        assert not np.any(terminated)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        (SPREAD, "time limit: the step after max_steps = 25 steps is the last"),
        ("switch_riddle", "time limit: max_steps = 6 steps, unless the last one tells"),
        ("overcooked_v2", "time limit: max_steps = 400 steps"),
        ("coin_game", "time limit: num_inner_steps x num_outer_steps = 10 x 10 steps"),
        ("storm_2p", "time limit: num_inner_steps x num_outer_steps = 152 x 1 steps"),
        ("hanabi", "never: the deck runs out"),
    ],
)
def test_truncation_rules_are_described_with_the_environments_own_limits(name, rule):
    assert make(name).truncation_rule == rule


@pytest.fixture
def battle():
    """SMAX with built-in enemies, its state before the time limit, and its compiled step."""
    env = make("HeuristicEnemySMAX", **BATTLE)
    _, state = begin(env)
    return env, state.replace(state=state.state.replace(step=jnp.array(5))), stepper(env)


def wounded(state, health):
    """Set the units' health, allies first; units without health die in the next step."""
    return state.replace(state=state.state.replace(unit_health=jnp.array(health)))


STOP = jnp.full(3, 4)


def test_in_smax_the_dead_are_terminated_and_the_living_truncated(battle):
    _, state, step = battle

    _, state, reward, terminated, truncated, info = step(
        wounded(state, [0.0, 45, 45, 45, 45, 45]), STOP
    )

    assert library_done(state)
    np.testing.assert_array_equal(terminated, [True, False, False])
    np.testing.assert_array_equal(truncated, [False, True, True])
    assert info["won"] == 0
    assert reward[0] == reward[1]


@pytest.mark.parametrize(
    ("health", "won"),
    [([45.0, 0, 45, 0, 0, 0], 1), ([0.0, 0, 0, 45, 45, 45], 0), ([0.0] * 6, 0)],
    ids=["won", "lost", "drawn"],
)
def test_a_battle_decided_at_the_time_limit_terminates(battle, health, won):
    _, state, step = battle

    _, state, reward, terminated, truncated, info = step(wounded(state, health), STOP)

    assert library_done(state)
    assert terminated.all()
    assert not truncated.any()
    assert info["won"] == won
    # The library's own log of wins uses this rule.
    assert np.all((reward >= 1) == won)


def test_in_smax_death_lasts_until_the_reset_and_rewards_continue(battle):
    env, state, step = battle
    state = state.replace(state=state.state.replace(step=jnp.array(0)))
    state = wounded(state, [0.0, 45, 45, 45, 45, 45])

    for _ in range(3):
        # Damage to an enemy earns all allies the same, including dead ones.
        observation, state, reward, terminated, truncated, _ = step(state, STOP)
        np.testing.assert_array_equal(terminated, [True, False, False])
        assert not truncated.any()
        np.testing.assert_array_equal(observation.action_mask[0], np.arange(8) == 4)
        assert reward[0] == reward[1]

    assert env.rewards_after_death


def test_telling_on_the_last_step_of_the_riddle_terminates():
    env = make("switch_riddle")
    step = stepper(env)
    _, state = begin(env)
    state = state.replace(step=jnp.array(5), agent_in_room=jnp.array(1))

    told = step(state, jnp.array([0, 2, 0]))
    told_outside = step(state, jnp.array([2, 0, 2]))

    assert library_done(told[1])
    assert library_done(told_outside[1])
    assert told[3].all()
    assert not told[4].any()
    assert told_outside[4].all()
    assert not told_outside[3].any()


def test_in_the_riddle_only_the_actor_in_the_room_has_a_choice():
    env = make("switch_riddle")
    _, state = begin(env)
    state = state.replace(agent_in_room=jnp.array(1))
    step = stepper(env)

    observation, state, *_ = step(state, jnp.array([0, 1, 0]))

    choice = np.asarray(observation.features[:, 0], bool)
    assert choice.sum() == 1
    expected = np.where(choice[:, None], True, [True, False, False])
    np.testing.assert_array_equal(observation.action_mask, expected)


@pytest.mark.parametrize("env_kwargs", [NAVIGATION, NAVIGATION | {"evaporating": True}])
def test_in_jaxnav_an_arrival_at_the_time_limit_terminates_all_or_evaporating_actors(env_kwargs):
    env = make("jaxnav", **env_kwargs)
    evaporating = "evaporating" in env_kwargs
    step = stepper(env)
    _, state = begin(env)
    state = state.replace(step=jnp.array(3))
    one = state.replace(goal=state.goal.at[0].set(state.pos[0]))
    both = state.replace(goal=state.pos)

    *_, terminated, truncated, _ = step(one, any_action(env))
    *_, terminated_both, truncated_both, _ = step(both, any_action(env))

    # Without evaporation an arrived actor keeps playing for the team and is truncated with it.
    np.testing.assert_array_equal(terminated, [evaporating, False])
    np.testing.assert_array_equal(truncated, [not evaporating, True])
    assert terminated_both.all()
    assert not truncated_both.any()


def test_in_jaxnav_an_actor_that_has_evaporated_is_done_until_the_reset():
    env = make("jaxnav", **NAVIGATION, evaporating=True)
    step = stepper(env)
    _, state = begin(env)
    state = state.replace(goal=state.goal.at[0].set(state.pos[0]))

    ends = []
    for _ in range(4):
        _, state, _, terminated, truncated, _ = step(state, any_action(env))
        ends.append([terminated.tolist(), truncated.tolist()])

    assert ends == [[[True, False], [False, False]]] * 3 + [[[True, False], [False, True]]]


def test_hanabi_terminates_with_its_last_round():
    env = make("hanabi")
    _, state = begin(env)
    step = stepper(env)
    # The first actor hints; the deck of 50 cards ran out one or two turns ago.
    hint = jnp.argmax(begin(env)[0].action_mask[0, 10:]) + 10
    state = state.replace(num_cards_dealt=jnp.array(50))

    ends = {
        count: step(state.replace(last_round_count=jnp.array(count)), jnp.array([hint, 20]))
        for count in (1, 2)
    }

    for count, (_, state, _, terminated, truncated, _) in ends.items():
        assert library_done(state) == (count == 2)
        assert np.all(terminated == (count == 2))
        assert not truncated.any()


def test_hanabis_legal_moves_are_its_masks_and_actors_take_turns():
    env = make("hanabi")
    observation, state = begin(env)
    noop = np.arange(21) == 20
    step, legal_moves = stepper(env), compiled(env.env.get_legal_moves)

    for turn in range(3):
        on_turn = turn % 2
        legal = legal_moves(state)
        mask = np.asarray(observation.action_mask)
        np.testing.assert_array_equal(mask, [legal["agent_0"] > 0, legal["agent_1"] > 0])
        np.testing.assert_array_equal(mask[1 - on_turn], noop)
        assert not mask[on_turn, 20]
        assert mask[on_turn].sum() > 5
        # All hint tokens are available: nothing can be discarded before a hint.
        assert mask[on_turn, :5].any() == (turn > 0)
        action = jnp.where(jnp.arange(2) == on_turn, np.argmax(mask[on_turn, 10:]) + 10, 20)
        observation, state, *_ = step(state, action)


def test_smax_masks_are_the_librarys_padded_for_the_smaller_team():
    env = make("SMAX", scenario="5m_vs_6m")
    observation, state = begin(env)
    # Put the last enemy in front of the allies.
    position = state.unit_positions[0] + jnp.array([2.0, 0.0])
    state = state.replace(unit_positions=state.unit_positions.at[10].set(position))

    observation, state, *_ = stepper(env)(state, jnp.full(11, 4))

    mask = np.asarray(observation.action_mask)
    available = compiled(env.env.get_avail_actions)(state)
    for i, name in enumerate(env.env.agents):
        own = np.asarray(available[name], bool)
        assert own.shape == (11 if i < 5 else 10,)
        np.testing.assert_array_equal(mask[i], np.append(own, [False] * (11 - len(own))))
    assert mask[0, 10]
    assert mask[10, 5:10].any()


@pytest.mark.parametrize(
    ("name", "env_kwargs", "n_units"),
    [
        ("SMAX", {"scenario": "5m_vs_6m"}, 11),
        ("HeuristicEnemySMAX", BATTLE, 6),
        pytest.param(
            "HeuristicEnemySMAX", {"action_type": "continuous"}, 10, marks=pytest.mark.slow
        ),
    ],
)
def test_the_global_state_of_smax_is_the_librarys_and_contains_all_units(name, env_kwargs, n_units):
    env = make(name, **env_kwargs)
    first, state = begin(env)
    observation, state, *_ = stepper(env)(state, any_action(env))

    # Each unit's health, position, cooldown and one-hot type; then every unit's team and type.
    assert observation.global_state.shape == (n_units * (10 + 2),)
    expected = compiled(env.env.get_world_state)(state)
    np.testing.assert_allclose(observation.global_state, expected, rtol=1e-6)
    units = observation.global_state[: n_units * 10].reshape(n_units, 10)
    inner = getattr(state, "state", state)
    np.testing.assert_allclose(units[:, 1:3], inner.unit_positions, rtol=1e-6)
    assert not np.array_equal(first.global_state, observation.global_state)


def test_unequal_observations_are_padded_with_zeros_at_the_end():
    env = make("MPE_simple_speaker_listener_v4")

    observation, _ = begin(env)

    library, _ = compiled(env.env.reset)(jax.random.key(0))
    np.testing.assert_array_equal(observation.features[0], [*library["speaker_0"], *[0] * 8])
    np.testing.assert_array_equal(observation.features[1], library["listener_0"])


def test_actors_with_fewer_actions_are_masked():
    observation, _ = begin(make("MPE_simple_speaker_listener_v4"))

    np.testing.assert_array_equal(observation.action_mask, [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])


def test_actors_with_fewer_dimensions_are_masked():
    observation, _ = begin(make("MPE_simple_world_comm_v3"))

    np.testing.assert_array_equal(
        observation.action_mask, [[True] * 9] + [[True] * 5 + [False] * 4] * 5
    )


@pytest.mark.parametrize(
    ("name", "env_kwargs", "sizes"),
    [
        ("MPE_simple_speaker_listener_v4", {}, [3, 5]),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                ("MPE_simple_world_comm_v3", {}, [9, 5, 5, 5, 5, 5]),
                ("MPE_simple_speaker_listener_v4", CONTINUOUS, [3, 5]),
                ("MPE_simple_world_comm_v3", DISCRETE, [20, 5, 5, 5, 5, 5]),
                ("MPE_simple_tag_v3", DISCRETE, [5, 5, 5, 5]),
                ("MPE_simple_crypto_v3", CONTINUOUS, [4, 4, 4]),
            )
        ),
    ],
)
def test_each_actor_acts_and_earns_as_in_the_library(name, env_kwargs, sizes):
    env = make(name, **env_kwargs)
    _, state = begin(env)
    largest = max(sizes)
    if hasattr(env.action_space(), "n"):
        action = jnp.array([size - 1 - (i % 2) for i, size in enumerate(sizes)])
        library_action = dict(zip(env.env.agents, action, strict=True))
    else:
        action = jnp.linspace(0.1, 0.9, len(sizes) * largest).reshape(len(sizes), largest)
        library_action = {
            agent: action[i, :size]
            for i, (agent, size) in enumerate(zip(env.env.agents, sizes, strict=True))
        }

    observation, next_state, reward, *_ = stepper(env)(state, action)

    library_observation, library_state, library_reward, *_ = compiled(env.env.step_env)(
        jax.random.key(1), state, library_action
    )
    np.testing.assert_allclose(next_state.p_vel, library_state.p_vel, rtol=1e-6)
    np.testing.assert_allclose(next_state.c, library_state.c, rtol=1e-6)
    for i, agent in enumerate(env.env.agents):
        own = library_observation[agent]
        np.testing.assert_allclose(observation.features[i, : own.size], own, rtol=1e-5)
        assert not observation.features[i, own.size :].any()
        np.testing.assert_allclose(reward[i], library_reward[agent], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:scatter inputs have incompatible types:FutureWarning")
@pytest.mark.parametrize("name", ["storm_2p", "storm", "storm_np"])
def test_actors_without_names_act_and_earn_as_in_the_library(name):
    env = make(name, **REPETITIONS)
    _, state = begin(env)
    action = jnp.array([0, 2])  # a turn and a step forward

    _, next_state, reward, *_ = stepper(env)(state, action)

    library_action = (action[0], action[1]) if name == "storm_2p" else {0: action[0], 1: action[1]}
    _, library_state, library_reward, *_ = compiled(env.env.step_env)(
        jax.random.key(1), state, library_action
    )
    jax.tree.map(np.testing.assert_array_equal, next_state, library_state)
    np.testing.assert_array_equal(reward, jnp.stack(library_reward))


def test_in_storm_inventories_are_additional_channels():
    env = make("storm", num_agents=3)
    images = jnp.arange(3.0).reshape(3, 1, 1, 1) * jnp.ones((3, 5, 5, 2))
    # Rows: coins of two kinds, ready to interact, what others see; columns: actors.
    inventory = jnp.array([[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12], [13, 14, 15]])

    features = supported_family("storm").features(
        env.env, {"observations": images, "inventory": inventory}
    )

    assert [each.shape for each in features] == [(5, 5, 2 + 9)] * 3
    np.testing.assert_array_equal(features[1][3, 2], [1, 1, 2, 5, 8, 9, 12, 15, 7, 10, 13])
    np.testing.assert_array_equal(features[1], jnp.broadcast_to(features[1][0, 0], (5, 5, 11)))


@pytest.mark.parametrize("name", ["overcooked", "overcooked_v2"])
def test_shaped_rewards_are_stacked_separately_from_the_rewards(name):
    library_env = construct(name)
    step_env = library_env.step_env

    def shaping(key, state, actions):
        *answer, info = step_env(key, state, actions)
        return *answer, {
            "shaped_reward": {"agent_1": 5, "agent_0": info["shaped_reward"]["agent_0"]}
        }

    library_env.step_env = shaping
    env = JaxMARLEnvironment(library_env)
    _, state = begin(make(name, max_steps=2))

    *_, reward, _, _, info = stepper(env)(state, jnp.array([4, 4]))

    assert info["shaped_reward"].dtype == jnp.float32
    np.testing.assert_array_equal(info["shaped_reward"], [0, 5])
    np.testing.assert_array_equal(reward, [0, 0])


NAVIGATION_INFOS = (
    *("AgentC", "GoalR", "MapC", "NumC", "Return", "TimeO", "terminated"),
    *("reached_goal", "collided", "timed_out"),
)


@pytest.mark.parametrize(
    ("name", "infos"),
    [
        (SPREAD, {}),
        ("coin_game", {"inner_episode_done": (), "own_coins": (2,)}),
        ("storm_np", {"discount": (), "coin_ratio": (), "cooperated": (2,)}),
        ("jaxnav", dict.fromkeys(NAVIGATION_INFOS, (2,))),
    ],
)
def test_infos_are_numbers_of_the_environment_or_of_each_actor(name, infos):
    env = make(name)
    _, state = jax.eval_shape(env.reset, jax.random.key(0))

    *_, info = jax.eval_shape(env.step_env, jax.random.key(0), state, any_action(env), None)

    assert {key: value.shape for key, value in info.items()} == infos


def test_bounds_are_the_librarys_dimension_by_dimension():
    space = make("jaxnav").action_space()

    np.testing.assert_allclose(space.low, [0.0, -np.pi / 6])
    np.testing.assert_allclose(space.high, [1.0, np.pi / 6])


@pytest.mark.parametrize(
    "action_type", ["Discrete", pytest.param("Continuous", marks=pytest.mark.slow)]
)
def test_steps_equal_the_librarys_with_actors_in_its_order(action_type):
    env = make(SPREAD, action_type=action_type, max_steps=0)
    rng = jax.random.key(0)
    first, state = begin(env)
    if action_type == "Discrete":
        action = jnp.array([1, 2, 4])
    else:
        action = jnp.arange(15, dtype=jnp.float32).reshape(3, 5) / 15
    library_first, _ = compiled(env.env.reset)(rng)
    library_action = dict(zip(env.env.agents, action, strict=True))
    # Spread has no noise, so the key makes no difference.
    library_observation, _, library_reward, _, _ = compiled(env.env.step_env)(
        rng, state, library_action
    )

    observation, _, reward, _, truncated, info = compiled(env.step)(rng, state, action)

    names = ["agent_0", "agent_1", "agent_2"]
    assert truncated.all()
    np.testing.assert_array_equal(first.features, [library_first[name] for name in names])
    np.testing.assert_allclose(
        info["final_observation"].features, [library_observation[name] for name in names], rtol=1e-6
    )
    np.testing.assert_allclose(reward, [library_reward[name] for name in names], rtol=1e-6)
    assert not np.allclose(observation.features, info["final_observation"].features)


def test_rewards_are_not_multiplied_by_the_number_of_actors():
    env = make(SPREAD, max_steps=2)
    _, state = begin(env)
    # All landmarks are at the origin, the nearest actor is 1 away, and no two actors collide. Each
    # landmark contributes -1, and each actor earns half of the sum, as local_ratio is 0.5.
    positions = jnp.array([[1, 0], [0, 2], [-3, 0], [0, 0], [0, 0], [0, 0]], jnp.float32)
    state = state.replace(p_pos=positions, p_vel=jnp.zeros_like(positions))

    _, _, reward, *_ = stepper(env)(state, jnp.zeros(3, jnp.int32))

    np.testing.assert_allclose(reward, [-1.5, -1.5, -1.5], rtol=1e-6)


def test_other_entries_of_the_observations_are_ignored():
    library_env = construct(SPREAD)
    reset = library_env.reset
    library_env.reset = lambda key: (reset(key)[0] | {"world_state": jnp.zeros(54)}, reset(key)[1])

    observation, _ = jax.eval_shape(JaxMARLEnvironment(library_env).reset, jax.random.key(0))

    assert observation.features.shape == (3, 18)


def test_actors_that_act_within_different_bounds_are_refused():
    library_env = construct(SPREAD, action_type="Continuous")
    library_env.action_spaces["agent_1"] = jaxmarl.environments.spaces.Box(-1.0, 1.0, (5,))

    with pytest.raises(ValueError, match="SimpleSpreadMPE act within different bounds"):
        JaxMARLEnvironment(library_env)


def test_images_of_different_sizes_are_refused():
    library_env = construct("coin_game", cnn=True)
    reset = library_env.reset
    library_env.reset = lambda key: (reset(key)[0] | {"1": jnp.zeros((4, 3, 4))}, reset(key)[1])

    with pytest.raises(ValueError, match=r"observe \(3, 3, 4\), \(4, 3, 4\); only vectors"):
        JaxMARLEnvironment(library_env)


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_environments_are_refused_by_name(name):
    reason = "needs the enemies' policy" if name in UNSUPPORTED[:1] else "is not supported"
    with pytest.raises(ValueError, match=f"jaxmarl/{name} {reason}"):
        construct(name)


@pytest.mark.skipif(jaxmarl.environments.MABRAX_AVAILABLE, reason="brax is installed")
@pytest.mark.parametrize("env_id", MABRAX_IDS)
def test_without_brax_its_environments_are_refused_with_the_extra(env_id):
    with pytest.raises(
        ValueError, match=r'needs brax.*pip install -c constraints.txt -e "\.\[brax\]"'
    ):
        construct(env_id.removeprefix("jaxmarl/"))


@pytest.mark.skipif(not jaxmarl.environments.MABRAX_AVAILABLE, reason="needs brax")
def test_mabrax_is_truncated_at_its_episode_length():
    env = make("halfcheetah_6x1", episode_length=2, backend="spring")
    step = stepper(env)
    _, state = begin(env)

    ends = []
    for _ in range(2):
        _, state, _, terminated, truncated, _ = step(state, any_action(env))
        ends.append((bool(terminated.any()), bool(truncated.all())))

    assert ends == [(False, False), (False, True)]


@pytest.mark.skipif(not jaxmarl.environments.MABRAX_AVAILABLE, reason="needs brax")
def test_mabrax_counts_the_steps_of_the_agent_where_actions_repeat():
    env = make("hopper_3x1", episode_length=10, action_repeat=4, backend="spring")
    assert env.max_episode_steps() == 3  # 4, 4 and 2 steps
    assert env.truncation_rule == "time limit: episode_length / action_repeat = 10 / 4 steps"


@pytest.mark.filterwarnings(
    "ignore:OvercookedV2 is now released:DeprecationWarning",
    "ignore:max_dist_to_goal .* exceeds the valid map range:UserWarning",
)
def test_constructed_environments_equal_those_that_the_library_makes():
    for family in FAMILIES:
        for env_id in set(family.constructors) - set(MABRAX):
            constructed = construct(env_id)
            library_env = jaxmarl.make(env_id)
            assert type(constructed) is type(library_env)
            assert constructed.agents == library_env.agents


def test_objects_of_other_libraries_are_refused():
    with pytest.raises(ValueError, match="JaxMARL's SimpleNamespace is not supported"):
        JaxMARLEnvironment(SimpleNamespace())


def test_environments_with_learned_enemies_are_accepted_as_objects():
    enemy = SimpleNamespace(
        apply=lambda params, observation: (
            SimpleNamespace(sample=lambda seed: jnp.full(len(observation), 4) + params),
            None,
        )
    )
    scenario = MAP_NAME_TO_SCENARIO["3m"]
    env = JaxMARLEnvironment(
        jaxmarl.make("LearnedPolicyEnemySMAX", policy=enemy, params=0, scenario=scenario)
    )
    _, state = jax.eval_shape(env.reset, jax.random.key(0))

    observation, *_ = jax.eval_shape(env.step_env, jax.random.key(0), state, STOP, None)

    assert observation.features.shape == (3, 75)


@pytest.mark.parametrize(
    ("name", "keyword", "values"),
    [
        ("HeuristicEnemySMAX", "scenario", MAP_NAME_TO_SCENARIO),
        ("overcooked", "layout", overcooked_layouts),
        ("overcooked_v2", "layout", overcooked_v2_layouts),
    ],
)
def test_maps_are_chosen_by_name(name, keyword, values):
    assert len(values) >= 5
    assert supported_family(name).load_values()[keyword] is values
    for value in (min(values), max(values)):
        env = construct(name, **{keyword: value})
        if name == "HeuristicEnemySMAX":
            expected = (values[value].num_allies, values[value].num_enemies)
            assert (env.num_allies, env.num_enemies) == expected
        else:
            assert env.layout is values[value]


@pytest.mark.parametrize(
    ("name", "env_kwargs", "text"),
    [
        ("HeuristicEnemySMAX", {"scenario": "5m_vs_7m"}, "'5m_vs_7m'. Did you mean 5m_vs_6m"),
        ("overcooked", {"layout": "cramped"}, "'cramped'. Did you mean cramped_room"),
        ("overcooked_v2", {"layout": "???"}, r"'\?\?\?'. There are .*cramped_room"),
    ],
)
def test_unknown_maps_are_refused_with_the_nearest_names(name, env_kwargs, text):
    with pytest.raises(ValueError, match=f"unknown {next(iter(env_kwargs))} {text}"):
        construct(name, **env_kwargs)


def test_a_map_may_be_the_librarys_own_object():
    scenario = MAP_NAME_TO_SCENARIO["3m"]

    assert construct("SMAX", scenario=scenario).num_allies == 3


def test_keywords_that_the_library_would_ignore_are_refused():
    with pytest.raises(TypeError, match=r"'nmu_agents'; there are .*num_agents"):
        construct(SPREAD, nmu_agents=2)


def test_keywords_that_the_library_reads_without_declaring_them_are_accepted():
    assert construct(SPREAD, damping=0.5).damping == 0.5
    assert construct("HeuristicEnemySMAX", map_width=40, enemy_shoots=False).map_width == 40


def test_wrong_keywords_of_smax_are_refused():
    with pytest.raises(TypeError, match="unexpected keyword argument 'map_with'"):
        construct("HeuristicEnemySMAX", map_with=40)


def test_output_and_warnings_of_the_library_are_hidden(capfd):
    env = make("jaxnav", act_type="Discrete")
    _, state = jax.eval_shape(env.reset, jax.random.key(0))

    jax.eval_shape(env.step_env, jax.random.key(0), state, any_action(env), None)

    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_copies_observe_as_the_original_does(duplicate):
    env = make("MPE_simple_v3")

    original, copied = (begin(each)[0].features for each in (env, duplicate(env)))

    np.testing.assert_array_equal(original, copied)


def test_streams_are_restored_in_any_order_of_exits():
    before = (sys.stdout, sys.stderr, sys.__stdout__, list(warnings.filters))
    first, second = contextlib.ExitStack(), contextlib.ExitStack()
    first.enter_context(SILENCE)
    second.enter_context(SILENCE)
    first.close()
    assert sys.stdout is not before[0]
    second.close()
    assert (sys.stdout, sys.stderr, sys.__stdout__, list(warnings.filters)) == before


FRESH_PROCESS = """
import io, json, sys, traceback
from concurrent.futures import ThreadPoolExecutor
terminal = sys.stdout
sys.excepthook = lambda *error: traceback.print_exception(*error, file=sys.__stderr__)
sys.stdout, sys.stderr = streams = io.StringIO(), io.StringIO()
before = sys.stdout, sys.stderr, sys.__stdout__

import jaxagents as ja
ids = ["MPE_simple_v3", "MPE_simple_tag_v3", "MPE_simple_spread_v3", "coin_game", "switch_riddle"]
with ThreadPoolExecutor(5) as pool:
    envs = list(pool.map(lambda env_id: ja.make(f"jaxmarl/{env_id}")[0], ids))
restored = [(sys.stdout, sys.stderr, sys.__stdout__) == before]
imported = [name for name in sys.modules if name.startswith("jaxmarl.environments.")]

spread = envs[2]
import copy, pickle, jaxmarl.environments.mpe
same = {
    "pickled": pickle.loads(pickle.dumps(spread)).n_actors == 3,
    "of its package": jaxmarl.environments.mpe.SimpleSpreadMPE is type(spread.env),
    "made by the library": type(jaxmarl.make("MPE_simple_spread_v3")) is type(spread.env),
    "attributes": bool(jaxmarl.__version__ and jaxmarl.environments.spaces.Discrete),
}
ja.make("jaxmarl/storm")
jaxmarl.make("hanabi")
from jaxmarl.environments import SMAX, spaces
same["imported by name"] = ja.make("jaxmarl/SMAX")[0].env.__class__ is SMAX
restored.append((sys.stdout, sys.stderr, sys.__stdout__) == before)
printed = [stream.getvalue() for stream in streams]
print(json.dumps([restored, imported, same, printed]), file=terminal)
"""


@pytest.fixture(scope="module")
def fresh_process():
    """What a process observes that imports JaxMARL for the first time, from several threads."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(
        [sys.executable, "-c", FRESH_PROCESS], capture_output=True, text=True, env=environment
    )
    assert (result.returncode, result.stderr) == (0, "")
    return json.loads(result.stdout)


@pytest.mark.slow
def test_making_environments_in_threads_is_silent_and_restores_the_streams(fresh_process):
    restored, _, _, printed = fresh_process

    assert restored == [True, True]
    assert printed == ["", ""]


@pytest.mark.slow
def test_making_an_environment_does_not_import_the_others(fresh_process):
    _, imported, _, _ = fresh_process

    assert "jaxmarl.environments.mpe.simple_spread" in imported
    assert not any("storm" in name or "smax" in name for name in imported)


@pytest.mark.slow
def test_the_library_can_be_used_as_usual_after_a_partial_import(fresh_process):
    _, _, same, _ = fresh_process

    assert [name for name, is_so in same.items() if not is_so] == []
