"""Time limits: whose kind they are, what learning takes truncation for, and who sees the time."""

import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.environments.jax_batch import JaxEnvironmentBatch
from jaxagents.environments.time_limits import TimeLimit, time_limit_of, warn_of_short_episodes
from tests.probes import Clock, Team, Walk


class Game(Walk):
    """A walk whose limit is a part of the task."""

    time_limits = "terminal"

    def max_episode_steps(self, params):
        return self._limit


WALK, GAME = Walk(limit=4), Game(limit=4)
ENVIRONMENTS = {"walk": WALK, "game": GAME}


def limit_of(env, max_episode_steps=None, time_limits=None, observe_time=None):
    return time_limit_of(env, None, max_episode_steps, time_limits, observe_time)


@pytest.mark.parametrize(
    ("env", "configured", "expected"),
    [
        ("walk", {}, (None, False, False)),  # says nothing: bootstrapped
        ("game", {}, (4, True, True)),
        ("game", {"time_limits": "bootstrap"}, (4, False, False)),
        ("game", {"time_limits": "terminal", "observe_time": False}, (4, True, False)),
        ("game", {"max_episode_steps": 3}, (3, True, True)),
        ("game", {"max_episode_steps": 5}, (4, True, True)),
        ("walk", {"max_episode_steps": 3, "time_limits": "terminal"}, (3, True, False)),
        ("walk", {"max_episode_steps": 3, "observe_time": True}, (3, False, True)),
    ],
    ids=str,
)
def test_the_environment_says_what_its_limit_is_unless_configured(env, configured, expected):
    assert limit_of(ENVIRONMENTS[env], **configured) == expected


def test_time_is_not_observed_without_a_known_limit():
    message = r"observe_time=True, but Walk does not say .*; set max_episode_steps\."
    with pytest.raises(ValueError, match=message):
        limit_of(WALK, observe_time=True)


def test_a_class_of_a_user_without_the_attributes_is_bootstrapped():
    assert limit_of(object()) == (None, False, False)


@pytest.mark.parametrize(("own", "n_steps"), [(7, 7), (math.inf, None), (None, None)], ids=str)
def test_a_users_limit_may_be_a_number_or_infinite(own, n_steps):
    assert limit_of(SimpleNamespace(max_episode_steps=own)).n_steps == n_steps
    assert limit_of(SimpleNamespace(max_episode_steps=own), max_episode_steps=5).n_steps == 5


@pytest.mark.parametrize("own", [0, -1])
def test_a_users_limit_below_one_step_is_refused(own):
    with pytest.raises(ValueError, match=f"max_episode_steps is {own}; it must be at least 1, or"):
        limit_of(SimpleNamespace(max_episode_steps=own))


def test_a_kind_of_limit_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"time_limits is 'Terminal'; it must be 'bootstrap' or"):
        limit_of(SimpleNamespace(time_limits="Terminal"))


def test_an_infinite_limit_of_gymnax_is_none():
    env, params = ja.make("gymnax/CartPole-v1")
    assert env.max_episode_steps(params.replace(max_steps_in_episode=math.inf)) is None


@pytest.mark.parametrize(
    ("env_id", "expected"),
    [
        ("gymnax/CartPole-v1", (500, False, False)),
        ("gymnax/DeepSea-bsuite", (None, False, False)),
        ("hunting/discrete", (100, False, False)),
        ("jaxmarl/MPE_simple_spread_v3", (26, True, True)),
        ("jaxmarl/overcooked", (400, True, True)),
        ("jaxmarl/coin_game", (100, True, True)),
        ("jaxmarl/hanabi", (None, False, False)),
        ("jaxmarl/jaxnav", (500, False, False)),
    ],
)
def test_families_say_which_kind_their_limit_is(env_id, expected):
    env, params = ja.make(env_id)
    assert time_limit_of(env, params, None, None, None) == expected


def test_the_share_of_the_limit_that_has_passed_is_at_most_1():
    limit = TimeLimit(4, is_terminal=True, is_observed=True)
    np.testing.assert_array_equal(limit.share(jnp.array([0, 1, 4, 5])), [0.0, 0.25, 1.0, 1.0])


def test_an_unknown_limit_has_no_share():
    limit = TimeLimit(None, is_terminal=False, is_observed=False)
    with pytest.raises(ValueError, match="the time limit is unknown"):
        limit.share(jnp.array(3))


