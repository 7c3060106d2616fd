"""Commands for a new installation: ``doctor``."""

import argparse

from jaxagents.cli.arguments import Commands
from jaxagents.cli.exit_status import FAILED
from jaxagents.cli.output import table


def add_to(commands: Commands) -> None:
    """Add the commands of this module."""
    _add_doctor(commands)


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
