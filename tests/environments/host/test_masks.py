"""Masks of environments outside of jax: where they are found, and which are refused."""

import functools
import itertools
import time

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import jaxagents as ja
from jaxagents.environments.host import HostEnvironmentError
from tests.agents import begin, shared_agent, tiny
from tests.environments.host.probes import Doors, Observed, Party

LATE = functools.partial(Doors, first=40, limit=50)


def vector(make_env, mode, n_envs):
    return SyncVectorEnv([make_env] * n_envs, autoreset_mode=AutoresetMode[mode])


def play(env, n_steps):
    """Play the environment's first available actions."""
    n_envs, seed = 2, np.zeros(2, np.uint32)
    pool = env.make_pool(n_envs, None, has_state=False)
    with env:
        frame, total = pool.reset(seed), 0.0
        for _ in range(n_steps):
            action = np.argmax(frame["action_mask"], -1) if "action_mask" in env.observation else 0
            frame = pool.step(np.broadcast_to(action, (n_envs, 1)).astype(np.int32), seed)
            total += float(frame["reward"].sum())
    return total


@pytest.mark.parametrize("n_workers", [0, 1])
def test_masks_that_first_come_with_a_step_are_found(n_workers):
    env = ja.HostEnvironment(Doors, n_workers=n_workers)
    assert env.observation["action_mask"].shape == (1, 3)
    assert play(env, 25) == 0


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_masks_that_first_come_with_a_vectors_step_are_found(mode):
    make = functools.partial(vector, Doors, mode)
    assert play(ja.HostEnvironment(make, vectorized=True), 25) == 0


def test_masks_of_agents_absent_at_the_reset_are_found():
    plan = [("host_0",), ("host_0",), ("host_0", "host_1")]
    party = Party(plan, ("host_0", "host_1"), masked=True)
    party._infos = lambda names: {
        name: {"action_mask": np.array([0, 1])} if name == "host_1" else {} for name in names
    }
    env = ja.HostEnvironment(lambda: party, n_workers=0)
    assert env.observation["action_mask"].shape == (2, 2)


@pytest.mark.parametrize(
    "env",
    [
        functools.partial(ja.HostEnvironment, LATE, n_workers=0),
        functools.partial(ja.HostEnvironment, LATE, n_workers=1),
        functools.partial(
            ja.HostEnvironment, functools.partial(vector, LATE, "NEXT_STEP"), vectorized=True
        ),
    ],
    ids=["local", "worker", "vector"],
)
def test_a_mask_that_comes_later_is_an_error(env):
    message = r"environment.* at step 40.* first action mask, for actor 0, .* at every reset"
    with pytest.raises(HostEnvironmentError, match=message):
        play(env(), 41)


@pytest.mark.parametrize("is_vector", [False, True])
def test_a_mask_without_any_action_for_who_acts_is_an_error(is_vector):
    doors = functools.partial(Doors, none_at=4)
    if is_vector:
        env = ja.HostEnvironment(functools.partial(vector, doors, "SAME_STEP"), vectorized=True)
    else:
        env = ja.HostEnvironment(doors, n_workers=0)
    with pytest.raises(
        HostEnvironmentError, match=r"environment 0 .*any available action.* actor 0"
    ):
        play(env, 5)


def test_at_an_episodes_end_no_action_needs_to_be_available():
    assert play(ja.HostEnvironment(functools.partial(Doors, none_at=10), n_workers=0), 12) == 0


def test_a_mask_must_leave_an_action_of_every_choice():
    box, value = spaces.Box(0, 1, (1,)), np.zeros(1, np.float32)
    env = Observed(box, value, spaces.MultiDiscrete([2, 2]), (np.ones(2), np.zeros(2)))
    with pytest.raises(ValueError, match="without any available action for actor 0"):
        ja.HostEnvironment(lambda: env)


def test_what_is_played_by_hand_shows_masks_and_the_global_state():
    party = [("host_0", "host_1", "guest_0")] * 2
    game = ja.HostEnvironment(lambda: Party(party, masked=True), n_workers=0).open()

    observation, _ = game.reset(seed=0)

    np.testing.assert_array_equal(observation.action_mask, [[0, 1, 0], [0, 1, 0], [0, 1, 1]])
    np.testing.assert_array_equal(observation.global_state, [0, 3])
    np.testing.assert_array_equal(
        game.step(np.ones(3, int)).observation.action_mask, observation.action_mask
    )


def test_an_observation_without_its_mask_is_refused():
    agent = shared_agent(ja.HostEnvironment(Doors, n_workers=0))
    with agent.env:
        runner = begin(agent)
        features = np.zeros((1, 1), np.float32)
        with pytest.raises(ValueError, match="no action mask, which this environment's obs"):
            agent.policy(runner, features)
        with pytest.raises(ValueError, match="no action mask"):
            agent.act(runner, np.zeros((4, 1, 1), np.float32))
        mask = np.array([[False, False, True]])
        assert agent.policy(runner, ja.Observation(features, mask)).tolist() == [2]


def test_construction_leaves_the_global_generators_alone():
    class Global(gymnasium.Env):
        observation_space = spaces.Box(0, 1, (1,))
        action_space = spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.random.rand(1).astype(np.float32), {}  # noqa: NPY002

        def step(self, action):
            return np.random.rand(1).astype(np.float32), 0.0, False, False, {}  # noqa: NPY002

    np.random.seed(5)  # noqa: NPY002
    expected = np.random.rand()  # noqa: NPY002
    np.random.seed(5)  # noqa: NPY002
    ja.HostEnvironment(Global, n_workers=0)
    assert np.random.rand() == expected  # noqa: NPY002


