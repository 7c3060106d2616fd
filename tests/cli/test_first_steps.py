"""The commands for a new installation."""

import json
import webbrowser
from pathlib import Path

import numpy as np
import pytest

from jaxagents.cli import first_steps
from jaxagents.cli import main as cli
from jaxagents.environments.environment_check import EnvironmentFinding
from tests.reported import write_run


@pytest.fixture
def opened(tmp_path, monkeypatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    addresses = []
    monkeypatch.setattr(webbrowser, "open", addresses.append)
    return addresses


def test_the_demo_writes_a_report_of_a_new_run_and_opens_it(opened, monkeypatch, capsys):
    def train(experiment, *_, **__):
        write_run(experiment.directory, name=experiment.config.name)
        return 0

    monkeypatch.setattr(first_steps, "run", train)
    monkeypatch.setattr("jaxagents.experiments.report.page.episodes", lambda _: [])
    monkeypatch.setenv("DISPLAY", ":0")
    assert cli.main(["demo"]) == 0
    (run,) = Path("runs").iterdir()
    page = run / "report.html"
    assert opened == [page.absolute().as_uri()]
    assert f"Open {page} in a browser." in capsys.readouterr().out
    assert run.name.startswith("demo-")
    assert "Learning curves" in page.read_text()


def test_a_demo_that_is_interrupted_writes_no_report(opened, monkeypatch):
    monkeypatch.setattr(first_steps, "run", lambda *_, **__: 130)
    assert cli.main(["demo"]) == 130
    assert opened == []
    assert not Path("runs").exists()


@pytest.mark.slow  # trains for half a minute
def test_the_agents_of_the_demo_learn_and_no_browser_is_opened_unasked(opened, monkeypatch):
    monkeypatch.setenv("DISPLAY", ":0")
    assert cli.main(["demo", "--no-open"]) == 0
    (run,) = Path("runs").iterdir()
    assert opened == []
    assert "data:image/gif" in (run / "report.html").read_text()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert np.mean(lines[0]["return_mean"]) < -22
    assert np.mean(lines[-1]["return_mean"]) > -16


def test_without_a_display_no_browser_is_opened(opened, monkeypatch):
    for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    first_steps._open(Path("report.html"))
    assert opened == []


def test_a_wrong_key_of_the_demo_is_named(opened, capsys):
    assert cli.main(["demo", "--agent.n_stepps", "2"]) == 2
    assert "did you mean agent.n_steps" in capsys.readouterr().err


BROKEN = "tests.environments.test_environment_check"


@pytest.mark.slow
def test_an_environment_that_breaks_the_protocol_fails_its_check(capsys):
    constructor = f"{BROKEN}:LimitOf"
    assert cli.main(["check", constructor, "--steps", "30", "--env_kwargs.limit", "5"]) == 1
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith("error  step 6: the episode goes on beyond max_episode_steps, 5;")
    assert [line.split()[0] for line in others] == ["ok", "ok"]


def test_hints_are_no_failure_of_a_check_and_ids_name_environments(monkeypatch, capsys):
    def check(env, env_params, n_steps, seed):
        given.append((env.name, env_params.max_steps_in_episode, n_steps, seed))
        return [EnvironmentFinding("hint", "look."), EnvironmentFinding("ok", "1 actor")]

    given = []
    monkeypatch.setattr("jaxagents.environments.environment_check.check_environment", check)
    assert cli.main(["check", "gymnax/CartPole-v1", "--seed", "3"]) == 0
    assert given == [("CartPole-v1", 500, 1000, 3)]
    assert capsys.readouterr().out == "hint   look.\nok     1 actor\n"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["hunting/discret"], "unknown environment id 'hunting/discret'. Did you mean"),
        (["no_package:make"], "no_package: ModuleNotFoundError: No module named 'no_package'"),
        ([f"{BROKEN}:Wal"], f"{BROKEN}:Wal cannot be constructed: AttributeError: "),
        ([f"{BROKEN}:LimitOf"], f"{BROKEN}:LimitOf cannot be constructed: TypeError: "),
        ([f"{BROKEN}:Walk", "--steps", "0"], "n_steps=0; play at least 1 step."),
        ([f"{BROKEN}:Walk", "--seed", "99999999999999999999"], "seed=99999999999999999999 is too"),
        (
            [f"{BROKEN}:Walk", "--env_kwargs.limit", "[1"],
            "--env_kwargs.limit [1 is not valid YAML: expected ',' or ']', but got '<stream end>'; "
            "correct it, or quote it as text: --env_kwargs.limit '\"[1\"'",
        ),
        (
            [f"{BROKEN}:Walk", "--env_kwargs.limit=2020-13-45"],
            "--env_kwargs.limit 2020-13-45 is not valid YAML: month must be in 1..12",
        ),
        ([f"{BROKEN}:Walk", "--limit", "5"], "unrecognized argument --limit; give --env_kwargs."),
    ],
)
def test_a_check_that_cannot_begin_is_a_usage_error_in_one_line(arguments, line, capsys):
    assert cli.main(["check", *arguments]) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith(f"jaxagents: error: {line}")
    assert complaint.count("\n") == 1
