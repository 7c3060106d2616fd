"""Runs whose files are damaged, cannot be written, or belong to another agent: real files."""

import contextlib
import errno
import json
import logging
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.training.checkpoint_writer import CheckpointWriter
from jaxagents.training.checkpoints import Checkpoints, _digest_of_json
from tests.agents import FAST, WALK, assert_trees_equal, tiny
from tests.probes import Aim, Walk
from tests.recording import leaves_of, recording_agent
from tests.training.test_atomic_write import files_of_at_most

NOBODY = 65534


def agent_with(directory, env=WALK, **changes) -> ja.DiscreteIPPO:
    return ja.DiscreteIPPO(env, None, tiny(n_steps=8, checkpoint_dir=directory, **changes))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of 8 updates with checkpoints of 4, 6 and 8, and the runners in them."""
    directory = tmp_path_factory.mktemp("run") / "checkpoints"
    agent = recording_agent(directory, keep_latest=3, keep_best=0)
    agent.train(jax.random.key(0), FAST)
    runners = {step: Checkpoints(directory).read_runner(step) for step in (4, 6, 8)}
    return directory, runners


@pytest.fixture
def damaged(trained, tmp_path):
    """A copy of the run to damage, and an agent of it."""
    directory = tmp_path / "checkpoints"
    shutil.copytree(trained[0], directory)
    return directory, recording_agent(directory)


def unfinished_copy(run: Path, directory: Path) -> None:
    """Copy a run without its last checkpoint."""
    shutil.copytree(run, directory)
    shutil.rmtree(directory / "8")


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def files_of_a_checkpoint() -> list[str]:
    """List the files of a checkpoint; some names of orbax's are random."""
    return [
        "metadata.json",
        "history.npz",
        "state.npz",
        "params/_METADATA",
        "params/manifest.ocdbt",
        "params/ocdbt.process_0/manifest.ocdbt",
        "params/d/*",
        "params/ocdbt.process_0/d/*",
    ]


def test_the_files_of_a_checkpoint_are_all_listed(trained):
    step = trained[0] / "8"
    listed = {path for name in files_of_a_checkpoint() for path in step.glob(name)}
    assert {path for path in step.rglob("*") if path.is_file()} == listed


def flip(path: Path, position: float) -> None:
    """Flip one bit of a file, or give it its first byte."""
    contents = bytearray(path.read_bytes() or b" ")
    contents[int(position * (len(contents) - 1))] ^= 4
    path.write_bytes(contents)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def assert_step_6_is_restored(agent, directory, runners) -> None:
    """Check that the checkpoint before is restored, and the damaged one set aside."""
    runner, history = agent.restore("last")
    assert int(runner.n_updates_done) == 6
    assert_trees_equal(leaves_of(runner), runners[6])
    np.testing.assert_array_equal(history["n_updates_done"], [0, 2, 4, 6])
    assert [path.name for path in directory.iterdir() if "damaged" in path.name] == ["8.damaged"]


@pytest.mark.parametrize("position", [slow(0.0), slow(0.3), 0.5, slow(0.9), slow(1.0)])
@pytest.mark.parametrize("name", files_of_a_checkpoint())
def test_a_flipped_bit_costs_at_most_one_checkpoint(damaged, trained, name, position):
    directory, agent = damaged
    for path in list((directory / "8").glob(name)):
        flip(path, position)
    assert_step_6_is_restored(agent, directory, trained[1])


