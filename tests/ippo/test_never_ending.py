"""Evaluations whose episodes never end."""

import dataclasses
import functools
import logging
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces

import jaxagents as ja
from jaxagents.compiler import waiting
from tests.agents import FAST
from tests.environments.host.probes import Echo

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
UNKNOWN_LIMIT = pytest.mark.filterwarnings("ignore:Heater has no known time limit")


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
        "Heater has no known time limit, and none of the 32 steps that were played at "
        "construction ended an episode; evaluations wait for the end of every episode. If episodes "
        "may never end, set AgentConfig(max_episode_steps=...)."
    )


@pytest.mark.parametrize(
    ("n_steps", "changes"),
    [(32, {}), (33, {"max_episode_steps": 40}), (33, {"n_evals": 0})],
)
def test_other_environments_are_not(n_steps, changes):
    _agent(n_steps, **changes)  # warnings are errors


@pytest.mark.slow
@UNKNOWN_LIMIT
def test_ctrl_c_ends_an_evaluation_that_never_ends():
    heater = functools.partial(Heater, None)
    with (
        ja.HostEnvironment(heater, n_workers=0) as env,
        pytest.raises(KeyboardInterrupt),
    ):
        _train(env)


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("play", ["record", "eval_random"])
def test_so_does_all_that_plays_whole_episodes(play, monkeypatch, caplog):
    monkeypatch.setattr(waiting, "_SECONDS_TO_REPORT", 0.05)  # of 30 steps of 2 * 0.01 s
    agent = _agent(30)
    collected = {"runner": agent.init(jax.random.key(0), ja.HyperParameters(gamma=0.5))}
    with caplog.at_level(logging.WARNING), agent.env:
        getattr(agent, play)(jax.random.key(1), **collected if play == "record" else {})
    (message,) = [each.getMessage() for each in caplog.records if "minute" in each.getMessage()]
    assert "has waited a minute for the last of its" in message


class Slow(Echo):
    """Echo whose steps take a hundredth of a second."""

    def step(self, actions):
        time.sleep(0.01)
        return super().step(actions)


@pytest.mark.slow
def test_so_do_agents_on_the_sides_of_a_host_environment(monkeypatch, caplog):
    monkeypatch.setattr(waiting, "_SECONDS_TO_REPORT", 0.02)  # of 3 steps of 2 * 0.01 s
    with caplog.at_level(logging.WARNING), ja.HostEnvironment(Slow, n_workers=0) as env:
        agents = {
            name: ja.DiscreteIPPO(ja.Side(env, [i]), None, CONFIG) for i, name in enumerate("ab")
        }
        ja.train_together(agents, jax.random.key(0), FAST)
    messages = [each.getMessage() for each in caplog.records if "minute" in each.getMessage()]
    assert len(messages) == 2  # before and after the update
    assert messages[0].startswith("The evaluation has waited a minute for the last of its 2 epis")


DIVIDED = """
import logging, sys, jax
import jaxagents as ja
from jaxagents.compiler import waiting
from tests.agents import FAST
from tests.environments.host.probes import Echo
from tests.agents import FAST, tiny
from tests.probes import Walk
waiting._SECONDS_TO_REPORT = 0.0
logging.basicConfig(stream=sys.stdout, format="%(message)s")
env = Walk((10**6, 10**6), 10**5)
ja.DiscreteIPPO(env, None, tiny(devices=2, n_steps=1, n_evals=2)).train(jax.random.key(0), FAST)
"""


@pytest.mark.slow
def test_so_does_a_run_on_several_devices():
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    command = [sys.executable, "-c", DIVIDED]
    done = subprocess.run(command, env=os.environ | flags, capture_output=True, text=True)
    assert "The evaluation after 1 updates has waited a minute" in done.stdout, done.stderr


INTERRUPTED = """
import signal, sys
import jaxagents as ja
from jaxagents.cli import main
from tests.ippo.test_never_ending import Later

ja.register_environment(
    "later", lambda: ja.HostEnvironment(Later, n_workers=1, explored_steps=0)
)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main.main(["train", *sys.argv[1:]]))
"""
CONFIGURED = """
name: later
env: later
agent: {n_steps: 2, batch_size: 2, minibatch_size: 2, rollout_length: 2, n_evals: 2,
        eval_frequency: 1, progress_bar: false}
"""


class Later(Heater):
    """Ends after two steps; from its fourth episode on, never."""

    def __init__(self):
        super().__init__(2)
        self._n_episodes = 0

    def reset(self, *, seed=None, options=None):
        self._n_episodes += 1
        self._n_steps = 2 if self._n_episodes < 4 else 10**9
        return super().reset(seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_second_signal_ends_training_within_an_evaluation_that_never_ends(name, tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIGURED)
    number = getattr(signal, name)
    command = [sys.executable, "-c", INTERRUPTED, "config.yaml"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, **pipes, cwd=tmp_path, env=environment) as process:
        lines = []
        while not lines or not lines[-1].lstrip().startswith("1 "):  # the second evaluation
            lines.append(process.stdout.readline())
            assert lines[-1], lines
        time.sleep(2)  # the third, after the last update, does not end
        os.kill(process.pid, number)
        while "ends it at once" not in lines[-1]:
            lines.append(process.stdout.readline())
            assert lines[-1], lines
        began = time.monotonic()
        os.kill(process.pid, number)
        output = process.communicate(timeout=60)[0]
    assert time.monotonic() - began < 4
    assert process.returncode == 128 + number
    assert "interrupted; resume with: jaxagents resume" in output
