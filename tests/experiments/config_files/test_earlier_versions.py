"""Records of runs of earlier versions keep the meaning that they had."""

import pytest

from jaxagents.experiments.config_files.file import load_config, save_config

LINES = "name: walk\nenv: hunting/discrete\nagent:\n  n_steps: 1\n"


@pytest.mark.parametrize("folder", ["runs", "Läufe"])
def test_a_record_without_the_keys_of_time_limits_is_bootstrapped(tmp_path, folder):
    path = tmp_path / "config.yaml"
    header = f"# Written by jaxagents 1.0.0. To repeat: jaxagents train {folder}/config.yaml\n"
    path.write_text(header + LINES, encoding="utf-8")
    agent = load_config(path).agent
    assert (agent.time_limits, agent.observe_time) == ("bootstrap", False)


def test_a_file_of_a_user_leaves_time_limits_to_the_environment(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(LINES)
    agent = load_config(path).agent
    assert (agent.time_limits, agent.observe_time) == (None, None)


def test_what_a_record_says_and_an_override_hold(tmp_path):
    (tmp_path / "user.yaml").write_text(LINES)
    path = tmp_path / "config.yaml"
    save_config(load_config(tmp_path / "user.yaml"), path)
    assert load_config(path).agent.time_limits is None
    overridden = load_config(path, ["--agent.time_limits", "terminal"])
    assert overridden.agent.time_limits == "terminal"
