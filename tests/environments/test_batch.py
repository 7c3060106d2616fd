import functools
import itertools
import re
from types import SimpleNamespace
from typing import NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import jaxmarl
import numpy as np
import pytest

from jaxagents.environments.gymnax import GymnaxEnvironment
from jaxagents.environments.jax_batch import JaxEnvironmentBatch
from jaxagents.environments.protocol import Environment
from jaxagents.environments.spaces import Box, Discrete, MultiDiscrete, as_space
from jaxagents.types import Observation
from tests import probes
from tests.probes import Aim, Shaped, Walk

GO_ON, DIE, BE_CUT_OFF = range(3)
NOBODY_ENDS, BOTH_DIE = [GO_ON, GO_ON], [DIE, DIE]


class ObedientState(NamedTuple):
    mark: jax.Array  # drawn at the reset: identifies the episode
    time: jax.Array
    died: jax.Array  # [actors]
    cut_off: jax.Array  # [actors]


class Obedient(Environment):
    """Two actors whose actions say how their episodes end; actions after the end are ignored.

    Observations are (mark, time, noise of the step), rewards 10 · time + the actor's index.
    """

    n_actors = 2

    def __init__(self, repeats_ends: bool = True):
        self._repeats_ends = repeats_ends

    def action_space(self, params):
        return Discrete(3)

    def reset_env(self, rng, params):
        nobody = jnp.zeros(2, bool)
        state = ObedientState(jax.random.uniform(rng), jnp.zeros((), jnp.int32), nobody, nobody)
        return self._observe(state, 0.0), state

    def step_env(self, rng, state, action, params):
        gone = state.died | state.cut_off
        dies, is_cut_off = ~gone & (action == DIE), ~gone & (action == BE_CUT_OFF)
        state = ObedientState(
            state.mark, state.time + 1, state.died | dies, state.cut_off | is_cut_off
        )
        reward = 10.0 * state.time + jnp.arange(2)
        ends = (state.died, state.cut_off) if self._repeats_ends else (dies, is_cut_off)
        info = {"time": state.time, "late": state.time > 1, "ends": gone, "nested": {"time": 1.0}}
        return self._observe(state, jax.random.uniform(rng)), state, reward, *ends, info

    def _observe(self, state, noise):
        return jnp.broadcast_to(jnp.stack([state.mark, state.time, noise]), (2, 3))


class ObedientWithOwnStep(Obedient):
    """A subclass that resets itself; its marks after a reset are negative."""

    def step(self, rng, state, action, params=None):
        final_observation, state, *rest, info = self.step_env(rng, state, action, params)
        fresh, fresh_state = self.reset_env(rng, params)
        over = jnp.all(state.died | state.cut_off)
        fresh, fresh_state = (
            fresh.at[:, 0].multiply(-1.0),
            fresh_state._replace(mark=-fresh_state.mark),
        )
        observation, state = jax.tree.map(
            lambda new, old: jnp.where(over, new, old),
            (fresh, fresh_state),
            (final_observation, state),
        )
        return observation, state, *rest, info | {"final_observation": final_observation}


class DuckTyped:
    """As `ObedientWithOwnStep`, but without the base class."""

    n_actors = 2

    def __init__(self):
        self._env = ObedientWithOwnStep(repeats_ends=False)

    def action_space(self, params):
        return self._env.action_space(params)

    def reset(self, rng, params):
        return self._env.reset(rng, params)

    def step(self, rng, state, action, params):
        return self._env.step(rng, state, action, params)


KINDS = {
    "subclass": Obedient,
    "subclass that reports ends once": lambda: Obedient(repeats_ends=False),
    "duck-typed that reports ends once": DuckTyped,
}
any_kind = pytest.mark.parametrize("kind", KINDS)


@functools.cache
def compiled(kind, max_episode_steps=None, rewards_after_death=False):
    env = KINDS[kind]()
    env.rewards_after_death = rewards_after_death
    environments = JaxEnvironmentBatch(env, None, max_episode_steps)
    return jax.jit(environments.reset, static_argnums=1), jax.jit(environments.step)


def play(kind, actions, max_episode_steps=None, rewards_after_death=False):
    """Play actions ``[time][envs][actors]``.

    Returns:
        The first observation and state, and a list of every step's `TimeStep` and next state.
    """
    reset, step = compiled(kind, max_episode_steps, rewards_after_death)
    observation, state = reset(jax.random.key(0), len(actions[0]))
    first, steps = (observation, state), []
    for index, action in enumerate(actions):
        time_step, state = step(jax.random.key(1 + index), state, jnp.array(action, jnp.int32))
        steps.append((time_step, state))
    return *first, steps


def mark(observation):
    return np.asarray(observation.features[:, 0, 0])


def time(observation):
    return observation.features[:, 0, 1].tolist()


def noise(observation):
    return np.asarray(observation.features[:, 0, 2])


def test_shapes_are_found_without_running_the_environment():
    environments = JaxEnvironmentBatch(Obedient(), None)
    assert (environments.n_actors, environments.space) == (2, Discrete(3))
    features = environments.observation.features
    assert (features.shape, features.dtype) == ((2, 3), jnp.float32)
    assert isinstance(features, jax.ShapeDtypeStruct)
    assert environments.observation.action_mask is None


@any_kind
def test_a_reset_starts_different_episodes_with_all_actors_active(kind):
    reset, _ = compiled(kind)
    observation, state = reset(jax.random.key(0), 3)
    other, _ = reset(jax.random.key(1), 3)
    assert observation.features.shape == (3, 2, 3)
    assert len({*mark(observation).tolist(), *mark(other).tolist()}) == 6
    assert state.active.tolist() == [[True, True]] * 3
    assert state.episode_steps.tolist() == [0, 0, 0]


