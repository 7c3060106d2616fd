"""YAML beyond plain keys and values."""

import pytest

from jaxagents.errors import ExperimentError
from jaxagents.experiments.config_files.file import load_config, save_config

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
SHORT = """\
name: tiny
env: hunting/discrete
agent: {n_steps: 4, parameter_sharing: independent}
hyperparams:
  learning_rate: [0.125, 0.25]
"""


def test_a_mapping_that_is_merged_in_gives_the_keys_that_are_not_set_themselves(tmp_path):
    (tmp_path / "merging.yaml").write_text(MERGING)
    critic = load_config(tmp_path / "merging.yaml").hyperparams.critic_optimizer_params
    assert (critic.learning_rate, critic.grad_clip) == (0.25, 2.0)


def test_one_learning_rate_is_that_of_both_optimizers_and_saved_as_theirs(tmp_path):
    path, saved = tmp_path / "short.yaml", tmp_path / "saved.yaml"
    path.write_text(SHORT)
    save_config(load_config(path), saved)
    assert "\n  learning_rate:" not in saved.read_text()
    short, own = "--hyperparams.learning_rate", "--hyperparams.actor_optimizer_params.learning_rate"
    for file, overrides, expected in (
        (path, [], ([0.125, 0.25], [0.125, 0.25])),
        (saved, [], ([0.125, 0.25], [0.125, 0.25])),
        (saved, [short, "1e-2"], (0.01, 0.01)),
        (path, [f"{short}=1e-2"], (0.01, 0.01)),
        (path, [own, "1e-2"], (0.01, [0.125, 0.25])),
    ):
        hyperparams = load_config(file, overrides).hyperparams
        optimizers = hyperparams.actor_optimizer_params, hyperparams.critic_optimizer_params
        assert tuple(each.learning_rate for each in optimizers) == expected
    with pytest.raises(ExperimentError, match=r"^command line: hyperparams.learning_rate=0.01 is"):
        load_config(path, [short, "1e-2", own, "1e-3"])


def test_the_varied_learning_rate_is_saved_as_that_of_both_optimizers(tmp_path):
    path = tmp_path / "varying.yaml"
    path.write_text(SHORT + "population_based_training: {vary: {learning_rate: [0.001, 0.1]}}\n")
    assert load_config(path).population_based_training.vary == {
        "actor_optimizer_params.learning_rate": [0.001, 0.1],
        "critic_optimizer_params.learning_rate": [0.001, 0.1],
    }
