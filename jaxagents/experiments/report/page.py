"""One page about runs, which needs nothing beside itself: it can be mailed, and kept."""

import shlex
import time
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import jaxagents
from jaxagents.errors import ExperimentError, explained
from jaxagents.evaluation.runs import Run, read_groups
from jaxagents.experiments.report.config_section import (
    complete_configurations,
    differences,
    origins,
)
from jaxagents.experiments.report.figures import episodes, learning_curves, losses
from jaxagents.experiments.report.formatting import Groups, all_runs
from jaxagents.experiments.report.headline import (
    comparisons,
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
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def write_report(
    directories: Sequence[str | PathLike[str]],
    path: str | PathLike[str] | None = None,
    replay: bool = True,
) -> Path:
    """Write an HTML page about runs, finished or not.

    Args:
        directories: Of the runs; those that differ in their seed only are shown as a group.
        path: Where to, in place of an earlier report at most. None: ``report.html``, in the run's
            directory if it is one, in the working folder if they are several.
        replay: Let the policies play an episode, which takes rebuilding the environment.

    Returns:
        The path.

    Raises:
        ExperimentError: A directory holds no run; the file is something else than a report, or
            cannot be written.
    """
    groups = read_groups(directories)
    path = _target(all_runs(groups), path)
    page = _page(groups, replay)
    with explained():
        write_atomically(path, page)
    return path


def _target(runs: Sequence[Run], path: str | PathLike[str] | None) -> Path:
    """Say where a report goes, and refuse what is no place for it before anything is drawn."""
    if path is None:
        path = runs[0].directory / "report.html" if len(runs) == 1 else "report.html"
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise ExperimentError(f"{path} does not end in .html, by which browsers know a page.")
    if not path.parent.is_dir():
        raise ExperimentError(f"there is no folder {path.parent}; create it, or name another.")
    with explained():
        if path.exists() and _MARK not in path.read_text(encoding="utf-8", errors="replace"):
            raise ExperimentError(
                f"{path} is no report and stays as it is; name another file by --to FILE.html."
            )
    return path


def _page(groups: Groups, replay: bool) -> str:
    name = title(groups)
    content = [
        element("h1", name),
        element("p", summary_sentence(groups), class_="summary"),
        *(element("p", each, class_="summary") for each in comparisons(groups)),
        *(element("p", note, class_="note") for note in unfinished_notes(groups)),
        key_figures(groups),
        _section("Learning curves", *learning_curves(groups)),
        _section("Evaluation", *evaluation_tables(groups)),
        _section("An episode", *(episodes(groups) if replay else [_without_replay()])),
        _section("Losses and divergence", *losses(groups)),
        _section("Configuration", *differences(groups), *complete_configurations(groups)),
        _section("How to repeat this", *origins(groups)),
        element("footer", *_footer(groups)),
    ]
    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    head = [
        element("meta", charset="utf-8"),
        Markup(_MARK),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        # Whatever the page may hold, it loads and runs nothing.
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("title", name),
        element("style", Markup(style)),
    ]
    body = element("body", element("main", *content))
    return "<!doctype html>\n" + element("html", element("head", *head), body, lang="en") + "\n"


def _section(title: str, *content: str) -> Markup:
    return element("section", element("h2", title), *content)


def _without_replay() -> Markup:
    return element("p", "None is shown: the report was made with --no-replay.")


def _footer(groups: Groups) -> list[str]:
    runs = " ".join(shlex.quote(str(run.directory)) for run in all_runs(groups))
    when = time.strftime("%Y-%m-%d %H:%M")
    return [
        f"Made by jaxagents {jaxagents.__version__} on {when}: ",
        element("code", f"jaxagents report {runs}"),
    ]
