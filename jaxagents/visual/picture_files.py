"""Files of pictures, which are marked so that commands replace no others."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from jaxagents.errors import ExperimentError
from jaxagents.training.atomic_write import replacing

# Without a date, equal plots are equal files.
_METADATA = {
    ".png": {"Software": "jaxagents"},
    ".svg": {"Creator": "jaxagents", "Date": None},
    ".pdf": {"Creator": "jaxagents", "CreationDate": None},
}
_MARKS = {
    ".png": b"Software\0jaxagents",
    ".svg": b"<dc:title>jaxagents</dc:title>",
    ".pdf": b"/Creator (jaxagents)",
    ".gif": b"!\xfe\x09jaxagents\0",  # a comment
    ".mp4": b"\0\0\0\1\0\0\0\0jaxagents",  # a comment's type, locale and text
}
FIGURES: tuple[str, ...] = tuple(_METADATA)
FILMS: tuple[str, ...] = (".gif", ".mp4")
_SETTINGS: Any = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "jaxagents",  # equal plots are equal files
    "pdf.fonttype": 42,  # TrueType, as journals want
}


def write_figure(figure: Any, path: str | PathLike[str]) -> None:
    """Write a figure; the suffix chooses the format."""
    import matplotlib

    with replacing(path) as new, matplotlib.rc_context(_SETTINGS):
        figure.savefig(new, metadata=_METADATA.get(Path(path).suffix.lower()))


def check_suffix(path: Path, suffixes: Sequence[str] = FIGURES) -> None:
    """Check that the suffix names a format that can be written.

    Raises:
        ExperimentError: It names none of them.
    """
    if path.suffix.lower() not in suffixes:
        raise ExperimentError(
            f"{path} does not end in one of {', '.join(suffixes)}, which selects the format."
        )


def check_replaceable(path: Path) -> None:
    """Check that writing to the path overwrites nothing but an earlier picture of this package.

    Raises:
        ExperimentError: The path holds another file, or is a folder.
    """
    if path.is_dir():
        raise ExperimentError(f"{path} is a folder; name a file.")
    if path.exists() and _MARKS[path.suffix.lower()] not in path.read_bytes():
        raise ExperimentError(
            f"{path} exists and was not made by jaxagents; name another file, or remove it first."
        )
