"""Updates that learn from earlier rollouts too."""

import re
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.ippo.rollout import as_transitions, with_structure
from tests.agents import (
    FAST,
    all_finite,
    assert_trees_close,
    assert_trees_equal,
    begin,
    largest_change,
    of_policy,
    rate,
    shared_agent,
    tiny,
    with_hyperparams,
)
from tests.ippo.test_by_hand import SHAPE, logged
from tests.probes import RealWalk, Walk

REPLAY = {"advantages": "vtrace", "replay_updates": 1}
N_SAMPLES = int(np.prod(SHAPE))
STILL = {"actor_optimizer_params": rate(0.0), "critic_optimizer_params": rate(0.0)}


def of_reward(reward):
    return logged(reward=np.full(SHAPE, float(reward)))


def rewards_of(runner):
    """Return the reward of each rollout in the buffer."""
    return sorted(np.asarray(runner.replay.experience.transitions.reward)[0].mean((1, 2, 3)))


@pytest.mark.slow
def test_the_buffer_holds_the_latest_rollouts():
    agent = shared_agent(advantages="vtrace", replay_updates=2)
    runner = begin(agent)
    for reward in (1, 2, 3, 4):
        runner, _ = agent.update(runner, of_reward(reward))
    assert rewards_of(runner) == [3.0, 4.0]


@pytest.mark.parametrize(
    ("options", "first"),
    [
        pytest.param({}, 1, marks=pytest.mark.slow),
        pytest.param({"replay_updates": 2}, 2, marks=pytest.mark.slow),
        pytest.param({"warmup_updates": 2}, 2, marks=pytest.mark.slow),
    ],
)
def test_replay_begins_after_the_warmup_with_a_full_buffer(options, first):
    """Until then, updates are those of an agent without replay."""
    agent = shared_agent(**REPLAY | options)
    plain = shared_agent(advantages="vtrace")
    runner, expected = begin(agent), begin(plain)
    for update in range(first + 1):
        assert bool(agent.replay.has_begun(runner)) == (update == first)
        runner, _ = agent.update(runner, logged())
        expected, _ = plain.update(expected, logged())
        learnt, alone = (
            (runner.actor.params, runner.critic.params),
            (
                expected.actor.params,
                expected.critic.params,
            ),
        )
        if update < first:
            assert_trees_close(learnt, alone, atol=1e-6)
    assert largest_change(learnt, alone) > 1e-4


@pytest.mark.slow
def test_a_replayed_rollout_of_the_same_policy_is_a_copy_of_the_new_one():
    """Of the same experience, learnt from without a change of the policy in between."""
    agent = shared_agent(scale_rewards=True, recurrent="gru", recurrent_chunk_length=3, **REPLAY)
    rollout = logged(memory=np.zeros((*SHAPE, 8)), last_memory=np.zeros((*SHAPE[1:], 8)))
    before, _ = agent.update(begin(agent, **STILL), rollout)
    # The critics' states before the rollout, as they were for the first.
    before = before.replace(memory=begin(agent).memory)
    batch = wide_batch(agent, before, rollout)._replace(loss_scale=None)  # of all samples
    # [time, chunks * envs, actors] of 4 new and 4 old environments.
    halves = jax.tree.map(lambda leaf: leaf.reshape(len(leaf), 2, 2, 4, *leaf.shape[2:]), batch)
    new, old = (jax.tree.map(lambda leaf, half=half: leaf[:, :, half], halves) for half in (0, 1))
    assert_trees_close(new._replace(kl_weight=None), old._replace(kl_weight=None), rtol=1e-6)
    np.testing.assert_array_equal(new.kl_weight, np.full(new.kl_weight.shape, 2.0))
    np.testing.assert_array_equal(old.kl_weight, np.zeros(old.kl_weight.shape))


