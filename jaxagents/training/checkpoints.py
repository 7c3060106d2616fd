"""Checkpoints on disk, in a format that reveals any damage.

A checkpoint is a folder named by the number of updates done:

* ``state.npz``: the `Runner`'s leaves by name, such as "actor.params.params.torso.Dense_0.kernel":
  parameters, optimizers, environments, normalizers, and random keys as their uint32 data.
* ``params/``: the networks' parameters again, in orbax's format, for other programs. Writing it
  takes ten times as long as writing all other files, so it is added to some checkpoints later.
* ``history.npz``: the metrics of every evaluation so far, ``[evaluations, ...]``.
* ``metadata.json``: the format's version, the agent, the score, a digest of each other file,
  and a digest of the metadata themselves.

A checkpoint is written under a temporary name and renamed when complete. Digests reveal files that
were damaged later. Damaged checkpoints are renamed, never deleted.
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
from jaxagents.training.atomic_write import naming, opened_here
from jaxagents.training.checkpoint_files import (
    HostileError,
    check_metadata,
    digest_of_file,
    file_in,
    read_json,
    read_npz,
)
from jaxagents.training.named_arrays import Leaves

FORMAT_VERSION = 1
_PARAMS = ("actor.params.", "critic.params.")
_ITEMS = ("metadata.json", "history.npz", "state.npz", "params")
_UNFINISHED, _UNWANTED = ".unfinished-", ".unwanted-"
_logger = logging.getLogger(__name__)
Result = TypeVar("Result")


class DamagedError(CheckpointError):
    """A checkpoint's contents differ from what was saved."""