@any_kind
def test_an_environment_is_reset_only_where_the_episode_is_over_for_all(kind):
    actions = [[NOBODY_ENDS, [DIE, BE_CUT_OFF], [DIE, GO_ON]]]
    first, _, [(step, state)] = play(kind, actions)

    assert step.episode_over.tolist() == [False, True, False]
    assert step.terminated.tolist() == [[False, False], [True, False], [True, False]]
    assert step.truncated.tolist() == [[False, False], [False, True], [False, False]]
    assert time(step.observation) == [1, 0, 1]
    assert (mark(step.observation) == mark(first)).tolist() == [True, False, True]
    assert state.episode_steps.tolist() == [1, 0, 1]
    np.testing.assert_array_equal(state.env_state.mark, mark(step.observation))
    np.testing.assert_array_equal(state.env_state.time, [1, 0, 1])


@any_kind
def test_the_final_observation_is_the_one_before_the_reset(kind):
    first, _, [(step, _)] = play(kind, [[NOBODY_ENDS, [DIE, BE_CUT_OFF], BOTH_DIE]])
    assert time(step.final_observation) == [1, 1, 1]
    np.testing.assert_array_equal(mark(step.final_observation), mark(first))
    np.testing.assert_array_equal(step.final_observation.features[0], step.observation.features[0])


@any_kind
def test_the_step_that_ends_an_episode_returns_its_own_rewards(kind):
    *_, [(step, _)] = play(kind, [[NOBODY_ENDS, BOTH_DIE, [DIE, GO_ON]]])
    np.testing.assert_array_equal(step.reward, [[10.0, 11.0]] * 3)


@any_kind
def test_an_actor_is_inactive_from_its_death_until_the_reset(kind):
    actions = [[DIE, GO_ON], [GO_ON, GO_ON], [GO_ON, BE_CUT_OFF], [GO_ON, DIE], [DIE, GO_ON]]
    *_, steps = play(kind, [[action, NOBODY_ENDS, NOBODY_ENDS] for action in actions])

    assert [step.active[0].tolist() for step, _ in steps] == [
        [True, True],
        [False, True],
        [False, True],
        [True, True],  # a new episode
        [True, False],
    ]
    assert [step.episode_over[0].item() for step, _ in steps] == [False, False, True, False, True]
    assert [state.active[0].tolist() for _, state in steps] == [
        [False, True],
        [False, True],
        [True, True],
        [True, False],
        [True, True],
    ]


@any_kind
def test_actors_are_active_from_a_reset_to_their_own_end(kind):
    actions = jax.random.choice(
        jax.random.key(3), 3, (30, 3, 2), p=jnp.array([0.7, 0.2, 0.1])
    ).tolist()
    _, first, steps = play(kind, actions, max_episode_steps=2)
    before = first.active
    for step, state in steps:
        np.testing.assert_array_equal(step.active, before)
        ended = step.terminated | step.truncated
        continues = step.active & ~ended
        np.testing.assert_array_equal(state.active, continues | step.episode_over[:, None])
        np.testing.assert_array_equal(step.episode_over, ~continues.any(axis=1))
        assert not np.any(step.terminated & step.truncated)
        before = state.active


@pytest.mark.parametrize("rewards_after_death", [False, True])
def test_an_end_that_is_flagged_as_both_is_a_termination(rewards_after_death):
    class Both(Walk):
        def step_env(self, *arguments):
            *rest, terminated, _, info = super().step_env(*arguments)
            return *rest, terminated, terminated, info

    env = Both(deaths=(1, 1))
    env.rewards_after_death = rewards_after_death
    environments = JaxEnvironmentBatch(env, None)
    _, state = environments.reset(jax.random.key(0), 3)
    step, _ = environments.step(jax.random.key(1), state, jnp.zeros((3, 2), jnp.int32))
    assert step.terminated.all()
    assert not step.truncated.any()


# In all three environments the first actor dies at the first step. At the second step the second
# actor dies, is truncated, or continues.
DEATHS_BEFORE_ENDS = [[[DIE, GO_ON]] * 3, [[GO_ON, DIE], [GO_ON, BE_CUT_OFF], NOBODY_ENDS]]


@any_kind
def test_with_rewards_after_death_actors_end_together_with_the_episode(kind):
    *_, [(step, state), (last_step, last_state)] = play(
        kind, DEATHS_BEFORE_ENDS, rewards_after_death=True
    )
    assert not np.any(step.terminated | step.truncated)
    assert last_step.terminated.tolist() == [[True, True], [False, False], [False, False]]
    assert last_step.truncated.tolist() == [[False, False], [True, True], [False, False]]
    # Dead actors are inactive nevertheless, and the resets are unchanged.
    assert state.active.tolist() == last_step.active.tolist() == [[False, True]] * 3
    assert last_step.episode_over.tolist() == [True, True, False]
    assert last_state.active.tolist() == [[True, True], [True, True], [False, True]]


@any_kind
def test_with_rewards_after_death_the_time_limit_truncates_all_actors_of_an_episode(kind):
    *_, [(step, _), (last_step, _)] = play(
        kind, DEATHS_BEFORE_ENDS, max_episode_steps=2, rewards_after_death=True
    )
    assert not np.any(step.terminated | step.truncated)
    assert last_step.terminated.tolist() == [[True, True], [False, False], [False, False]]
    assert last_step.truncated.tolist() == [[False, False], [True, True], [True, True]]
    assert last_step.episode_over.tolist() == [True, True, True]


@any_kind
def test_without_rewards_after_death_each_actor_has_its_own_end(kind):
    *_, [(step, _), (last_step, _)] = play(kind, DEATHS_BEFORE_ENDS, max_episode_steps=2)
    assert step.terminated.tolist() == [[True, False]] * 3
    assert not np.any(step.truncated)
    assert last_step.terminated[:, 1].tolist() == [True, False, False]
    assert last_step.truncated[:, 1].tolist() == [False, True, True]


@any_kind
@pytest.mark.parametrize("n_over", [1, 33, 70])
def test_of_many_environments_only_those_with_finished_episodes_are_reset(kind, n_over):
    # On a CPU they are reset 32 at a time: they are more than 64.
    over = np.isin(np.arange(70), np.linspace(0, 69, n_over, dtype=int))
    first, _, [(step, state)] = play(kind, [np.where(over[:, None], DIE, GO_ON)])
    np.testing.assert_array_equal(step.episode_over, over)
    np.testing.assert_array_equal(time(step.observation), np.where(over, 0, 1))
    np.testing.assert_array_equal(mark(step.observation) == mark(first), ~over)
    np.testing.assert_array_equal(state.env_state.mark, mark(step.observation))
    assert len(np.unique([*mark(first), *mark(step.observation)])) == 70 + n_over


