"""Calls of agents and their parts, for `test_annotations` to run with checked annotations.

`annotated_commands` has those of the command line and of the libraries' environments.
Most of them are only traced, where shapes and types are checked, and not compiled.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from tests.agents import FAST, tiny
from tests.ippo.test_by_hand import logged
from tests.probes import RealWalk, Shaped, Team, Walk

ALL_NORMALIZED = {
    "normalize_observations": True,
    "normalize_values": True,
    "scale_rewards": True,
}
AGENTS = {
    "discrete": (Walk((3, 100), masked=True), ja.DiscreteIPPO, ALL_NORMALIZED),
    # Computed in parts that fit in caches.
    "large": (
        RealWalk(),
        ja.ContinuousIPPO,
        {
            "rollout_length": 128,
            "batch_size": 64,
            "minibatch_size": 32,
            "centralized_critic": True,
            "squash": True,
            "minibatch_unit": "time",
        },
    ),
    "recurrent": (
        Team((3, 100)),
        ja.DiscreteIPPO,
        {
            "recurrent": "lstm",
            "recurrent_chunk_length": 3,
            "advantages": "vtrace",
            "replay_updates": 2,
            "scale_rewards": True,
        },
    ),
    "shared torso": (
        Walk((3, 100, 100)),
        ja.DiscreteIPPO,
        {"recurrent": "gru", "shared_torso": True, "parameter_sharing": (0, 1, 1)},
    ),
    "mingru": (
        Shaped(),
        ja.DiscreteIPPO,
        {
            "recurrent": "mingru",
            "parameter_sharing": "independent",
            "shaped_reward_steps": 9,
            "critic_error": "huber",
            "clip_values": True,
            "learning_rate_schedule": "kl",
            "eps_clip_schedule": "cosine",
            "max_episode_steps": 3,
            "compute_dtype": "bfloat16",
        },
    ),
}


@pytest.mark.parametrize("kind", AGENTS)
def test_every_kind_of_agent_can_be_traced(kind):
    env, agent_class, options = AGENTS[kind]
    agent = agent_class(env, None, tiny(**options))

    def use(rng):
        runner = agent.init(rng, FAST)
        one = jax.tree.map(lambda leaf: leaf[0], runner.observation)
        carry = agent.initial_carry() if agent.config.recurrent else None
        acted = agent.policy(runner, one, carry), agent.policy(runner, one, carry, rng)
        return agent.step(runner), acted, agent.value(runner, one, carry)

    rng = jax.random.key(0)
    jax.eval_shape(use, rng)
    jax.eval_shape(lambda rng: agent.train(rng, FAST), rng)
    runner = jax.eval_shape(lambda rng: agent.init(rng, FAST), rng)
    for greedy in (True, False):
        jax.eval_shape(lambda rng, runner: agent.eval(rng, 3, greedy, runner), rng, runner)  # noqa: B023


def test_a_recurrent_agent_trains_and_plays():
    agent = ja.ContinuousIPPO(
        RealWalk((2, 100), limit=5),
        None,
        tiny(n_steps=1, n_evals=0, recurrent="mingru", parameter_sharing="independent"),
    )
    runner, _ = agent.train(jax.random.key(0), FAST)
    carry = agent.initial_carry()
    for rng in (None, jax.random.key(1)):
        action, carry = agent.policy(runner, runner.observation.features[0], carry, rng)
        assert action.shape == (2, 1)
    assert agent.value(runner, runner.observation.features[0], carry).shape == (2,)
    agent.reset_carry(carry, jnp.array([True, False]))
    members = jax.vmap(agent.train, in_axes=(0, None))(jax.random.split(jax.random.key(0)), FAST)
    assert np.isfinite(members[1]["actor_loss"][:, -1]).all()


def test_an_agent_clones_a_rollout_of_a_file(tmp_path):
    agent = ja.DiscreteIPPO(Walk(), None, tiny(**ALL_NORMALIZED))
    logged(log_prob=None).save(tmp_path / "rollout.npz")
    rollout = ja.Rollout.load(tmp_path / "rollout.npz")
    _, metrics = agent.pretrain(agent.init(jax.random.key(0), FAST), [rollout], n_epochs=1)
    assert np.isfinite(metrics["cloning_loss"]).all()