@pytest.mark.slow
def test_losses_of_a_copy_beside_its_original_are_those_of_the_original():
    agent = shared_agent(**REPLAY)
    before, _ = agent.update(begin(agent, **STILL), logged())
    batch = wide_batch(agent, before, logged())
    alone = jax.tree.map(lambda leaf: leaf[:, :4] if leaf.ndim else leaf, batch)
    alone = alone._replace(kl_weight=None)
    params, hyperparams = of_policy((before.actor.params, agent.hyperparams_of(before)), 0)
    # Another policy than the one that acted.
    params = jax.tree.map(
        lambda leaf: leaf + jnp.sin(jnp.arange(leaf.size)).reshape(leaf.shape), params
    )

    @jax.jit
    def loss_of(batch):
        batch = agent._with_current_estimates(
            before.actor._replace(params=params), batch, hyperparams
        )
        gradient = jax.value_and_grad(agent.actor_loss, has_aux=True)
        return *gradient(params, batch, hyperparams), jnp.sum(batch.weight)

    losses = [loss_of(each) for each in (batch, alone)]
    (wide, stats), gradients, weight = losses[0]
    (narrow, expected), expected_gradients, half = losses[1]
    assert float(weight) == 2 * float(half) == 2 * N_SAMPLES
    assert_trees_close((wide, stats), (narrow, expected), rtol=1e-5)
    assert_trees_close(gradients, expected_gradients, atol=1e-5)
    assert float(stats["kl"]) > 1e-3


@partial(jax.jit, static_argnums=0)
def wide_batch(agent, before, rollout):
    """Return the batch of the only policy's update that learns from an earlier rollout too."""
    memory = with_structure(rollout.memory, before.memory.actor)
    transitions = as_transitions(
        rollout._replace(memory=memory), agent.environments, agent.config, before.n_updates_done
    )
    last = agent.environments.as_prepared(rollout.last_observation)
    after, valuation = agent.networks.value_rollout(before.replace(observation=last), transitions)
    estimate = partial(agent.estimate_advantages, hyperparams=agent.hyperparams_of(before))
    after, batch = estimate(after, transitions, valuation)
    return of_policy(agent.replay.with_earlier(batch, before, after.normalizers, estimate), 0)


@pytest.mark.slow
def test_statistics_count_each_rollout_once():
    agent = shared_agent(
        normalize_observations=True, normalize_values=True, scale_rewards=True, **REPLAY
    )
    plain = shared_agent(
        normalize_observations=True,
        normalize_values=True,
        scale_rewards=True,
        advantages="vtrace",
    )
    runner, expected = begin(agent, **STILL), begin(plain, **STILL)
    for reward in (1.0, 2.0, 3.0):
        runner, _ = agent.update(runner, of_reward(reward))
        expected, _ = plain.update(expected, of_reward(reward))
    normalizers = runner.normalizers
    assert float(normalizers.observation.weight[0]) == 3 * N_SAMPLES
    assert_trees_close(normalizers.observation, expected.normalizers.observation, rtol=1e-6)
    assert_trees_close(normalizers.reward, expected.normalizers.reward, rtol=1e-6)


@pytest.mark.slow
def test_replayed_rewards_are_divided_by_the_scale_of_the_new():
    """In episodes of one step, whose discounted sums are the rewards."""
    agent = shared_agent(scale_rewards=True, **REPLAY)
    runner, _ = agent.update(begin(agent, **STILL), of_reward(1.0))
    _, metrics = agent.update(runner, of_reward(5.0))
    # 1 and 5 in equal shares: deviation 2.
    np.testing.assert_allclose(metrics["largest_reward"], [2.5], rtol=1e-6)
    _, metrics = agent.update(agent.update(runner, of_reward(1.0))[0], of_reward(5.0))
    # Two thirds of 1, one third of 5: deviation sqrt(32) / 3.
    np.testing.assert_allclose(metrics["largest_reward"], [5.0 / (np.sqrt(32) / 3)], rtol=1e-6)


@pytest.mark.slow
def test_the_kl_divergence_is_that_of_the_new_rollout():
    """The policy stays as it is, so it is 0, though the old rollout is of another policy."""
    agent = shared_agent(**REPLAY)
    runner, _ = agent.update(begin(agent, **STILL), logged(log_prob=np.full(SHAPE, -9.0)))
    rollout = logged()
    dist_params, _ = agent.networks.dist_params(
        agent.networks.actor_of(runner),
        ja.Observation(jnp.asarray(rollout.observation.reshape(-1, 2, 2))),
        (),
    )
    own = agent.distribution.log_prob(dist_params, jnp.asarray(rollout.action.reshape(-1, 2)))
    runner, metrics = agent.update(runner, rollout._replace(log_prob=own.reshape(SHAPE)))
    np.testing.assert_allclose(metrics["kl"], [0.0], atol=1e-6)
    assert float(metrics["clip_fraction"][0]) == 0.5  # of the old samples, all


