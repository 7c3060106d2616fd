"""Provenance of a run. That each start of training is recorded is tested with the commands."""

import json
import os
import platform
import subprocess
import sys

import jax
import pytest

import jaxagents
from jaxagents.experiments import run_directory
from jaxagents.experiments.run_directory import append_start, describe_start


def git(*arguments: str) -> str:
    command = ["git", "-c", "user.name=me", "-c", "user.email=me@here", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    git("init", "--quiet")
    (tmp_path / "code.py").write_text("1\n")
    git("add", "code.py")
    git("commit", "--quiet", "--message", "first")
    return tmp_path


def test_the_revision_of_the_working_folder_is_recorded_and_whether_it_has_changes(repository):
    (repository / "runs").mkdir()
    (repository / "runs" / "new").write_text("untracked")
    revision = git("rev-parse", "HEAD")
    assert describe_start()["git"] == {"revision": revision, "dirty": False}
    (repository / "code.py").write_text("2\n")
    assert describe_start()["git"] == {"revision": revision, "dirty": True}


def test_changed_files_may_have_names_in_any_encoding(repository):
    name = os.fsdecode(b"\xff.py")
    git("config", "core.quotepath", "false")
    (repository / name).write_text("1\n")
    git("add", name)
    assert describe_start()["git"]["dirty"] is True


def test_a_folder_without_git_has_no_revision(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert describe_start()["git"] is None


def test_a_machine_without_git_has_no_revision(repository, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert describe_start()["git"] is None


def test_versions_device_and_command_are_those_of_this_process():
    start = describe_start()
    assert start["versions"]["python"] == platform.python_version()
    assert start["versions"]["jaxagents"] == jaxagents.__version__
    assert start["versions"]["jax"] == jax.__version__
    assert start["versions"]["jaxlib"]
    assert start["versions"]["numpy"]
    assert start["device"]["backend"] == jax.default_backend()
    assert start["device"]["count"] == len(jax.devices())
    assert start["command"] == sys.orig_argv


def test_a_package_that_is_not_installed_has_no_version(monkeypatch):
    monkeypatch.setattr(run_directory, "_PACKAGES", ("jax", "no-such-package"))
    versions = describe_start()["versions"]
    assert (versions["jax"], versions["no-such-package"]) == (jax.__version__, None)


def test_starts_are_appended_in_their_order(tmp_path):
    path = tmp_path / "environment.json"
    for time in ("first", "second"):
        append_start(path, {"time": time})
    assert json.loads(path.read_text()) == [{"time": "first"}, {"time": "second"}]


def test_a_file_that_is_not_a_list_is_left_unchanged(tmp_path, caplog):
    path = tmp_path / "environment.json"
    path.write_text("not JSON")
    append_start(path, {})
    assert path.read_text() == "not JSON"
    assert "environment.json could not be continued" in caplog.text
