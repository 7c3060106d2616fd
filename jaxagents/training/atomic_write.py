"""Files that readers always find complete."""

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
    with replacing(path) as new, open(new, "w", encoding="utf-8", opener=opened_here) as file:
        file.write(text)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the path of a new file, which replaces ``path`` once this context ends.

    After an error, such as a full disk, ``path`` is unchanged and the new file is removed. A path
    that is not an ordinary file, such as a device, is written directly.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        with naming(path):
            yield path
        return
    new = path.with_name(f".new.{path.name}")  # with the suffix, which determines the format
    try:
        with naming(path):
            new.unlink(missing_ok=True)  # of a writer that was killed, or a link
            yield new
            new.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            new.unlink()
        if isinstance(error, OSError) and error.filename == str(new):
            error.filename = str(path)
        raise


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Add a file's name to errors without one, such as those of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)
        raise


def opened_here(path: str, flags: int) -> int:
    """Open a file as `open` does, unless it is a symbolic link, which may lead anywhere."""
    return os.open(path, flags | _NO_LINKS, 0o666)
