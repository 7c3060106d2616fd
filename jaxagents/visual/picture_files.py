"""Files of pictures, which are marked so that commands replace no others."""

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
}
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


def check_suffix(path: Path) -> None:
    """Check that `write_figure` can write the format.

    Raises:
        ExperimentError: The suffix is none of .png, .svg and .pdf.
    """
    if path.suffix.lower() not in _METADATA:
        raise ExperimentError(
            f"{path} does not end in one of {', '.join(_METADATA)}, which selects the format."
        )


def check_replaceable(path: Path) -> None:
    """Check that writing to the path overwrites nothing but an earlier picture of `write_figure`.

    Raises:
        ExperimentError: The path holds another file.
    """
    if path.exists() and _MARKS[path.suffix.lower()] not in path.read_bytes():
        raise ExperimentError(
            f"{path} exists and was not made by jaxagents plot; choose another file with --to."
        )
