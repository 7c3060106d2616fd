"""Files of a checkpoint, which may come from strangers.

Nothing is unpickled, nothing outside the checkpoint's folder is read, and no array is larger than
the file that holds it. Digests are not signatures: whoever changes a file can also change its
digest.
"""

import hashlib
import json
import math
import os
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.lib import format as npy

from jaxagents.training.named_arrays import Leaves

_MOST_BYTES_OF_JSON = 2**26
_ENCRYPTED = 1  # flag of a member of a zip file
_READ_HEADER = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class HostileError(ValueError):
    """A file is not what this package writes, and was not read."""


def file_in(folder: Path, name: str) -> Path:
    """Return the path of a file in a folder.

    Raises:
        HostileError: the name leads out of the folder, or to something other than a file.
        OSError: there is no such file.
    """
    path = folder / name
    parts = PurePosixPath(name).parts
    if os.path.isabs(name) or ".." in parts or "\0" in name:
        raise HostileError(f"{name!r} is no file in it")
    if folder.is_symlink() or path.resolve() != folder.resolve().joinpath(*parts):
        raise HostileError(f"{name} is reached by a symbolic link; copy what it links to")
    if not stat.S_ISREG(path.stat().st_mode) and not path.is_dir():
        raise HostileError(f"{name} is no ordinary file")
    return path


def digest_of_file(path: Path) -> str:
    """Return the SHA-256 of a file's contents, without holding them in memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        HostileError: it is very large or very deep.
        ValueError: it is not JSON.
    """
    if (n_bytes := path.stat().st_size) > _MOST_BYTES_OF_JSON:
        raise HostileError(f"{path.name} has {n_bytes:,} bytes, more than {_MOST_BYTES_OF_JSON:,}")
    try:
        return json.loads(path.read_bytes())
    except RecursionError:
        raise HostileError(f"{path.name} is too deeply nested") from None


def check_metadata(metadata: Mapping[str, Any]) -> None:
    """Check the types of the values that every checkpoint's metadata hold.

    Raises:
        HostileError: a type is wrong, or a value is missing.
    """
    score = metadata.get("score")
    if score is not None and type(score) not in (int, float):
        raise HostileError(f"its score is {score!r}")
    for name in ("files", "leaves"):
        texts = metadata.get(name)
        is_of_texts = isinstance(texts, dict) and all(type(each) is str for each in texts.values())
        if not is_of_texts:
            raise HostileError(f"its {name} are not texts by name")
    if missing := {"history.npz", "state.npz"} - metadata["files"].keys():
        raise HostileError(f"it has no digest of {min(missing)}")


def read_npz(path: Path) -> Leaves:
    """Read the arrays of a file that `numpy.savez` wrote.

    Raises:
        HostileError: the file is something else, holds Python objects or compressed arrays, or
            declares larger arrays than it holds.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            n_bytes, size = sum(each.file_size for each in members), path.stat().st_size
            if n_bytes > size:
                raise HostileError(f"{path.name} has {size:,} bytes and declares {n_bytes:,}")
            return {_name(each): _read_array(archive, each) for each in members}
    except zipfile.BadZipFile as error:
        raise HostileError(f"{path.name} is no file of arrays: {error}") from error


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    name = _name(member)
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & _ENCRYPTED:
        raise HostileError(f"its array {name} is compressed or encrypted")
    with archive.open(member) as file:
        read_header = _READ_HEADER.get(npy.read_magic(file))
        if read_header is None:
            raise HostileError(f"its array {name} has an unknown format")
        shape, _, dtype = read_header(file)
        if dtype.hasobject:
            raise HostileError(f"its array {name} holds Python objects, which are never loaded")
        n_bytes, held = math.prod(shape) * dtype.itemsize, member.file_size - file.tell()
        if n_bytes != held:
            raise HostileError(f"its array {name} declares {n_bytes:,} bytes and holds {held:,}")
    with archive.open(member) as file:
        return npy.read_array(file, allow_pickle=False)


def _name(member: zipfile.ZipInfo) -> str:
    return member.filename.removesuffix(".npy")
