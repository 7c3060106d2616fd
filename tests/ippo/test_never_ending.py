"""Evaluations whose episodes never end."""

import dataclasses
import functools
import logging
import os
import signal
import time
import warnings

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces

import jaxagents as ja
from jaxagents.compiler import waiting

CTRL_C = 60  # beyond the steps that are played at construction


class Heater(gymnasium.Env):
    """Ends after some steps, or never and then sends Ctrl-C to the process at a later step."""

    observation_space, action_space = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)

    def __init__(self, n_steps: int | None):
        self._n_steps = n_steps

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self._time += 1
        time.sleep(0.01)
        if self._n_steps is None and self._time == CTRL_C:
            os.kill(os.getpid(), signal.SIGINT)
        return np.zeros(1, np.float32), 1.0, self._time == self._n_steps, False, {}


CONFIG = ja.AgentConfig(
    n_steps=1, batch_size=2, minibatch_size=2, rollout_length=2, n_evals=2, progress_bar=False
)
UNKNOWN_LIMIT = pytest.mark.filterwarnings("ignore:Heater has no time limit that is known")


def _train(env):
    ja.DiscreteIPPO(env, None, CONFIG).train(jax.random.key(0), ja.HyperParameters(gamma=0.5))


def _agent(n_steps, **changes):
    """Build an agent for a heater."""
    env = ja.HostEnvironment(functools.partial(Heater, n_steps), n_workers=0)
    return ja.DiscreteIPPO(env, None, dataclasses.replace(CONFIG, **changes))


def test_an_environment_that_may_never_end_is_warned_of_at_construction_once():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _agent(None)
    (message,) = [str(each.message) for each in caught]
    assert message == (
        "Heater has no time limit that is known, and none of the 32 steps that were played at "
        "construction ended an episode; evaluations wait for the end of every episode. If episodes "
        "may never end, set AgentConfig(max_episode_steps=...)."
    )


@pytest.mark.parametrize(
    ("n_steps", "changes"),
    [(32, {}), (33, {"max_episode_steps": 40}), (33, {"n_evals": 0})],
)
def test_other_environments_are_not(n_steps, changes):
    _agent(n_steps, **changes)  # warnings are errors


@UNKNOWN_LIMIT
def test_ctrl_c_ends_an_evaluation_that_never_ends():
    heater = functools.partial(Heater, None)
    with (
        ja.HostEnvironment(heater, n_workers=0) as env,
        pytest.raises(KeyboardInterrupt),
    ):
        _train(env)


@UNKNOWN_LIMIT
def test_an_evaluation_that_takes_a_minute_says_so(monkeypatch, caplog):
    monkeypatch.setattr(waiting, "_SECONDS_TO_REPORT", 0.2)  # of 50 steps of 2 * 0.01 s
    heater = functools.partial(Heater, 50)
    with caplog.at_level(logging.WARNING), ja.HostEnvironment(heater, n_workers=0) as env:
        _train(env)
    first, second = [each.getMessage() for each in caplog.records if "minute" in each.getMessage()]
    assert first.startswith(
        "The evaluation after 0 updates has waited a minute for the last of its 2 episodes to end."
    )
    assert "AgentConfig(max_episode_steps=...)" in first
    assert "after 1 updates" in second


@pytest.mark.parametrize("play", ["record", "eval_random"])
def test_so_does_all_that_plays_whole_episodes(play, monkeypatch, caplog):
    monkeypatch.setattr(waiting, "_SECONDS_TO_REPORT", 0.05)  # of 30 steps of 2 * 0.01 s
    agent = _agent(30)
    collected = {"runner": agent.init(jax.random.key(0), ja.HyperParameters(gamma=0.5))}
    with caplog.at_level(logging.WARNING), agent.env:
        getattr(agent, play)(jax.random.key(1), **collected if play == "record" else {})
    (message,) = [each.getMessage() for each in caplog.records if "minute" in each.getMessage()]
    assert "has waited a minute for the last of its" in message
