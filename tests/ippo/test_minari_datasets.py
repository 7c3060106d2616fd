"""Minari's datasets: real ones, made here, without the network."""

import re
import sys

import numpy as np
import pytest
from gymnasium import spaces

import jaxagents as ja
from jaxagents.environments.protocol import Environment
from jaxagents.environments.spaces import Box, Discrete
from tests.agents import begin, shared_agent
from tests.environments.host.probes import Stairs

minari = pytest.importorskip("minari")
pytestmark = pytest.mark.filterwarnings("ignore:env_spec is None:UserWarning")

STEPS = 24  # of a rollout: 6 steps in each of 4 environments
METADATA = {
    "eval_env": "CartPole-v1",
    "algorithm_name": "random",
    "author": "the tests",
    "author_email": "none",
    "code_permalink": "none",
    "description": "steps",
}


TWO = Discrete(2)


class Height(Environment):
    """Has the spaces of Stairs, or of another environment."""

    n_actors = 1

    def __init__(self, n_features=2, space=TWO, n_actors=1):
        self.n_actors, self._space, self._n_features = n_actors, space, n_features

    def action_space(self, params):
        return self._space

    def reset_env(self, rng, params):
        return np.zeros((self.n_actors, self._n_features), np.float32), np.zeros(())

    def step_env(self, rng, state, action, params):
        over = np.zeros(self.n_actors, bool)
        observation = np.zeros((self.n_actors, self._n_features), np.float32)
        return observation, state, np.zeros(self.n_actors, np.float32), over, over, {}


HEIGHT = Height()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))


def collect(env, actions, dataset_id="stairs/test-v0"):
    """Play the actions, beginning anew where an episode ends, and store them as a dataset."""
    episodes, over = [], True
    for action in actions:
        if over:
            observation, _ = env.reset(seed=0)
            episodes.append(
                minari.data_collector.EpisodeBuffer(
                    observations=[observation], actions=[], infos={}
                )
            )
        observation, reward, terminated, truncated, _ = env.step(action)
        over = terminated or truncated
        episode = episodes[-1]
        episode.observations.append(observation)
        episode.actions.append(action)
        episode.rewards.append(reward)
        episode.terminations.append(terminated)
        episode.truncations.append(truncated)
    return store(dataset_id, episodes, env.observation_space, env.action_space)


def store(dataset_id, episodes, observation_space, action_space):
    return minari.create_dataset_from_buffers(
        dataset_id,
        episodes,
        observation_space=observation_space,
        action_space=action_space,
        **METADATA,
    )


@pytest.mark.slow
def test_episodes_follow_each_other_with_their_ends():
    """Upwards to the top in 3 steps, or not in 4, which is the limit.

    3 episodes of 3 steps, then 4 of 4, and 2 steps that are left off: 27 steps in 2 rollouts.
    """
    dataset = collect(Stairs(top=3.0, limit=4), [1] * 9 + [0] * 16 + [1] * 2)
    agent = shared_agent(HEIGHT)
    rollouts = ja.rollouts_from_minari(dataset, agent)
    assert len(rollouts) == 2
    first, second = rollouts
    assert first.observation.features.shape == (6, 4, 1, 2)

    def in_order(name, rollouts=rollouts):
        """Lay the steps out again: environment by environment."""
        each = [np.asarray(getattr(rollout, name))[..., 0].T.ravel() for rollout in rollouts]
        return np.concatenate(each)

    steps = np.arange(2 * STEPS)
    np.testing.assert_array_equal(in_order("active"), steps < 27)
    np.testing.assert_array_equal(np.flatnonzero(in_order("terminated")), [2, 5, 8])
    np.testing.assert_array_equal(np.flatnonzero(in_order("truncated")), [12, 16, 20, 24, 26])
    np.testing.assert_array_equal(in_order("action")[:27], [1] * 9 + [0] * 16 + [1] * 2)
    np.testing.assert_array_equal(in_order("reward")[:27], [1] * 9 + [0] * 16 + [1] * 2)
    # Heights before the first four steps, and after, before the reset.
    np.testing.assert_array_equal(first.observation.features[:4, 0, 0, 0], [0, 1, 2, 0])
    np.testing.assert_array_equal(first.final_observation.features[:4, 0, 0, 0], [1, 2, 3, 1])
    # The first environment's 6 steps are two episodes; a third begins after its reset.
    np.testing.assert_array_equal(first.last_observation.features[0, 0], [0, 0])
    # The third environment's last step, the 18th, is the first of an episode that goes on.
    np.testing.assert_array_equal(first.last_observation.features[2, 0], [0, 1])
    assert first.log_prob is None

    _, metrics = agent.pretrain(begin(agent), rollouts, n_epochs=2)
    assert np.isfinite(metrics["cloning_loss"]).all()
    loaded = ja.rollouts_from_minari("stairs/test-v0", agent)
    np.testing.assert_array_equal(loaded[1].reward, second.reward)


