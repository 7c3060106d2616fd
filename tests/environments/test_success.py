"""An environment's own measure of success: its declaration, and what evaluations make of it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.environments.protocol import Environment
from jaxagents.environments.spaces import Discrete
from jaxagents.evaluation.episodes import play_episodes
from jaxagents.evaluation.success_rates import success_of_episodes
from tests.agents import tiny
from tests.probes import Pennies, heads


class Baskets(Environment):
    """Episodes of 3 steps, and of 2 for actor 1; action 1 throws a ball, which hits at odd times.

    Infos: ``hits`` of all at this step; ``hit``, whether the actor's throw hits, NaN without one.
    """

    n_actors = 2

    def __init__(self, success):
        self.success = success

    def action_space(self, params):
        return Discrete(2)

    def reset_env(self, rng, params):
        return jnp.zeros((2, 1)), jnp.zeros((), jnp.int32)

    def step_env(self, rng, state, action, params):
        time = state + 1
        hit = (action == 1) & (time % 2 == 1)
        info = {
            "hits": jnp.sum(hit),
            "hit": jnp.where(action == 1, hit, jnp.nan),
            "thrown": action.astype(jnp.float32),
            "table": jnp.zeros((2, 2)),
        }
        truncated = time >= jnp.array([3, 2])
        return jnp.zeros((2, 1)), time, jnp.zeros(2), jnp.zeros(2, bool), truncated, info


def agent_of(env):
    return ja.IPPO(env, None, tiny(n_steps=1))


def metrics_of(success, action):
    """Evaluate policies that always take the action."""
    agent = agent_of(Baskets(success))

    def act(rng, observation, memory):
        return jnp.full(observation.features.shape[:2], action, jnp.int32), memory

    play = functools.partial(play_episodes, agent.environments, act, lambda _: ())
    return jax.device_get(play(jax.random.key(0), 2).as_metrics(agent.environments.success))


def test_the_last_steps_info_is_the_success_unless_said_otherwise():
    metrics = metrics_of(ja.Success("hits", "hits", "count"), 1)
    np.testing.assert_array_equal(metrics["success"], [2, 2])  # at the third step both still throw
    np.testing.assert_array_equal(metrics["info_hits"], metrics["success"])


def test_infos_of_all_steps_are_summed():
    metrics = metrics_of(ja.Success("hits", "hits", "count", "sum"), 1)
    np.testing.assert_array_equal(metrics["success"], [4.0, 4.0])  # at the steps 1 and 3


def test_the_infos_of_an_actor_are_summed_until_its_end():
    metrics = metrics_of(ja.Success("thrown", "throws", "count", "sum"), 1)
    np.testing.assert_array_equal(metrics["success"], [2.5, 2.5])  # 3 and 2


def test_infos_are_averaged_over_the_steps_that_have_one():
    success = ja.Success("hit", "throws that hit", "share", "mean", others=("thrown",))
    thrown = metrics_of(success, 1)
    np.testing.assert_allclose(thrown["success"], [(2 / 3 + 1 / 2) / 2] * 2)
    np.testing.assert_array_equal(thrown["info_thrown"], [1.0, 1.0])
    idle = metrics_of(success, 0)
    assert np.isnan(idle["success"]).all()
    assert success_of_episodes(success, idle)["mean"] is None


def test_an_environment_without_success_has_no_such_metric():
    assert "success" not in metrics_of(None, 1)


def test_training_and_evaluation_return_the_success():
    agent = agent_of(Baskets(ja.Success("hits", "hits", "count", "sum")))
    runner, metrics = agent.train(jax.random.key(0), ja.HyperParameters())
    assert metrics["success"].shape == (2, 2)  # evaluations, episodes
    np.testing.assert_array_equal(metrics["success"], metrics["info_hits"])
    assert agent.eval(jax.random.key(0), 3, runner=runner)["success"].shape == (3,)
    assert agent.eval_random(jax.random.key(0), 3)["success"].shape == (3,)


@pytest.mark.parametrize(
    ("success", "error", "message"),
    [
        (ja.Success("hoops", "hoops"), ValueError, r"'hoops'.*'hit', 'hits', 'thrown'"),
        (ja.Success("table", "tables"), ValueError, "'table', which is no number"),
        (ja.Success("hits", "hits", others=("misses",)), ValueError, "'misses'"),
        (ja.Success("hits", "hits", "percent"), ValueError, "kind='percent'.*'share', 'count'"),
        (ja.Success("hits", "hits", of_episode="all"), ValueError, "of_episode='all'.*'sum'"),
        (ja.Success("hits", "hits", others="hit"), TypeError, "a tuple of names"),
        ("hits", TypeError, r"success is 'hits'; give a jaxagents.Success"),
    ],
)
def test_a_wrong_declaration_is_refused_when_the_agent_is_built(success, error, message):
    with pytest.raises(error, match=message):
        agent_of(Baskets(success))


def test_a_sides_games_are_won_drawn_or_lost():
    env = Pennies(n_steps=1)  # actor 0 earns 1 if both choose the same, actor 1 otherwise
    agent = agent_of(ja.Side(env, [0], [heads]))
    success = agent.environments.success
    assert (success.title, success.others) == ("games won", ("games_drawn", "games_lost"))
    metrics = jax.device_get(agent.eval_random(jax.random.key(0), 16))
    won = metrics["returns"][:, 0] > 0
    assert 0 < won.sum() < 16
    np.testing.assert_array_equal(metrics["success"], won)
    np.testing.assert_array_equal(metrics["info_games_lost"], ~won)
    np.testing.assert_array_equal(metrics["info_games_drawn"], np.zeros(16))


def test_a_side_is_judged_by_its_environments_own_success():
    env = Baskets(ja.Success("thrown", "throws", "count", "sum"))
    agent = agent_of(ja.Side(env, [1], [heads]))
    assert agent.environments.success == env.success
    success = agent.eval_random(jax.random.key(0), 16)["success"]
    assert float(success.max()) == 2.0  # of actor 1, who has two steps


def test_partners_of_one_team_win_no_games():
    env = Baskets(None)
    env.teams = (0, 0)
    assert agent_of(ja.Side(env, [1], [heads])).environments.success is None


@pytest.mark.slow
def test_agents_that_train_together_win_games():
    env = Pennies(n_steps=1)
    config = ja.AgentConfig(n_steps=1, n_evals=4, progress_bar=False)
    agents = {str(i): ja.IPPO(ja.Side(env, [i]), None, config) for i in (0, 1)}
    results = ja.train_together(agents, jax.random.key(0), ja.HyperParameters())
    first, second = (np.asarray(results[name][1]["success"]) for name in agents)
    assert first.shape == (2, 4)
    np.testing.assert_array_equal(first, 1 - second)
