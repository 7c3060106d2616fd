"""Agents of PettingZoo that come, leave and are replaced: lives, positions, rewards and ends."""

import functools
import os

import jax
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxagents as ja
from jaxagents.environments.host.adapters import adapt
from tests.agents import FAST, tiny
from tests.environments.host.probes import Party, Visits

NAMES = ("a", "b", "x", "y")
REPLACED = [({}, ()), ({"a": "truncated"}, ("x",)), ({}, ()), ({}, ())]


def opened(env):
    game = adapt(env)
    return game, *game.reset(seed=0)


def no_action(game):
    return np.zeros(game.arrays.n_actors, int)


def lives_of(env):
    """Play an episode, and sum rewards as learning does: from visit to [sum, end]."""
    game, observation, alive = opened(env)
    lives, begins = {}, np.ones_like(alive)
    while alive.any():
        seen, active = observation.features, alive
        outcome = game.step(no_action(game))
        for actor in np.flatnonzero(active):
            visit = int(seen[actor, 0])
            assert (visit not in lives) == begins[actor]
            life = lives.setdefault(visit, [0.0, None])
            life[0] += float(outcome.reward[actor])
            if outcome.truncated[actor]:
                life[1] = "truncated"
            elif outcome.terminated[actor]:
                life[1] = "terminated"
            if life[1] is not None:  # the final observation is the old life's own
                assert int((outcome.final or outcome.observation).features[actor, 0]) == visit
        assert outcome.alive.sum() == len(env.agents)
        assert not outcome.reward[~active].any()
        begins = outcome.terminated | outcome.truncated | ~active
        observation, alive = outcome.observation, outcome.alive
    return lives


@st.composite
def plans(draw):
    """Draw what happens at each step: who leaves and how, and who comes."""
    leave = st.dictionaries(
        st.sampled_from(NAMES), st.sampled_from(["terminated", "truncated", "gone"]), max_size=2
    )
    steps = draw(st.lists(st.tuples(leave, st.permutations(NAMES)), min_size=1, max_size=8))
    return [
        (leaving, [name for name in coming if name not in leaving][: draw(st.integers(0, 3))])
        for leaving, coming in steps
    ]


@settings(deadline=None, max_examples=60)
@given(plans(), st.sampled_from([("a",), ("x", "a"), ("b", "a")]))
def test_every_life_has_its_own_rewards_and_end(plan, first):
    env = Visits(plan, first, possible_agents=("a", "b", "c"))

    lives = lives_of(env)

    ended = {"gone": "terminated"}
    assert lives == {
        visit: [total, ended.get(end, end)] for visit, (total, end) in env.ledger.items()
    }


def test_who_is_replaced_keeps_the_steps_reward_end_and_final_observation():
    game, *_ = opened(Visits(REPLACED))
    game.step(no_action(game))

    outcome = game.step(no_action(game))

    np.testing.assert_array_equal(outcome.reward, [201, 202])
    assert outcome.truncated.tolist() == [True, False]
    assert outcome.alive.tolist() == [True, True]
    np.testing.assert_array_equal(outcome.final.features, [[1, 2], [2, 2]])
    np.testing.assert_array_equal(outcome.observation.features, [[3, 2], [2, 2]])
    after = game.step(no_action(game))
    np.testing.assert_array_equal(after.reward, [303, 302])
    assert not after.truncated.any()


