"""Calls of every part of the package, for `test_annotations` to run with checked annotations.

Most of them are only traced, where shapes and types are checked, and not compiled.
"""

import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.cli.main import main
from tests.agents import FAST, tiny
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
        {"recurrent": "lstm", "recurrent_chunk_length": 3, "advantages": "vtrace"},
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


@pytest.mark.parametrize(
    "env_id",
    ["gymnax/CartPole-v1", "jaxmarl/MPE_simple_tag_v3", "jaxmarl/SMAX", "jaxmarl/overcooked"],
)
def test_environments_of_every_library_are_played(env_id):
    env, env_params = ja.make(env_id)
    agent = ja.DiscreteIPPO(env, env_params, tiny(centralized_critic=True))
    runner = jax.eval_shape(lambda: agent.init(jax.random.key(0), FAST))
    jax.eval_shape(agent.step, runner)


CONFIG = """
name: checked
env: hunting/discrete
agent:
  n_steps: 3
  batch_size: 4
  minibatch_size: 2
  rollout_length: 4
  eval_frequency: 2
  n_evals: 3
  actor_layers:
    hidden_sizes: [8]
  critic_layers:
    hidden_sizes: [8]
evaluation:
  n_evals: 3
"""


def test_the_commands_of_the_command_line(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    assert main(["train", "tiny.yaml", "--seed", "1"]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    first, second = str(run), str(tmp_path / "other")
    shutil.copytree(first, second)
    config = Path(second, "config.yaml")
    config.write_text(config.read_text().replace("seed: 1", "seed: 2"))
    assert main(["resume", first, "--agent.n_steps=4"]) == 0
    assert main(["eval", first, "--sampled"]) == 0
    for command in ("export", "replay"):
        assert main([command, first]) == 0
    for command in ("plot", "compare", "report"):
        assert main([command, first, second]) == 0
    assert main(["config", "gymnax/CartPole-v1", "--to", "new.yaml"]) == 0
    assert main(["profile", "tiny.yaml", "--rounds", "1"]) == 0
    assert main(["envs", "hunting"]) == 0
    capfd.readouterr()
