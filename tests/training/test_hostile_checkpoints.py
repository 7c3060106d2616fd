"""Checkpoints of strangers, with correct digests: refused by name, and nothing is run or written.

Where a file is forged, so are its digest and that of the metadata: digests reveal damage, and are
no signatures.
"""

import io
import json
import os
import pickle
import shutil
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxagents.cli import main as cli
from jaxagents.errors import CheckpointError, ExperimentError
from jaxagents.evaluation.runs import read_config
from jaxagents.experiments.experiment import Experiment
from jaxagents.experiments.make_agent import restored_agent
from jaxagents.training.atomic_write import write_atomically
from jaxagents.training.checkpoint_writer import CheckpointWriter
from jaxagents.training.checkpoints import Checkpoints, _digest_of_json, digest_of_file

RUN = Path(__file__).parents[1] / "data" / "run_of_1_0"
STEP = 4


class Payload:
    """Unpickling it creates a file."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return (Path.touch, (self.marker,))


class Scene:
    """A copy of a run to forge, and what may not be touched beside it."""

    def __init__(self, folder: Path):
        self.run = folder / "runs" / "stranger"
        self.checkpoint = self.run / "checkpoints" / str(STEP)
        self.marker = folder / "code-was-run"
        self.secret = folder / "secret"
        self.secret.write_text("mine")
        shutil.copytree(RUN, self.run)

    def sign(self, change: Callable[[dict[str, Any]], Any] = lambda _: None) -> None:
        """Change the metadata, and make all digests right."""
        path = self.checkpoint / "metadata.json"
        metadata = json.loads(path.read_text())
        del metadata["digest"]
        for name in metadata["files"]:
            if (self.checkpoint / name).is_file():
                metadata["files"][name] = digest_of_file(self.checkpoint / name)
        change(metadata)
        path.write_text(json.dumps({**metadata, "digest": _digest_of_json(metadata)}))

    def rewrite(self, name: str, write: Callable[[zipfile.ZipFile, dict[str, bytes]], None]):
        """Write an npz file anew from the members that it has."""
        with zipfile.ZipFile(self.checkpoint / name) as archive:
            members = {each: archive.read(each) for each in archive.namelist()}
        with zipfile.ZipFile(self.checkpoint / name, "w") as archive:
            write(archive, members)
        self.sign()


@pytest.fixture
def scene(tmp_path) -> Scene:
    return Scene(tmp_path)


def replace_first(contents: bytes, compression: int = zipfile.ZIP_STORED):
    def write(archive, members):
        for i, (name, own) in enumerate(members.items()):
            archive.writestr(name, own if i else contents, compression)

    return write


def npy(array: np.ndarray, **options: Any) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, **options)
    return file.getvalue()


def pickle_for_arrays(scene):
    (scene.checkpoint / "state.npz").write_bytes(pickle.dumps(Payload(scene.marker)))
    scene.sign()


def objects_in_an_array(scene):
    array = np.array([Payload(scene.marker)], dtype=object)
    scene.rewrite("state.npz", replace_first(npy(array, allow_pickle=True)))


def objects_in_the_history(scene):
    array = np.array([Payload(scene.marker)], dtype=object)
    scene.rewrite("history.npz", replace_first(npy(array, allow_pickle=True)))


def npy_for_npz(scene):
    array = np.array([Payload(scene.marker)], dtype=object)
    (scene.checkpoint / "state.npz").write_bytes(npy(array, allow_pickle=True))
    scene.sign()


def pickle_as_a_member(scene):
    scene.rewrite("state.npz", replace_first(pickle.dumps(Payload(scene.marker))))


def huge_shape(scene):
    header = npy(np.zeros(1, np.uint8)).replace(b"(1,), }" + 9 * b" ", b"(9999999999,), }")
    assert b"9999999999" in header
    scene.rewrite("state.npz", replace_first(header))


def compressed_bomb(scene):
    bomb = npy(np.zeros(2**26, np.uint8))
    scene.rewrite("state.npz", replace_first(bomb, zipfile.ZIP_DEFLATED))


def compressed_array(scene):
    scene.rewrite("state.npz", replace_first(npy(np.zeros(3)), zipfile.ZIP_DEFLATED))


def overlapping_members(scene):
    """Let every member of the directory be the first one."""
    scene.rewrite("history.npz", replace_first(npy(np.zeros(4000))))
    path = scene.checkpoint / "history.npz"
    contents = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        first = archive.infolist()[0]
    at = contents.index(b"PK\x01\x02")
    while at != -1:  # each entry of the directory: its CRC and sizes, and where the member begins
        contents[at + 16 : at + 28] = (
            first.CRC.to_bytes(4, "little") + first.file_size.to_bytes(4, "little") * 2
        )
        contents[at + 42 : at + 46] = (0).to_bytes(4, "little")
        at = contents.find(b"PK\x01\x02", at + 1)
    path.write_bytes(contents)
    scene.sign()


def dtype_of_objects(scene):
    def change(metadata):
        metadata["leaves"] = dict.fromkeys(metadata["leaves"], "object[]")

    scene.sign(change)


def member_outside(scene):
    scene.rewrite(
        "state.npz", lambda archive, members: archive.writestr("../../../x.npy", npy(np.ones(1)))
    )


def file_outside(name):
    def forge(scene):
        scene.sign(lambda metadata: metadata["files"].update({name: "0"}))

    return forge


def link_for_a_file(scene):
    (scene.checkpoint / "state.npz").unlink()
    (scene.checkpoint / "state.npz").symlink_to(scene.secret)
    scene.sign()


def link_for_a_folder(scene):
    shutil.move(scene.checkpoint / "params", scene.secret.with_name("params"))
    (scene.checkpoint / "params").symlink_to(scene.secret.with_name("params"))


def link_for_a_checkpoint(scene):
    shutil.move(scene.checkpoint, scene.secret.with_name("4"))
    scene.checkpoint.symlink_to(scene.secret.with_name("4"))


def pipe_for_a_file(scene):
    scene.sign(lambda metadata: metadata["files"].update({"params/pipe": "0"}))
    os.mkfifo(scene.checkpoint / "params" / "pipe")


def huge_json(scene):
    with (scene.checkpoint / "metadata.json").open("r+b") as file:
        file.truncate(2**40)  # no blocks are written


def deep_json(scene):
    (scene.checkpoint / "metadata.json").write_text("[" * 100_000)


def metadata_of_another_kind(scene):
    scene.sign(lambda metadata: metadata.update(files=[1, 2]))


def metadata_without_digests(scene):
    scene.sign(lambda metadata: metadata.update(files={}))


REFUSED = {
    pickle_for_arrays: "state.npz is no file of arrays",
    objects_in_an_array: "Python objects, which are never loaded",
    objects_in_the_history: "Python objects, which are never loaded",
    npy_for_npz: "state.npz is no file of arrays",
    pickle_as_a_member: "magic string is not correct",
    huge_shape: "declares 9,999,999,999 bytes and holds 1",
    compressed_array: "is compressed",
    compressed_bomb: "bytes and declares ",
    overlapping_members: "bytes and declares ",
    dtype_of_objects: "cannot be read",
    member_outside: "is in one of metadata.json and state.npz",
    file_outside("params/../../../../../secret"): "is no file in it",
    file_outside("params//dev/zero"): "params/.* differs from what was saved",
    link_for_a_file: "state.npz is reached by a symbolic link",
    link_for_a_folder: "params/.* is reached by a symbolic link",
    link_for_a_checkpoint: "metadata.json is reached by a symbolic link",
    pipe_for_a_file: "params/pipe is no ordinary file",
    huge_json: "metadata.json has 1,099,511,627,776 bytes",
    deep_json: "metadata.json is too deeply nested",
    metadata_of_another_kind: "its files are not texts by name",
    metadata_without_digests: "it has no digest of history.npz",
}


def reading(scene: Scene) -> str:
    """Read a checkpoint that is refused; return the message."""

    def read() -> None:
        checkpoints = Checkpoints(scene.checkpoint.parent)
        checkpoints.read_history(STEP)
        checkpoints.read_runner(STEP)

    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError) as raised:
            read()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**24
    return str(raised.value)


@pytest.mark.parametrize("forge", REFUSED, ids=lambda each: each.__name__)
def test_a_forged_checkpoint_is_refused_by_one_line_that_says_why(forge, scene):
    forge(scene)
    message = reading(scene)
    assert str(scene.checkpoint) in message
    assert "\n" not in message
    with pytest.raises(CheckpointError, match=REFUSED[forge]):
        raise CheckpointError(message)
    assert not scene.marker.exists()
    assert scene.secret.read_text() == "mine"


def test_the_checkpoint_that_is_forged_can_be_read_before(scene):
    scene.sign()
    assert Checkpoints(scene.checkpoint.parent).read_runner(STEP)


COMMANDS = {
    "restore": lambda run: Experiment.of_run(run).restore(),
    "resume": lambda run: cli.main(["resume", run, "--agent.n_steps", "8"]),
    "eval": lambda run: cli.main(["eval", run]),
    "export": lambda run: cli.main(["export", run]),
    "replay": lambda run: cli.main(["replay", run]),
    "opponents": restored_agent,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_reads_a_checkpoint_refuses_it(command, scene, capsys):
    objects_in_an_array(scene)
    before = sorted(scene.run.rglob("*"))
    try:
        assert COMMANDS[command](str(scene.run)) == 2
        message = capsys.readouterr().err
    except ValueError as error:
        message = f"{error}\n"
    assert "Python objects, which are never loaded" in message
    assert message.count("\n") == 1
    assert not scene.marker.exists()
    lock = scene.run / "checkpoints" / ".lock"
    assert sorted({*scene.run.rglob("*")} - {lock}) == before


def test_a_checkpoint_with_a_wrong_digest_is_set_aside_and_its_pickle_is_not_read(scene, capsys):
    (scene.checkpoint / "state.npz").write_bytes(pickle.dumps(Payload(scene.marker)))
    assert cli.main(["eval", str(scene.run)]) == 2
    assert "holds no checkpoint" in capsys.readouterr().err
    assert scene.checkpoint.with_name("4.damaged").is_dir()
    assert not scene.marker.exists()


@pytest.mark.parametrize("name", ["metrics.jsonl", "learning_curve.png", "tensorboard"])
def test_a_run_with_a_link_out_of_it_is_refused(name, scene, capsys):
    (scene.run / name).unlink(missing_ok=True)
    (scene.run / name).symlink_to(scene.secret)
    for command in ("resume", "plot", "report"):
        assert cli.main([command, str(scene.run)]) == 2
        assert f"{name} is a symbolic link out of the run's directory" in capsys.readouterr().err
    assert scene.secret.read_text() == "mine"


def test_writers_do_not_follow_links(scene):
    directory = scene.checkpoint.parent
    (directory / ".lock").symlink_to(scene.secret.with_name("new"))
    with pytest.raises(CheckpointError, match="cannot be written"):
        CheckpointWriter(Checkpoints(directory), 1, 0, {})
    assert not scene.secret.with_name("new").exists()
    (scene.run / ".new.summary.json").symlink_to(scene.secret)
    write_atomically(scene.run / "summary.json", "{}")
    assert (scene.run / "summary.json").read_text() == "{}"
    assert not (scene.run / "summary.json").is_symlink()
    shutil.rmtree(scene.checkpoint / "params")
    (scene.checkpoint / "metadata.json.new").symlink_to(scene.secret)
    scene.sign(
        lambda metadata: metadata.update(
            files={each: text for each, text in metadata["files"].items() if "params" not in each}
        )
    )
    with pytest.raises(OSError, match="symbolic links"):
        Checkpoints(directory).add_params(STEP)
    assert scene.secret.read_text() == "mine"


def test_python_tags_in_a_configuration_are_refused(scene, capsys):
    text = f"name: !!python/object/apply:pathlib.Path.touch [{scene.marker}]\nenv: x\nagent: {{}}\n"
    (scene.run / "config.yaml").write_text(text)
    for command in ("eval", "resume", "plot"):
        assert cli.main([command, str(scene.run)]) == 2
        message = capsys.readouterr().err
        assert "config.yaml" in message or "cannot be read as a run" in message
        assert "could not determine a constructor for the tag" in message
    assert not scene.marker.exists()


def test_aliases_that_multiply_are_refused(scene):
    lines = ["name: a", "env: b", "agent: {}", "a0: &a0 {x: 1}"]
    lines += [
        f"a{i}: &a{i} {{{', '.join(f'k{j}: *a{i - 1}' for j in range(9))}}}" for i in range(1, 12)
    ]
    (scene.run / "config.yaml").write_text("\n".join(lines))
    for read in (read_config, Experiment.of_run):
        with pytest.raises(ExperimentError, match="with its aliases"):
            read(scene.run)
