import itertools

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from jaxagents.environments.host import WrongValueError
from jaxagents.environments.host.adapters import adapt
from jaxagents.environments.spaces import Box, Discrete, MultiDiscrete
from tests.environments.host.probes import Observed, Party, Stairs

ALL = ("host_0", "host_1", "guest_0")


def party():
    return Party([ALL, ALL])


def explored(env):
    adapter = adapt(env)
    adapter.explore(32)
    return adapter


def features_of(space, value):
    observation, _ = explored(Observed(space, value)).reset(0)
    return observation.features


def test_a_gymnasium_environment_has_one_actor_and_both_ends_apart():
    adapter = adapt(Stairs(top=2, limit=3))
    assert adapter.arrays.n_actors == 1
    assert adapter.arrays.space == Discrete(2)

    observation, alive = adapter.reset(seed=4)
    np.testing.assert_allclose(observation.features, [[0.4, 0.0]])
    assert alive.tolist() == [True]

    outcome = adapter.step(np.array([1]))
    np.testing.assert_allclose(outcome.observation.features, [[1.4, 1.0]])
    assert (outcome.reward.tolist(), outcome.alive.tolist()) == ([1.0], [True])
    assert (outcome.terminated.tolist(), outcome.truncated.tolist()) == ([False], [False])
    adapter.step(np.array([0]))

    terminated = adapter.step(np.array([1]))  # at the limit too: termination comes first
    assert (terminated.terminated.tolist(), terminated.truncated.tolist()) == ([True], [False])
    assert terminated.alive.tolist() == [False]

    adapter.reset(seed=4)
    for _ in range(3):
        truncated = adapter.step(np.array([0]))
    assert (truncated.terminated.tolist(), truncated.truncated.tolist()) == ([False], [True])


def test_the_time_limit_is_read_from_gymnasiums_spec_and_from_max_cycles():
    assert adapt(gymnasium.make("CartPole-v1")).max_episode_steps == 500
    assert adapt(Stairs()).max_episode_steps is None
    wrapped = gymnasium.wrappers.TimeLimit(Stairs(), 50)
    assert adapt(wrapped).max_episode_steps == 50
    assert adapt(gymnasium.wrappers.OrderEnforcing(wrapped)).max_episode_steps == 50
    assert adapt(gymnasium.wrappers.TimeLimit(wrapped, 1000)).max_episode_steps == 50
    guests = Party([ALL])
    assert adapt(guests).max_episode_steps is None
    for limit, expected in ((7, 7), (float("inf"), None)):
        guests.metadata = {"max_cycles": limit}
        assert adapt(guests).max_episode_steps == expected


class Hasty(gymnasium.Wrapper):
    """Takes ``n_steps`` at a time, in turn, and some at a reset."""

    def __init__(self, env, at_reset=0, n_steps=(4,)):
        super().__init__(env)
        self._at_reset, self._n_steps = at_reset, itertools.cycle(n_steps)

    def reset(self, *, seed=None, options=None):
        result = super().reset(seed=seed)
        for _ in range(self._at_reset):
            self.env.step(0)
        return result

    def step(self, action):
        for _ in range(next(self._n_steps)):
            result = super().step(action)
            if result[2] or result[3]:
                break
        return result


@pytest.mark.parametrize(
    ("wrap", "expected"),
    [
        (Hasty, 50),
        (lambda env: Hasty(Hasty(env)), 13),  # 12 steps of 16 and a last one
        (lambda env: gymnasium.wrappers.TimeLimit(Hasty(env), 30), 30),
        (lambda env: gymnasium.wrappers.TimeLimit(Hasty(env), 1000), 50),
        (lambda env: Hasty(env, at_reset=3), None),
        (lambda env: Hasty(env, n_steps=(2, 5)), None),
        (lambda env: gymnasium.wrappers.TimeLimit(Hasty(env, n_steps=(2, 5)), 30), 30),
    ],
    ids=["4", "16", "shorter", "longer", "at resets", "varying", "varying within a limit"],
)
def test_the_time_limit_is_in_steps_of_the_outermost_wrapper(wrap, expected):
    env = wrap(gymnasium.wrappers.TimeLimit(Stairs(), 200))
    assert explored(env).max_episode_steps == expected


