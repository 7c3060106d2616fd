"""A directory that one training locks against others, and whose loss is noticed."""

import contextlib
import fcntl
import logging
import os
import platform
import threading
from pathlib import Path
from typing import Any, final

from jaxagents.errors import CheckpointError
from jaxagents.training.atomic_write import opened_here

_LOCK = ".lock"
_logger = logging.getLogger(__name__)


@final
class HeldDirectory:
    """A context manager that locks a directory, which it creates if there is none.

    It may be entered again while it is open, also by other threads; the directory is free once all
    have left, or once this process ends, however it ends.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        self._mutex = threading.Lock()
        self._n_holders = 0
        self._files = contextlib.ExitStack()
        self._folder = self._parent = -1  # descriptors

    def __enter__(self) -> "HeldDirectory":
        """Lock the directory.

        Raises:
            CheckpointError: it cannot be written, or another training holds it.
        """
        with self._mutex:
            if self._n_holders == 0:
                self._hold()
            self._n_holders += 1
        return self

    def __exit__(self, *_: Any) -> None:
        """Leave the directory to others."""
        with self._mutex:
            self._n_holders -= 1
            if self._n_holders == 0:
                self._files.close()

    @property
    def is_in_place(self) -> bool:
        """True if the directory is still the one at its path."""
        return _is_at(self._folder, self.directory)

    def check(self) -> None:
        """Check that the directory is still in its place; recreate it if it alone was deleted.

        Raises:
            CheckpointError: it was moved, replaced, or deleted together with the folder around it.
        """
        if self.is_in_place:
            return
        is_deleted = not os.listdir(self._folder)  # or it would hold the lock's file
        if is_deleted and _is_at(self._parent, self.directory.parent):
            with contextlib.suppress(OSError):
                self.directory.mkdir(exist_ok=True)
            if self.directory.is_dir() and not any(self.directory.iterdir()):
                self._files.close()
                self._hold()
                return
        raise CheckpointError(f"{self.directory} {self._loss(is_deleted)}")

    def _loss(self, is_deleted: bool) -> str:
        ended = "while the run trained, which has therefore ended"
        if is_deleted:
            return f"was deleted {ended}; none of its checkpoints is left there."
        steps = [int(each) for each in os.listdir(self._folder) if each.isdecimal()]
        place = _place_of(self._folder)
        last = "it holds no checkpoint"
        if steps:
            name = str(max(steps))
            last = f"its last whole checkpoint is {name if place is None else place / name}"
        where = "moved or replaced" if place is None else f"moved to {place}"
        return f"was {where} {ended}; {last}: resume the run there, or move it back before."

    def _hold(self) -> None:
        directory = self.directory
        with contextlib.ExitStack() as files:
            try:
                directory.mkdir(parents=True, exist_ok=True)
                lock = opened_here(str(directory / _LOCK), os.O_RDWR | os.O_CREAT)
                files.callback(os.close, lock)
                self._folder = os.open(directory, os.O_RDONLY)
                files.callback(os.close, self._folder)
                self._parent = os.open(directory.parent, os.O_RDONLY)
                files.callback(os.close, self._parent)
            except OSError as error:
                raise CheckpointError(f"{directory} cannot be written: {error}") from error
            _lock(lock, directory)
            files.callback(_write, lock, "")
            self._files = files.pop_all()


def _lock(file: int, directory: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError) as error:  # the latter on some network file systems
        raise CheckpointError(
            f"another training writes to {directory}{_holder(file)}; wait for it to end, or choose "
            "another directory."
        ) from error
    except OSError as error:  # some network file systems have no locks
        _logger.warning(
            "%s cannot be locked (%s): make sure that no other training writes there",
            directory,
            error,
        )
    _write(file, f"{os.getpid()} {platform.node()}\n")


def _write(file: int, text: str) -> None:
    with contextlib.suppress(OSError):  # a full disk; the text is for messages only
        os.ftruncate(file, 0)
        os.pwrite(file, text.encode(), 0)


def _holder(file: int) -> str:
    """Describe the process that holds a lock, as far as it is known."""
    number, _, node = os.pread(file, 200, 0).decode(errors="replace").strip().partition(" ")
    if not number.isdecimal():
        return ""
    return f" (process {number})" if node == platform.node() else f" (process {number} on {node})"


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # such as one of a network file system: the next check may know
        return True


def _place_of(descriptor: int) -> Path | None:
    """Return the path of an open directory, if the system knows it."""
    try:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
    except OSError:
        return None
    return path if _is_at(descriptor, path) else None