def test_learning_takes_truncation_for_termination_only_if_the_limit_is_a_part_of_the_task():
    terminated, truncated = jnp.array([True, False, False]), jnp.array([False, True, False])
    ends = TimeLimit(4, is_terminal=True, is_observed=False).for_learning(terminated, truncated)
    np.testing.assert_array_equal(ends, [[True, True, False], [False, False, False]])
    ends = TimeLimit(4, is_terminal=False, is_observed=False).for_learning(terminated, truncated)
    np.testing.assert_array_equal(ends, [terminated, truncated])


class SelfResetting:
    """The same environment, which resets itself in its own step."""

    n_actors = 2

    def __init__(self, env):
        self._env = env
        self.action_space, self.reset = env.action_space, env.reset

    def step(self, rng, state, action, params):
        return self._env.step(rng, state, action, params)


@pytest.mark.parametrize("env", [Game(limit=3), SelfResetting(Walk(limit=3))], ids=["own", "user"])
def test_observations_hold_the_share_that_has_passed(env):
    limit = TimeLimit(3, is_terminal=True, is_observed=True)
    environments = JaxEnvironmentBatch(env, None, time_limit=limit, global_state=True)
    observation, state = environments.reset(jax.random.key(0), 2)
    assert environments.observation.features.shape == (2, 2 + 1)
    assert environments.observation.global_state.shape == (2 * 2 + 1,)
    shares = [observation]
    finals = []
    for seed in range(4):
        action = jnp.ones((2, 2), jnp.int32)
        step, state = environments.step(jax.random.key(seed), state, action)
        shares.append(step.observation)
        finals.append(step.final_observation)

    def last_features(observations):
        both = [(each.features[..., -1], each.global_state[..., -1:]) for each in observations]
        assert all((a == a[:1, :1]).all() and (b == a[:1, :1]).all() for a, b in both)
        return [float(a[0, 0]) for a, _ in both]

    np.testing.assert_allclose(last_features(shares), [0, 1 / 3, 2 / 3, 0, 1 / 3], rtol=1e-6)
    np.testing.assert_allclose(last_features(finals), [1 / 3, 2 / 3, 1, 1 / 3], rtol=1e-6)


def test_an_observation_without_the_time_is_refused():
    limit = TimeLimit(4, is_terminal=True, is_observed=True)
    environments = JaxEnvironmentBatch(GAME, None, time_limit=limit)
    with pytest.raises(ValueError, match=r"observes the time .*Observation\(features, elapsed="):
        environments.prepare(jnp.zeros((2, 2)))
    observation = ja.Observation(jnp.zeros((2, 2)), elapsed=jnp.array(3))
    np.testing.assert_array_equal(
        environments.prepare(observation).features, [[0.0, 0.0, 0.75], [0.0, 0.0, 0.75]]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "env_id",
    [
        "jaxmarl/MPE_simple_spread_v3",
        "jaxmarl/overcooked",
        "jaxmarl/coin_game",
        "jaxmarl/switch_riddle",
    ],
)
def test_libraries_tell_the_time_that_agents_count(env_id):
    env, params = ja.make(env_id)
    environments = JaxEnvironmentBatch(env, params)
    rng = jax.random.key(0)
    observation, state = jax.jit(env.reset)(rng, params)
    assert observation.elapsed == 0
    _, counted = environments.reset(rng, 1)
    step, count = jax.jit(env.step_env), jax.jit(environments.step)
    action = jnp.zeros(env.n_actors, jnp.int32)
    for _ in range(2):
        observation, state, *_ = step(rng, state, action, params)
        _, counted = count(rng, counted, action[None])
        assert observation.elapsed == counted.episode_steps[0]


@pytest.mark.parametrize("discount", [0.99, 1.0])
def test_bootstrapping_nearer_than_the_discount_looks_is_warned_of(discount):
    limit = TimeLimit(25, is_terminal=False, is_observed=False)
    with pytest.warns(UserWarning, match="truncated after 25 .* time_limits='terminal'") as warned:
        warn_of_short_episodes(limit, [0.9, discount, discount])
    assert len(warned) == 1


def test_a_terminal_limit_nearer_than_the_discount_looks_should_be_observed():
    limit = TimeLimit(25, is_terminal=True, is_observed=False)
    with pytest.warns(UserWarning, match="truncated after 25 and the agent does not observe the"):
        warn_of_short_episodes(limit, [0.99])


