"""Environments that change a part of another, and JaxNav's observations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.visual.renderers.registry import make_scene
from tests.agents import SMALL, opinionated_runner


class Doubled(ja.EnvironmentWrapper):
    """Shows everything twice as large."""

    def observe(self, observation):
        return 2 * observation


def test_a_wrapper_changes_what_actors_observe_and_nothing_else():
    env, params = ja.make("gymnax/CartPole-v1")
    wrapped = Doubled(env)
    (own, state), (seen, its_state) = (
        each.reset(jax.random.key(0), params) for each in (env, wrapped)
    )
    np.testing.assert_array_equal(seen, 2 * own)
    push = jnp.ones(1, jnp.int32)
    own, _, *expected, own_infos = env.step(jax.random.key(1), state, push, params)
    seen, _, *found, infos = wrapped.step(jax.random.key(1), its_state, push, params)
    np.testing.assert_array_equal(seen, 2 * own)
    np.testing.assert_array_equal(found, expected)
    final = own_infos["final_observation"]
    np.testing.assert_array_equal(infos["final_observation"], 2 * final)
    assert wrapped.max_episode_steps(params) == env.max_episode_steps(params) == 500


class Replaced(ja.Environment):
    """In each step another actor takes the place of one that has seen 5, and sees 6."""

    n_actors = 1

    def action_space(self, params):
        return ja.Discrete(2)

    def reset_env(self, rng, params):
        return jnp.full((1, 1), 5.0), jnp.int32(0)

    def step_env(self, rng, state, action, params):
        seen_last, ended = jnp.full((1, 1), 5.0), jnp.ones(1, bool)
        infos = {"acts_next": ended, "final_observation": seen_last}
        return seen_last + 1, state, jnp.ones(1), ~ended, ended, infos


def test_what_a_replaced_actor_saw_last_is_changed_too():
    env = Doubled(Replaced())
    _, state = env.reset(jax.random.key(0))
    observation, *_, infos = env.step(jax.random.key(0), state, jnp.zeros(1, jnp.int32))
    assert (observation, infos["final_observation"]) == (12, 10)


def test_entities_are_lost_where_observations_change():
    env, params = ja.make("jaxmarl/MPE_simple_spread_v3")
    assert ja.ActionRepeat(env, 2).entities(params) == env.entities(params) != {}
    assert Doubled(env).entities(params) is None


def test_a_wrapped_environment_is_drawn_as_before():
    env, params = ja.make("gymnax/CartPole-v1")
    agent = ja.IPPO(
        Doubled(env), params, ja.AgentConfig(n_steps=1, actor_layers=SMALL, critic_layers=SMALL)
    )
    (episode,) = agent.record(jax.random.key(1), n_evals=1, runner=opinionated_runner(agent))
    scene, own = (make_scene(each, params, episode) for each in (agent.env, env))
    np.testing.assert_array_equal(scene.draw(0), own.draw(0))


def test_robots_observe_how_near_obstacles_are_and_a_direction_that_does_not_jump():
    env, params = ja.make(
        "jaxmarl/jaxnav", wrappers=["jaxagents:JaxNavFeatures"], lidar_num_beams=4
    )
    # Ranges of 0.3, 0.6, 1.2 and 6 m, the radius being 0.3 m; a goal straight behind.
    lidar = np.array([0.3, 0.6, 1.2, 6.0]) / 6 - 0.5
    speeds, distance, angle, share = [0.5, 0.1], -0.2, 1.0, 0.0
    features = jnp.array([[*lidar, *speeds, distance, angle, share]] * 2)
    for seen in env.observe(ja.Observation(features)).features:
        nearness = [1, np.exp(-1), np.exp(-3), np.exp(-19)]
        expected = [*lidar, *nearness, *speeds, distance, 0, -1, share]
        np.testing.assert_allclose(seen, expected, atol=1e-6)
    observation, _ = env.reset(jax.random.key(0), params)
    assert observation.features.shape == (2, 14)


def test_the_wrapper_of_jaxnav_refuses_other_environments():
    with pytest.raises(ValueError, match="JaxNavFeatures needs jaxmarl/jaxnav itself, and Gymnax"):
        ja.make("gymnax/CartPole-v1", wrappers=["jaxagents:JaxNavFeatures"])
    repeat = {"jaxagents:ActionRepeat": {"n_steps": 5}}
    with pytest.raises(ValueError, match="and ActionRepeat is another; name this wrapper first"):
        ja.make("jaxmarl/jaxnav", wrappers=[repeat, "jaxagents:JaxNavFeatures"])