@pytest.mark.slow
@pytest.mark.parametrize("n_workers", [0, 1])
def test_a_life_that_is_cut_bootstraps_from_its_own_final_observation(n_workers):
    env = ja.HostEnvironment(lambda: Visits(REPLACED), n_workers=n_workers)
    agent = ja.DiscreteIPPO(env, None, tiny(rollout_length=4))
    with env:
        environments = agent.environments
        _, state = environments.reset(jax.random.key(0), 2)
        action = np.zeros((2, 2), np.int32)
        _, state = environments.step(jax.random.key(1), state, action)
        step, after = environments.step(jax.random.key(2), state, action)
        assert not step.episode_over.any()
        np.testing.assert_array_equal(step.truncated[0], [True, False])
        np.testing.assert_array_equal(after.active[0], [True, True])
        np.testing.assert_array_equal(step.final_observation.features[0], [[1, 2], [2, 2]])
        np.testing.assert_array_equal(step.observation.features[0], [[3, 2], [2, 2]])
        # a: 101 + 201, x: 303 + 403, and b throughout
        evaluation = agent.eval(jax.random.key(3), 1, runner=agent.init(jax.random.key(4), FAST))
        np.testing.assert_array_equal(evaluation["returns"], [[1008, 102 + 202 + 302 + 402]])


def test_a_time_limit_does_not_truncate_who_has_terminated_and_was_replaced():
    plan = [({"a": "terminated"}, ("x",)), ({}, ()), ({}, ())]
    env = ja.HostEnvironment(lambda: Visits(plan), n_workers=0)
    pool = env.make_pool(1, max_episode_steps=1, has_state=False)
    pool.reset(np.zeros(1, np.uint32))

    frame = pool.step(np.zeros((1, 2), np.int32), np.zeros(1, np.uint32))

    assert frame["terminated"].tolist() == [[True, False]]
    assert frame["truncated"].tolist() == [[False, True]]
    np.testing.assert_array_equal(frame["final_features"][0], [[1, 1], [2, 1]])


def test_no_two_living_agents_have_one_position():
    plan = [("a", "b"), ("x", "b"), ("b",), ("a", "b"), ("a", "x"), ("a", "x")]
    game, *_ = opened(Party(plan, possible_agents=("a", "b")))

    alive = [game.step(no_action(game)).alive.tolist() for _ in plan[1:]]

    assert alive == [[True, True], [False, True], [True, True], [True, True], [True, True]]
    assert game.step(np.array([1, 1])).reward.tolist() == [11, 1]  # a and x each earn their own


def test_an_agent_that_ends_and_comes_back_at_once_under_its_name_begins_another_life():
    game, *_ = opened(Visits([({"a": "terminated"}, ("a",)), ({}, ()), ({}, ())]))

    ends = game.step(no_action(game))

    assert (ends.terminated.tolist(), ends.alive.tolist()) == ([True, False], [True, True])
    assert ends.reward.tolist() == [101, 102]
    after = game.step(no_action(game))
    assert (after.terminated.tolist(), after.alive.tolist()) == ([False, False], [True, True])
    assert after.reward.tolist() == [203, 202]


def test_agents_that_stay_listed_after_their_end_are_over_with_the_last():
    class Listed(Visits):
        def reset(self, seed=None, options=None):
            self.over = {}
            return super().reset(seed)

        def step(self, actions):
            self.agents = list(self._visit)
            present = {name: action for name, action in actions.items() if name in self.agents}
            observations, rewards, terminations, *others = super().step(present)
            self.over |= {name: True for name, is_over in terminations.items() if is_over}
            self.agents = list(self.possible_agents)
            return observations, rewards, terminations | self.over, *others

    plan = [({"a": "terminated"}, ()), ({}, ()), ({}, ()), ({"b": "terminated"}, ()), ({}, ())]
    game, *_ = opened(Listed(plan))

    alive = [game.step(no_action(game)).alive.tolist() for _ in range(4)]

    # One step shows that a has not come back.
    assert alive == [[True, True], [False, True], [False, True], [False, False]]


@pytest.mark.parametrize("n_workers", [0, 1])
def test_the_only_agent_can_end_and_come_back_at_once_under_its_name(n_workers):
    plan = [({}, ()), ({"a": "terminated"}, ("a",)), ({}, ()), ({}, ())]
    env = ja.HostEnvironment(lambda: Visits(plan, ("a",), ("a",)), n_workers=n_workers)
    agent = ja.DiscreteIPPO(env, None, tiny())
    with env:
        game = env.open()
        game.reset(seed=0)
        steps = [game.step(no_action(game)) for _ in range(4)]
        assert [step.terminated[0] for step in steps] == [False, True, False, True]
        assert [step.alive[0] for step in steps] == [True, True, True, False]
        evaluation = agent.eval(jax.random.key(3), 1, runner=agent.init(jax.random.key(4), FAST))
        # 101 + 201 in the first life, 302 + 402 in the second
        np.testing.assert_array_equal(evaluation["returns"], [[1006]])


