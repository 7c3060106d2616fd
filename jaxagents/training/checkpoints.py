"""Checkpoints on disk, in a format that damage cannot hide in.

A checkpoint is a folder named by the number of updates done:

* ``state.npz``: the `Runner`'s leaves by name, such as "actor.params.params.torso.Dense_0.kernel":
  parameters, optimizers, environments, normalizers, random keys as their uint32 data.
* ``params/``: those that are the networks' parameters once more, by orbax, for other programs. As
  this takes ten times as long as all the rest, not every checkpoint gets it at once.
* ``history.npz``: the metrics of every evaluation so far, ``[evaluations, ...]``.
* ``metadata.json``: the format's version, the agent, the score, the digest of each other file,
  and the digest of all this.

It is written under another name and renamed when it is complete, so that what is there is whole
or was damaged later; the digests tell. Nothing damaged is ever deleted: it is set aside.
"""

import contextlib
import errno
import hashlib
import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, final

import numpy as np

from jaxagents.errors import CheckpointError
from jaxagents.training.named_arrays import Leaves

FORMAT_VERSION = 1
_PARAMS = ("actor.params.", "critic.params.")
_ITEMS = ("metadata.json", "history.npz", "state.npz", "params")
_UNFINISHED, _UNWANTED = ".unfinished-", ".unwanted-"
_logger = logging.getLogger(__name__)
Result = TypeVar("Result")


class DamagedError(CheckpointError):
    """The contents of a checkpoint are not what was saved."""


