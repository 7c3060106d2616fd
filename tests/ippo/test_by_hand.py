"""Loops by hand: acting, rollouts, and updates from them."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from tests.agents import (
    FAST,
    assert_trees_close,
    assert_trees_equal,
    begin,
    opinionated_runner,
    shared_agent,
    tiny,
    trained,
)
from tests.probes import Chords, Clock, RealWalk, Shaped, Team, Walk

EXAMPLES = Path(__file__).parents[2] / "examples"
MORTAL = Walk(deaths=(100, 3), limit=5)


@pytest.fixture(scope="module")
def loops():
    spec = importlib.util.spec_from_file_location("three_loops", EXAMPLES / "three_loops.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_loop_all_by_hand_learns_what_the_training_does(loops):
    """To rounding, as below; `test_training.py` compares single steps."""
    agent = shared_agent()
    runner, (expected, _) = loops.all_by_hand(agent, jax.random.key(0), FAST), trained(agent)
    learnt, expected = ((each.actor, each.critic, each.observation) for each in (runner, expected))
    assert_trees_close(learnt, expected, atol=1e-5)
    assert int(runner.n_updates_done) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "agent_class", "options"),
    [
        (MORTAL, ja.DiscreteIPPO, {"normalize_values": True, "normalize_observations": True}),
        (RealWalk(), ja.ContinuousIPPO, {"recurrent": "gru", "centralized_critic": True}),
        (
            ja.Side(Team(deaths=(2, 100), limit=5), [0], opponents=[ja.RandomOpponent()]),
            ja.DiscreteIPPO,
            {"recurrent": "gru"},
        ),
        (Chords(), ja.DiscreteIPPO, {"agent_id": True}),
        (Clock(), ja.DiscreteIPPO, {"advantages": "vtrace"}),
    ],
    ids=["mortal", "recurrent", "side", "several choices", "terminal limit"],
)
def test_all_three_loops_learn_the_same(loops, env, agent_class, options):
    """To rounding, as tests compile without optimizations."""
    agent = agent_class(env, None, tiny(n_steps=2, n_evals=0, **options))
    runners = [
        loop(agent, jax.random.key(0), FAST)
        for loop in (loops.in_one_call, loops.step_by_step, loops.all_by_hand)
    ]
    learnt = [(each.actor, each.critic, each.normalizers, each.observation) for each in runners]
    assert_trees_close(learnt[1], learnt[0], atol=1e-5)
    assert_trees_close(learnt[2], learnt[0], atol=1e-5)
    assert [int(each.n_updates_done) for each in runners] == [2, 2, 2]


@pytest.mark.slow
def test_all_three_loops_end_with_the_same_bits():
    """In the example, compiled as for users."""
    environment = {name: value for name, value in os.environ.items() if "JAX_" not in name}
    environment.pop("XLA_FLAGS", None)
    command = [sys.executable, str(EXAMPLES / "three_loops.py")]
    finished = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert finished.stdout.endswith("The three loops end with the same parameters.\n"), finished


def test_a_complete_rollout_is_not_continued():
    agent = shared_agent()
    runner = begin(agent)
    carry = agent.act(runner, runner.observation)[1].carry._replace(n_steps=jnp.int32(6))
    with pytest.raises(ValueError, match=r"has its 6 steps \(rollout_length\); call update"):
        agent.act(runner, runner.observation, carry)


@pytest.mark.slow
def test_acting_draws_as_the_policy_does():
    """The recorded log probability is that of the action, and each step draws anew."""
    agent = shared_agent()
    runner = begin(agent)
    carry, actions = None, []
    for _ in range(3):
        action, record = agent.act(runner, runner.observation, carry)
        carry = record.carry
        dist_params, _ = agent.networks.dist_params(
            agent.networks.actor_of(runner), runner.observation, record.memory
        )
        expected = agent.distribution.log_prob(dist_params, action)
        np.testing.assert_allclose(record.log_prob, expected, rtol=1e-6)
        actions.append(np.asarray(action))
    assert not np.array_equal(actions[0], actions[1])


# Experience from elsewhere: numpy arrays of a game of one step, [time, envs, actors].

SHAPE = (6, 4, 2)


def logged(**changes):
    """Make a rollout in which action 2 earns 1, logged under random actions."""
    generator = np.random.default_rng(0)
    action = generator.integers(0, 3, SHAPE)
    return ja.Rollout(
        observation=np.ones((*SHAPE, 2), np.float32),
        action=action,
        log_prob=np.full(SHAPE, np.log(1 / 3)),
        reward=(action == 2).astype(float),
        terminated=np.ones(SHAPE, bool),
        truncated=np.zeros(SHAPE, bool),
        last_observation=np.ones((4, 2, 2), np.float32),
    )._replace(**changes)


@pytest.mark.slow
@pytest.mark.parametrize("advantages", ["gae", "vtrace"])
def test_an_agent_learns_from_logged_numpy_arrays(advantages):
    agent = shared_agent(advantages=advantages)
    runner = begin(agent)
    start = runner.env_state
    for _ in range(20):
        runner, metrics = agent.update(runner, logged())
    np.testing.assert_array_equal(agent.policy(runner, jnp.ones((2, 2))), [2, 2])
    assert metrics["actor_loss"].shape == (1,)
    assert_trees_equal(runner.env_state, start)


@pytest.mark.slow
def test_dead_actors_in_logged_arrays_teach_nothing():
    active = np.ones(SHAPE, bool)
    active[..., 1] = False
    agent = shared_agent()
    learnt = []
    for reward_of_the_dead in (0.0, 9.0):
        rollout = logged(active=active)
        rollout.reward[..., 1] = reward_of_the_dead
        learnt.append(agent.update(begin(agent), rollout)[0].actor)
    assert_trees_equal(*learnt)


def test_truncated_steps_bootstrap_from_the_given_final_observations():
    agent = shared_agent()
    truncated = {"terminated": np.zeros(SHAPE, bool), "truncated": np.ones(SHAPE, bool)}
    with pytest.raises(ValueError, match="truncated steps but no final_observation"):
        agent.update(begin(agent), logged(**truncated))
    final = np.zeros((*SHAPE, 2), np.float32)
    final[:3] = 5.0
    differing = [
        agent.update(begin(agent), logged(**truncated, final_observation=each))[0].critic.params
        for each in (final, np.zeros_like(final))
    ]
    assert not np.allclose(*(jax.tree.leaves(each)[0] for each in differing), atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward": np.zeros((6, 4))}, r"reward has shape \(6, 4\); .* from \(6, 4, 2\)"),
        ({"action": np.zeros((*SHAPE, 1))}, r"action has shape \(6, 4, 2, 1\)"),
        ({"log_prob": np.zeros((5, 4, 2))}, r"log_prob has shape \(5, 4, 2\)"),
        ({"episode_over": np.zeros(SHAPE)}, r"episode_over has shape .* from \(6, 4\)"),
        (
            {"observation": np.zeros((6, 3, 2, 2))},
            r"'s observation has shape .* for \(6, 4, 2, 2\)",
        ),
        ({"last_observation": np.zeros((4, 2, 5))}, r"last_observation has .* for \(4, 2, 2\)"),
    ],
)
def test_wrong_shapes_are_refused_with_both(changes, message):
    agent = shared_agent()
    with pytest.raises(ValueError, match=message):
        agent.update(begin(agent), logged(**changes))


def test_recurrent_agents_need_the_recurrent_states():
    agent = shared_agent(recurrent="gru")
    with pytest.raises(ValueError, match="lacks memory or last_memory, which recurrent agents"):
        agent.update(opinionated_runner(agent), logged())


def test_a_rollout_lacks_no_reward_that_the_agent_shapes():
    agent = shared_agent(Shaped(), shaped_reward_steps=100)
    rollout = logged(observation=np.zeros((*SHAPE, 1)), last_observation=np.zeros((4, 2, 1)))
    with pytest.raises(ValueError, match=r"no shaped_reward, .* \(shaped_reward_steps=100\)"):
        agent.update(begin(agent), rollout)
    with pytest.raises(ValueError, match=r"shaped_reward has shape \(4, 2\)"):
        agent.update(begin(agent), rollout._replace(shaped_reward=np.zeros((4, 2))))


def test_a_learning_rate_that_adapts_begins_with_the_hyperparameter():
    constant, adapting = shared_agent(), shared_agent(learning_rate_schedule="kl")
    runner, metrics = adapting.step(begin(constant))
    (expected,) = [float(FAST.actor_optimizer_params.learning_rate)]
    assert float(metrics["learning_rate"][0]) == pytest.approx(expected)
    assert float(runner.learning_rate[0]) / expected in (
        pytest.approx(1.0),
        pytest.approx(1.5),
        pytest.approx(1 / 1.5),
    )


@pytest.mark.parametrize(
    "options", [{"learning_rate_schedule": "kl"}, {"replay_updates": 1, "advantages": "vtrace"}]
)
def test_a_runner_keeps_only_what_the_agent_uses(options):
    """So checkpoints of a training that continues it can be read."""
    agent, other = shared_agent(), shared_agent(**options)
    runner, _ = agent.step(begin(other))
    assert jax.tree.structure(runner) == jax.tree.structure(begin(agent))


class Parts(ja.Environment):
    """Two actors observe several arrays, and may choose one action."""

    n_actors = 2

    def __init__(self, parts, masked):
        self._parts, self._masked = parts, masked

    def action_space(self, params):
        return ja.Discrete(3)

    def _observe(self):
        mask = jnp.arange(3) == jnp.array([[1], [2]])
        return ja.Observation(self._parts, action_mask=mask) if self._masked else self._parts

    def reset_env(self, rng, params):
        return self._observe(), jnp.zeros(())

    def step_env(self, rng, state, action, params):
        ended = jnp.ones(2, bool)
        return self._observe(), state, jnp.zeros(2), ended, ~ended, {}


MASKED = Parts(jnp.zeros((2, 2)), masked=True)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "parts",
    [
        {"b": jnp.array([[1.0, 2.0], [3.0, 4.0]]), "a": jnp.array([5.0, 6.0])},
        (jnp.array([5.0, 6.0]), jnp.array([[1.0, 2.0], [3.0, 4.0]])),
        (jnp.array([5.0, 6.0]), jnp.array([1.0, 3.0])),
    ],
    ids=["dictionary", "tuple", "tuple of equal shapes"],
)
def test_dictionaries_and_tuples_are_acted_on_as_the_environment_returns_them(parts, masked):
    env = Parts(parts, masked)
    agent = shared_agent(env, n_evals=0)
    runner = opinionated_runner(agent)
    observation, _ = env.reset(jax.random.key(0), None)
    flat = ja.Observation(runner.observation.features[0])
    if masked:
        flat = flat._replace(action_mask=runner.observation.action_mask[0])
        np.testing.assert_array_equal(agent.policy(runner, observation), [1, 2])
    for apply in (agent.policy, agent.value):
        np.testing.assert_array_equal(apply(runner, observation), apply(runner, flat))
    several = jax.tree.map(lambda leaf: jnp.stack([leaf] * 4), observation)
    _, record = agent.act(runner, several)
    _, expected = agent.act(runner, runner.observation)
    assert_trees_equal(record, expected)


def test_a_side_acts_on_tuples_as_the_environment_returns_them():
    env = Parts((jnp.array([5.0, 6.0]), jnp.array([[1.0, 2.0], [3.0, 4.0]])), masked=False)
    agent = shared_agent(ja.Side(env, [1], opponents=[ja.RandomOpponent()]), n_evals=0)
    runner = opinionated_runner(agent)
    own = jax.tree.map(lambda leaf: leaf[1:], env.reset_env(jax.random.key(0), None)[0])
    for apply in (agent.policy, agent.value):
        flat = apply(runner, jnp.array([[6.0, 3.0, 4.0]]))
        np.testing.assert_array_equal(apply(runner, own), flat)


@pytest.mark.parametrize("shape", [(3,), (1, 3), (2, 4)])
def test_a_mask_of_another_shape_is_refused(shape):
    agent = shared_agent(MASKED)
    observation = ja.Observation(jnp.zeros((2, 2)), jnp.ones(shape, bool))
    with pytest.raises(ValueError, match=r"mask has shape \(.* give a mask of shape \(2, 3\)"):
        agent.policy(opinionated_runner(agent), observation)