@pytest.mark.parametrize("name", files_of_a_checkpoint())
def test_a_truncated_or_missing_file_costs_at_most_one_checkpoint(damaged, trained, name, tmp_path):
    directory, agent = damaged
    for damage in (truncate, Path.unlink):
        shutil.rmtree(directory)
        shutil.copytree(trained[0], directory)
        for path in list((directory / "8").glob(name)):
            damage(path)
        assert_step_6_is_restored(agent, directory, trained[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["metadata.json", "history.npz", "params/manifest.ocdbt"])
def test_a_damaged_checkpoint_is_reported_and_kept(damaged, name, caplog):
    directory, agent = damaged
    truncate(directory / "8" / name)
    before = sorted(path.name for path in (directory / "8").iterdir())
    runner, _ = agent.restore("last")
    assert int(runner.n_updates_done) == 6
    assert sorted(path.name for path in (directory / "8.damaged").iterdir()) == before
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"checkpoint {directory}/8 is damaged: its" in record.message
    assert record.message.endswith(
        f"it is kept as {directory}/8.damaged; using the checkpoint before it"
    )


def test_changed_metadata_are_damaged_even_if_they_can_be_read(damaged, trained):
    directory, agent = damaged
    path = directory / "8" / "metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"score": 99.0}))
    assert_step_6_is_restored(agent, directory, trained[1])


def test_a_damaged_checkpoint_that_another_process_removes_is_not_reported(
    damaged, monkeypatch, caplog
):
    def rename_too_late(path, target):
        shutil.rmtree(path)
        return rename(path, target)

    directory, agent = damaged
    truncate(directory / "8" / "metadata.json")
    rename = Path.rename
    monkeypatch.setattr(Path, "rename", rename_too_late)
    runner, _ = agent.restore("last")
    assert int(runner.n_updates_done) == 6
    assert caplog.messages == []


def test_a_damaged_checkpoint_that_cannot_be_set_aside_is_an_error(damaged, monkeypatch):
    def fail(path, target):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    directory, agent = damaged
    truncate(directory / "8" / "metadata.json")
    monkeypatch.setattr(Path, "rename", fail)
    message = r"8 is damaged: .*; it cannot be set aside: .*Read-only file system"
    with pytest.raises(ValueError, match=message) as raised:
        agent.restore("last")
    assert "\n" not in str(raised.value)


def test_an_undamaged_checkpoint_that_cannot_be_read_is_not_set_aside(damaged, monkeypatch):
    def fail(*_, **__):
        raise NotImplementedError("no such\ncompression")

    directory, agent = damaged
    monkeypatch.setattr(np.lib.format, "read_array", fail)
    message = "8 is undamaged, but cannot be read: no such compression"
    with pytest.raises(ValueError, match=message):
        agent.restore("last")
    assert (directory / "8").is_dir()


def test_a_run_with_a_half_copied_checkpoint_is_resumed_from_the_one_before(damaged, trained):
    directory, agent = damaged
    for path in sorted((directory / "8").rglob("*"))[::2]:
        if path.is_file():
            path.unlink()
    runner, metrics = agent.resume()
    assert Checkpoints(directory).steps()[-1] == 8
    assert_trees_equal(leaves_of(runner), trained[1][8])
    np.testing.assert_array_equal(metrics["n_updates_done"], [0, 2, 4, 6, 8])


def test_other_folders_are_not_checkpoints(damaged):
    directory, agent = damaged
    for name in ("2024", "08", "notes"):
        (directory / name).mkdir()
        (directory / name / "mine.txt").write_text("keep")
    assert int(agent.restore("last")[0].n_updates_done) == 8
    assert (directory / "2024" / "mine.txt").read_text() == "keep"


def test_a_file_that_cannot_be_opened_at_the_moment_is_not_damaged(damaged, monkeypatch):
    directory, agent = damaged

    def fail(path):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(ValueError, match=r"cannot be read: .*Too many open files"):
        agent.restore("last")
    assert (directory / "8").is_dir()


def test_the_best_checkpoint_is_chosen_among_the_undamaged_ones(damaged):
    directory, agent = damaged

    def latest(metrics):
        return len(metrics["n_updates_done"]) - 1

    truncate(next((directory / "8" / "params" / "d").iterdir()))
    assert int(agent.restore("best", best_fn=latest)[0].n_updates_done) == 6
    assert (directory / "8.damaged").is_dir()


def test_with_every_checkpoint_damaged_there_is_nothing_to_restore(damaged):
    directory, agent = damaged
    for step in (4, 6, 8):
        truncate(directory / str(step) / "metadata.json")
    with pytest.raises(ValueError, match="holds no checkpoint; train into it first") as raised:
        agent.restore("last")
    assert "\n" not in str(raised.value)
    assert sorted(path.name for path in directory.iterdir() if path.name != ".lock") == [
        "4.damaged",
        "6.damaged",
        "8.damaged",
    ]


def test_a_damaged_checkpoint_does_not_replace_an_earlier_damaged_one(damaged):
    directory, agent = damaged
    (directory / "8.damaged").mkdir()
    truncate(directory / "8" / "metadata.json")
    agent.restore("last")
    assert (directory / "8.damaged-2" / "metadata.json").exists()


# What cannot be written.


def wait_for(condition) -> None:
    started = time.monotonic()
    while not condition():
        assert time.monotonic() < started + 20
        time.sleep(0.01)


def wait_for_step(step: int, directory: Path) -> None:
    """Wait until the writer's thread has written a checkpoint."""
    wait_for(lambda: step in Checkpoints(directory).steps())


def test_a_disk_that_is_full_for_a_while_costs_only_the_checkpoints_of_that_time(
    tmp_path, trained, caplog
):
    with contextlib.ExitStack() as full:

        def fill(evaluation):
            if evaluation.n_updates_done == 4:
                wait_for_step(2, tmp_path / "run")
                full.enter_context(files_of_at_most(200))
            if evaluation.n_updates_done == 8:
                wait_for(lambda: len(caplog.records) == 2)
                full.close()

        agent = recording_agent(tmp_path / "run", [fill], keep_latest=9)
        runner, metrics = agent.train(jax.random.key(0), FAST)
    assert_trees_equal(leaves_of(runner), trained[1][8])
    np.testing.assert_array_equal(metrics["n_updates_done"], [0, 2, 4, 6, 8])
    assert Checkpoints(tmp_path / "run").steps() == [0, 2, 8]
    first, second, last = (record.message for record in caplog.records)
    assert "the checkpoint of update 4 could not be written, training continues: [Errno" in first
    assert "the checkpoint of update 6 could not be written, training continues: [Errno" in second
    assert "2 checkpoints could not be written, and the last one is of update 8" in last
    assert all("\n" not in record.message for record in caplog.records)


def test_a_disk_that_stays_full_leaves_the_last_good_checkpoint(tmp_path, caplog):
    with contextlib.ExitStack() as full:

        def fill(evaluation):
            if evaluation.n_updates_done == 4:
                wait_for_step(2, tmp_path / "run")
                full.enter_context(files_of_at_most(200))

        agent = recording_agent(tmp_path / "run", [fill])
        runner, _ = agent.train(jax.random.key(0), FAST)
    assert int(runner.n_updates_done) == 8
    assert Checkpoints(tmp_path / "run").last_step() == 2
    assert not list((tmp_path / "run").glob(".un*"))  # an incomplete checkpoint would waste space
    assert "the last one is of update 2" in caplog.records[-1].message
    resumed, _ = recording_agent(tmp_path / "run").resume()
    assert_trees_equal(leaves_of(resumed), leaves_of(runner))


@contextlib.contextmanager
def as_nobody():
    """Act as a user without rights, if this one is root."""
    root = os.geteuid() == 0
    # That user may not write to the cache of compiled programs, of which jax would warn.
    seconds = jax.config.jax_persistent_cache_min_compile_time_secs
    jax.config.update("jax_persistent_cache_min_compile_time_secs", float("inf"))
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", seconds)


def test_a_read_only_directory_is_refused_for_training_but_can_be_restored(trained):
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "run"
        unfinished_copy(trained[0], directory)
        for path in (Path(folder), *Path(folder).rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        with as_nobody():
            agent = recording_agent(Path(folder) / "new")
            with pytest.raises(ValueError, match="cannot be written") as raised:
                agent.train(jax.random.key(0), FAST)
            assert "\n" not in str(raised.value)
            agent = recording_agent(directory)
            with pytest.raises(ValueError, match="cannot be written"):
                agent.resume()
            assert int(agent.restore("last")[0].n_updates_done) == 6
        for path in (Path(folder), *Path(folder).rglob("*")):
            path.chmod(0o755)


def test_a_directory_that_cannot_be_listed_is_an_error():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o000)
        with as_nobody(), pytest.raises(ValueError, match=f"{folder} cannot be read: .*denied"):
            recording_agent(folder).restore("last")
        Path(folder).chmod(0o700)


def test_a_directory_to_which_another_training_writes_is_refused_until_that_ends(trained, tmp_path):
    unfinished_copy(trained[0], tmp_path / "run")
    agent = recording_agent(tmp_path / "run")
    other = CheckpointWriter(Checkpoints(tmp_path / "run"), 9, 0, {})
    with pytest.raises(ValueError, match=r"another training writes to .*; wait for it to end"):
        agent.resume()
    other.close()
    runner, _ = agent.resume()
    assert int(runner.n_updates_done) == 8


def test_a_run_is_recorded_even_if_files_cannot_be_locked(tmp_path, monkeypatch, caplog):
    def fail(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", fail)
    agent = recording_agent(tmp_path)
    runner, _ = agent.train(jax.random.key(0), FAST)
    assert f"{tmp_path} cannot be locked" in caplog.text
    restored, _ = agent.restore(mode="last")
    assert_trees_equal(restored.actor, runner.actor)


# Runs of another agent or another version.


def test_a_run_is_not_resumed_with_another_number_of_episodes(trained):
    for n_evals in (0, 5):
        with pytest.raises(
            ValueError, match=rf"n_evals={n_evals}, but .* have 2 episodes.* n_evals=2"
        ):
            agent_with(trained[0], n_evals=n_evals).resume()


def test_a_newer_format_is_refused_and_left_unchanged(damaged):
    directory, agent = damaged
    path = directory / "8" / "metadata.json"
    metadata = json.loads(path.read_text())
    del metadata["digest"]
    metadata["format_version"] += 1
    path.write_text(json.dumps(metadata | {"digest": _digest_of_json(metadata)}))
    with pytest.raises(
        ValueError, match=r"has checkpoint format 2; .* Install a newer one"
    ) as raised:
        agent.restore("last")
    assert "\n" not in str(raised.value)
    assert path.exists()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda d: agent_with(d, env=Walk((100,) * 3)),
            r"its policy_of_actor is \[0, 0\], .* \[0, 0, 0\]",
        ),
        (
            lambda d: agent_with(d, actor_layers=ja.Layers((9,), "relu", stride=2, memory_size=8)),
            r"another agent: its actor_layers.hidden_sizes is \(8,\), and this agent's is \(9,\); "
            "its actor_layers.activation is None, and this agent's is 'relu'; "
            r"its actor_layers.stride is 1, and this agent's is 2\. Leave it unchanged, or train",
        ),
        (lambda d: agent_with(d, batch_size=8), "its batch_size is 4, and this agent's is 8"),
        (
            lambda d: agent_with(d, rollout_length=8),
            "its rollout_length is .*, and this agent's is 8",
        ),
        (
            lambda d: agent_with(d, recurrent="gru"),
            "its recurrent is None, and this agent's is gru",
        ),
        (lambda d: agent_with(d, normalize_values=True), "its normalize_values is False"),
        (lambda d: agent_with(d, parameter_sharing="independent"), "its policy_of_actor is"),
        (
            lambda d: ja.ContinuousIPPO(Aim(), None, tiny(checkpoint_dir=d)),
            "its agent is DiscreteIPPO, and this agent's is ContinuousIPPO",
        ),
    ],
)
def test_the_run_of_another_agent_is_refused_with_what_differs(trained, make, message):
    for method in ("restore", "resume"):
        with pytest.raises(ValueError, match=message) as raised:
            getattr(make(trained[0]), method)()
        assert "\n" not in str(raised.value)


