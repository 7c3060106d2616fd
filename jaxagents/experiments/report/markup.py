"""HTML, put together so that text can never become markup."""

import html
from collections.abc import Iterable, Sequence
from typing import final

_EMPTY = ("img", "link", "meta", "source", "wbr")  # elements that have no content and no end


@final
class Markup(str):
    """HTML, as opposed to text that is still to be escaped."""

    __slots__ = ()


def element(tag: str, *content: str, **attributes: str | int) -> Markup:
    """Write an element.

    Args:
        tag: Its name.
        content: Texts, which are escaped, and markup, which is not.
        attributes: By name; underscores stand for hyphens, but at the end, where they keep Python's
            own words apart.
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for name, value in attributes.items()
    )
    if tag in _EMPTY:
        return Markup(f"<{tag}{written}>")
    return Markup(f"<{tag}{written}>{joined(content)}</{tag}>")


def joined(content: Iterable[str]) -> Markup:
    """Put texts, which are escaped, and markup, which is not, after each other."""
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
    """Write a table in a box of its own, in which it scrolls where it is too wide.

    Args:
        titles: Of the columns.
        rows: The cells, texts or markup.
        caption: What the table holds; it stands above.
        n_headers: Number of columns, at the left, that say what a row is about.
        kind: Of the other cells; the class by which they are styled.
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
    # A box that scrolls has to be reached by the keyboard.
    box = element("div", whole, class_="box", role="region", aria_label=caption, tabindex=0)
    return element("figure", element("figcaption", caption), box)