def test_the_time_limit_is_correct_where_episodes_end_while_the_steps_are_counted():
    env = Hasty(gymnasium.wrappers.TimeLimit(Stairs(limit=10), 200))  # 4, 4 and 2 steps, or less
    assert explored(env).max_episode_steps == 50


@pytest.mark.parametrize("name", ["agents", "agent_iter", "agent_selection", "possible_agents"])
def test_an_attribute_of_pettingzoos_name_is_no_pettingzoo(name):
    env = Stairs()
    setattr(env, name, ["walker"])
    assert adapt(env).arrays.n_actors == 1


@pytest.mark.parametrize(
    ("space", "value", "expected", "dtype"),
    [
        (spaces.Box(0, 9, (2,), np.float64), np.array([1.0, 2.0]), [1, 2], "float32"),
        (spaces.Box(0, 9, (1, 2, 1), np.uint8), np.full((1, 2, 1), 7), [[[7], [7]]], "uint8"),
        (spaces.MultiBinary(3), np.array([1, 0, 1], np.int8), [1, 0, 1], "int8"),
        (spaces.Discrete(3, start=4), 5, [0, 1, 0], "float32"),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 2]), [0, 1, 0, 0, 1], "float32"),
        (
            spaces.Dict({"b": spaces.Box(0, 9, (2,)), "a": spaces.Discrete(2)}),
            {"b": np.array([3.0, 4.0]), "a": 1},
            [0, 1, 3, 4],  # by name
            "float32",
        ),
        (
            spaces.Tuple([spaces.Box(0, 9, (1,)), spaces.MultiBinary(2)]),
            (np.array([5.0]), np.array([0, 1])),
            [5, 0, 1],
            "float32",
        ),
    ],
    ids=["box", "planes", "bits", "number", "numbers", "dict", "tuple"],
)
def test_observations_become_one_array(space, value, expected, dtype):
    if space.dtype == np.uint8:
        value = value.astype(np.uint8)

    features = features_of(space, value)

    assert features.dtype == dtype
    np.testing.assert_array_equal(features, [expected])


@pytest.mark.parametrize(
    ("space", "common", "action", "own"),
    [
        (spaces.Discrete(3, start=2), Discrete(3), [1], 3),
        (spaces.MultiDiscrete([2, 3]), MultiDiscrete((2, 3)), [[1, 2]], [1, 2]),
        (spaces.MultiBinary(2), MultiDiscrete((2, 2)), [[0, 1]], [0, 1]),
        (spaces.Box(-1, 1, (2,), np.float64), None, [[0.5, -0.5]], [0.5, -0.5]),
    ],
    ids=["from 2", "choices", "bits", "box"],
)
def test_actions_reach_the_environment_in_its_own_space(space, common, action, own):
    env = Observed(spaces.Box(0, 1, (1,)), np.zeros(1, np.float32), action_space=space)
    adapter = adapt(env)
    assert common is None or adapter.arrays.space == common
    assert common is not None or isinstance(adapter.arrays.space, Box)

    adapter.reset(0)
    adapter.step(np.array(action))

    np.testing.assert_array_equal(env.actions[0], own)
    assert space.contains(env.actions[0])


