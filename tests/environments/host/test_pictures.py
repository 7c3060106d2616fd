"""Recordings of host environments that draw themselves."""

import functools

import jax
import numpy as np
import pytest
from PIL import Image

import jaxagents as ja
from jaxagents.environments.host import HostEnvironmentError
from jaxagents.visual.replay import write_replay
from tests.environments.host.probes import Drawn
from tests.environments.host.processes import workers

N_STEPS = 4


def agent_of(*, drawn, **settings):
    """Return an agent of an environment that only draws itself for recordings."""
    make = functools.partial(Drawn, limit=N_STEPS, **settings)
    env = ja.HostEnvironment(make, make_drawn=functools.partial(make, drawn), n_workers=1)
    config = ja.AgentConfig(
        n_steps=1, batch_size=2, minibatch_size=2, n_evals=3, progress_bar=False
    )
    agent = ja.DiscreteIPPO(env, None, config)
    return env, agent, agent.init(jax.random.key(0), ja.HyperParameters())


def test_recordings_show_every_state_as_the_environment_draws_it(tmp_path):
    env, agent, runner = agent_of(drawn="rgb_array")
    with env:
        before = workers()
        first, second = agent.record(jax.random.key(1), 2, greedy=False, runner=runner)
        assert workers() == before
        returns = agent.eval(jax.random.key(1), 3, greedy=False, runner=runner)["returns"]

    for episode, own_return in zip((first, second), returns, strict=False):
        assert episode.states.shape == (1 + N_STEPS, 10, 4, 3)
        heights = episode.observation.features[:, 0, 0]
        np.testing.assert_array_equal(episode.states[:, 0, 0, 0], np.round(heights))
        np.testing.assert_array_equal(episode.reward.sum(axis=0), own_return)
    assert not np.array_equal(first.action, second.action)

    (path,) = write_replay(env, None, [first], tmp_path)
    with Image.open(path) as film:
        assert (film.n_frames, film.info["duration"]) == (1 + N_STEPS, 50)
        film.seek(N_STEPS)
        middle = film.convert("RGB").getpixel((180, 100))
    assert max(abs(np.subtract(middle, first.states[-1, 0, 0]))) <= 2


@pytest.mark.parametrize("drawn", [None, "human"])
def test_environments_that_do_not_draw_themselves_are_recorded_without_pictures(drawn, tmp_path):
    env, agent, runner = agent_of(drawn=drawn)
    with env:
        (episode,) = agent.record(jax.random.key(1), runner=runner)
    assert episode.states is None
    assert write_replay(env, None, [episode], tmp_path)[0].exists()


def test_wide_pictures_are_made_smaller():
    env, _, _ = agent_of(drawn="rgb_array", width=3600)
    with env:
        assert env.picture == ((1, 360, 3), "uint8")


def test_an_environment_whose_picture_fails_at_once_is_recorded_without(caplog):
    env, agent, runner = agent_of(drawn="rgb_array", breaks_at=-1.0)
    with env:
        (episode,) = agent.record(jax.random.key(1), runner=runner)
    assert episode.states is None
    assert "cannot be drawn: drew ndarray of shape (10, 4)" in caplog.text


def test_a_picture_that_fails_later_is_a_fault():
    env, agent, runner = agent_of(drawn="rgb_array", breaks_at=1.5)
    with env, pytest.raises(HostEnvironmentError, match=r"drew ndarray of shape \(10, 4\)"):
        agent.record(jax.random.key(1), 3, greedy=False, runner=runner)
    assert workers() == set()
