"""Writing files that others read meanwhile."""

from pathlib import Path


def write_at_once(path: Path, text: str) -> None:
    """Write a text file so that whoever reads it finds all of it, or all that was there before.

    Raises:
        OSError: It cannot be written; what was there before is left.
    """
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