@pytest.mark.slow
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_batches_under_vmap_draw_every_reset_independently(impl):
    # The first batch resets one part of 32 environments, the second three.
    environments = JaxEnvironmentBatch(Obedient(), None)
    n_over = jnp.array([1, 70])
    actions = jnp.where(jnp.arange(70) < n_over[:, None], DIE, GO_ON)
    actions = jnp.broadcast_to(actions[..., None], (2, 70, 2))
    rngs = jax.random.split(jax.random.key(0, impl=impl), (2, 2))
    first, state = jax.vmap(lambda rng: environments.reset(rng, 70))(rngs[0])
    step, _ = jax.jit(jax.vmap(environments.step))(rngs[1], state, actions)
    np.testing.assert_array_equal(step.episode_over.sum(axis=1), n_over)
    first_marks, second_marks = np.asarray(step.observation.features[:, :, 0, 0])
    np.testing.assert_array_equal(first_marks[1:], first.features[0, 1:, 0, 0])
    assert len(np.unique(second_marks)) == 70


@any_kind
def test_environments_that_are_reset_together_start_different_episodes(kind):
    first, _, steps = play(kind, [[BOTH_DIE] * 3] * 2)
    marks = [mark(first), *(mark(step.observation) for step, _ in steps)]
    assert len(np.unique(marks)) == 9


@any_kind
def test_environments_are_stepped_with_different_keys(kind):
    *_, steps = play(kind, [[NOBODY_ENDS] * 3] * 2)
    assert len(np.unique([noise(step.observation) for step, _ in steps])) == 6


@any_kind
def test_max_episode_steps_truncates_all_active_actors_and_resets(kind):
    actions = [
        [NOBODY_ENDS, [DIE, GO_ON], NOBODY_ENDS],
        [NOBODY_ENDS, NOBODY_ENDS, [DIE, GO_ON]],
    ]
    first, _, [(step, state), (last_step, last_state)] = play(kind, actions, max_episode_steps=2)

    assert step.episode_over.tolist() == [False, False, False]
    assert not np.any(step.truncated)
    assert state.episode_steps.tolist() == [1, 1, 1]

    active = np.array([[True, True], [False, True], [True, True]])
    np.testing.assert_array_equal(last_step.active, active)
    terminated, truncated = np.asarray(last_step.terminated), np.asarray(last_step.truncated)
    assert (terminated & active).tolist() == [[False, False], [False, False], [True, False]]
    assert (truncated & active).tolist() == [[True, True], [False, True], [False, True]]
    assert last_step.episode_over.tolist() == [True, True, True]
    assert (time(last_step.observation), time(last_step.final_observation)) == ([0] * 3, [2] * 3)
    np.testing.assert_array_equal(mark(last_step.final_observation), mark(first))
    assert len(np.unique([mark(first), mark(last_step.observation)])) == 6
    assert last_state.episode_steps.tolist() == [0, 0, 0]
    assert last_state.active.tolist() == [[True, True]] * 3
    np.testing.assert_array_equal(last_state.env_state.time, [0, 0, 0])


@any_kind
def test_the_steps_of_an_episode_are_counted_from_its_own_reset(kind):
    # The first episode of the second environment ends by itself after one step, that of the third
    # at the limit.
    actions = [[NOBODY_ENDS, BOTH_DIE, NOBODY_ENDS], [NOBODY_ENDS, NOBODY_ENDS, BOTH_DIE]]
    *_, steps = play(kind, [*actions, *[[NOBODY_ENDS] * 3] * 2], max_episode_steps=2)
    assert [step.episode_over.tolist() for step, _ in steps] == [
        [False, True, False],
        [True, False, True],
        [False, True, False],
        [True, False, True],
    ]


@any_kind
def test_without_max_episode_steps_an_episode_continues(kind):
    *_, steps = play(kind, [[NOBODY_ENDS] * 3] * 4)
    step, state = steps[-1]
    assert time(step.observation) == [4, 4, 4]
    assert not np.any(step.truncated)
    assert state.episode_steps.tolist() == [4, 4, 4]


@any_kind
def test_infos_of_a_number_per_environment_or_actor_are_returned(kind):
    *_, [(step, _)] = play(kind, [[NOBODY_ENDS, BOTH_DIE, [DIE, GO_ON]]])
    assert {name: value.tolist() for name, value in step.info.items()} == {
        "time": [1, 1, 1],
        "late": [False, False, False],
        "ends": [[False, False]] * 3,
    }


def test_a_shaped_reward_is_returned_separately_from_the_reward_and_the_infos():
    environments = JaxEnvironmentBatch(Shaped(), None)
    assert environments.has_shaped_reward
    _, state = environments.reset(jax.random.key(0), 3)
    step, _ = environments.step(jax.random.key(1), state, jnp.zeros((3, 2), jnp.int32))
    assert step.shaped_reward.tolist() == [[10.0, 10.0]] * 3
    assert step.reward.tolist() == [[0.0, 0.0]] * 3
    assert step.info == {}


@any_kind
def test_an_environment_without_a_shaped_reward_returns_none(kind):
    *_, [(step, _)] = play(kind, [[NOBODY_ENDS] * 3])
    assert step.shaped_reward is None
    assert not JaxEnvironmentBatch(KINDS[kind](), None).has_shaped_reward


@any_kind
def test_a_state_has_the_same_structure_and_types_before_and_after_a_step(kind):
    first_observation, first, [(step, state)] = play(kind, [[NOBODY_ENDS, BOTH_DIE, BOTH_DIE]])
    before, after = (jax.tree.map(jax.typeof, tree) for tree in (first, state))
    assert before == after
    assert jax.typeof(first_observation.features) == jax.typeof(step.observation.features)


