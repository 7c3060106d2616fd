"""Directories of checkpoints that are locked, moved, replaced or deleted while a run trains."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from jaxagents.errors import CheckpointError
from jaxagents.training.checkpoints import Checkpoints
from jaxagents.training.held_directory import HeldDirectory
from tests.agents import FAST
from tests.recording import recording_agent

REPOSITORY = Path(__file__).parents[2]
HOLDING = """
import signal, sys
from pathlib import Path
from jaxagents.training.held_directory import HeldDirectory
HeldDirectory(Path(sys.argv[1])).__enter__()
print("held", flush=True)
signal.pause()
"""


@contextlib.contextmanager
def holding_process(directory: Path) -> Iterator[subprocess.Popen]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(directory)],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def after_checkpoint(step, folder, work):
    """Return a callback that does something at the evaluation after a checkpoint."""

    def callback(evaluation):
        if evaluation.n_updates_done == step + 2:
            while step not in Checkpoints(folder).steps():
                time.sleep(0.01)
            work()

    return callback


def test_a_run_in_training_is_refused_with_the_process_until_that_is_killed(tmp_path):
    recording_agent(tmp_path, [lambda evaluation: evaluation.n_updates_done == 4]).train(
        jax.random.key(0), FAST
    )
    agent = recording_agent(tmp_path)
    with holding_process(tmp_path) as process:
        with pytest.raises(CheckpointError) as error:
            agent.resume()
        assert f"another training writes to {tmp_path} (process {process.pid})" in str(error.value)
    runner, _ = agent.resume()
    assert int(runner.n_updates_done) == 8


def test_a_directory_without_a_run_is_not_created_by_resuming_it(tmp_path):
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        recording_agent(tmp_path / "new").resume()
    assert not (tmp_path / "new").exists()


def test_what_others_wrote_before_they_were_locked_out_is_read(tmp_path, monkeypatch):
    """Another process trains from 4 to 6 while this one starts."""
    recording_agent(tmp_path / "other", keep_latest=9).train(jax.random.key(0), FAST)
    for step in ("2", "4"):
        shutil.copytree(tmp_path / "other" / step, tmp_path / "run" / step)
    enter = HeldDirectory.__enter__

    def enter_late(self):
        monkeypatch.setattr(HeldDirectory, "__enter__", enter)
        shutil.copytree(tmp_path / "other" / "6", tmp_path / "run" / "6")
        return enter(self)

    seen = []
    agent = recording_agent(tmp_path / "run", [lambda each: seen.append(each.n_updates_done)])
    monkeypatch.setattr(HeldDirectory, "__enter__", enter_late)
    agent.resume()
    assert seen == [8]
    shutil.rmtree(tmp_path / "run")
    monkeypatch.setattr(HeldDirectory, "__enter__", enter_late)
    with pytest.raises(ValueError, match="already holds a run"):
        recording_agent(tmp_path / "run").train(jax.random.key(0), FAST)


def test_a_moved_directory_ends_training_and_tells_where_the_last_checkpoint_is(tmp_path):
    there, here = tmp_path / "there", tmp_path / "here"
    agent = recording_agent(here, [after_checkpoint(0, here, lambda: here.rename(there))])
    message = (
        f"{here} was moved to {there} while the run trained, which has therefore ended; its last "
        f"whole checkpoint is {there}/0: resume the run there"
    )
    with pytest.raises(CheckpointError, match=re.escape(message)):
        agent.train(jax.random.key(0), FAST)
    assert not here.exists()
    assert Checkpoints(there).steps() == [0]
    runner, _ = recording_agent(there).resume()
    assert int(runner.n_updates_done) == 8


def test_a_directory_that_another_has_taken_the_place_of_ends_training(tmp_path):
    here = tmp_path / "here"

    def replace():
        here.rename(tmp_path / "there")
        here.mkdir()
        (here / "note").write_text("mine")

    agent = recording_agent(here, [after_checkpoint(0, here, replace)])
    with pytest.raises(CheckpointError, match=r"was moved to .*there while the run trained"):
        agent.train(jax.random.key(0), FAST)
    assert [path.name for path in here.iterdir()] == ["note"]


def test_a_directory_deleted_with_the_folder_around_it_is_not_made_again(tmp_path):
    run = tmp_path / "run"
    agent = recording_agent(
        run / "checkpoints",
        [after_checkpoint(0, run / "checkpoints", lambda: shutil.rmtree(run))],
    )
    with pytest.raises(CheckpointError, match="was deleted while the run trained"):
        agent.train(jax.random.key(0), FAST)
    assert not run.exists()


@pytest.mark.parametrize("pattern", [".", "[0-9]*"], ids=["the folder", "its contents"])
def test_deleted_checkpoints_are_reported_once_and_later_ones_written(tmp_path, caplog, pattern):
    folder = tmp_path / "checkpoints"

    def delete():
        paths = [folder] if pattern == "." else folder.glob(pattern)
        for path in paths:
            shutil.rmtree(path)

    agent = recording_agent(folder, [after_checkpoint(2, folder, delete)], keep_latest=9)
    agent.train(jax.random.key(0), FAST)
    (warning,) = caplog.messages
    assert "checkpoints of the updates 0, 2 were deleted while the run trained" in warning
    assert Checkpoints(folder).steps()[-2:] == [6, 8]
    with pytest.raises(CheckpointError), HeldDirectory(folder), HeldDirectory(folder):
        pass  # it is locked anew


def test_a_directory_may_be_held_again_by_its_holder(tmp_path):
    held, other = HeldDirectory(tmp_path), HeldDirectory(tmp_path)
    with held:
        with held:
            pass
        with pytest.raises(CheckpointError), other:
            pass
    with other:
        pass
