"""Infos of host environments, as metrics of evaluations."""

from typing import ClassVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import jaxagents as ja
from tests.agents import SMALL, opinionated_runner

_CONFIG = ja.AgentConfig(
    n_steps=2,
    batch_size=2,
    minibatch_size=2,
    rollout_length=4,
    eval_frequency=1,
    n_evals=3,
    progress_bar=False,
    actor_layers=SMALL,
    critic_layers=SMALL,
)


class Race(gymnasium.Env):
    """Three steps; infos are the time, and at the end alone whether the race was won."""

    observation_space, action_space = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._time = 0
        return np.zeros(1, np.float32), {"time": 0}

    def step(self, action):
        self._time += 1
        is_over = self._time == 3
        info = {"time": np.int64(self._time), "name": "race", "track": np.zeros(4)}
        if is_over:
            info["is_success"] = True
        return np.zeros(1, np.float32), 1.0, is_over, False, info


class Relay:
    """PettingZoo's parallel interface: "a" runs 1 step and "b" 2; each tells its distance."""

    metadata: ClassVar = {"name": "relay"}
    possible_agents = ("a_0", "b_0")

    def observation_space(self, agent):
        return spaces.Box(-1, 1, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self._time = list(self.possible_agents), 0
        return self._each(np.zeros(1, np.float32)), self._each({})

    def step(self, actions):
        self._time += 1
        here = self.agents
        infos = {name: {"distance": 10.0 if name == "a_0" else self._time} for name in here}
        if "b_0" in here:
            infos["b_0"]["of_b"] = 7
        ends = {name: name == "a_0" or self._time == 2 for name in here}
        result = self._each(np.zeros(1, np.float32)), self._each(0.0), ends, self._each(False)
        self.agents = [name for name in here if not ends[name]]
        return *result, infos

    def _each(self, value):
        return dict.fromkeys(self.agents, value)

    def close(self):
        pass


class Late(Race):
    """A race that tells its winner only from the second episode of an environment on."""

    _n_episodes = 0

    def reset(self, *, seed=None, options=None):
        self._n_episodes += 1
        return super().reset(seed=seed)

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        info = {} if self._n_episodes == 1 else info
        return observation, reward, terminated, truncated, info


@pytest.mark.parametrize("n_workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_scalars_of_the_last_step_are_metrics(n_workers):
    with ja.HostEnvironment(Race, n_workers=n_workers) as env:
        agent = ja.DiscreteIPPO(env, None, _CONFIG)
        metrics = agent.eval(jax.random.key(0), runner=opinionated_runner(agent))
    np.testing.assert_array_equal(metrics["info_time"], [3.0] * 3)
    np.testing.assert_array_equal(metrics["info_is_success"], [1.0] * 3)
    assert not {"info_name", "info_track"} & metrics.keys()


def test_an_actors_info_is_that_of_its_own_last_step():
    with ja.HostEnvironment(Relay, n_workers=0) as env:
        agent = ja.DiscreteIPPO(env, None, _CONFIG)
        metrics = agent.eval(jax.random.key(1), runner=opinionated_runner(agent))
    np.testing.assert_array_equal(metrics["info_distance"], [6.0] * 3)  # (10 + 2) / 2
    np.testing.assert_array_equal(metrics["info_of_b"], [7.0] * 3)  # over those that have it


@pytest.mark.slow
def test_functions_of_infos_are_metrics():
    functions = {"steps_left": lambda info: 10 - info["time"], "missing": lambda info: None}
    with ja.HostEnvironment(Race, n_workers=1, infos=functions) as env:
        agent = ja.DiscreteIPPO(env, None, _CONFIG)
        metrics = agent.eval(jax.random.key(1), runner=opinionated_runner(agent))
    np.testing.assert_array_equal(metrics["info_steps_left"], [7.0] * 3)
    assert "info_missing" not in metrics


def test_infos_that_are_no_functions_are_refused():
    with pytest.raises(TypeError, match=r"infos=\('is_success',\); give a dictionary of functions"):
        ja.HostEnvironment(Race, infos=("is_success",))  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"infos\['gap'\] is 3; give a function"):
        ja.HostEnvironment(Race, infos={"gap": 3})  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
def test_an_info_that_turns_up_later_is_nan_before():
    with ja.HostEnvironment(Late, n_workers=0) as env:
        _, metrics = ja.DiscreteIPPO(env, None, _CONFIG).train(
            jax.random.key(0), ja.HyperParameters(gamma=0.5)
        )
    np.testing.assert_array_equal(metrics["info_is_success"][:, 0], [np.nan, 1.0, 1.0])


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_infos_of_vectors_are_those_of_the_last_step(mode):
    def make_vector(n_envs):
        return SyncVectorEnv([Race] * n_envs, autoreset_mode=mode)

    with ja.HostEnvironment(make_vector, vectorized=True) as env:
        agent = ja.DiscreteIPPO(env, None, _CONFIG)
        metrics = agent.eval(jax.random.key(1), runner=opinionated_runner(agent))
    np.testing.assert_array_equal(metrics["info_time"], [3.0] * 3)
    np.testing.assert_array_equal(metrics["info_is_success"], [1.0] * 3)


class Sprint(ja.Environment):
    """Actor 0 ends after one step and actor 1 after two; both tell the time."""

    n_actors = 2

    def action_space(self, params):
        return ja.Discrete(2)

    def reset_env(self, rng, params):
        return jnp.zeros((2, 1)), jnp.zeros((), jnp.int32)

    def step_env(self, rng, state, action, params):
        time = state + 1
        info = {"time": jnp.full(2, time), "pace": time * 0.5, "map": jnp.zeros(3)}
        ended = jnp.array([True, False]) | (time == 2)
        return jnp.zeros((2, 1)), time, jnp.zeros(2), ended, jnp.zeros(2, bool), info


def test_infos_of_a_jax_environments_actors_are_averaged():
    agent = ja.DiscreteIPPO(Sprint(), None, _CONFIG)
    runner = agent.init(jax.random.key(0), ja.HyperParameters(gamma=0.5))
    metrics = agent.eval(jax.random.key(1), runner=runner)
    np.testing.assert_array_equal(metrics["info_time"], [1.5] * 3)
    np.testing.assert_array_equal(metrics["info_pace"], [1.0] * 3)
    assert "info_map" not in metrics


def test_an_info_can_be_the_success():
    success = ja.Success("is_success", "races won")
    with ja.HostEnvironment(Race, n_workers=0, success=success) as env:
        agent = ja.IPPO(env, None, _CONFIG)
        metrics = agent.eval(jax.random.key(0), runner=opinionated_runner(agent))
        np.testing.assert_array_equal(metrics["success"], [1, 1, 1])


def test_infos_of_several_steps_cannot_be_the_success():
    with pytest.raises(ValueError, match=r"of_episode='sum'.*sum them in the environment"):
        ja.HostEnvironment(Race, success=ja.Success("time", "steps", "count", "sum"))