@pytest.mark.parametrize(
    ("n_numbers", "n_resets"),
    [(0, 6), pytest.param(10_000, 6, marks=pytest.mark.slow), (200_000, 2), (600_000, 1)],
)
def test_a_batch_is_reset_as_a_whole_or_in_parts_by_what_a_reset_computes(n_numbers, n_resets):
    resets = []

    class Counting(Obedient):
        def reset_env(self, rng, params):
            observation, state = super().reset_env(rng, params)
            mark = jnp.sort(jnp.full(n_numbers, state.mark)).min(initial=jnp.inf)
            state = state._replace(mark=jnp.minimum(state.mark, mark))
            jax.debug.callback(lambda _: resets.append(1), state.mark)
            return observation, state

    environments = JaxEnvironmentBatch(Counting(), None)
    step = jax.jit(environments.step)
    _, state = environments.reset(jax.random.key(0), 6)
    jax.effects_barrier()
    for ends in ([GO_ON, GO_ON], [DIE, GO_ON], [DIE, DIE]):
        resets.clear()
        over = [NOBODY_ENDS] * 3 + [ends] + [NOBODY_ENDS] * 2
        _, state = step(jax.random.key(1), state, jnp.array(over))
        jax.effects_barrier()
        assert len(resets) == (n_resets if ends == [DIE, DIE] else 0)


@pytest.mark.parametrize("max_episode_steps", [None, 2])
def test_a_subclass_that_overrides_step_resets_itself(max_episode_steps):
    environments = JaxEnvironmentBatch(ObedientWithOwnStep(), None, max_episode_steps)
    step = jax.jit(environments.step)
    _, state = environments.reset(jax.random.key(0), 3)
    for actions in ([NOBODY_ENDS, BOTH_DIE, NOBODY_ENDS], [NOBODY_ENDS, NOBODY_ENDS, BOTH_DIE]):
        time_step, state = step(jax.random.key(1), state, jnp.array(actions))
    is_from_its_own_reset = mark(time_step.observation) < 0
    if max_episode_steps is None:
        assert time_step.episode_over.tolist() == [False, False, True]
        assert is_from_its_own_reset.tolist() == [False, True, True]
    else:
        # The limit ends the first environment's episode; the batch resets both that are over.
        assert time_step.episode_over.tolist() == [True, False, True]
        assert time(time_step.observation) == [0, 1, 0]


def test_masks_are_reset_along_with_the_observations():
    environments = JaxEnvironmentBatch(Walk(limit=1, masked=True), None)
    assert environments.observation.action_mask.shape == (2, 3)
    observation, state = jax.jit(environments.reset, static_argnums=1)(jax.random.key(0), 8)
    step, _ = jax.jit(environments.step)(jax.random.key(1), state, jnp.ones((8, 2), jnp.int32))
    for seen in (observation, step.observation, step.final_observation):
        on_the_left = np.asarray(seen.features[..., 0]) < 0
        assert on_the_left.any()
        assert not on_the_left.all()
        np.testing.assert_array_equal(seen.action_mask[..., 2], on_the_left)
    assert not np.array_equal(step.observation.action_mask, step.final_observation.action_mask)


def test_continuous_actions_reach_the_environment_as_one_vector_per_actor():
    environments = JaxEnvironmentBatch(Aim(), None)
    assert isinstance(environments.space, Box)
    observation, state = environments.reset(jax.random.key(0), 3)
    off = jnp.zeros((3, 2, 2)).at[1, 0].set(jnp.array([3.0, 4.0]))
    step, _ = environments.step(jax.random.key(1), state, observation.features + off)
    np.testing.assert_allclose(step.reward, [[0, 0], [-25, 0], [0, 0]], rtol=1e-5, atol=1e-6)


class Showing(Environment):
    """Two actors who observe 5 after a reset and 7 after a step, which ends the episode."""

    n_actors = 2

    def __init__(self, shape, dtype, masked):
        self._shape, self._dtype, self._masked = shape, dtype, masked

    def action_space(self, params):
        return Discrete(3)

    def reset_env(self, rng, params):
        return self._observe(5), jnp.zeros(())

    def step_env(self, rng, state, action, params):
        yes = jnp.ones(2, bool)
        return self._observe(7), state, jnp.zeros(2), yes, ~yes, {}

    def _observe(self, number):
        features = jnp.full((2, *self._shape), number, self._dtype)
        return Observation(features, jnp.ones((2, 3), bool)) if self._masked else features


class ShowingByItself:
    """As `Showing`, but without the base class."""

    n_actors = 2

    def __init__(self, *args):
        self._env = Showing(*args)
        self.action_space, self.reset = self._env.action_space, self._env.reset

    def step(self, rng, state, action, params):
        return self._env.step(rng, state, action, params)


def one_each(first, *others):
    """List all combinations; all but one for each value of ``first`` are slow."""
    combinations = list(itertools.product(*others))
    return [
        # Steps of 3 vary each of the other values.
        pytest.param(value, *rest, marks=() if j == 3 * i % len(combinations) else pytest.mark.slow)
        for i, value in enumerate(first)
        for j, rest in enumerate(combinations)
    ]


FEATURES = [
    ((), jnp.float32),
    ((), jnp.int32),
    ((3,), jnp.float32),
    ((3,), jnp.int8),
    ((3,), jnp.bool_),
    ((4, 3), jnp.float32),
    ((5, 4, 3), jnp.float32),
    ((5, 4, 3), jnp.uint8),
]


@pytest.mark.parametrize(
    ("features", "kind", "masked"), one_each(FEATURES, [Showing, ShowingByItself], [False, True])
)
def test_an_agent_id_is_appended_to_all_observations_in_their_own_dtype(features, kind, masked):
    """Vectors become [5, 5, 5, 1, 0] and [5, 5, 5, 0, 1]; images gain a channel per actor."""
    shape, dtype = features
    environments = JaxEnvironmentBatch(kind(shape, dtype, masked), None, agent_id=True)
    first, state = environments.reset(jax.random.key(0), 3)
    step, _ = environments.step(jax.random.key(1), state, jnp.zeros((3, 2), jnp.int32))

    channels = shape[-1] if shape else 1
    for seen, number in ((first, 5), (step.final_observation, 7), (step.observation, 5)):
        features = np.asarray(seen.features)
        assert features.shape == (3, 2, *shape[:-1], channels + 2)
        assert features.dtype == dtype
        np.testing.assert_array_equal(features[..., :channels], np.dtype(dtype).type(number))
        for actor, agent_id in enumerate(([1, 0], [0, 1])):
            pixels = features[:, actor, ..., channels:].reshape(-1, 2)
            assert np.unique(pixels, axis=0).astype(int).tolist() == [agent_id]
        assert (seen.action_mask is not None) == masked
    described = environments.observation.features
    assert (described.shape, described.dtype) == (features.shape[1:], dtype)


