"""`agent.view`: what an agent made of an episode that it has played."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from tests.agents import opinionated_runner, shared_agent
from tests.probes import Chords, RealReturning, RealWalk, Returning

RNG = jax.random.key(0)


def played(agent: ja.IPPOBase, runner: ja.Runner) -> ja.Episode:
    (episode,) = agent.record(RNG, n_evals=1, runner=runner)
    return episode


@pytest.mark.parametrize("options", [{"recurrent": "gru"}, {"centralized_critic": True}])
def test_a_view_is_what_the_networks_say_at_every_step(options):
    agent = shared_agent(Returning(), observe_time=False, normalize_values=True, **options)
    runner = opinionated_runner(agent)
    statistics = runner.normalizers.value._replace(mean=jnp.array([3.0]))
    runner = runner.replace(normalizers=runner.normalizers._replace(value=statistics))
    episode = played(agent, runner)
    view = agent.view(episode, runner)

    carry = agent.initial_carry() if agent.config.recurrent else None
    values, actions = [], []
    for step, begins in enumerate(episode.begins):
        observation = jax.tree.map(lambda leaf, step=step: leaf[step], episode.observation)
        if carry is not None:
            carry = agent.reset_carry(carry, begins)
        values.append(agent.value(runner, observation, carry))
        chosen = agent.policy(runner, observation, carry)
        action, carry = chosen if agent.config.recurrent else (chosen, None)
        actions.append(action)

    np.testing.assert_allclose(view.value, values, rtol=1e-4)
    np.testing.assert_array_equal(view.probabilities.argmax(axis=-1), actions)
    np.testing.assert_array_equal(episode.action, actions)
    np.testing.assert_allclose(view.probabilities.sum(axis=-1), 1.0, rtol=1e-5)
    assert view.quantiles is None


def test_lives_begin_within_an_episode_where_actors_come_back():
    agent = shared_agent(Returning(), observe_time=True)
    episode = played(agent, opinionated_runner(agent))
    expected = np.zeros((7, 2), bool)
    expected[4, 1] = expected[5, 0] = True  # the second comes back, another replaces the first
    np.testing.assert_array_equal(episode.begins, expected)
    ages = [[0, 0], [1, 1], [2, 2], [3, 3], [4, 0], [0, 1], [1, 2], [2, 3]]
    np.testing.assert_allclose(episode.observation.features[..., -1] * 7, ages, atol=1e-5)


@pytest.mark.parametrize("episode", [None, []])
def test_what_is_no_episode_is_refused(episode):
    agent = shared_agent(Returning(), observe_time=False)
    with pytest.raises(TypeError, match=f"episode is {type(episode).__name__}; pass an Episode"):
        agent.view(episode, opinionated_runner(agent))


def test_another_environments_episode_is_refused():
    agent, other = shared_agent(Returning(), observe_time=False), shared_agent(Chords())
    episode = played(other, opinionated_runner(other))
    with pytest.raises(ValueError, match=r"have shapes \[.*\], and the agent's \[.*\]; pass an"):
        agent.view(episode, opinionated_runner(agent))


def test_each_choice_has_probabilities_of_its_own():
    agent = shared_agent(Chords())
    runner = opinionated_runner(agent)
    probabilities = agent.view(played(agent, runner), runner).probabilities
    assert probabilities.shape == (1, 2, 5)
    np.testing.assert_allclose(probabilities[..., :2].sum(axis=-1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(probabilities[..., 2:].sum(axis=-1), 1.0, rtol=1e-6)
    np.testing.assert_array_equal(probabilities[..., 4], 0.0)  # masked


@pytest.mark.parametrize("squash", [False, True])
def test_likely_real_actions_lie_a_standard_deviation_around_the_most_probable(squash):
    agent = shared_agent(RealWalk(), ja.ContinuousIPPO, squash=squash)
    runner = opinionated_runner(agent)
    episode = played(agent, runner)
    view = agent.view(episode, runner)
    low, middle, high = np.moveaxis(view.quantiles, -1, 0)
    np.testing.assert_allclose(middle, episode.action, rtol=1e-4, atol=1e-6)
    assert view.probabilities is None

    space = agent.environments.space
    std = np.exp(np.clip(runner.actor.params["log_std"][0], -5.0, 2.0))
    if squash:
        scale = (space.high - space.low) / 2
        mean = np.arctanh(np.clip((middle - space.low) / scale - 1.0, -0.999999, 0.999999))
        inside = np.abs(mean) < 4  # where tanh can be undone
        expected = space.low + scale * (np.tanh(mean + std) + 1.0)
        np.testing.assert_allclose(high[inside], expected[inside], rtol=1e-3)
    else:
        inside = (middle > space.low) & (middle < space.high)
        np.testing.assert_allclose(
            (middle - low)[inside], np.minimum(std, middle - space.low)[inside], rtol=1e-4
        )
    assert inside.any()


def test_a_dimension_that_an_actor_lacks_is_nan():
    distribution = shared_agent(RealReturning(), ja.ContinuousIPPO).distribution
    params = distribution.parametrize({"log_std": jnp.zeros(1)}, jnp.zeros((2, 1)), None)
    params = params._replace(exists=jnp.array([[True], [False]]))
    quantiles = distribution.outlook(params)["quantiles"]
    np.testing.assert_array_equal(np.isnan(quantiles), [[[False] * 3], [[True] * 3]])
