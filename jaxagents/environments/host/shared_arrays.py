"""Arrays in memory that a process shares with its workers. Numpy only.

The memory is a file without a name: it is gone with the last process that holds it, however the
processes end. (`multiprocessing.shared_memory` needs a process that cleans up after it.)
"""

import math
import mmap
import os
import tempfile
from collections.abc import Mapping
from typing import IO, NamedTuple

import numpy as np

from jaxagents.environments.host.errors import HostEnvironmentError

_ALIGNMENT = 64  # bytes: a cache line
_IN_MEMORY = "/dev/shm"


class Field(NamedTuple):
    """One environment's part of an array."""

    shape: tuple[int, ...]
    dtype: str
    n_envs: int | None = None  # of the first environments only; None: of all

    def n_rows(self, n_envs: int) -> int:
        """Return of how many of ``n_envs`` environments the array has a part."""
        return n_envs if self.n_envs is None else min(self.n_envs, n_envs)


Layout = Mapping[str, Field]
"""The arrays by name."""


def new_arrays(layout: Layout, n_envs: int) -> dict[str, np.ndarray]:
    """Return arrays of this process alone, ``[envs, *shape]`` by name, all zero."""
    return {
        name: np.zeros((field.n_rows(n_envs), *field.shape), field.dtype)
        for name, field in layout.items()
    }


def new_memory(layout: Layout, n_envs: int) -> IO[bytes]:
    """Create a file that holds the arrays of ``n_envs`` environments, all zero.

    Raises:
        HostEnvironmentError: there is not enough memory for it.
    """
    folder = _IN_MEMORY if os.path.isdir(_IN_MEMORY) else tempfile.gettempdir()
    n_bytes = sum(_n_bytes(field, n_envs) for field in layout.values())
    file = None
    try:
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 -- open as long as workers are
        file.truncate(n_bytes)
        if hasattr(os, "posix_fallocate"):  # or the first write without space ends the process
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
    for name, field in layout.items():
        shape = (field.n_rows(n_envs), *field.shape)
        arrays[name] = np.ndarray(shape, field.dtype, memory, offset)
        offset += _n_bytes(field, n_envs)
    return arrays


def _n_bytes(field: Field, n_envs: int) -> int:
    size = field.n_rows(n_envs) * math.prod(field.shape) * np.dtype(field.dtype).itemsize
    return -(-max(size, 1) // _ALIGNMENT) * _ALIGNMENT