def test_without_agent_id_observations_are_unchanged():
    environments = JaxEnvironmentBatch(Showing((3,), jnp.int8, False), None)
    observation, _ = environments.reset(jax.random.key(0), 3)
    np.testing.assert_array_equal(observation.features, np.full((3, 2, 3), 5))


def seen_by(environments):
    """List observations and their expected numbers: after a reset, and before and after another."""
    first, state = environments.reset(jax.random.key(0), 3)
    step, _ = environments.step(jax.random.key(1), state, jnp.zeros((3, 2), jnp.int32))
    return (first, 5), (step.final_observation, 7), (step.observation, 5)


SHAPES_OF_STATES = [
    ((), (2,)),
    ((3,), (6,)),
    ((4, 3), (4, 6)),
    ((5, 4, 3), (5, 4, 6)),
]


@pytest.mark.parametrize(
    ("shapes", "dtype", "kind", "agent_id"),
    one_each(SHAPES_OF_STATES, [jnp.float32, jnp.uint8], [Showing, ShowingByItself], [False, True]),
)
def test_the_default_global_state_is_the_joint_observation_without_agent_ids(
    shapes, dtype, kind, agent_id
):
    shape, state_shape = shapes
    env = kind(shape, dtype, False)
    environments = JaxEnvironmentBatch(env, None, agent_id=agent_id, global_state=True)
    without = JaxEnvironmentBatch(env, None, agent_id=agent_id)
    for (seen, number), (alone, _) in zip(seen_by(environments), seen_by(without), strict=True):
        np.testing.assert_array_equal(seen.global_state, np.full((3, *state_shape), number))
        assert seen.global_state.dtype == dtype
        np.testing.assert_array_equal(seen.features, alone.features)
        assert alone.global_state is None
    described = environments.observation.global_state
    assert (described.shape, described.dtype) == (state_shape, dtype)


class Telling(Showing):
    """Also returns a global state: ten times the number that it shows."""

    def __init__(self, *args, state_shape=(2,)):
        super().__init__(*args)
        self._state_shape = state_shape

    def _observe(self, number):
        observation = super()._observe(number)
        if not isinstance(observation, Observation):
            observation = Observation(observation)
        return observation._replace(global_state=jnp.full(self._state_shape, 10.0 * number))


class TellingByItself(ShowingByItself):
    """As `Telling`, but without the base class."""

    def __init__(self, *args, **kwargs):
        self._env = Telling(*args, **kwargs)
        self.action_space, self.reset = self._env.action_space, self._env.reset


@pytest.mark.parametrize(
    ("state_shape", "kind", "agent_id", "masked"),
    one_each([(), (2,), (5, 4, 3)], [Telling, TellingByItself], [False, True], [False, True]),
)
def test_an_environments_own_global_state_is_preferred_to_the_joint_observation(
    state_shape, kind, agent_id, masked
):
    env = kind((3,), jnp.float32, masked, state_shape=state_shape)
    environments = JaxEnvironmentBatch(env, None, agent_id=agent_id, global_state=True)
    for seen, number in seen_by(environments):
        np.testing.assert_array_equal(seen.global_state, np.full((3, *state_shape), 10 * number))
        np.testing.assert_array_equal(seen.features[..., :3], np.full((3, 2, 3), number))
        assert seen.features.shape[-1] == (5 if agent_id else 3)
        assert (seen.action_mask is not None) == masked
    assert environments.observation.global_state.shape == state_shape


@pytest.mark.parametrize("kind", [Telling, TellingByItself])
def test_a_global_state_is_dropped_unless_requested(kind):
    environments = JaxEnvironmentBatch(kind((3,), jnp.float32, False), None)
    for seen, _ in seen_by(environments):
        assert seen.global_state is None
    assert environments.observation.global_state is None
    with pytest.raises(ValueError, match="need the Observation that the environment returned"):
        environments.global_features(environments.prepare(jnp.zeros((2, 3))))


@pytest.mark.parametrize(
    ("state_shape", "kind"), one_each([(), (2,), (5, 4, 3)], [Telling, TellingByItself])
)
def test_global_features_are_the_state_and_the_actors_index(state_shape, kind):
    env = kind((3,), jnp.float32, False, state_shape=state_shape)
    environments = JaxEnvironmentBatch(env, None, agent_id=True, global_state=True)
    channels = state_shape[-1] if state_shape else 1
    for seen, number in seen_by(environments):
        features = np.asarray(environments.global_features(seen))
        assert features.shape == (3, 2, *state_shape[:-1], channels + 2)
        np.testing.assert_array_equal(features[..., :channels], 10 * number)
        for actor, agent_id in enumerate(([1, 0], [0, 1])):
            pixels = features[:, actor, ..., channels:].reshape(-1, 2)
            assert np.unique(pixels, axis=0).astype(int).tolist() == [agent_id]


@any_kind
def test_global_features_differ_between_environments_and_accept_any_batch_axes(kind):
    environments = JaxEnvironmentBatch(KINDS[kind](), None, global_state=True)
    observation, _ = environments.reset(jax.random.key(0), 3)
    features = environments.global_features(observation)  # both actors see (mark, time, noise)
    assert len(np.unique(features[:, 0, 0])) == 3
    joint = np.asarray(observation.features).reshape(3, 1, 6)
    np.testing.assert_array_equal(features[..., :6], np.broadcast_to(joint, (3, 2, 6)))
    np.testing.assert_array_equal(features[..., 6:], np.broadcast_to(np.eye(2), (3, 2, 2)))
    one = jax.tree.map(lambda leaf: leaf[1], observation)
    np.testing.assert_array_equal(environments.global_features(one), features[1])
    over_time = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), observation)
    stacked = environments.global_features(over_time)
    np.testing.assert_array_equal(stacked[0], features)
    np.testing.assert_array_equal(stacked[1, ..., :6], 2 * features[..., :6])
    np.testing.assert_array_equal(stacked[1, ..., 6:], features[..., 6:])


