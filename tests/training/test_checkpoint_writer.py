"""The writer of checkpoints: what it keeps, whom it locks out, and what killing it costs."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import pytest

from jaxagents.errors import CheckpointError
from jaxagents.training.checkpoint_writer import Checkpoint, CheckpointWriter
from jaxagents.training.checkpoints import Checkpoints

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize(("latest", "best"), [(1, 3), (2, 4), (3, 0), (9, 9)])
def test_the_latest_and_the_best_checkpoints_are_kept(tmp_path, latest, best):
    """Scores rise and fall: 0, 1, 2, 3, 2, 1, NaN."""
    checkpoints = Checkpoints(tmp_path)
    writer = CheckpointWriter(checkpoints, latest, best, {})
    scores = [0.0, 1.0, 2.0, 3.0, 2.0, 1.0, np.nan]
    leaves = {"actor.params.leaf": np.zeros(2, np.float32)}
    for step, score in enumerate(scores):
        writer.save(Checkpoint(step, leaves, leaves, score))
    writer.close()
    # Of equal scores the later is better; NaN is the worst.
    by_score = [3, 4, 2, 5, 1, 0, 6]
    assert set(checkpoints.steps()) == {*range(7)[-latest:], *by_score[:best]}


def test_params_for_other_programs_are_written_at_intervals_and_completed_at_the_end(
    tmp_path, monkeypatch
):
    checkpoints = Checkpoints(tmp_path)
    have_params, write = [], Checkpoints.write

    def watch(self, step, *arguments):
        write(self, step, *arguments)
        have_params.append((tmp_path / str(step) / "params").exists())

    monkeypatch.setattr(Checkpoints, "write", watch)
    writer = CheckpointWriter(checkpoints, 9, 0, {})
    leaves = {name: np.full(2, 7, np.float32) for name in ("actor.params.leaf", "rng")}
    for step in (0, 1, 2):
        writer.save(Checkpoint(step, leaves, leaves, 0.0))
    writer.close()
    assert have_params == [True, False, False]
    for step in (0, 1, 2):
        params = ocp.PyTreeCheckpointer().restore(tmp_path / str(step) / "params")
        assert list(params) == ["actor.params.leaf"]
        np.testing.assert_array_equal(params["actor.params.leaf"], [7, 7])
        assert checkpoints.read_runner(step).keys() == leaves.keys()
        digests = checkpoints.read_metadata(step)["files"]
        assert {name for name in digests if name.startswith("params/")}


@pytest.mark.parametrize("number", [errno.EWOULDBLOCK, errno.EACCES])
def test_a_held_lock_is_reported_for_either_error_of_the_system(tmp_path, monkeypatch, number):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", fail)
    with pytest.raises(CheckpointError, match="another training writes to"):
        CheckpointWriter(Checkpoints(tmp_path), 1, 1, {})


def write_checkpoints(directory, *steps) -> Checkpoints:
    checkpoints = Checkpoints(directory)
    for step in steps:
        checkpoints.write(step, {"actor.params.leaf": np.zeros(2, np.float32)}, {}, {}, 0.0)
    return checkpoints


def test_a_writer_that_cannot_begin_leaves_the_directory_to_others(tmp_path, monkeypatch):
    checkpoints = write_checkpoints(tmp_path, 0)
    with monkeypatch.context() as older_version:
        older_version.setattr("jaxagents.training.checkpoints.FORMAT_VERSION", 0)
        with pytest.raises(CheckpointError, match="Install a newer one"):
            CheckpointWriter(checkpoints, 1, 1, {})
    CheckpointWriter(checkpoints, 1, 1, {}).close()


def test_a_damaged_checkpoint_is_set_aside_before_others_are_written(tmp_path, caplog):
    checkpoints = write_checkpoints(tmp_path, 0, 1)
    (tmp_path / "1" / "metadata.json").write_text("{")
    CheckpointWriter(checkpoints, 1, 0, {}).close()
    assert checkpoints.steps() == [0]
    assert (tmp_path / "1.damaged").is_dir()
    assert "1 is damaged" in caplog.text


WRITING = """
import itertools, sys
import numpy as np
import orbax.checkpoint as ocp
from jaxagents.training.checkpoint_writer import Checkpoint, CheckpointWriter
from jaxagents.training.checkpoints import Checkpoints
writer = CheckpointWriter(Checkpoints(sys.argv[1]), 2, 1, {})
for step in itertools.count(int(sys.argv[2])):
    names = [f"actor.params.{i}" for i in range(4)] + [f"env_state.{i}" for i in range(4)]
    leaves = {name: np.full(100_000, step, np.int32) for name in names}
    writer.save(Checkpoint(step, leaves, leaves, float(step % 5)))
    print(step, flush=True)
"""


def n_files_being_written(directory) -> int:
    """Count the files of the checkpoint that a process writes; -1 between two."""
    try:
        return max(len(list(each.iterdir())) for each in directory.glob(".unfinished-*"))
    except (ValueError, FileNotFoundError):  # there is none, or it was completed meanwhile
        return -1


@pytest.mark.parametrize(
    "n_files", [(1,), pytest.param((0, 3, 1, 2), marks=pytest.mark.slow)], ids=["once", "often"]
)
def test_a_killed_writer_loses_only_its_latest_checkpoint_and_its_lock(tmp_path, n_files):
    """It is killed while it writes a checkpoint, after some files of it."""
    checkpoints, step = Checkpoints(tmp_path), 0
    for n in n_files:
        command = [sys.executable, "-c", WRITING, str(tmp_path), str(step)]
        environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, text=True
        ) as process:
            for _ in range(4):
                handed_over = int(process.stdout.readline())
            with pytest.raises(CheckpointError, match=r"another training writes to .*; wait for"):
                CheckpointWriter(checkpoints, 2, 1, {})
            while n_files_being_written(tmp_path) < n:
                assert process.poll() is None
            process.kill()
            handed_over = max([handed_over, *map(int, process.stdout.read().split())])
        last = checkpoints.last_step()
        assert last >= handed_over - 1  # `save` waits for the one before
        for kept in checkpoints.steps():
            for leaf in checkpoints.read_runner(kept).values():
                np.testing.assert_array_equal(leaf, kept)
        step = last + 1
    CheckpointWriter(checkpoints, 2, 1, {}).close()
    assert not list(tmp_path.glob(".un*"))