@pytest.mark.slow
def test_kl_thresholds_do_not_stop_because_of_old_rollouts():
    agent = shared_agent(**REPLAY)
    runner, _ = agent.update(begin(agent), logged(log_prob=np.full(SHAPE, -9.0)))
    runner = with_hyperparams(runner, kl_threshold=1.0)
    _, metrics = agent.update(runner, logged())
    assert metrics["actor_epochs"].tolist() == [agent.config.actor_epochs]


@pytest.mark.slow
def test_a_rollout_with_nan_is_not_replayed():
    agent = shared_agent(on_nonfinite="skip", **REPLAY)
    runner, _ = agent.update(begin(agent), of_reward(1.0))
    runner, _ = agent.update(runner, of_reward(np.nan))
    assert rewards_of(runner) == [1.0]
    runner, _ = agent.update(runner, of_reward(2.0))
    assert rewards_of(runner) == [2.0]
    assert runner.n_updates_skipped.tolist() == [1]
    assert all_finite(runner.actor.params)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "agent_class", "options"),
    [
        (Walk((3, 100), masked=True), ja.DiscreteIPPO, {"parameter_sharing": "independent"}),
        pytest.param(
            RealWalk(),
            ja.ContinuousIPPO,
            {"recurrent": "lstm", "centralized_critic": True},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            Walk(),
            ja.DiscreteIPPO,
            {"minibatch_unit": "time", "replay_updates": 2},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["masked policies", "recurrent", "time rows"],
)
def test_agents_of_all_kinds_replay(env, agent_class, options):
    agent = agent_class(env, None, tiny(n_evals=0, n_steps=4, **REPLAY | options))
    runner, metrics = agent.train(jax.random.key(0), FAST)
    assert all_finite((runner.actor.params, runner.critic.params))
    assert np.isfinite(np.asarray(metrics["kl"])[-1]).all()
    assert bool(agent.replay.has_begun(runner))


@pytest.mark.slow
@pytest.mark.parametrize("replay_updates", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_resumed_run_replays_the_same_bits(tmp_path, replay_updates):
    """At 2 of 4 updates: the buffer of one rollout is full, and that of two as well."""
    options = {"advantages": "vtrace", "replay_updates": replay_updates, "n_evals": 0}

    def agent_of(n_steps, directory):
        return ja.DiscreteIPPO(
            Walk(), None, tiny(n_steps=n_steps, checkpoint_dir=directory, **options)
        )

    straight, _ = agent_of(4, tmp_path / "straight").train(jax.random.key(0), FAST)
    agent_of(2, tmp_path / "resumed").train(jax.random.key(0), FAST)
    resumed, _ = agent_of(4, tmp_path / "resumed").resume()
    assert_trees_equal(resumed, straight)
    with pytest.raises(ValueError, match=r"its replay_updates is \d, and this agent's is 0"):
        ja.DiscreteIPPO(
            Walk(), None, tiny(n_steps=5, checkpoint_dir=tmp_path / "resumed", n_evals=0)
        ).resume()


def test_a_rollout_with_other_parts_is_refused():
    agent, rollout = shared_agent(**REPLAY), logged()
    n_actions = agent.environments.space.n
    mask = np.ones((*rollout.reward.shape, n_actions), bool)
    masked = rollout._replace(
        observation=ja.Observation(rollout.observation, mask),
        last_observation=ja.Observation(rollout.last_observation, mask[-1]),
    )
    message = (
        "the rollout has other parts (action masks, global state, final observations) than the "
        "agent's own rollouts, with which it would be replayed; give the observations as "
        "agent.environments returns them, or choose replay_updates=0."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        agent.update(begin(agent), masked)


def test_a_runner_of_an_agent_without_replay_is_refused():
    message = (
        "the runner holds no earlier rollouts, as an agent with replay_updates=0 made it; begin "
        "with this agent's init."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        shared_agent(**REPLAY).update(begin(shared_agent()), logged())


def test_without_flashbax_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "flashbax", None)
    with pytest.raises(ImportError) as raised:
        ja.DiscreteIPPO(Walk(), None, tiny(**REPLAY))
    assert str(raised.value) == (
        "replay_updates=1 needs flashbax, which is not installed: "
        'pip install -c constraints.txt -e ".[replay]" in the repository of jaxagents.'
    )