def test_a_checkpoint_whose_arrays_do_not_fit_the_agent_is_refused(trained, monkeypatch):
    def read_without_time(self, step):
        leaves = read(self, step)
        del leaves["env_state.env_state.time"]  # as if the environment had changed since
        return leaves

    directory, read = trained[0], Checkpoints.read_runner
    monkeypatch.setattr(Checkpoints, "read_runner", read_without_time)
    message = r"another agent: this agent has env_state\.\S+\.time, which the checkpoint lacks"
    with pytest.raises(ValueError, match=message):
        recording_agent(directory).restore("last")


def test_a_training_that_a_second_signal_abandons_does_not_disturb_the_next(tmp_path):
    """It writes the checkpoint of its block before the run is read to be resumed."""
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    seen: list[int] = []

    def interrupt_twice(evaluation):
        seen.append(evaluation.n_updates_done)
        if seen == [0, 2, 4]:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            pytest.fail("the callback goes on")

    try:
        agent = recording_agent(tmp_path, [interrupt_twice], keep_latest=9)
        with pytest.raises(ja.Interrupted) as raised:
            agent.train(jax.random.key(0), FAST)
        assert raised.value.at_once
        _, metrics = agent.resume()
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [0, 2, 4, 6, 8]  # the block of update 4 is not repeated
    np.testing.assert_array_equal(metrics["n_updates_done"], [0, 2, 4, 6, 8])
    assert Checkpoints(tmp_path).steps() == [0, 2, 4, 6, 8]
