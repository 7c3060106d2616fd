"""Recordings of host environments that draw themselves."""

import functools

import jax
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

import jaxagents as ja
from jaxagents.environments.host import HostEnvironmentError
from jaxagents.environments.host.sharing import ArraySpec
from jaxagents.visual.replay import write_replay
from tests.environments.host.probes import Drawn, DrawnFaulty, Observed
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


@pytest.mark.slow
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


@pytest.mark.slow
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
        assert env.picture == ArraySpec((1, 360, 3), "uint8")


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


@pytest.mark.slow
def test_recordings_of_as_many_episodes_are_compiled_once():
    env, agent, runner = agent_of(drawn="rgb_array")
    with env:
        agent.record(jax.random.key(1), runner=runner)
        first = agent.player._recorders[1]
        agent.record(jax.random.key(2), runner=runner)
    assert agent.player._recorders[1] is first  # and so are its compiled programs
    assert first._environments._pool is None


def test_the_last_picture_of_an_episode_that_a_fault_truncates_is_the_latest(tmp_path):
    once = tmp_path / "once"
    make = functools.partial(DrawnFaulty, "raise", once)
    with ja.HostEnvironment(make, n_workers=1, on_worker_failure="restart") as env:
        pool = env.make_pool(2, None, has_state=False, n_drawn=1)
        pool.reset(np.zeros(2, np.uint32))
        for _ in range(3):
            pool.step(np.ones((2, 1), np.int32), np.zeros(2, np.uint32))
        once.touch()
        frame = pool.step(np.ones((2, 1), np.int32), np.zeros(2, np.uint32))
        assert frame["over"].tolist() == [True, True]
        assert frame["picture"].shape == (1, 10, 4, 3)
        np.testing.assert_array_equal(frame["picture"], 3)


@pytest.mark.slow
def test_films_of_many_frames_per_second_are_slowed_to_what_viewers_show(tmp_path):
    env, agent, runner = agent_of(drawn="rgb_array")
    env.frames_per_second = 125.0
    with env:
        path, *_ = write_replay(env, None, agent.record(jax.random.key(1), runner=runner), tmp_path)
    with Image.open(path) as film:
        assert film.info["duration"] == 20


@pytest.mark.slow
def test_an_environment_that_only_observes_its_pixels_is_replayed_by_them(tmp_path):
    image = np.zeros((6, 9, 3), np.uint8)
    image[:, :, 1] = 200
    space = spaces.Box(0, 255, image.shape, np.uint8)
    with ja.HostEnvironment(lambda: Observed(space, image), n_workers=1) as env:
        config = ja.AgentConfig(n_steps=1, batch_size=2, minibatch_size=1, progress_bar=False)
        agent = ja.DiscreteIPPO(env, None, config)
        runner = agent.init(jax.random.key(0), ja.HyperParameters())
        (episode,) = agent.record(jax.random.key(1), n_evals=1, runner=runner)
    (path,) = write_replay(env, None, [episode], tmp_path)
    with Image.open(path) as film:
        middle = film.convert("RGB").getpixel((180, 100))
    assert max(abs(np.subtract(middle, (0, 200, 0)))) <= 4
