"""The table of all measurements, rewritten after each."""

from pathlib import Path
from typing import NamedTuple

COLUMNS = (
    "Section",
    "Case",
    "Side",
    "ms per update",
    "Environment steps/s",
    "Time / first side's: median (quartiles), rounds",
    "Compile, s",
    "Command to first update, s",
    "Peak memory, MB",
    "Note",
)


class Row(NamedTuple):
    """A side of a case; empty texts for what was not measured."""

    section: str
    case: str
    side: str = ""
    milliseconds: str = ""
    steps: str = ""
    ratio: str = ""
    compile_seconds: str = ""
    start_seconds: str = ""
    memory: str = ""
    note: str = ""


class Table:
    """Rows under a heading, in a file that is complete after every row.

    Args:
        path: The file; None keeps the table in memory. It must not exist.

    Attributes:
        heading: Lines of Markdown above it.

    Raises:
        FileExistsError: the file exists.
    """

    def __init__(self, path: Path | None):
        self.heading = ""
        self._path = path
        self.rows: list[Row] = []
        if path is not None:
            path.open("x").close()

    def add(self, rows: list[Row]) -> None:
        """Add rows, print them and write the file."""
        self.rows += rows
        for row in rows:
            print(" | ".join(filter(None, row)), flush=True)
        self.write()

    def write(self) -> None:
        """Write the file, if there is one."""
        if self._path is not None:
            self._path.write_text(self.text(), encoding="utf-8")

    def text(self) -> str:
        """Return the table in Markdown."""
        lines = [_line(COLUMNS), _line(["---"] * len(COLUMNS)), *map(_line, self.rows)]
        return f"{self.heading}\n\n" + "\n".join(lines) + "\n"


def _line(cells: object) -> str:
    return "| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |"


def error_text(error: Exception) -> str:
    """Return an error's kind and first line, short enough for a cell."""
    first = (str(error).strip().splitlines() or [""])[0]
    return f"failed: {type(error).__name__}: {first[:160]}"