@pytest.mark.parametrize("as_info", [True, False], ids=["info", "observation"])
def test_masks_are_read_from_infos_and_from_dictionaries(as_info):
    mask, box = np.array([1, 0], np.int8), spaces.Box(0, 9, (1,))
    if as_info:
        env = Observed(box, np.array([3.0], np.float32), mask=mask)
    else:
        both = spaces.Dict({"observation": box, "action_mask": spaces.MultiBinary(2)})
        env = Observed(both, {"observation": np.array([3.0]), "action_mask": mask})

    observation, _ = explored(env).reset(0)

    np.testing.assert_array_equal(observation.features, [[3.0]])
    np.testing.assert_array_equal(observation.action_mask, [[True, False]])


def test_without_masks_there_are_none():
    observation, _ = explored(Stairs()).reset(0)
    assert observation.action_mask is None


def test_unequal_actors_are_padded_and_masked():
    adapter = explored(Party([ALL, ALL]))

    assert adapter.arrays.space == Discrete(3)
    assert adapter.teams == [0, 0, 1]
    observation, _ = adapter.reset(0)
    np.testing.assert_array_equal(observation.features, [[1, 0, 0], [2, 0, 0], [3, 0, 9]])
    np.testing.assert_array_equal(observation.action_mask, [[1, 1, 0], [1, 1, 0], [1, 1, 1]])
    outcome = adapter.step(np.array([1, 0, 2]))
    np.testing.assert_array_equal(outcome.reward, [11, 20, 32])


def test_an_actors_own_mask_keeps_its_padding():
    observation, _ = explored(Party([ALL], masked=True)).reset(0)
    np.testing.assert_array_equal(observation.action_mask, [[0, 1, 0], [0, 1, 0], [0, 1, 1]])


def test_the_dead_observe_zeros_earn_nothing_and_keep_their_end():
    plan = [ALL, ("host_0", "guest_0"), ("guest_0",), ("guest_0",)]
    adapter = explored(Party(plan, cut=("host_0",)))
    adapter.reset(0)

    steps = [adapter.step(np.zeros(3, int)) for _ in range(4)]

    ends = [(step.terminated.tolist(), step.truncated.tolist()) for step in steps]
    no = [False, False, False]
    assert ends == [
        ([False, True, False], no),
        ([False, True, False], [True, False, False]),
        ([False, True, False], [True, False, False]),
        ([False, True, True], [True, False, False]),
    ]
    assert [step.alive.tolist() for step in steps] == [
        [True, False, True],
        [False, False, True],
        [False, False, True],
        [False, False, False],
    ]
    # The last observation is seen; only then there are zeros.
    np.testing.assert_array_equal(steps[0].observation.features[1], [2, 1, 0])
    np.testing.assert_array_equal(steps[1].observation.features[1], [0, 0, 0])
    np.testing.assert_array_equal([step.reward for step in steps][1:3], [[10, 0, 30], [0, 0, 30]])


def test_an_agent_that_comes_back_is_alive_again():
    adapter = explored(Party([ALL, ("host_0", "guest_0"), ALL, ALL]))
    adapter.reset(0)

    steps = [adapter.step(np.zeros(3, int)) for _ in range(3)]

    assert [step.alive[1] for step in steps] == [False, True, True]
    assert [step.terminated[1] for step in steps] == [True, False, False]
    assert [step.reward[1] for step in steps] == [20, 0, 20]


def test_agents_absent_at_the_reset_have_ended():
    adapter = explored(Party([("host_1",), ALL, ALL]))

    _, alive = adapter.reset(0)

    assert alive.tolist() == [False, True, False]
    assert adapter.step(np.zeros(3, int)).alive.tolist() == [True, True, True]


def test_agents_named_anew_take_positions_in_order():
    adapter = explored(Party([("host_7", "host_8")] * 3, possible_agents=("host_0", "host_1")))
    assert adapter.reset(0)[1].tolist() == [True, True]
    assert adapter.step(np.array([1, 0])).reward.tolist() == [1.0, 0.0]
    adapter._env._plan = [("host_9",)] * 2

    assert adapter.reset(0)[1].tolist() == [True, False]
    assert adapter.step(np.array([1, 0])).reward.tolist() == [1.0, 0.0]


