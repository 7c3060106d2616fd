"""Evaluations whose episodes never end."""

import functools
import logging
import os
import signal
import time

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces

import jaxagents as ja
from jaxagents.compiler import waiting


class Heater(gymnasium.Env):
    """Ends after some steps, or never and then sends Ctrl-C to the process at step 20."""

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
        if self._n_steps is None and self._time == 20:
            os.kill(os.getpid(), signal.SIGINT)
        return np.zeros(1, np.float32), 1.0, self._time == self._n_steps, False, {}


def _train(env):
    config = ja.AgentConfig(
        n_steps=1, batch_size=2, minibatch_size=2, rollout_length=2, n_evals=2, progress_bar=False
    )
    ja.DiscreteIPPO(env, None, config).train(jax.random.key(0), ja.HyperParameters(gamma=0.5))


def test_ctrl_c_ends_an_evaluation_that_never_ends():
    heater = functools.partial(Heater, None)
    with (
        ja.HostEnvironment(heater, n_workers=0) as env,
        pytest.raises(KeyboardInterrupt),
    ):
        _train(env)


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
