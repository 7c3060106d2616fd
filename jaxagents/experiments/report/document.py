"""A self-contained HTML document, which loads and runs nothing."""

from pathlib import Path

from jaxagents.experiments.report.markup import Markup, element

_SECURITY_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def document(title: str, *content: str, mark: str = "") -> str:
    """Write a document in the style of reports.

    Args:
        title: Its title.
        content: Of its main part.
        mark: Further markup of the head.
    """
    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    head = [
        element("meta", charset="utf-8"),
        Markup(mark),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        # Keeps the page from loading or running anything, whatever it contains.
        element("meta", http_equiv="Content-Security-Policy", content=_SECURITY_POLICY),
        element("title", title),
        element("style", Markup(style)),
    ]
    body = element("body", element("main", *content))
    return "<!doctype html>\n" + element("html", element("head", *head), body, lang="en") + "\n"