@final
class Checkpoints:
    """The checkpoints in a directory, which their writer has created."""

    def __init__(self, directory: str | PathLike[str]):
        self.directory = Path(directory).expanduser().resolve()

    def steps(self) -> list[int]:
        """List the steps of the checkpoints, in ascending order."""
        try:
            entries = list(self.directory.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise CheckpointError(f"{self.directory} cannot be read: {error}") from error
        return sorted(int(entry.name) for entry in entries if _is_step(entry))

    def last_step(self) -> int:
        """Return the latest step.

        Raises:
            CheckpointError: There is no checkpoint.
        """
        steps = self.steps()
        if not steps:
            raise CheckpointError(f"{self.directory} holds no checkpoint; train into it first.")
        return steps[-1]

    def read_latest(self, read: Callable[[int], Result]) -> tuple[int, Result]:
        """Read from the latest checkpoint that is not damaged; set damaged ones aside.

        Args:
            read: Called with a step, such as `read_history`.

        Returns:
            The step, and what was read.

        Raises:
            CheckpointError: There is no undamaged checkpoint.
        """
        while True:
            step = self.last_step()
            try:
                return step, read(step)
            except DamagedError as error:
                self.set_aside(step, str(error))

    def set_aside(self, step: int, reason: str) -> None:
        """Rename a damaged checkpoint, so that it is not used again, and log a warning.

        Args:
            step: Step of the checkpoint.
            reason: The damage, for the warning.

        Raises:
            CheckpointError: The checkpoint cannot be renamed.
        """
        path = self.directory / str(step)
        taken = {entry.name for entry in self.directory.iterdir()}
        names = (f"{step}.damaged{suffix}" for suffix in ("", *(f"-{i}" for i in range(2, 1000))))
        target = path.with_name(next(name for name in names if name not in taken))
        try:
            path.rename(target)
        except FileNotFoundError:  # another process has removed it
            return
        except OSError as error:
            raise CheckpointError(f"{reason}; it cannot be set aside: {error}") from error
        _logger.warning("%s; it is kept as %s; using the checkpoint before it", reason, target)

    def write(
        self,
        step: int,
        runner: Leaves,
        history: Leaves,
        metadata: Mapping[str, Any],
        score: float,
        with_params: bool = True,
    ) -> None:
        """Write a checkpoint.

        Args:
            step: Updates done.
            runner: The runner's leaves.
            history: Metrics of the evaluations so far.
            metadata: JSON data that describe the run.
            score: Decides which checkpoints are kept as the best.
            with_params: Write ``params/`` now; otherwise `add_params` must follow.

        Raises:
            OSError: The checkpoint cannot be written, for example for lack of space. Orbax may
                raise an error of another type instead.
        """
        path = self.directory / f"{_UNFINISHED}{step}"
        shutil.rmtree(path, ignore_errors=True)
        try:
            with naming(self.directory):
                self._write(path, runner, history, metadata, score)
                if with_params:
                    self._write_params(path, runner)
                path.rename(self.directory / str(step))
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)  # free the space of a full disk
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
        path.mkdir()
        _check_space(path, sum(leaf.nbytes for leaf in (*runner.values(), *history.values())))
        savez: Any = np.savez  # its type stubs take leaves for options
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
        """Write a checkpoint's ``params/`` if it has none yet.

        Raises:
            CheckpointError: The checkpoint cannot be read.
            OSError: ``params/`` cannot be written.
        """
        metadata = self._verify(step, "")
        if not any(name.startswith("params/") for name in metadata["files"]):
            self._write_params(self.directory / str(step), self.read_runner(step))

    def _write_params(self, path: Path, runner: Leaves) -> None:
        import orbax.checkpoint as ocp  # the import takes half a second

        # Orbax's `Checkpointer` adds a rename and its own metadata, and takes 20 % longer.
        orbax: Any = ocp.PyTreeCheckpointHandler()  # its type stubs demand a path class of its own
        params = {name: leaf for name, leaf in runner.items() if name.startswith(_PARAMS)}
        folder = path / "params"
        shutil.rmtree(folder, ignore_errors=True)  # the remains of a killed writer
        folder.mkdir()
        _check_space(folder, sum(leaf.nbytes for leaf in params.values()))
        orbax.save(folder, args=ocp.args.PyTreeSave(params))
        orbax.finalize(folder)
        metadata = read_json(path / "metadata.json")
        del metadata["digest"]
        _write_metadata(path, metadata, _files(folder))

    def remove(self, steps: Iterable[int]) -> None:
        """Remove checkpoints, and the remains of killed writers."""
        for step in steps:
            with contextlib.suppress(FileNotFoundError):
                (self.directory / str(step)).rename(self.directory / f"{_UNWANTED}{step}")
        for entry in list(self.directory.iterdir()):
            if entry.name.startswith((_UNWANTED, _UNFINISHED)):
                shutil.rmtree(entry, ignore_errors=True)

    def read_metadata(self, step: int) -> dict[str, Any]:
        """Read a checkpoint's metadata.

        Raises:
            DamagedError: They differ from what was saved.
            CheckpointError: A newer version of this package wrote the checkpoint.
        """
        path = self.directory / str(step)
        with _damage_detected(path, "metadata.json"):
            metadata = read_json(file_in(path, "metadata.json"))
            is_intact = metadata.pop("digest") == _digest_of_json(metadata)
        if not is_intact:
            raise _damaged(path, "metadata.json")
        # Later formats keep this digest, so that damage is not mistaken for a newer format.
        with _damage_detected(path, "metadata.json"):
            is_newer = metadata["format_version"] > FORMAT_VERSION
        if is_newer:
            raise CheckpointError(
                f"{path} has checkpoint format {metadata['format_version']}; this version of "
                f"jaxagents reads up to {FORMAT_VERSION}. Install a newer one."
            )
        with _damage_detected(path, "metadata.json"):
            check_metadata(metadata)
        return metadata

    def read_history(self, step: int) -> Leaves:
        """Read the metrics of all evaluations up to a checkpoint.

        Raises:
            CheckpointError: As for `read_metadata`.
        """
        return self._load(
            step, "history.npz", lambda path, _: read_npz(file_in(path, "history.npz"))
        )

    def read_runner(self, step: int) -> Leaves:
        """Read the leaves of a checkpoint's runner.

        Raises:
            CheckpointError: As for `read_metadata`.
        """

        def load(path: Path, metadata: Mapping[str, Any]) -> Leaves:
            dtypes = {name: text.split("[")[0] for name, text in metadata["leaves"].items()}
            leaves = read_npz(file_in(path, "state.npz"))
            if difference := sorted(leaves.keys() ^ dtypes.keys()):
                raise HostileError(f"{difference[0]} is in one of metadata.json and state.npz")
            # NumPy reads dtypes of ml_dtypes, such as bfloat16, as raw bytes.
            return {name: leaf.view(dtypes[name]) for name, leaf in leaves.items()}

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
            self._verify(step, prefix)  # raises if a writer has removed the checkpoint meanwhile
            if isinstance(error, HostileError):
                raise CheckpointError(f"checkpoint {path} is refused: {error}") from error
            reason = " ".join(str(error).split())[:200]
            raise CheckpointError(
                f"checkpoint {path} is undamaged, but cannot be read: {reason}"
            ) from error

    def _verify(self, step: int, prefix: str | tuple[str, ...]) -> dict[str, Any]:
        """Check the digests of files before a library opens them, and return the metadata.

        Args:
            step: Step of the checkpoint.
            prefix: Beginning of the files' names, or several of them.

        Raises:
            CheckpointError: As for `read_metadata`.
        """
        path, metadata = self.directory / str(step), self.read_metadata(step)
        for name, expected in metadata["files"].items():
            if not name.startswith(prefix):
                continue
            with _damage_detected(path, name):
                digest = digest_of_file(file_in(path, name))
            if digest != expected:
                raise _damaged(path, name)
        return metadata


