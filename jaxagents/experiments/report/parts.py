"""The parts of a report, and the template that writes them as one self-contained HTML document."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Datum(NamedTuple):
    """A rounded number in a table."""

    text: str
    exact: str | None  # with full precision; None: there is no number


class Code(NamedTuple):
    """A dotted name, which narrow pages can break at its dots."""

    names: Sequence[str]


class CaptionedTable(NamedTuple):
    """A captioned table.

    Attributes:
        titles: Column headers.
        rows: Cells.
        caption: Written above the table.
        n_headers: Number of leading columns that are row headers.
        kind: CSS class of the table and of the other columns, "numbers" or "words".
    """

    titles: Sequence[str]
    rows: Sequence[Sequence[str | Datum | Code]]
    caption: str
    n_headers: int = 1
    kind: str = "numbers"


class Picture(NamedTuple):
    """A drawing with its width, or an animated episode with a still picture."""

    source: str
    alt: str
    width: str = ""
    still: str = ""


class Listing(NamedTuple):
    """Preformatted text; with a summary it is collapsed."""

    text: str
    summary: str = ""


class Heading(NamedTuple):
    """A heading within a section."""

    heading: str


class SideBySide(NamedTuple):
    """Columns of parts, where the page is wide enough."""

    columns: Sequence[Sequence[Any]]  # of parts


Part = str | CaptionedTable | Picture | Listing | Heading | SideBySide
"""A paragraph, or one of the others."""


def document(
    title: str,
    summary: Sequence[str],
    sections: Sequence[tuple[str, Sequence[Part]]],
    footer: tuple[str, str] = ("", ""),
    notes: Sequence[str] = (),
    figures: Sequence[tuple[str, str, str]] = (),
    generator: str = "",
) -> str:
    """Write a document that loads and runs nothing; all text is escaped.

    Args:
        title: Its title.
        summary: Paragraphs at its top.
        sections: Title and parts of each; an empty title is left out.
        footer: A text, and a command after it.
        notes: Warnings to readers.
        figures: Title, value and remark of each key figure.
        generator: Name of the program, which marks its reports.
    """
    import jinja2  # not before a report is written: commands start quickly

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("report.html.jinja").render(
        title=title,
        summary=summary,
        sections=sections,
        footer=footer,
        notes=notes,
        figures=figures,
        generator=generator,
    )
