"""The progress bar as it is drawn."""

import jax
import numpy as np

from jaxagents.training.progress_bar import ProgressBar
from tests.agents import FAST
from tests.recording import recording_agent
from tests.training.test_json_lines import evaluation


def test_the_bar_shows_the_return_and_the_speed(capsys):
    bar = ProgressBar(n_steps=200, n_updates_done=0)
    bar.show(evaluation(100, returns=np.array([[1000.0, 1469.0]])))
    bar.close()
    drawn = capsys.readouterr().err.split("\r")[-1]
    assert "Training:  50%" in drawn
    assert "100/200" in drawn
    assert drawn.rstrip().endswith("return 1,234.50, 20,480 steps/s]")


def test_the_bar_of_a_resumed_training_starts_where_it_resumes(capsys):
    ProgressBar(n_steps=200, n_updates_done=150).close()
    assert "Training:  75%" in capsys.readouterr().err


def test_the_bar_needs_no_returns(capsys):
    bar = ProgressBar(n_steps=200, n_updates_done=0)
    bar.show(evaluation(200)._replace(metrics={}, steps_per_second=float("nan")))
    bar.close()
    assert "Training: 100%" in capsys.readouterr().err


def test_a_closed_terminal_is_no_error(monkeypatch):
    class Closed:
        def write(self, _):
            raise BrokenPipeError

        flush = write

    bar = ProgressBar(n_steps=200, n_updates_done=0)
    monkeypatch.setattr(bar._bar, "fp", Closed())
    monkeypatch.setattr(bar._bar, "sp", Closed().write)
    bar.show(evaluation(200))
    bar.close()


def test_a_recorded_training_draws_the_bar_to_its_end(tmp_path, capsys):
    agent = recording_agent(tmp_path, progress_bar=True)
    agent.train(jax.random.key(0), FAST)
    drawn = capsys.readouterr().err.split("\r")[-1]
    assert "Training: 100%" in drawn
    assert "8/8" in drawn
    assert "steps/s" in drawn