def _write_metadata(path: Path, description: Mapping[str, Any], files: Iterable[Path]) -> None:
    """Write a checkpoint's metadata, with the digests of new files, once these are on the disk."""
    digests = {str(file.relative_to(path)): digest_of_file(file) for file in files}
    description = {**description, "files": description.get("files", {}) | digests}
    new = path / "metadata.json.new"
    with open(new, "w", opener=opened_here) as file:
        file.write(json.dumps({**description, "digest": _digest_of_json(description)}, indent=1))
    for each in (*files, new):
        _sync(each)  # or the rename could reach the disk before the contents
    new.replace(path / "metadata.json")


def _check_space(path: Path, n_bytes: int) -> None:
    """Raise OSError if a file of this size does not fit; orbax's own error is very long."""
    if not hasattr(os, "posix_fallocate"):
        return
    probe = path / "probe"
    with probe.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, n_bytes)
    probe.unlink()


def _files(path: Path) -> list[Path]:
    return sorted(each for each in path.rglob("*") if each.is_file())


def _sync(path: Path) -> None:
    """Wait until a file, or a folder's list of entries, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest_of_json(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


@contextlib.contextmanager
def _damage_detected(path: Path, item: str) -> Iterator[None]:
    """Turn the errors that missing or damaged files cause into a `DamagedError`."""
    try:
        yield
    except HostileError as error:
        raise CheckpointError(f"checkpoint {path} is refused: {error}") from error
    except OSError as error:
        # Other errors, such as too many open files, say nothing about the contents.
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO):
            raise _damaged(path, item, error) from error
        raise CheckpointError(f"checkpoint {path} cannot be read: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, item, error) from error


def _is_step(path: Path) -> bool:
    """Return True if a folder is a checkpoint, damaged or not, rather than another program's."""
    name = path.name
    if not (name.isascii() and name.isdigit() and str(int(name)) == name):
        return False
    return any((path / item).exists() for item in _ITEMS)


def _damaged(path: Path, item: str, error: Exception | None = None) -> DamagedError:
    reason = "" if error is None else f" ({' '.join(str(error).split())[:200]})"
    return DamagedError(
        f"the checkpoint {path} is damaged: its {item} differs from what was saved{reason}"
    )
