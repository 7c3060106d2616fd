"""What a process and its workers share: arrays, messages, and modules to import. Numpy only.

The memory is a file without a name: it disappears with the last process that holds it, however the
processes end. (`multiprocessing.shared_memory` needs a process that cleans up after it.) A step
costs a message of one byte each way: `multiprocessing.connection` takes three times as long.
"""

import contextlib
import importlib
import math
import mmap
import os
import pickle
import socket
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any, NamedTuple

import numpy as np

from jaxagents.environments.host import HostEnvironmentError

RESET, STEP = b"r", b"s"  # to the worker
INFOS = b"i"  # to the worker; a list of `EpisodeInfos` follows DONE
DONE, FAILED = b"d", b"f"  # from the worker; a `Failure` follows FAILED
_LENGTH = struct.Struct("!Q")
_ALIGNMENT = 64  # bytes: a cache line
_IN_MEMORY = "/dev/shm"
QUIET_PYGAME = {"PYGAME_HIDE_SUPPORT_PROMPT": "1"}
"""Environment variables without which the import of pygame prints a greeting."""
_modules: dict[str, None] = {}  # an ordered set


class Failure(NamedTuple):
    """What failed when environments were made, reset or stepped."""

    env: int | None  # None: the fault belongs to no environment
    text: str  # of one line
    traceback: str = ""  # of a worker; empty if the fault was found from outside
    error: BaseException | None = None  # of this process


class ArraySpec(NamedTuple):
    """One environment's part of an array."""

    shape: tuple[int, ...]
    dtype: str
    n_envs: int | None = None  # of the first environments only; None: of all

    def n_rows(self, n_envs: int) -> int:
        """Return the number of environments, of ``n_envs``, that have a part in the array."""
        return n_envs if self.n_envs is None else min(self.n_envs, n_envs)


Layout = Mapping[str, ArraySpec]
"""The arrays by name."""


def new_arrays(layout: Layout, n_envs: int) -> dict[str, np.ndarray]:
    """Return arrays of zeros, ``[envs, *shape]`` by name, that are not shared."""
    return {
        name: np.zeros((spec.n_rows(n_envs), *spec.shape), spec.dtype)
        for name, spec in layout.items()
    }


def new_memory(layout: Layout, n_envs: int) -> IO[bytes]:
    """Create a file that holds the arrays of ``n_envs`` environments, all zero.

    Raises:
        HostEnvironmentError: there is not enough memory for it.
    """
    folder = _IN_MEMORY if os.path.isdir(_IN_MEMORY) else tempfile.gettempdir()
    n_bytes = sum(_n_bytes(spec, n_envs) for spec in layout.values())
    file = None
    try:
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 -- open as long as workers are
        file.truncate(n_bytes)
        if hasattr(os, "posix_fallocate"):  # else the first write without space ends the process
            os.posix_fallocate(file.fileno(), 0, n_bytes)
    except OSError as error:
        if file is not None:
            file.close()
        raise HostEnvironmentError(
            f"the workers of n_envs={n_envs} share {n_bytes:,} bytes, which {folder} cannot hold "
            f"({error}); enlarge it (docker run --shm-size=1g), or set n_workers=0."
        ) from error
    return file


def map_arrays(descriptor: int, layout: Layout, n_envs: int) -> dict[str, np.ndarray]:
    """Return views of the memory, ``[envs, *shape]`` by name."""
    memory = mmap.mmap(descriptor, 0)
    arrays, offset = {}, 0
    for name, spec in layout.items():
        shape = (spec.n_rows(n_envs), *spec.shape)
        arrays[name] = np.ndarray(shape, spec.dtype, memory, offset)
        offset += _n_bytes(spec, n_envs)
    return arrays


def _n_bytes(spec: ArraySpec, n_envs: int) -> int:
    size = spec.n_rows(n_envs) * math.prod(spec.shape) * np.dtype(spec.dtype).itemsize
    return -(-max(size, 1) // _ALIGNMENT) * _ALIGNMENT


def send_object(channel: socket.socket, value: Any) -> None:
    """Send any value that can be pickled."""
    data = pickle.dumps(value)
    channel.sendall(_LENGTH.pack(len(data)) + data)


def receive_object(channel: socket.socket) -> Any:
    """Receive what `send_object` sent.

    Raises:
        EOFError: the other side has closed.
        TimeoutError: nothing arrived within the socket's timeout.
    """
    (length,) = _LENGTH.unpack(_receive(channel, _LENGTH.size))
    return pickle.loads(_receive(channel, length))


def _receive(channel: socket.socket, n_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < n_bytes:
        part = channel.recv(n_bytes - len(data))
        if not part:
            raise EOFError("the other side has closed")
        data += part
    return bytes(data)


@contextlib.contextmanager
def quiet_pygame() -> Iterator[None]:
    """Suppress the greeting that pygame prints when it is imported."""
    new = {name: value for name, value in QUIET_PYGAME.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)


def import_modules(names: Iterable[str]) -> None:
    """Import modules, and have the workers that start from now on import them too."""
    for name in names:
        importlib.import_module(name)
        _modules[name] = None


@contextlib.contextmanager
def importing_for_workers() -> Iterator[None]:
    """Enter a context; modules imported within it are not imported by workers started later."""
    before = dict(_modules)
    try:
        yield
    finally:
        _modules.clear()
        _modules.update(before)


def imported_modules() -> tuple[str, ...]:
    """Return the names that `import_modules` was given."""
    return tuple(_modules)


def import_options() -> str:
    """Return the options --import with which a command imports the same modules."""
    return "".join(f" --import {name}" for name in _modules)