@pytest.mark.parametrize(
    ("actions", "over"), [((GO_ON, GO_ON), False), ((DIE, GO_ON), False), ((DIE, BE_CUT_OFF), True)]
)
def test_a_subclass_steps_alone_and_resets_once_all_actors_have_ended(actions, over):
    env = Obedient()
    observation, state = env.reset(jax.random.key(0))
    observation, state, reward, terminated, truncated, info = env.step(
        jax.random.key(1), state, jnp.array(actions)
    )
    assert observation[:, 1].tolist() == ([0, 0] if over else [1, 1])
    assert state.time == (0 if over else 1)
    assert info["final_observation"][:, 1].tolist() == [1, 1]
    assert terminated.tolist() == [action == DIE for action in actions]
    assert truncated.tolist() == [action == BE_CUT_OFF for action in actions]
    assert (reward.tolist(), info["time"]) == ([10.0, 11.0], 1)


class Paying(Environment):
    """One step; the observation and the reward are the parameter."""

    n_actors = 1
    default_params = 7.0

    def action_space(self, params):
        return Discrete(2)

    def reset_env(self, rng, params):
        return jnp.full((1, 1), params), jnp.zeros(())

    def step_env(self, rng, state, action, params):
        yes = jnp.ones(1, bool)
        return jnp.zeros((1, 1)), state, jnp.full(1, params), yes, ~yes, {}


def test_the_parameters_reach_every_reset_and_step():
    environments = JaxEnvironmentBatch(Paying(), 5.0)
    observation, state = environments.reset(jax.random.key(0), 2)
    step, _ = environments.step(jax.random.key(1), state, jnp.zeros((2, 1), jnp.int32))
    assert observation.features.ravel().tolist() == [5.0, 5.0]
    assert step.observation.features.ravel().tolist() == [5.0, 5.0]
    assert step.reward.ravel().tolist() == [5.0, 5.0]


@pytest.mark.parametrize(("params", "used"), [((), 7.0), ((None,), 7.0), ((5.0,), 5.0)])
def test_a_subclass_uses_its_default_parameters_unless_given_others(params, used):
    rng, action = jax.random.key(0), jnp.zeros(1, jnp.int32)
    observation, state = Paying().reset(rng, *params)
    after_reset, _, reward, *_ = Paying().step(rng, state, action, *params)
    assert (observation.item(), after_reset.item(), reward.item()) == (used, used, used)


NOBODY = jnp.zeros(2, bool)
SEEN = jnp.zeros((2, 4))
STATE = jnp.zeros(())
THREE_ACTIONS = Discrete(3)


class Returning:
    """A duck-typed environment that returns given values."""

    n_actors = 2

    def __init__(self, resets=(SEEN, STATE), space=THREE_ACTIONS, **fields):
        step = {
            "observation": SEEN,
            "state": STATE,
            "reward": jnp.zeros(2),
            "terminated": NOBODY,
            "truncated": NOBODY,
            "info": {"final_observation": SEEN},
        } | fields
        self._resets, self._space = resets, space
        self._steps = tuple(value for value in step.values() if value is not None)

    def action_space(self, params):
        return self._space

    def reset(self, rng, params):
        return self._resets

    def step(self, rng, state, action, params):
        return self._steps


def message_of(env):
    """Return the message of the TypeError that refuses an environment."""
    with pytest.raises(TypeError) as error:
        JaxEnvironmentBatch(env, None)
    return str(error.value)


def test_an_environment_that_follows_the_protocol_is_accepted():
    assert JaxEnvironmentBatch(Returning(), None).observation.features.shape == (2, 4)


def test_rewards_become_floats_flags_booleans_and_observations_keep_their_dtype():
    image, ints = jnp.ones((2, 4), jnp.uint8), jnp.array([1, 0])
    env = Returning(
        resets=(image, STATE),
        observation=image,
        reward=ints,
        terminated=ints,
        truncated=ints.astype(jnp.float32),
        info={"final_observation": image},
    )
    for max_episode_steps in (None, 1):
        environments = JaxEnvironmentBatch(env, None, max_episode_steps)
        _, state = environments.reset(jax.random.key(0), 3)
        step, _ = environments.step(jax.random.key(1), state, jnp.zeros((3, 2), jnp.int32))
        assert step.reward.dtype == jnp.float32
        assert step.terminated.dtype == step.truncated.dtype == jnp.bool_
        assert step.observation.features.dtype == jnp.uint8
        assert step.final_observation.features.dtype == jnp.uint8


@pytest.mark.parametrize("attribute", ["n_actors", "action_space", "reset", "step"])
def test_a_missing_attribute_is_an_error_that_names_it_and_the_protocol(attribute):
    members = dict.fromkeys(("n_actors", "action_space", "reset", "step"))
    members.pop(attribute)
    message = message_of(type("Home", (), members)())
    assert message.startswith(f"Home has no {attribute}; an environment has n_actors, ")
    assert "jaxagents.make builds those of gymnax and JaxMARL." in message
    assert "\n" not in message


def test_an_unsupported_action_space_is_an_error_that_lists_the_supported_ones():
    message = message_of(Returning(space=(3, 2)))
    assert message.startswith("action space (3, 2) is neither Discrete (an attribute n, ")
    assert "\n" not in message


@pytest.mark.parametrize("extras", [{"shape": (4,)}, {"shape": (), "start": 1}], ids=str)
def test_spaces_that_only_resemble_discrete_are_refused(extras):
    assert "is neither Discrete" in message_of(Returning(space=SimpleNamespace(n=4, **extras)))
    assert as_space(SimpleNamespace(n=4, shape=(), start=0)) == Discrete(4)


def test_a_shape_that_is_a_number_is_refused():
    with pytest.raises(TypeError, match="has shape=2; give a tuple"):
        as_space(Box(-1, 1, 2))  # pyright: ignore[reportArgumentType] -- the fault


