"""The commands for a new installation."""

import json
import webbrowser
from pathlib import Path

import numpy as np
import pytest

from jaxagents.cli import first_steps
from jaxagents.cli import main as cli
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
