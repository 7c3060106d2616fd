import subprocess

import pytest

import jaxagents as ja

pytest.importorskip("mujoco_playground")
from jaxagents.environments.suites import playground


def test_robots_that_must_be_downloaded_are_not_downloaded_silently(monkeypatch, tmp_path):
    def refuse(*_, **__):
        raise AssertionError("a download was tried")

    monkeypatch.setattr(playground.mjx_env, "MENAGERIE_PATH", tmp_path / "missing")
    monkeypatch.setattr(playground.mjx_env, "ensure_menagerie_exists", refuse)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    for name in ("Go1JoystickFlatTerrain", "PandaPickCube"):
        with pytest.raises(OSError, match=f"playground/{name} needs .*ensure_menagerie") as raised:
            ja.make(f"playground/{name}")
        assert "\n" not in str(raised.value)


def test_repeated_actions_count_toward_the_episode_length():
    env, _ = ja.make("playground/CartpoleBalance", episode_length=5, action_repeat=2)
    assert env.max_episode_steps() == 3


def test_an_action_is_repeated_at_least_once():
    with pytest.raises(ValueError, match="action_repeat=0 must be at least 1"):
        ja.make("playground/CartpoleBalance", action_repeat=0)