def test_actions_are_counted_from_zero_and_squashed_ones_undone():
    dataset = collect_buffers(spaces.Discrete(2, start=5), [5, 6])
    (rollout,) = ja.rollouts_from_minari(dataset, shared_agent(HEIGHT))
    assert rollout.action[:2, 0, 0].tolist() == [0, 1]

    space = spaces.Box(-2.0, 2.0, (1,), np.float32)
    actions = np.array([[1.0], [2.0]], np.float32)
    real = Height(space=Box(-2.0, 2.0, (1,)))
    dataset = collect_buffers(space, actions, "stairs/real-v0")
    for squash, expected in ((False, [1.0, 2.0]), (True, np.arctanh([0.5, 0.9998]))):
        agent = shared_agent(real, ja.ContinuousIPPO, squash=squash)
        (rollout,) = ja.rollouts_from_minari(dataset, agent)
        np.testing.assert_allclose(rollout.action[:2, 0, 0, 0], expected, rtol=1e-4)


def collect_buffers(space, actions, dataset_id="stairs/five-v0"):
    n_steps = len(actions)
    buffer = minari.data_collector.EpisodeBuffer(
        observations=list(np.zeros((n_steps + 1, 2), np.float32)),
        actions=list(actions),
        rewards=[0.0] * n_steps,
        terminations=[False] * n_steps,
        truncations=[False] * (n_steps - 1) + [True],
        infos={},
    )
    return store(dataset_id, [buffer], spaces.Box(0.0, np.inf, (2,), np.float32), space)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (
            Height(n_actors=2),
            "the dataset stairs/test-v0 has one actor, and the agent's environment 2; build "
            "Rollouts of several actors from arrays.",
        ),
        (
            Height(space=Discrete(3)),
            "the dataset stairs/test-v0 has actions in Discrete(2), and the agent's environment in "
            "Discrete(3).",
        ),
        (
            Height(n_features=5),
            "the dataset stairs/test-v0 has observations of shape (2,), and the agent's "
            "environment of (5,).",
        ),
    ],
)
def test_datasets_of_other_environments_are_refused(env, message):
    dataset = collect(Stairs(limit=2), [1, 1])
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ja.rollouts_from_minari(dataset, shared_agent(env))


def test_without_minari_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "minari", None)
    message = (
        "Minari's datasets need minari, which is not installed: pip install "
        '-c constraints.txt -e ".[minari]" in the repository of jaxagents.'
    )
    with pytest.raises(ImportError, match=f"^{re.escape(message)}$"):
        ja.rollouts_from_minari("stairs/test-v0", shared_agent(HEIGHT))


def test_what_is_no_dataset_is_refused():
    with pytest.raises(TypeError, match=r"3 is no dataset; pass a minari.MinariDataset"):
        ja.rollouts_from_minari(3, shared_agent(HEIGHT))
