"""Text files that readers always find complete."""

from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Replace a text file: readers find either all of the new text or all of the old.

    Raises:
        OSError: The file cannot be written; the old one is unchanged.
    """
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