def test_more_agents_than_are_possible_are_an_error():
    plan = [("host_0", "host_8", "host_9")]
    adapter = adapt(Party(plan, possible_agents=("host_0", "host_1")))
    with pytest.raises(ValueError, match="3 agents at once, and 2 possible_agents"):
        adapter.reset(0)


def test_the_global_state_is_the_environments_own():
    adapter = adapt(Party([ALL, ALL]))
    np.testing.assert_array_equal(adapter.explore(32).global_state, [0, 3])
    adapter.observe(has_mask=False, has_state=False)
    assert adapter.reset(0)[0].global_state is None


@pytest.mark.parametrize(
    ("position", "value", "text"),
    [
        (1, None, "a reward of object, which does not convert to float32"),
        (1, "3", "a reward of <U1, which does not convert to float32"),
        (2, np.nan, "terminated that is nan, neither True nor False"),
        (2, "False", "terminated that is 'False', neither True nor False"),
        (3, None, "truncated that is None, neither True nor False"),
        (3, np.zeros(2), r"truncated that is array\(\[0., 0.\]\), neither True nor False"),
    ],
)
@pytest.mark.parametrize("make_env", [Stairs, party], ids=["one", "several"])
def test_rewards_and_ends_of_another_kind_are_faults(make_env, position, value, text):
    env = make_env()
    adapter, step = explored(env), env.step

    def wrong(action):
        outcome = list(step(action))
        is_of_one = make_env is Stairs
        outcome[position] = value if is_of_one else dict.fromkeys(outcome[position], value)
        return outcome

    env.step = wrong
    adapter.reset(0)
    with pytest.raises(WrongValueError, match=f"^returned {text}$"):
        adapter.step(np.zeros(adapter.arrays.n_actors, int))


STEP = "observation, reward, terminated, truncated, info"


@pytest.mark.parametrize(
    ("make_env", "method", "changed", "text"),
    [
        (Stairs, "reset", lambda both: both[0], "1 value; .* has 2: observation, info"),
        (Stairs, "step", lambda five: five[:4], f"4 values; .* has 5: {STEP}"),
        (party, "reset", lambda both: both[0], "1 value; .* has 2: observation, info"),
        (party, "step", lambda five: five[:4], f"4 values; .* has 5: {STEP}"),
        (party, "step", lambda five: (*five[:4], []), "list as info, not a dictionary by agent"),
        (
            party,
            "step",
            lambda five: ({"host_0": np.zeros(2)}, *five[1:]),
            "no observation for agent 'host_1', which is alive",
        ),
    ],
)
def test_what_a_reset_or_a_step_leaves_out_is_named(make_env, method, changed, text):
    env = make_env()
    adapter, right = explored(env), getattr(env, method)
    adapter.reset(0)
    setattr(env, method, lambda *args, **kwargs: changed(right(*args, **kwargs)))
    with pytest.raises(WrongValueError, match=f"^returned {text}$"):
        adapter.reset(0) if method == "reset" else adapter.step(
            np.zeros(adapter.arrays.n_actors, int)
        )


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (object(), "object, which is neither a Gymnasium environment"),
        (gymnasium.make_vec("CartPole-v1", 2), "a vector of environments"),
        (
            Observed(spaces.Sequence(spaces.Discrete(2)), (0, 1)),
            "observation space .* which Gymnasium does not flatten",
        ),
        (Observed(spaces.Discrete(2), 0, action_space=spaces.Text(3)), "action space"),
        (
            Observed(spaces.Dict(action_mask=spaces.MultiBinary(2)), {"action_mask": [1, 1]}),
            "Observed observes nothing but an action_mask",
        ),
    ],
    ids=["neither", "vector", "sequence", "text as action", "mask alone"],
)
def test_what_agents_cannot_play_is_refused(env, message):
    with pytest.raises(TypeError, match=message):
        adapt(env)