@pytest.mark.parametrize(
    ("limit", "discount"),
    [
        (TimeLimit(25, is_terminal=True, is_observed=True), 0.99),
        (TimeLimit(200, is_terminal=True, is_observed=False), 0.99),
        (TimeLimit(None, is_terminal=False, is_observed=False), 1.0),
        (TimeLimit(100, is_terminal=False, is_observed=False), 0.99),
        (TimeLimit(999, is_terminal=False, is_observed=False), 0.999),
    ],
    ids=str,
)
def test_other_limits_are_not(limit, discount):
    warn_of_short_episodes(limit, [discount])


def test_the_warning_names_the_users_line():
    env = Walk(limit=4)
    config = ja.AgentConfig(n_steps=1, max_episode_steps=4, progress_bar=False)
    agent = ja.DiscreteIPPO(env, None, config)
    with pytest.warns(UserWarning, match="gamma=0.99 looks ahead 100 steps") as warned:
        agent.init(jax.random.key(0), ja.HyperParameters())
    assert [each.filename for each in warned] == [__file__]


def test_a_terminal_limit_ends_the_return_of_the_dead_who_earn_with_the_team():
    """The first actor dies after one step, and earns until the limit of three."""
    env = Team(deaths=(1, 100), limit=3)
    limit = TimeLimit(3, is_terminal=True, is_observed=True)
    environments = JaxEnvironmentBatch(env, None, time_limit=limit)
    _, state = environments.reset(jax.random.key(0), 1)
    ends = []
    for seed in range(3):
        action = jnp.ones((1, 2), jnp.int32)
        step, state = environments.step(jax.random.key(seed), state, action)
        ends.append(limit.for_learning(step.terminated, step.truncated))
        np.testing.assert_array_equal(step.reward, 1.0)
    np.testing.assert_array_equal(step.truncated, [[True, True]])
    terminated, truncated = np.array(ends)[:, :, 0].swapaxes(0, 1)
    np.testing.assert_array_equal(terminated, [[False, False], [False, False], [True, True]])
    assert not truncated.any()


def test_mortal_actors_end_at_their_death_or_at_a_terminal_limit():
    env = SelfResetting(Walk(deaths=(1, 100), limit=100))
    limit = TimeLimit(3, is_terminal=True, is_observed=True)
    environments = JaxEnvironmentBatch(env, None, max_episode_steps=3, time_limit=limit)
    _, state = environments.reset(jax.random.key(0), 1)
    ends, shares = [], []
    for seed in range(4):
        action = jnp.ones((1, 2), jnp.int32)
        step, state = environments.step(jax.random.key(seed), state, action)
        ends.append(np.asarray(limit.for_learning(step.terminated, step.truncated)[0][0]))
        shares.append(float(step.observation.features[0, 0, -1]))
    np.testing.assert_array_equal(np.array(ends)[:, 1], [False, False, True, False])
    assert ends[0][0]
    np.testing.assert_allclose(shares, [1 / 3, 2 / 3, 0, 1 / 3], rtol=1e-6)


@pytest.mark.parametrize("observe_time", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_with_the_time_values_are_those_of_the_steps_left(observe_time):
    """Four steps of reward 1: V is 4, 3, 2, 1 with the time, and their mean without it."""
    linear = ja.Layers(hidden_sizes=())
    config = ja.AgentConfig(
        n_steps=150, rollout_length=16, n_evals=0, eval_frequency=150, progress_bar=False,
        anneal_learning_rate=True, actor_layers=linear, critic_layers=linear,
        observe_time=observe_time,
    )  # fmt: skip
    optimizer = ja.OptimizerParams(learning_rate=1e-2)
    hyperparams = ja.HyperParameters(gamma=1.0, gae_lambda=1.0, critic_optimizer_params=optimizer)
    agent = ja.DiscreteIPPO(Clock(), None, config)
    runner, _ = agent.train(jax.random.key(0), hyperparams)
    times = [ja.Observation(jnp.zeros((1, 1)), elapsed=jnp.array(time)) for time in range(4)]
    values = [float(agent.value(runner, time)[0]) for time in times]
    expected = [4.0, 3.0, 2.0, 1.0] if observe_time else [2.5] * 4
    np.testing.assert_allclose(values, expected, atol=0.05)
    # What an evaluation and a single action observe is the same.
    evaluation = agent.eval(jax.random.key(1), n_evals=2, runner=runner)
    np.testing.assert_array_equal(evaluation["truncated"], True)
    assert agent.policy(runner, times[0]).shape == (1,)