def test_spaces_of_several_choices_are_taken_from_other_libraries():
    expected = MultiDiscrete((3, 2))
    spaces = gymnasium.spaces
    assert as_space(spaces.MultiDiscrete([3, 2])) == expected
    assert as_space(jaxmarl.environments.spaces.MultiDiscrete([3, 2])) == expected
    assert as_space(expected) == expected
    assert as_space(spaces.MultiBinary(3)) == MultiDiscrete((2, 2, 2))
    for refused in (spaces.MultiDiscrete([3, 2], start=[0, 1]), spaces.MultiDiscrete([[3], [2]])):
        with pytest.raises(TypeError, match="neither Discrete"):
            as_space(refused)


@pytest.mark.parametrize(
    ("resets", "count"), [((SEEN, 0, 0), 3), ((SEEN,), 1), (SEEN, 1), ([SEEN, 0], 1)]
)
def test_a_reset_of_the_wrong_number_of_values_is_an_error_with_both_numbers(resets, count):
    assert message_of(Returning(resets=resets)) == (
        f"Returning.reset returns {count} value{'s' * (count > 1)}; the protocol has 2: "
        "observation, state."
    )


@pytest.mark.parametrize(
    ("fields", "count"),
    [({"truncated": None}, 5), ({"truncated": None, "info": None}, 4), ({"extra": {}}, 7)],
)
def test_a_step_of_the_wrong_number_of_values_is_an_error_with_both_numbers(fields, count):
    assert message_of(Returning(**fields)) == (
        f"Returning.step returns {count} values; the protocol has 6: "
        "observation, state, reward, terminated, truncated, info."
    )


@pytest.mark.parametrize("field", ["reward", "terminated", "truncated"])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 1)])
def test_a_step_without_one_value_per_actor_is_an_error_with_both_shapes(field, shape):
    assert message_of(Returning(**{field: jnp.zeros(shape)})) == (
        f"Returning.step returns {field} of shape {shape}; it must be (2,), one value per actor."
    )


@pytest.mark.parametrize("shape", [(), (4,), (3, 2)])
def test_observations_without_the_axis_of_actors_are_an_error(shape):
    wrong = jnp.zeros(shape)
    for env, source in (
        (Returning(resets=(wrong, STATE)), "reset"),
        (Returning(resets=(Observation(wrong), STATE)), "reset"),
        (Returning(observation=wrong), "step"),
    ):
        assert message_of(env) == (
            f"Returning.{source} returns observations of shape {shape}; the first axis must be "
            "the 2 actors."
        )


def test_observations_that_are_not_an_array_are_an_error():
    message = message_of(Returning(resets=("seen", STATE)))
    assert message.startswith("Returning.reset returns 'seen' as observation; jax traces numbers")
    assert "\n" not in message


@pytest.mark.parametrize("shape", [(3,), (2, 4), (3, 2)])
def test_a_mask_of_the_wrong_shape_is_an_error_with_both_shapes(shape):
    masked = Observation(SEEN, action_mask=jnp.ones(shape, bool))
    for env, source in (
        (Returning(resets=(masked, STATE)), "reset"),
        (Returning(observation=masked), "step"),
    ):
        assert message_of(env) == (
            f"Returning.{source} returns an action_mask of shape {shape}; it must be (2, 3), "
            "actors by actions."
        )


def test_whose_turn_it_is_has_an_entry_for_each_actor():
    right = Observation(SEEN, has_turn=jnp.array([True, False]))
    fields = {"observation": right, "info": {"final_observation": right}}
    environments = JaxEnvironmentBatch(Returning(resets=(right, STATE), **fields), None)
    assert environments.observation.has_turn.shape == (2,)
    wrong = Observation(SEEN, has_turn=jnp.ones(3, bool))
    assert message_of(Returning(resets=(wrong, STATE))) == (
        "Returning.reset returns has_turn of shape (3,) and dtype bool; it must be (2,) and bool, "
        "one value per actor."
    )


@pytest.mark.parametrize("shape", [(6,), (2, 3), (3, 6), (2, 2, 3)])
def test_a_mask_of_continuous_actions_has_one_entry_for_each_dimension(shape):
    space = Box(-1.0, 1.0, (2, 3))
    right = Observation(SEEN, action_mask=jnp.ones((2, 6), bool))
    wrong = Observation(SEEN, action_mask=jnp.ones(shape, bool))
    fields = {"observation": right, "info": {"final_observation": right}}
    environments = JaxEnvironmentBatch(
        Returning(resets=(right, STATE), space=space, **fields), None
    )
    assert environments.observation.action_mask.shape == (2, 6)
    for env, source in (
        (Returning(resets=(wrong, STATE), space=space), "reset"),
        (Returning(resets=(right, STATE), space=space, observation=wrong), "step"),
    ):
        assert message_of(env) == (
            f"Returning.{source} returns an action_mask of shape {shape}; it must be (2, 6), "
            "actors by dimensions."
        )


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.int32])
@pytest.mark.parametrize("space", [THREE_ACTIONS, Box(-1.0, 1.0, (3,))], ids=["discrete", "box"])
def test_a_mask_that_is_not_boolean_is_an_error(space, dtype):
    masked = Observation(SEEN, action_mask=jnp.ones((2, 3), dtype))
    assert message_of(Returning(resets=(masked, STATE), space=space)) == (
        f"Returning.reset returns an action_mask of {jnp.dtype(dtype)}; it must be bool."
    )


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 1)])
def test_a_shaped_reward_without_one_value_per_actor_is_an_error(shape):
    info = {"final_observation": SEEN, "shaped_reward": jnp.zeros(shape)}
    assert message_of(Returning(info=info)) == (
        f"Returning.step returns shaped_reward of shape {shape}; it must be (2,), one value per "
        "actor."
    )


def test_an_info_without_the_final_observation_is_an_error():
    assert message_of(Returning(info={"won": jnp.zeros(())})) == (
        'Returning.step returns an info without "final_observation"; put the observation before '
        "any reset there."
    )


