"""Calls of the command line and of libraries, for `test_annotations` to run with checked types."""

import shutil
from pathlib import Path

import jax
import pytest

import jaxagents as ja
from jaxagents.cli.main import main
from tests.agents import FAST, tiny

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


@pytest.mark.parametrize(
    "env_id",
    ["gymnax/CartPole-v1", "jaxmarl/MPE_simple_tag_v3", "jaxmarl/SMAX", "jaxmarl/overcooked"],
)
def test_environments_of_every_library_are_played(env_id):
    env, env_params = ja.make(env_id)
    agent = ja.DiscreteIPPO(env, env_params, tiny(centralized_critic=True))
    runner = jax.eval_shape(lambda: agent.init(jax.random.key(0), FAST))
    jax.eval_shape(agent.step, runner)
