"""YAML beyond plain keys and values."""

from jaxagents.experiments.config_files.file import load_config

MERGING = """\
name: tiny
env: hunting/discrete
agent:
  n_steps: 4
hyperparams:
  actor_optimizer_params: &optimizer
    learning_rate: 0.125
    grad_clip: 2.0
  critic_optimizer_params:
    <<: *optimizer
    learning_rate: 0.25
"""


def test_a_mapping_that_is_merged_in_gives_the_keys_that_are_not_set_themselves(tmp_path):
    (tmp_path / "merging.yaml").write_text(MERGING)
    critic = load_config(tmp_path / "merging.yaml").hyperparams.critic_optimizer_params
    assert (critic.learning_rate, critic.grad_clip) == (0.25, 2.0)
