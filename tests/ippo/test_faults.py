"""What becomes of a run whose files are damaged or cannot be written: real files, real errors."""

import contextlib
import dataclasses
import errno
import json
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

import jaxagents as ja
from jaxagents.training.checkpoints import Checkpoints, _digest_of_json
from jaxagents.errors import CheckpointError
from jaxagents.training.checkpoint_writer import Checkpoint, Saver
from tests.ippo.test_training import FAST, TINY, assert_trees_equal
from tests.probes import Aim, Walk

REPOSITORY = Path(__file__).parents[2]
NOBODY = 65534


def agent_with(directory, callbacks=(), env=None, **changes) -> ja.DiscreteIPPO:
    config = dataclasses.replace(TINY, n_steps=8, checkpoint_dir=directory, **changes)
    return ja.DiscreteIPPO(Walk() if env is None else env, None, config, callbacks=callbacks)


def agent_with_more_steps(directory):
    config = dataclasses.replace(TINY, n_steps=10, checkpoint_dir=directory)
    return ja.DiscreteIPPO(Walk(), None, config)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of 8 updates with checkpoints of 4, 6 and 8, and the runners in them."""
    directory = tmp_path_factory.mktemp("run") / "checkpoints"
    agent = agent_with(directory, keep_latest=3, keep_best=0)
    agent.train(jax.random.key(0), FAST)
    runners = {step: Checkpoints(directory).read_runner(step) for step in (4, 6, 8)}
    return directory, runners


@pytest.fixture
def damaged(trained, tmp_path):
    """A copy of the run to damage, and an agent of it."""
    directory = tmp_path / "checkpoints"
    shutil.copytree(trained[0], directory)
    return directory, agent_with(directory)


def files_of_a_checkpoint() -> list[str]:
    """Name the files that orbax and this package write, the random names of the former's aside."""
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
    """Check that the step before is restored as it was saved, and the damaged one set aside."""
    runner, history = agent.restore("last")
    assert int(runner.n_updates_done) == 6
    assert_trees_equal(_leaves(runner), runners[6])
    np.testing.assert_array_equal(history["n_updates_done"], [0, 2, 4, 6])
    assert [path.name for path in directory.iterdir() if "damaged" in path.name] == ["8.damaged"]


def _leaves(runner):
    from jaxagents.training.named_arrays import strip_keys, to_leaves

    return to_leaves(jax.device_get(strip_keys(runner)))


@pytest.mark.parametrize("position", [0.0, 0.3, 0.5, 0.9, 1.0])
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


@pytest.mark.parametrize("name", ["metadata.json", "history.npz", "params/manifest.ocdbt"])
def test_damage_is_told_and_kept(damaged, name, caplog):
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
        f"kept as {directory}/8.damaged, and the checkpoint before it used"
    )


def test_a_half_copied_folder_is_passed_over_and_training_goes_on_as_it_would_have(
    damaged, trained
):
    directory, agent = damaged
    for path in sorted((directory / "8").rglob("*"))[::2]:
        if path.is_file():
            path.unlink()
    runner, metrics = agent.resume()
    assert Checkpoints(directory).steps()[-1] == 8
    assert_trees_equal(_leaves(runner), trained[1][8])
    np.testing.assert_array_equal(metrics["n_updates_done"], [0, 2, 4, 6, 8])


@pytest.mark.parametrize(("latest", "best"), [(1, 3), (2, 4), (3, 0), (9, 9)])
def test_the_latest_and_the_best_steps_are_kept(tmp_path, latest, best):
    """Scores rise and fall: 0, 1, 2, 3, 2, 1, none."""
    checkpoints = Checkpoints(tmp_path)
    saver = Saver(checkpoints, latest, best, {})
    scores = [0.0, 1.0, 2.0, 3.0, 2.0, 1.0, np.nan]
    leaves = {"actor.params.leaf": np.zeros(2, np.float32)}
    for step, score in enumerate(scores):
        saver.save(Checkpoint(step, leaves, leaves, score))
    saver.close()
    # Among equal ones the later; what has no score is the worst.
    by_score = [3, 4, 2, 5, 1, 0, 6]
    assert set(checkpoints.steps()) == {*range(7)[-latest:], *by_score[:best]}