@final
class Checkpoints:
    """The checkpoints in a directory.

    Nothing is created or changed on disk before the first `write`.
    """

    def __init__(self, directory: str | PathLike[str]):
        self.directory = Path(directory).expanduser().resolve()

    def steps(self) -> list[int]:
        """List the steps, the earliest first."""
        try:
            entries = list(self.directory.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise CheckpointError(f"{self.directory} cannot be read: {error}") from error
        return sorted(int(entry.name) for entry in entries if _is_step(entry))

    def last_step(self) -> int:
        """Name the latest step.

        Raises:
            CheckpointError: there is none.
        """
        steps = self.steps()
        if not steps:
            raise CheckpointError(f"{self.directory} holds no checkpoint; train into it first.")
        return steps[-1]

    def latest_good(self, read: Callable[[int], Result]) -> tuple[int, Result]:
        """Read from the latest step, or from the one before it where that one is damaged.

        What is damaged is set aside.

        Raises:
            CheckpointError: there is none that is not.
        """
        while True:
            step = self.last_step()
            try:
                return step, read(step)
            except DamagedError as error:
                self.set_aside(step, str(error))

    def set_aside(self, step: int, reason: str) -> None:
        """Rename a damaged step, so that it is not taken for one any more, and say so.

        Raises:
            CheckpointError: it cannot be renamed.
        """
        path = self.directory / str(step)
        taken = {entry.name for entry in self.directory.iterdir()}
        names = (f"{step}.damaged{suffix}" for suffix in ("", *(f"-{i}" for i in range(2, 1000))))
        target = path.with_name(next(name for name in names if name not in taken))
        try:
            path.rename(target)
        except FileNotFoundError:  # another process has tidied up
            return
        except OSError as error:
            raise CheckpointError(f"{reason}; it cannot be set aside: {error}") from error
        _logger.warning("%s; it is kept as %s, and the checkpoint before it used", reason, target)

    def write(
        self,
        step: int,
        runner: Leaves,
        history: Leaves,
        metadata: Mapping[str, Any],
        score: float,
        with_params: bool = True,
    ) -> None:
        """Write a step.

        Args:
            step: Updates done.
            runner: The runner's leaves.
            history: The metrics of the evaluations so far.
            metadata: Anything JSON that describes the run.
            score: What "best" compares.
            with_params: Whether to write ``params/`` now, and not by `add_params`.

        Raises:
            OSError: it cannot be written, for lack of space or otherwise; where orbax notices it
                first, an error of another kind.
        """
        path = self.directory / f"{_UNFINISHED}{step}"
        shutil.rmtree(path, ignore_errors=True)
        try:
            self._write(path, runner, history, metadata, score)
            if with_params:
                self._write_params(path, runner)
            path.rename(self.directory / str(step))
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)  # a full disk needs the space
            raise
        _sync(self.directory)

    def _write(
        self,
        path: Path,
        runner: Leaves,
        history: Leaves,
        metadata: Mapping[str, Any],
        score: float,
    ) -> None:
        path.mkdir(parents=True)
        _check_space(path, sum(leaf.nbytes for leaf in (*runner.values(), *history.values())))
        savez: Any = np.savez  # whose types take a leaf for an option
        savez(path / "state.npz", **runner)
        savez(path / "history.npz", **history)
        description = {
            **metadata,
            "format_version": FORMAT_VERSION,
            "score": score if math.isfinite(score) else None,
            "leaves": {name: f"{leaf.dtype}{list(leaf.shape)}" for name, leaf in runner.items()},
        }
        _write_metadata(path, description, _files(path))

    def add_params(self, step: int) -> None:
        """Write a step's ``params/``, if it has none yet.

        Raises:
            CheckpointError: the step cannot be read.
            OSError: ``params/`` cannot be written.
        """
        metadata = self._verify(step, "")
        if not any(name.startswith("params/") for name in metadata["files"]):
            self._write_params(self.directory / str(step), self.read_runner(step))

    def _write_params(self, path: Path, runner: Leaves) -> None:
        import orbax.checkpoint as ocp  # here, as it takes half a second

        # Orbax's `Checkpointer` adds a rename and its own metadata, and takes a fifth longer.
        orbax: Any = ocp.PyTreeCheckpointHandler()  # whose types want a class of paths
        params = {name: leaf for name, leaf in runner.items() if name.startswith(_PARAMS)}
        folder = path / "params"
        shutil.rmtree(folder, ignore_errors=True)  # what a killed writer has left
        folder.mkdir()
        _check_space(folder, sum(leaf.nbytes for leaf in params.values()))
        orbax.save(folder, args=ocp.args.PyTreeSave(params))
        orbax.finalize(folder)
        metadata = json.loads((path / "metadata.json").read_bytes())
        del metadata["digest"]
        _write_metadata(path, metadata, _files(folder))

    def remove(self, steps: Iterable[int]) -> None:
        """Remove steps that are not wanted any more, and what writers left that were killed."""
        for step in steps:
            with contextlib.suppress(FileNotFoundError):
                (self.directory / str(step)).rename(self.directory / f"{_UNWANTED}{step}")
        for entry in list(self.directory.iterdir()):
            if entry.name.startswith((_UNWANTED, _UNFINISHED)):
                shutil.rmtree(entry, ignore_errors=True)

    def read_metadata(self, step: int) -> dict[str, Any]:
        """Read the JSON description of a step.

        Raises:
            DamagedError: it is not what was saved.
            CheckpointError: a newer version of this package wrote it.
        """
        path = self.directory / str(step)
        with _telling_damage(path, "metadata.json"):
            metadata = json.loads((path / "metadata.json").read_bytes())
            whole = metadata.pop("digest") == _digest_of_json(metadata)
        if not whole:
            raise _damaged(path, "metadata.json")
        # All formats to come keep that digest: what is damaged must not pass for new.
        if metadata["format_version"] > FORMAT_VERSION:
            raise CheckpointError(
                f"{path} has checkpoint format {metadata['format_version']}; this version of "
                f"jaxagents reads up to {FORMAT_VERSION}. Install a newer one."
            )
        return metadata

    def read_history(self, step: int) -> Leaves:
        """Read the metrics of the evaluations up to a step.

        Raises:
            CheckpointError: as for `read_metadata`.
        """
        return self._load(step, "history.npz", lambda path, _: _load_npz(path / "history.npz"))

    def read_runner(self, step: int) -> Leaves:
        """Read the leaves of a step's runner.

        Raises:
            CheckpointError: as for `read_metadata`.
        """

        def load(path: Path, metadata: Mapping[str, Any]) -> Leaves:
            dtypes = {name: text.split("[")[0] for name, text in metadata["leaves"].items()}
            # A dtype that numpy does not know of itself, such as bfloat16, comes back as bytes.
            return {
                name: leaf.view(dtypes[name])
                for name, leaf in _load_npz(path / "state.npz").items()
            }

        return self._load(step, ("params/", "state.npz"), load)

    def _load(
        self,
        step: int,
        prefix: str | tuple[str, ...],
        load: Callable[[Path, Mapping[str, Any]], Leaves],
    ) -> Leaves:
        metadata = self._verify(step, prefix)
        path = self.directory / str(step)
        try:
            return load(path, metadata)
        except Exception as error:
            self._verify(step, prefix)  # a writer may just have removed it
            reason = " ".join(str(error).split())[:200]
            raise CheckpointError(
                f"checkpoint {path} is what was saved, but cannot be read: {reason}"
            ) from error

    def _verify(self, step: int, prefix: str | tuple[str, ...]) -> dict[str, Any]:
        """Compare files with their digests, before a library opens them; return the metadata."""
        path, metadata = self.directory / str(step), self.read_metadata(step)
        for name, expected in metadata["files"].items():
            if not name.startswith(prefix):
                continue
            with _telling_damage(path, name):
                contents = (path / name).read_bytes()
            if _digest(contents) != expected:
                raise _damaged(path, name)
        return metadata


