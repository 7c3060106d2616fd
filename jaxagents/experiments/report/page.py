"""A report of runs as one self-contained HTML page, to mail or to archive."""

import shlex
import time
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import jaxagents
from jaxagents.errors import ExperimentError, explained
from jaxagents.evaluation.runs import read_groups
from jaxagents.experiments.report.config_section import (
    complete_configurations,
    non_defaults,
    reproduction,
)
from jaxagents.experiments.report.figures import episodes, learning_curves, training_curves
from jaxagents.experiments.report.formatting import Groups
from jaxagents.experiments.report.headline import (
    comparisons,
    diagnoses,
    key_figures,
    summary_sentence,
    title,
    unfinished_notes,
)
from jaxagents.experiments.report.markup import Markup, element
from jaxagents.experiments.report.result_tables import evaluation_tables
from jaxagents.training.atomic_write import write_atomically

_GENERATOR = "jaxagents report"
_MARK = f'<meta name="generator" content="{_GENERATOR}">'
_SECURITY_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def write_report(
    directories: Sequence[str | PathLike[str]],
    path: str | PathLike[str] | None = None,
    replay: bool = True,
) -> Path:
    """Write an HTML report of runs, finished or not.

    Args:
        directories: Run directories; runs that differ only in their seed form a group.
        path: File to write; an earlier report is replaced, any other file is not. None:
            ``report.html`` in the directory of a single run, or in the working directory.
        replay: Include an episode played by the policies, which builds environment and agent.

    Returns:
        The path of the report.

    Raises:
        ExperimentError: A directory holds no run; or the path does not end in .html, holds another
            file than a report, or cannot be written.
    """
    groups = read_groups(directories)
    path = _target(directories, path)
    page = _page(groups, replay, directories)
    with explained():
        write_atomically(path, page)
    return path


def _target(directories: Sequence[str | PathLike[str]], path: str | PathLike[str] | None) -> Path:
    """Return the path of the report, and check it before anything is drawn."""
    if path is None:
        folder = directories[0] if len(directories) == 1 else "."
        path = Path(folder, "report.html")
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise ExperimentError(f"{path} does not end in .html, which browsers need to show it.")
    if not path.parent.is_dir():
        raise ExperimentError(f"there is no folder {path.parent}; create it, or name another.")
    with explained():
        if path.exists() and _MARK not in path.read_text(encoding="utf-8", errors="replace"):
            raise ExperimentError(
                f"{path} exists and is not a report; name another file with --to FILE.html."
            )
    return path


def _page(groups: Groups, replay: bool, directories: Sequence[str | PathLike[str]]) -> str:
    name = title(groups)
    content = [
        element("h1", name),
        element("p", summary_sentence(groups), class_="summary"),
        *(element("p", each, class_="summary") for each in comparisons(groups)),
        *(element("p", note, class_="note") for note in unfinished_notes(groups)),
        *(element("p", note, class_="note") for note in diagnoses(groups)),
        key_figures(groups),
        _section("Learning curves", *learning_curves(groups)),
        _section("Evaluation", *evaluation_tables(groups)),
        _section("Episode", *(episodes(groups) if replay else [_without_replay()])),
        _section("Training", *training_curves(groups)),
        _section("Configuration", *non_defaults(groups), *complete_configurations(groups)),
        _section("How to reproduce", *reproduction(groups)),
        element("footer", *_footer(directories)),
    ]
    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    head = [
        element("meta", charset="utf-8"),
        Markup(_MARK),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        # Keeps the page from loading or running anything, whatever it contains.
        element("meta", http_equiv="Content-Security-Policy", content=_SECURITY_POLICY),
        element("title", name),
        element("style", Markup(style)),
    ]
    body = element("body", element("main", *content))
    return "<!doctype html>\n" + element("html", element("head", *head), body, lang="en") + "\n"


def _section(title: str, *content: str) -> Markup:
    return element("section", element("h2", title), *content)


def _without_replay() -> Markup:
    return element("p", "No episode is shown: the report was made with --no-replay.")


def _footer(directories: Sequence[str | PathLike[str]]) -> list[str]:
    runs = " ".join(shlex.quote(str(directory)) for directory in directories)
    when = time.strftime("%Y-%m-%d %H:%M")
    return [
        f"Generated by jaxagents {jaxagents.__version__} on {when}: ",
        element("code", f"jaxagents report {runs}"),
    ]