def test_an_environment_that_never_clears_its_list_is_reset_where_all_have_ended():
    class Uncleared(Visits):
        def step(self, actions):
            results = super().step(actions)
            self._come(["a"])
            return results

    env = ja.HostEnvironment(lambda: Uncleared([({}, ())] * 3, ("a",), ("a",)), n_workers=0)
    game = env.open()
    game.reset(seed=0)
    assert [game.step(no_action(game)).alive[0] for _ in range(3)] == [True, True, False]


class Lingering(Visits):
    """Visits that go on listing who has terminated, with a termination and 7 at every step."""

    def reset(self, seed=None, options=None):
        self._over = {}
        return super().reset(seed)

    def step(self, actions):
        self.agents = list(self._visit)
        present = {name: action for name, action in actions.items() if name in self.agents}
        observations, rewards, terminations, *others = super().step(present)
        rewards |= dict.fromkeys(self._over, 7.0)
        self._over |= {name: True for name, is_over in terminations.items() if is_over}
        self.agents = list(dict.fromkeys([*self._visit, *self._over])) if self._visit else []
        return observations, rewards, terminations | self._over, *others


def test_who_ends_at_its_first_step_and_stays_listed_is_gone_a_step_later():
    plan = [({"a": "truncated"}, ("x",)), ({"x": "terminated"}, ()), ({}, ()), ({}, ()), ({}, ())]
    game, *_ = opened(Lingering(plan))

    steps = [game.step(no_action(game)) for _ in range(4)]

    assert [step.truncated.tolist() for step in steps[:2]] == [[True, False], [False, False]]
    assert [step.terminated[0] for step in steps] == [False, True, True, True]
    # One step shows that x has not come back.
    assert [step.alive.tolist() for step in steps] == [[True, True]] * 2 + [[False, True]] * 2
    assert [step.reward.tolist() for step in steps] == [[101, 102], [203, 202], [7, 302], [0, 402]]


class Crashing(Visits):
    """Visits whose process ends at the third step, once."""

    def __init__(self, once):
        super().__init__(REPLACED)
        self._once = once

    def step(self, actions):
        if self._time == 2 and self._once.exists():
            self._once.unlink()
            os._exit(3)
        return super().step(actions)


def test_a_restart_truncates_the_lives_that_go_on_and_begins_others(tmp_path):
    once = tmp_path / "once"
    env = ja.HostEnvironment(
        functools.partial(Crashing, once), n_workers=1, on_worker_failure="restart"
    )
    agent = ja.DiscreteIPPO(env, None, tiny(rollout_length=4))
    with env:
        once.touch()
        environments, action = agent.environments, np.zeros((1, 2), np.int32)
        _, state = environments.reset(jax.random.key(0), 1)
        steps = []
        for i in range(4):
            step, state = environments.step(jax.random.key(1 + i), state, action)
            steps.append(jax.device_get(step))
    # x took a's position at the end of the second step; the third restarts both episodes.
    assert [step.truncated[0].tolist() for step in steps] == [
        [False, False],
        [True, False],
        [True, True],
        [False, False],
    ]
    assert [step.begins[0].tolist() for step in steps[1:]] == [[1, 0], [1, 1], [0, 0]]
    np.testing.assert_array_equal(steps[2].final_observation.features[0], [[3, 2], [2, 2]])
    np.testing.assert_array_equal(steps[2].reward, 0)
    np.testing.assert_array_equal(steps[2].observation.features[0], [[1, 0], [2, 0]])
    np.testing.assert_array_equal(steps[3].reward, [[101, 102]])


