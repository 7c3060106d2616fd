"""Commands for a new installation: ``doctor`` and ``demo``."""

import argparse
import os
import sys
from typing import TYPE_CHECKING

from jaxagents.cli.arguments import Commands
from jaxagents.cli.exit_status import FAILED
from jaxagents.cli.output import table, titled
from jaxagents.cli.training import run, shown

if TYPE_CHECKING:
    from pathlib import Path


def add_to(commands: Commands) -> None:
    """Add the commands of this module."""
    _add_doctor(commands)
    _add_demo(commands)


def _add_doctor(commands: Commands) -> None:
    command = commands.add_parser(
        "doctor",
        help="try what training needs on this machine",
        description=(
            "Try what training needs on this machine, and say what to do about each failure. "
            "Exits with 1 if something necessary fails. Nothing is left behind."
        ),
        allow_abbrev=False,
    )
    command.add_argument(
        "--runs-dir", metavar="FOLDER", default="runs", help="folder of runs; runs by default"
    )
    command.add_argument("--json", action="store_true", help="print a JSON list instead")
    command.set_defaults(command=doctor)


def _add_demo(commands: Commands) -> None:
    command = commands.add_parser(
        "demo",
        help="train three agents in about half a minute, and show the result",
        description=(
            "Train three agents to spread over three landmarks, in about half a minute on 2 "
            "cores, and open a report with their learning curve and an episode. Every key listed "
            "by `jaxagents train --help` may be overridden."
        ),
        usage="jaxagents demo [--no-open] [--KEY VALUE ...]",
        allow_abbrev=False,
    )
    command.add_argument("--no-open", action="store_true", help="open no browser")
    command.set_defaults(command=demo, takes_overrides=True)


def doctor(parsed: argparse.Namespace) -> int:
    """Print what works here; return the exit status."""
    from pathlib import Path

    from jaxagents.experiments.installation import examine

    findings = []
    for each in examine(Path(parsed.runs_dir)):
        findings.append(each)
        if not parsed.json:
            print(table([[each.status.ljust(7), each.what.ljust(17), each.text]]), flush=True)
            if each.remedy:
                print(f"{'':9}-> {each.remedy}", flush=True)
    failed = [each.what for each in findings if each.is_necessary and each.status != "ok"]
    if parsed.json:
        import json

        print(json.dumps([each._asdict() for each in findings], indent=2))
    elif failed:
        print(f"\nTraining needs what fails: {', '.join(failed)}.")
    else:
        print("\nAll that training needs works here.")
    return FAILED if failed else 0


def demo(parsed: argparse.Namespace) -> int:
    """Train something small, and show it; return the exit status."""
    import importlib.resources

    from jaxagents.experiments.config_files.file import load_config, locating_errors
    from jaxagents.experiments.experiment import Experiment
    from jaxagents.experiments.report.page import write_report

    file = importlib.resources.files("jaxagents.experiments") / "demo.yaml"
    with importlib.resources.as_file(file) as path:
        config = load_config(path, parsed.overrides)
        print(titled(config), flush=True)
        with locating_errors(path, parsed.overrides):
            experiment = Experiment(config, **shown(quiet=False))
    if status := run(experiment, experiment.train, quiet=False):
        return status
    page = write_report([experiment.directory])
    print(f"\nOpen {page} in a browser.")
    if not parsed.no_open:
        _open(page)
    return 0


def _open(page: "Path") -> None:
    """Open a page in the user's browser, unless that would be one in the terminal."""
    import webbrowser

    is_linux = sys.platform not in ("darwin", "win32")
    wanted = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
    if not is_linux or any(os.environ.get(name) for name in wanted):
        webbrowser.open(page.absolute().as_uri())