def test_params_for_other_programs_are_written_now_and_then_and_at_the_end(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    have_params, write = [], Checkpoints.write

    def watch(self, step, *arguments):
        write(self, step, *arguments)
        have_params.append((tmp_path / str(step) / "params").exists())

    monkeypatch.setattr(Checkpoints, "write", watch)
    saver = Saver(checkpoints, 9, 0, {})
    leaves = {name: np.full(2, 7, np.float32) for name in ("actor.params.leaf", "rng")}
    for step in (0, 1, 2):
        saver.save(Checkpoint(step, leaves, leaves, 0.0))
    saver.close()
    assert have_params == [True, False, False]
    for step in (0, 1, 2):
        params = ocp.PyTreeCheckpointer().restore(tmp_path / str(step) / "params")
        assert list(params) == ["actor.params.leaf"]
        np.testing.assert_array_equal(params["actor.params.leaf"], [7, 7])
        assert checkpoints.read_runner(step).keys() == leaves.keys()
        digests = checkpoints.read_metadata(step)["files"]
        assert {name for name in digests if name.startswith("params/")}


def test_folders_of_others_are_no_checkpoints(damaged):
    directory, agent = damaged
    for name in ("2024", "08", "notes"):
        (directory / name).mkdir()
        (directory / name / "mine.txt").write_text("keep")
    assert int(agent.restore("last")[0].n_updates_done) == 8
    assert (directory / "2024" / "mine.txt").read_text() == "keep"


def test_what_cannot_be_opened_for_now_is_not_taken_for_damaged(damaged, monkeypatch):
    directory, agent = damaged

    def fail(path):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(ValueError, match=r"cannot be read: .*Too many open files"):
        agent.restore("last")
    assert (directory / "8").is_dir()


def test_the_best_checkpoint_is_chosen_among_the_undamaged(damaged):
    directory, agent = damaged

    def latest(metrics):
        return len(metrics["n_updates_done"]) - 1

    truncate(next((directory / "8" / "params" / "d").iterdir()))
    assert int(agent.restore("best", best_fn=latest)[0].n_updates_done) == 6
    assert (directory / "8.damaged").is_dir()


def test_with_every_checkpoint_damaged_there_is_one_clear_line(damaged):
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


def test_damage_does_not_take_another_damaged_checkpoints_place(damaged):
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
    """Wait until the writer, in its own thread, is through with it."""
    wait_for(lambda: step in Checkpoints(directory).steps())


@contextlib.contextmanager
def files_of_at_most(n_bytes: int):
    """Let the system refuse what is larger, as it does on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_disk_that_is_full_for_a_while_costs_its_checkpoints_and_nothing_else(
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

        agent = agent_with(tmp_path / "run", [fill], keep_latest=9)
        runner, metrics = agent.train(jax.random.key(0), FAST)
    assert_trees_equal(_leaves(runner), trained[1][8])
    np.testing.assert_array_equal(metrics["n_updates_done"], [0, 2, 4, 6, 8])
    assert Checkpoints(tmp_path / "run").steps() == [0, 2, 8]
    first, second, last = (record.message for record in caplog.records)
    assert "the checkpoint of update 4 could not be written, training goes on: [Errno" in first
    assert "the checkpoint of update 6 could not be written, training goes on: [Errno" in second
    assert "2 checkpoints could not be written, and the last one there is of update 8" in last
    assert all("\n" not in record.message for record in caplog.records)


def test_a_disk_that_stays_full_leaves_the_last_good_checkpoint(tmp_path, caplog):
    with contextlib.ExitStack() as full:

        def fill(evaluation):
            if evaluation.n_updates_done == 4:
                wait_for_step(2, tmp_path / "run")
                full.enter_context(files_of_at_most(200))

        agent = agent_with(tmp_path / "run", [fill])
        runner, _ = agent.train(jax.random.key(0), FAST)
    assert int(runner.n_updates_done) == 8
    assert Checkpoints(tmp_path / "run").last_step() == 2
    assert not list((tmp_path / "run").glob(".un*"))  # half a checkpoint would fill it further
    assert "the last one there is of update 2" in caplog.records[-1].message
    resumed, _ = agent_with(tmp_path / "run").resume()
    assert_trees_equal(_leaves(resumed), _leaves(runner))


def test_a_directory_that_vanishes_is_made_anew(tmp_path):
    def remove(evaluation):
        if evaluation.n_updates_done == 4:
            wait_for_step(2, tmp_path / "run")  # orbax complains of what vanishes under its hands
            (tmp_path / "run").rename(tmp_path / "elsewhere")

    agent = agent_with(tmp_path / "run", [remove])
    runner, _ = agent.train(jax.random.key(0), FAST)
    assert int(runner.n_updates_done) == 8
    assert Checkpoints(tmp_path / "run").last_step() == 8


@contextlib.contextmanager
def as_nobody():
    """Act as a user with few rights, where this one has all of them."""
    root = os.geteuid() == 0
    # Nobody may not write to the cache of compiled programs either, of which jax would warn.
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


def test_a_directory_that_cannot_be_written_is_refused_and_can_be_read(trained):
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "run"
        shutil.copytree(trained[0], directory)
        for path in (Path(folder), *Path(folder).rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        new, old = agent_with(Path(folder) / "new"), agent_with_more_steps(directory)
        with as_nobody():
            for training in (lambda: new.train(jax.random.key(0), FAST), old.resume):
                with pytest.raises(ValueError, match="cannot be written") as raised:
                    training()
                assert "\n" not in str(raised.value)
            assert int(old.restore("last")[0].n_updates_done) == 8
        for path in (Path(folder), *Path(folder).rglob("*")):
            path.chmod(0o755)


HOLDING = """
import sys
from jaxagents.checkpointing import Checkpoints
from jaxagents.saving import Saver
saver = Saver(Checkpoints(sys.argv[1]), 1, 1, {})
print("held", flush=True)
sys.stdin.readline()
"""


def test_two_processes_do_not_write_to_one_directory(damaged):
    directory, _ = damaged
    agent = agent_with_more_steps(directory)
    command = [sys.executable, "-c", HOLDING, str(directory)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": str(REPOSITORY)}, **pipes
    ) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match=r"another training writes to .*; wait for its end"):
            agent.resume()
        other.kill()  # the lock ends with its holder, however that ends
        other.wait()
        runner, _ = agent.resume()
    assert int(runner.n_updates_done) == 10


def test_where_files_cannot_be_locked_a_run_is_written_all_the_same(tmp_path, monkeypatch, caplog):
    def fail(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", fail)
    runner, _ = agent_with(tmp_path).train(jax.random.key(0), FAST)
    assert f"{tmp_path} cannot be locked" in caplog.text
    restored, _ = agent_with(tmp_path).restore(mode="last")
    assert_trees_equal(restored.actor, runner.actor)


@pytest.mark.parametrize("number", [errno.EWOULDBLOCK, errno.EACCES])
def test_a_lock_that_is_held_is_told_by_either_error(tmp_path, monkeypatch, number):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", fail)
    with pytest.raises(CheckpointError, match="another training writes to"):
        Saver(Checkpoints(tmp_path), 1, 1, {})


WRITING = """
import itertools, sys
import numpy as np
import orbax.checkpoint as ocp
from jaxagents.checkpointing import Checkpoints
from jaxagents.saving import Checkpoint, Saver
saver = Saver(Checkpoints(sys.argv[1]), 2, 1, {})
for step in itertools.count(int(sys.argv[2])):
    names = [f"actor.params.{i}" for i in range(4)] + [f"env_state.{i}" for i in range(4)]
    leaves = {name: np.full(100_000, step, np.int32) for name in names}
    saver.save(Checkpoint(step, leaves, leaves, float(step % 5)))
    print(step, flush=True)
"""


def test_a_writer_that_is_killed_loses_what_it_was_writing_and_nothing_else(tmp_path):
    checkpoints, step = Checkpoints(tmp_path), 0
    for seconds in (0.011, 0.157, 0.283):
        command = [sys.executable, "-c", WRITING, str(tmp_path), str(step)]
        environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, text=True
        ) as writer:
            for _ in range(4):
                handed_over = int(writer.stdout.readline())
            time.sleep(seconds)
            writer.kill()
            handed_over = max([handed_over, *map(int, writer.stdout.read().split())])
        last = checkpoints.last_step()
        assert last >= handed_over - 1  # the one before was waited for
        for kept in checkpoints.steps():
            for leaf in checkpoints.read_runner(kept).values():
                np.testing.assert_array_equal(leaf, kept)
        step = last + 1
    Saver(checkpoints, 2, 1, {}).close()
    assert not list(tmp_path.glob(".un*"))


# What belongs to something else.


def test_a_run_is_not_resumed_with_evaluations_of_another_size(trained):
    for n_evals in (0, 5):
        with pytest.raises(
            ValueError, match=rf"n_evals={n_evals}, but .* of 2 episodes.* n_evals=2"
        ):
            agent_with(trained[0], n_evals=n_evals).resume()


def test_a_newer_format_is_refused_and_left_as_it_is(damaged):
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
            lambda d: agent_with(d, actor_layers=ja.Layers((8,))),
            r"its actor_layers is .*\(64, 64\)",
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
            lambda d: ja.ContinuousIPPO(Aim(), None, dataclasses.replace(TINY, checkpoint_dir=d)),
            "its agent is DiscreteIPPO, and this agent's is ContinuousIPPO",
        ),
    ],
)
def test_another_agents_run_is_refused_by_name_and_values(trained, make, message):
    for method in ("restore", "resume"):
        with pytest.raises(ValueError, match=message) as raised:
            getattr(make(trained[0]), method)()
        assert "\n" not in str(raised.value)


def test_a_training_left_running_by_a_second_signal_does_not_disturb_the_next(tmp_path):
    """It writes the block that it was about, before the run is read to go on."""
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt_twice(evaluation):
        if evaluation.n_updates_done == 4 and not interrupted:
            interrupted.append(True)
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.5)

    interrupted: list[bool] = []
    try:
        agent = agent_with(tmp_path, [interrupt_twice], keep_latest=9)
        with pytest.raises(ja.Interrupted) as raised:
            agent.train(jax.random.key(0), FAST)
        assert raised.value.at_once
        _, metrics = agent.resume()
    finally:
        signal.signal(signal.SIGINT, before)
    np.testing.assert_array_equal(metrics["n_updates_done"], [0, 2, 4, 6, 8])
    assert Checkpoints(tmp_path).steps() == [0, 2, 4, 6, 8]
