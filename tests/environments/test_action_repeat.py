"""Actions that last for several steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.environments.protocol import ACTS_NEXT
from jaxagents.visual.renderers.registry import make_scene
from tests.agents import SMALL, opinionated_runner


class Relay(ja.Environment):
    """The first of two runners ends after 3 steps, the second, at the time limit, after 5.

    Steps 1, 2, 3, ... earn 1, 2, 3, ... and an actor earns ten times as much.
    """

    n_actors = 2
    time_limits = "terminal"

    def __init__(self, success=None, rewards_after_death=False):
        self.success = success
        self.rewards_after_death = rewards_after_death

    def max_episode_steps(self, params):
        return 5

    def action_space(self, params):
        return ja.Discrete(2)

    def reset_env(self, rng, params):
        step = jnp.zeros((), jnp.int32)
        return ja.Observation(jnp.zeros((2, 1)), elapsed=step), step

    def step_env(self, rng, state, action, params):
        step = state + 1
        scores = step * jnp.array([1.0, 10.0])
        infos = {
            "step": step,
            "scores": scores,
            "even": jnp.where(step % 2 == 0, scores, jnp.nan),
            "shaped_reward": -scores,
            "constant": 7.0,
            "of another shape": jnp.zeros(5),
            "nested": {"step": step},
        }
        observation = ja.Observation(jnp.full((2, 1), step, jnp.float32), elapsed=step)
        terminated = jnp.array([True, False]) & (step >= 3)
        truncated = jnp.array([False, True]) & (step >= 5)
        return observation, step, scores, terminated, truncated, infos


def play(env, n_actions):
    """Return what the steps of one episode return, each flattened to a dictionary."""
    step = jax.jit(env.step_env)
    observation, state = env.reset_env(jax.random.key(0), None)
    assert observation.elapsed == 0
    found = []
    for _ in range(n_actions):
        observation, state, reward, terminated, truncated, infos = step(
            jax.random.key(0), state, jnp.zeros(2, jnp.int32), None
        )
        found.append(
            {
                "features": observation.features[0, 0],
                "elapsed": observation.elapsed,
                "state": state,
                "reward": reward,
                "terminated": terminated,
                "truncated": truncated,
            }
            | infos
        )
    return found


def check(found, **expected):
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_rewards_are_summed_until_the_actor_or_the_episode_ends():
    first, second, third = play(ja.ActionRepeat(Relay(), 2), 3)
    check(first, state=2, features=2, reward=[1 + 2, 10 + 20], terminated=[False, False])
    check(second, state=4, features=4, reward=[3, 30 + 40], terminated=[True, False])
    check(third, state=5, features=5, terminated=[True, False], truncated=[False, True])
    assert third["reward"][1] == 50
    for found in (first, second):
        np.testing.assert_array_equal(found["shaped_reward"], -found["reward"])
        check(found, truncated=[False, False])


def test_rewards_after_death_are_earned_where_the_environment_gives_them():
    (found,) = play(ja.ActionRepeat(Relay(rewards_after_death=True), 4), 1)
    check(found, reward=[1 + 2 + 3 + 4, 10 + 20 + 30 + 40])


def test_an_action_longer_than_the_episode_ends_with_it():
    (found,) = play(ja.ActionRepeat(Relay(), 8), 1)
    check(found, state=5, reward=[1 + 2 + 3, 10 + 20 + 30 + 40 + 50], truncated=[False, True])


def test_infos_are_those_of_an_actors_last_step():
    (found,) = play(ja.ActionRepeat(Relay(), 8), 1)
    check(found, step=5, scores=[3, 50], constant=7)


@pytest.mark.parametrize(
    ("of_episode", "scores", "even"),
    [
        ("sum", [1 + 2 + 3, 10 + 20 + 30 + 40], [2, 20 + 40]),
        ("mean", [2, 25], [2, 30]),
        ("last", [3, 40], [np.nan, 40]),
    ],
)
def test_infos_of_the_success_are_combined_as_those_of_an_episode(of_episode, scores, even):
    success = ja.Success("scores", "score", "count", of_episode, others=("even",))
    (found,) = play(ja.ActionRepeat(Relay(success), 4), 1)
    check(found, scores=scores, even=even, step=4)


def test_infos_count_until_the_episode_ends_where_rewards_do():
    (found,) = play(ja.ActionRepeat(Relay(rewards_after_death=True), 8), 1)
    check(found, scores=[5, 50])
    total = ja.Success("scores", "score", "count", "sum")
    (found,) = play(ja.ActionRepeat(Relay(total, rewards_after_death=True), 8), 1)
    check(found, scores=[1 + 2 + 3 + 4 + 5, 10 + 20 + 30 + 40 + 50])


def test_an_info_that_no_step_has_is_nan():
    success = ja.Success("even", "score", "count", "sum")
    (found,) = play(ja.ActionRepeat(Relay(success), 1), 1)
    check(found, even=[np.nan, np.nan])


def test_time_is_counted_in_actions():
    env = ja.ActionRepeat(Relay(), 2)
    assert env.max_episode_steps(None) == 3
    assert [int(found["elapsed"]) for found in play(env, 3)] == [1, 2, 3]


def test_an_action_of_one_step_changes_nothing_but_leaves_out_what_is_not_reported():
    for own, repeated in zip(play(Relay(), 5), play(ja.ActionRepeat(Relay(), 1), 5), strict=True):
        left_out = {name: own.pop(name) for name in ("of another shape", "nested")}
        check(repeated, **own)
        assert not left_out.keys() & repeated.keys()


def test_a_repeated_cart_pole_is_the_same_as_by_hand():
    env, params = ja.make("gymnax/CartPole-v1")
    repeated, _ = ja.make(
        "gymnax/CartPole-v1", wrappers=[{"jaxagents:ActionRepeat": {"n_steps": 4}}]
    )
    _, state = env.reset(jax.random.key(1), params)
    push = jnp.ones(1, jnp.int32)
    step, by_hand = jax.jit(env.step_env), state
    for _ in range(4):
        expected, by_hand, *_ = step(jax.random.key(2), by_hand, push, params)
    found, _, reward, *_ = jax.jit(repeated.step_env)(jax.random.key(2), state, push, params)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert reward == 4


@pytest.mark.slow
def test_episodes_and_their_pictures_are_counted_in_actions():
    env, params = ja.make(
        "jaxmarl/MPE_simple_spread_v3", wrappers=[{"jaxagents:ActionRepeat": {"n_steps": 5}}]
    )
    agent = ja.IPPO(env, params, ja.AgentConfig(n_steps=1, actor_layers=SMALL, critic_layers=SMALL))
    runner = opinionated_runner(agent)
    (episode,) = agent.record(jax.random.key(1), n_evals=1, runner=runner)
    assert episode.reward.shape == (6, 3)  # of 26 steps
    scene = make_scene(env, params, episode)
    assert [actor.name for actor in scene.actors] == ["agent_0", "agent_1", "agent_2"]
    assert scene.seconds_per_step == 5 * make_scene(env.env, params, episode).seconds_per_step


class Revolving(Relay):
    """The first actor comes back."""

    def step_env(self, rng, state, action, params):
        *rest, infos = super().step_env(rng, state, action, params)
        return *rest, infos | {ACTS_NEXT: jnp.ones(2, bool)}


class Masked(Relay):
    """The second action is available at the start only."""

    def reset_env(self, rng, params):
        observation, state = super().reset_env(rng, params)
        return observation._replace(action_mask=jnp.ones((2, 2), bool)), state


class TakingTurns(Relay):
    """The first actor begins."""

    def reset_env(self, rng, params):
        observation, state = super().reset_env(rng, params)
        return observation._replace(has_turn=jnp.array([True, False])), state


class Tenfold(Relay):
    """Earns ten times as much."""

    def step(self, *arguments):
        observation, state, reward, *rest = super().step(*arguments)
        return observation, state, 10 * reward, *rest


class Together(Relay):
    """Both actors earn one number, and both end at once."""

    def step_env(self, rng, state, action, params):
        observation, step, scores, _, truncated, infos = super().step_env(
            rng, state, action, params
        )
        return observation, step, scores.sum(), truncated, truncated, infos


def test_what_cannot_be_repeated_is_refused():
    with pytest.raises(TypeError, match=r"needs a jaxagents\.Environment, and object is none"):
        ja.ActionRepeat(object(), 2)
    for n_steps in (0, 1.5, True, "2"):
        with pytest.raises(ValueError, match=r"it must be a whole number of at least 1"):
            ja.ActionRepeat(Relay(), n_steps)
    with pytest.raises(ValueError, match="actors of Revolving come back within an episode"):
        play(ja.ActionRepeat(Revolving(), 2), 1)
    with pytest.raises(ValueError, match="in Masked actions are masked, so its actions cannot"):
        play(ja.ActionRepeat(Masked(), 2), 1)
    with pytest.raises(ValueError, match="in TakingTurns actors take turns, so its actions"):
        play(ja.ActionRepeat(TakingTurns(), 2), 1)
    with pytest.raises(TypeError, match=r"Together\.step_env returns reward of shape \(\); it"):
        play(ja.ActionRepeat(Together(), 2), 1)
    with pytest.raises(TypeError, match="Tenfold overrides step or reset, which ActionRepeat does"):
        ja.ActionRepeat(Tenfold(), 2)


def test_wrappers_of_environments_in_jax_have_names_too():
    with pytest.raises(ValueError, match=r"the wrapper jaxagents:ActionRepeat raised .* n_steps=0"):
        ja.make("gymnax/CartPole-v1", wrappers=[{"jaxagents:ActionRepeat": {"n_steps": 0}}])
    with pytest.raises(ValueError, match=r"jaxagents has no wrapper 'ActionRepeats'.*ActionRepeat"):
        ja.make("gymnax/CartPole-v1", wrappers=["jaxagents:ActionRepeats"])