def turns(space):
    """Return a game of two players who act in turn, four times in all."""
    aec = pytest.importorskip("pettingzoo").AECEnv

    class Turns(aec):
        metadata = {"name": "turns", "is_parallelizable": False}  # noqa: RUF012
        render_mode = None
        possible_agents = ("p_0", "p_1")

        def observation_space(self, agent):
            return spaces.Box(-9, 9, (1,), np.float32)

        def action_space(self, agent):
            return space

        def observe(self, agent):
            return np.zeros(1, np.float32)

        def reset(self, seed=None, options=None):
            self.agents, self.agent_selection, self.time = list(self.possible_agents), "p_0", 0
            self.rewards = dict.fromkeys(self.agents, 0.0)
            self._cumulative_rewards = dict(self.rewards)
            self.terminations = dict.fromkeys(self.agents, False)
            self.truncations = dict(self.terminations)
            self.infos = {name: {} for name in self.agents}

        def step(self, action):
            if self.terminations[self.agent_selection]:
                self._was_dead_step(action)
                return
            self.time += 1
            self.terminations = dict.fromkeys(self.agents, self.time == 4)
            self.agent_selection = self.possible_agents[self.time % 2]

    return Turns


def test_waiting_players_of_a_box_have_no_log_probability_and_no_entropy():
    env = ja.HostEnvironment(turns(spaces.Box(-1, 1, (2,), np.float32)), n_workers=0)
    agent = ja.ContinuousIPPO(env, None, tiny(n_evals=0))
    with env:
        runner = begin(agent)
        np.testing.assert_array_equal(runner.observation.action_mask[0], [[1, 1], [0, 0]])
        _, record = agent.act(runner, runner.observation)
        assert np.all(record.log_prob[:, 0] != 0)
        np.testing.assert_array_equal(record.log_prob[:, 1], 0)
        actor = agent.networks.actor_of(runner)
        dist_params, _ = agent.networks.dist_params(actor, runner.observation, runner.memory.actor)
        entropy = jax.device_get(agent.distribution.entropy(dist_params))
        np.testing.assert_allclose(entropy[:, 0], np.log(2 * np.pi * np.e), rtol=1e-6)
        np.testing.assert_array_equal(entropy[:, 1], 0)


@pytest.mark.parametrize(
    ("space", "entropy"),
    [
        (spaces.Discrete(2), np.log(2)),  # of the first policy, which is almost uniform
        (spaces.Box(-1, 1, (2,), np.float32), np.log(2 * np.pi * np.e)),
    ],
    ids=["Discrete", "Box"],
)
@pytest.mark.parametrize("recurrent", [None, "gru"])
def test_means_of_an_update_are_over_the_players_whose_turn_it_is(space, entropy, recurrent):
    env = ja.HostEnvironment(turns(space), n_workers=0)
    agent = ja.IPPO(
        env, None, tiny(n_evals=0, actor_epochs=1, minibatch_size=4, recurrent=recurrent)
    )
    with env:
        runner = begin(agent)
        np.testing.assert_array_equal(runner.observation.has_turn, [[True, False]] * 4)
        runner, metrics = agent.step(runner)
        np.testing.assert_allclose(metrics["entropy"], entropy, rtol=1e-3)
        np.testing.assert_allclose(metrics["kl"], 0, atol=1e-6)


def test_a_rollout_that_does_not_say_whose_turn_it_is_is_refused():
    env = ja.HostEnvironment(turns(spaces.Discrete(2)), n_workers=0)
    agent = ja.IPPO(env, None, tiny(n_evals=0))
    length, n_envs = agent.config.rollout_length, agent.config.batch_size
    with env:
        runner = begin(agent)
        seen = runner.observation
        repeated = jax.tree.map(lambda leaf: np.stack([leaf] * length), seen)
        zeros = np.zeros((length, n_envs, 2), np.float32)
        rollout = ja.Rollout(
            observation=repeated._replace(has_turn=None),
            action=zeros.astype(np.int32),
            log_prob=zeros,
            reward=zeros,
            terminated=zeros.astype(bool),
            truncated=zeros.astype(bool),
            last_observation=seen,
        )
        with pytest.raises(ValueError, match="do not say whose turn it is"):
            agent.update(runner, rollout)
        agent.update(runner, rollout._replace(observation=repeated))


class OwnDoors(Doors):
    """Episodes of two and of three steps, one after the other, the second door locked always."""

    lengths = itertools.cycle((2, 3))

    def reset(self, *, seed=None, options=None):
        observation, _ = super().reset(seed=seed, options=options)
        self._length, self._steps = next(self.lengths), 0
        return observation, {"action_mask": np.array([0, 1, 0], np.int8)}

    def step(self, action):
        self._steps += 1
        mask = {"action_mask": np.array([0, 1, 0], np.int8)}
        return np.zeros(1, np.float32), 0.0, False, self._steps == self._length, mask


def test_a_vector_that_resets_some_environments_keeps_the_masks_of_the_others():
    make = functools.partial(vector, OwnDoors, "DISABLED")
    with ja.HostEnvironment(make, vectorized=True) as env:
        pool = env.make_pool(2, None, False)
        pool.reset(np.zeros(2, np.uint32))
        for _ in range(4):
            frame = pool.step(np.ones((2, 1), np.int32), np.zeros(2, np.uint32))
            assert frame["action_mask"].tolist() == [[[False, True, False]]] * 2


@pytest.mark.parametrize(("explored_steps", "has_mask"), [(12, True), (3, False)])
def test_masks_are_found_in_as_many_steps_on_slow_machines(explored_steps, has_mask):
    class Slow(Doors):
        def step(self, action):
            time.sleep(0.15)
            return super().step(action)

    make = functools.partial(Slow, first=8, limit=40)
    env = ja.HostEnvironment(make, n_workers=0, explored_steps=explored_steps)
    assert ("action_mask" in env.observation) == has_mask