class Stated(Visits):
    """Visits with a global state: the time, and the number of visits so far."""

    state_space = spaces.Box(0.0, 1e6, (2,), np.float32)

    def state(self):
        return np.array([self._time, len(self.ledger)], np.float32)


@pytest.mark.parametrize("limit", [None, 2], ids=["a life", "a time limit"])
def test_a_truncated_life_bootstraps_from_the_global_state_at_its_end(limit):
    env = ja.HostEnvironment(lambda: Stated(REPLACED), n_workers=0)
    config = tiny(rollout_length=4, centralized_critic=True, max_episode_steps=limit)
    agent = ja.DiscreteIPPO(env, None, config)
    with env:
        environments, action = agent.environments, np.zeros((1, 2), np.int32)
        _, state = environments.reset(jax.random.key(0), 1)
        _, state = environments.step(jax.random.key(1), state, action)
        step, state = environments.step(jax.random.key(2), state, action)
    # A limit at the step in which x comes leaves x no step of its own.
    assert step.truncated[0].tolist() == [True, limit == 2]
    assert step.episode_over.tolist() == [limit == 2]
    assert state.active[0].tolist() == [True, True]
    assert step.begins[0].tolist() == [True, limit == 2]
    np.testing.assert_array_equal(step.final_observation.features[0], [[1, 2], [2, 2]])
    np.testing.assert_array_equal(step.final_observation.global_state[0], [2, 3])
    following = [0, 2] if limit == 2 else [2, 3]  # after the reset, or as it was
    np.testing.assert_array_equal(step.observation.global_state[0], following)


def elimination():
    """Return a game of three by turns; the first move ends the last player, who stays listed."""
    aec = pytest.importorskip("pettingzoo").AECEnv

    class Elimination(aec):
        metadata = {"name": "elimination", "is_parallelizable": False}  # noqa: RUF012
        render_mode = None
        possible_agents = ("p_0", "p_1", "p_2")

        def observation_space(self, agent):
            return spaces.Box(0, 99, (1,), np.float32)

        def action_space(self, agent):
            return spaces.Discrete(2)

        def observe(self, agent):
            return np.array([self.time], np.float32)

        def reset(self, seed=None, options=None):
            self.agents, self.agent_selection, self.time = list(self.possible_agents), "p_0", 0
            self.rewards = dict.fromkeys(self.agents, 0.0)
            self._cumulative_rewards = dict(self.rewards)
            self.terminations = dict.fromkeys(self.agents, False)
            self.truncations = dict(self.terminations)
            self.infos = {name: {} for name in self.agents}

        def step(self, action):
            name = self.agent_selection
            if self.terminations[name]:
                self._was_dead_step(action)
                if self.agents:
                    self.agent_selection = self._after(name)
                return
            self.time += 1
            self.rewards = {other: 10.0 * (other == name) for other in self.agents}
            if self.time == 1:
                self.terminations["p_2"], self.rewards["p_2"] = True, -1.0
            if self.time == 7:
                self.terminations = dict.fromkeys(self.agents, True)
            self.agent_selection = self._after(name)

        def _after(self, name):
            order = [*self.possible_agents, *self.possible_agents]
            return next(each for each in order[order.index(name) + 1 :] if each in self.agents)

    return Elimination


def test_who_is_eliminated_in_a_game_of_turns_is_dead_at_once():
    game, *_ = opened(elimination()())

    steps = [game.step(no_action(game)) for _ in range(3)]

    assert [step.alive.tolist() for step in steps] == [[True, True, False]] * 3
    assert [step.terminated.tolist() for step in steps] == [[False, False, True]] * 3
    assert [step.observation.has_turn.tolist() for step in steps] == [
        [False, True, False],
        [True, False, False],
        [False, True, False],
    ]
    assert steps[0].reward.tolist() == [10, 0, -1]
    assert steps[1].reward.tolist() == [0, 10, 0]