def _write_metadata(path: Path, description: Mapping[str, Any], files: Iterable[Path]) -> None:
    """Describe a step, with the digests of files that are new in it, once these are on the disk."""
    digests = {str(file.relative_to(path)): _digest(file.read_bytes()) for file in files}
    description = {**description, "files": description.get("files", {}) | digests}
    new = path / "metadata.json.new"
    new.write_text(json.dumps({**description, "digest": _digest_of_json(description)}, indent=1))
    for file in (*files, new):
        _sync(file)  # for renames may get to the disk before they do
    new.replace(path / "metadata.json")


def _load_npz(path: Path) -> Leaves:
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def _check_space(path: Path, n_bytes: int) -> None:
    """Raise OSError if a file of this size does not fit: orbax would say so at great length."""
    if not hasattr(os, "posix_fallocate"):
        return
    probe = path / "probe"
    with probe.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, n_bytes)
    probe.unlink()


def _files(path: Path) -> list[Path]:
    return sorted(each for each in path.rglob("*") if each.is_file())


def _sync(path: Path) -> None:
    """Wait until a file, or a folder's list of files, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()


def _digest_of_json(value: Any) -> str:
    return _digest(json.dumps(value, sort_keys=True).encode())


@contextlib.contextmanager
def _telling_damage(path: Path, item: str) -> Iterator[None]:
    """Turn what missing files raise, and what damaged ones make JSON raise."""
    try:
        yield
    except OSError as error:
        # Anything else, such as too many open files, says nothing about the contents.
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO):
            raise _damaged(path, item, error) from error
        raise CheckpointError(f"checkpoint {path} cannot be read: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, item, error) from error


def _is_step(path: Path) -> bool:
    """Tell whether a folder is a checkpoint, be it a damaged one, and nobody else's."""
    name = path.name
    if not (name.isascii() and name.isdigit() and str(int(name)) == name):
        return False
    return any((path / item).exists() for item in _ITEMS)


def _damaged(path: Path, item: str, error: Exception | None = None) -> DamagedError:
    reason = "" if error is None else f" ({' '.join(str(error).split())[:200]})"
    return DamagedError(
        f"the checkpoint {path} is damaged: its {item} is not what was saved{reason}"
    )
