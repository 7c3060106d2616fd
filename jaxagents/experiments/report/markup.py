"""Building HTML in which all text is escaped."""

import html
from collections.abc import Iterable, Sequence
from typing import final

_VOID = ("img", "link", "meta", "source", "wbr")  # elements without content and end tag


@final
class Markup(str):
    """HTML, which is not escaped again."""

    __slots__ = ()


def element(tag: str, *content: str, **attributes: str | int) -> Markup:
    """Write an element.

    Args:
        tag: Its name.
        content: Text, which is escaped, and `Markup`, which is not.
        attributes: By name. Underscores become hyphens; a trailing one, as in ``class_``, is
            dropped.
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for name, value in attributes.items()
    )
    if tag in _VOID:
        return Markup(f"<{tag}{written}>")
    return Markup(f"<{tag}{written}>{joined(content)}</{tag}>")


def joined(content: Iterable[str]) -> Markup:
    """Concatenate text, which is escaped, and `Markup`, which is not."""
    return Markup(
        "".join(each if isinstance(each, Markup) else html.escape(each) for each in content)
    )


def table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    caption: str,
    n_headers: int = 1,
    kind: str = "numbers",
) -> Markup:
    """Write a captioned table in a box that scrolls if the table is too wide.

    Args:
        titles: Column headers.
        rows: Cells, text or `Markup`.
        caption: Written above the table.
        n_headers: Number of leading columns that are row headers.
        kind: CSS class of the table and of the other columns, "numbers" or "words".
    """
    columns = [
        element("th", title, scope="col", class_="name" if i < n_headers else kind)
        for i, title in enumerate(titles)
    ]
    body = [
        element(
            "tr",
            *(
                element("th", cell, scope="row") if i < n_headers else element("td", cell)
                for i, cell in enumerate(row)
            ),
        )
        for row in rows
    ]
    head = element("thead", element("tr", *columns))
    whole = element("table", head, element("tbody", *body), class_=kind)
    # Focusable, so that the keyboard can scroll it.
    box = element("div", whole, class_="box", role="region", aria_label=caption, tabindex=0)
    return element("figure", element("figcaption", caption), box)