class Changing(Environment):
    """A subclass whose steps return given values."""

    n_actors = 2

    def __init__(self, **changes):
        step = {
            "observation": jnp.zeros((2, 4)),
            "state": jnp.int32(0),
            "reward": jnp.zeros(2),
            "terminated": jnp.zeros(2, bool),
            "truncated": jnp.zeros(2, bool),
            "info": {},
            **changes,
        }
        self.returned = tuple(value for value in step.values() if value is not None)

    def action_space(self, params):
        return Discrete(3)

    def reset_env(self, rng, params):
        return jnp.zeros((2, 4)), jnp.int32(0)

    def step_env(self, rng, state, action, params):
        return self.returned


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"truncated": None, "info": None}, "returns 4 values; the protocol has 6"),
        ({"reward": {"a": 1.0}}, "returns reward of shape dict"),
        ({"info": 3}, "as info; it must be a dict"),
        ({"state": jnp.float32(0)}, r"a state whose value is float32\[\], but int32\[\]"),
        (
            {"state": {"time": jnp.int32(0)}},
            r"a state whose time is int32\[\], but nothing|value is nothing, but int32",
        ),
        ({"observation": jnp.zeros((2, 5))}, r"features is float32\[2, 5\], but float32\[2, 4\]"),
    ],
)
def test_wrong_values_of_a_step_are_an_error_of_one_line(changes, message):
    text = message_of(Changing(**changes))
    assert text.startswith("Changing.step_env returns")
    assert re.search(message, text)
    assert "\n" not in text


def test_end_flags_of_another_dtype_are_converted_to_booleans():
    flags = {"terminated": jnp.ones(2), "truncated": jnp.zeros(2, jnp.int32)}
    env = Changing(**flags)
    assert env.step(jax.random.key(0), jnp.int32(0), jnp.zeros(2, jnp.int32))[3].all()


class Parts(Environment):
    """One step; each of two actors observes a dictionary of a number and a picture."""

    n_actors = 2

    def action_space(self, params):
        return Discrete(2)

    def reset_env(self, rng, params):
        return {"b": jnp.full((2, 2, 2), 2.0), "a": jnp.ones(2, jnp.int32)}, jnp.zeros(())

    def step_env(self, rng, state, action, params):
        observation, _ = self.reset_env(rng, params)
        return observation, state, jnp.zeros(2), jnp.ones(2), jnp.zeros(2), {}


def test_dictionaries_of_observations_are_flattened_in_the_order_of_their_keys():
    environments = JaxEnvironmentBatch(Parts(), None)
    observation, state = environments.reset(jax.random.key(0), 3)
    assert observation.features[2, 1].tolist() == [1, 2, 2, 2, 2]
    step, _ = environments.step(jax.random.key(1), state, jnp.zeros((3, 2), jnp.int32))
    assert step.final_observation.features[0, 0].tolist() == [1, 2, 2, 2, 2]
    one, _ = Parts().reset(jax.random.key(0))
    assert environments.prepare(one).features[0].tolist() == [1, 2, 2, 2, 2]


def test_float_ends_count_as_bool():
    environments = JaxEnvironmentBatch(Parts(), None)
    _, state = environments.reset(jax.random.key(0), 3)
    step, _ = environments.step(jax.random.key(1), state, jnp.zeros((3, 2), jnp.int32))
    assert step.terminated.dtype == bool
    assert step.episode_over.all()


class Dial(Environment):
    """One step: the reward is the number of the dial, which only takes bytes of its own space."""

    n_actors = 1

    def action_space(self, params):
        return gymnasium.spaces.Box(2, 9, (1,), np.uint8)

    def reset_env(self, rng, params):
        return jnp.zeros((1, 1)), jnp.zeros((), jnp.int32)

    def step_env(self, rng, state, action, params):
        assert action.dtype == jnp.uint8
        over = jnp.ones(1, bool)
        return jnp.zeros((1, 1)), state, action[:, 0].astype(jnp.float32), over, ~over, {}


def test_environments_of_integer_boxes_get_rounded_actions_in_their_own_dtype():
    """Halves go to the even number, and no action leaves the bounds."""
    batch = JaxEnvironmentBatch(Dial(), None)
    actions = [2.0, 2.5, 3.5, 3.6, 9.0, -5.0, 300.0]
    _, state = batch.reset(jax.random.key(0), len(actions))
    action = jnp.array(actions)[:, None, None]
    step, _ = batch.step(jax.random.key(1), state, action)
    np.testing.assert_array_equal(step.reward[:, 0], [2, 2, 4, 4, 9, 2, 9])


def test_gymnax_environments_of_integer_boxes_do_too():
    class Knob(SimpleNamespace):
        def action_space(self, params):
            return SimpleNamespace(low=0, high=3, shape=(1,), dtype=jnp.int32)

        def reset_env(self, rng, params):
            return jnp.zeros(1), jnp.zeros((), jnp.int32)

        def step_env(self, rng, state, action, params):
            assert action.dtype == jnp.int32
            return jnp.zeros(1), state, action[0] + 0.0, jnp.ones((), bool), {}

        def is_truncated(self, state, params):
            return jnp.zeros((), bool)

    batch = JaxEnvironmentBatch(GymnaxEnvironment(Knob(name="Knob", default_params=())), ())
    _, state = batch.reset(jax.random.key(0), 1)
    step, _ = batch.step(jax.random.key(1), state, jnp.full((1, 1, 1), 1.7))
    np.testing.assert_array_equal(step.reward, [[2.0]])


class Vanishing(probes.Returning):
    """As its parent, but it never says that an actor has ended, only who acts next."""

    def step_env(self, rng, state, action, params):
        observation, moved, reward, ended, _, info = super().step_env(rng, state, action, params)
        return observation, moved, reward, *jnp.zeros((2, *ended.shape), bool), info


def test_an_actor_that_does_not_act_next_has_terminated():
    environments = JaxEnvironmentBatch(Vanishing(), None)
    _, state = environments.reset(jax.random.key(0), 1)
    ends = []
    for _ in range(7):
        step, state = environments.step(jax.random.key(1), state, jnp.zeros((1, 2), jnp.int32))
        ends.append(step.terminated[0].tolist())
    # The second actor dies in step 2, and the episode is over after step 7.
    assert ends == [[False, False], [False, True], *[[False, False]] * 4, [True, True]]
