"""Text files that readers always find complete."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)  # which Windows lacks


def write_atomically(path: Path, text: str) -> None:
    """Replace a text file: readers find either all of the new text or all of the old.

    Raises:
        OSError: The file cannot be written; the old one is unchanged.
    """
    new = path.with_name(f"{path.name}.new")
    with naming(path):
        with open(new, "w", encoding="utf-8", opener=opened_here) as file:
            file.write(text)
        new.replace(path)


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Name a file in errors that name none, as of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)
        raise


def opened_here(path: str, flags: int) -> int:
    """Open a file as `open` does, unless it is a symbolic link, which may lead anywhere."""
    return os.open(path, flags | _NO_LINKS, 0o666)
