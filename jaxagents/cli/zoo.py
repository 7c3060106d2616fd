"""The command ``zoo``: trained policies that ship with the repository."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxagents.cli.arguments import Commands, add_command, add_imports, add_run
from jaxagents.cli.output import decimal, shown_path, table
from jaxagents.cli.streams import FAILED

if TYPE_CHECKING:
    from jaxagents.evaluation.zoo import Prediction

_MOST_ACTORS = 4  # with a row each


def add_zoo_commands(commands: Commands) -> None:
    """Add the commands of this module."""
    command = add_command(commands, "zoo", _zoo, usage="[add RUN ... | check [ID ...]]")
    actions = command.add_subparsers(title="actions", metavar="ACTION")
    _add_add(actions)
    _add_check(actions)
    for action in actions.choices.values():
        add_imports(action, default=argparse.SUPPRESS)


def _add_add(actions: Commands) -> None:
    command = add_command(
        actions, "add", _add, usage="RUN [options]", prog="jaxagents zoo add", of="zoo"
    )
    add_run(command, or_entry=False)
    command.add_argument("--id", metavar="ID", help="the entry's id; by default the environment's")
    command.add_argument("--to", metavar="FOLDER", help="folder of the zoo; by default the zoo's")
    command.add_argument(
        "--member", type=int, metavar="I", help="member of a population, from 0; the first"
    )
    command.add_argument("--replace", action="store_true", help="replace an earlier entry")


def _add_check(actions: Commands) -> None:
    command = add_command(
        actions, "check", _check, usage="[ID ...]", prog="jaxagents zoo check", of="zoo"
    )
    command.add_argument("ids", metavar="ID", nargs="*", help="entries; by default all")


def _zoo(parsed: argparse.Namespace) -> None:
    """List trained policies, add one, or evaluate them again.

    Without an action it lists all: the return of each actor with its 95 % interval over episodes.
    zoo:ID can stand for RUN in eval, replay, export, report, crossplay and exploit. JAXAGENTS_ZOO
    names the folder of another zoo.
    """
    from jaxagents.evaluation.zoo import entry_ids, read_card, size_of, zoo_folder

    folder = zoo_folder()
    rows, total = [], 0
    for entry_id in entry_ids(folder):
        size = size_of(folder / entry_id)
        rows += _rows(entry_id, read_card(folder / entry_id), size)
        total += size
    n_entries = len(entry_ids(folder))
    if rows:
        titles = ["", "return", "95 % from", "to", "success", "steps", "seeds", "kB"]
        print(table([titles, *rows], right_from=1) + "\n")
    print(f"{n_entries} in {shown_path(folder)}, {total / 1e6:.1f} MB")


def _rows(entry_id: str, card: Mapping[str, Any], size: int) -> list[list[str]]:
    """Return an entry's row, or several rows if its actors' returns differ."""
    returns = card["returns"]
    actors = list(zip(returns["mean"], returns["ci_low"], returns["ci_high"], strict=True))
    about = [
        _success(card.get("success")),
        f"{card['n_environment_steps']:,}",
        str(card["seeds"]),
        f"{size / 1e3:,.0f}",
    ]
    if all(each == actors[0] for each in actors):
        return [[entry_id, *map(decimal, actors[0]), *about]]
    if len(actors) > _MOST_ACTORS:
        ends = [min(low for _, low, _ in actors), max(high for _, _, high in actors)]
        mean = sum(each for each, _, _ in actors) / len(actors)
        return [[f"{entry_id}, {len(actors)} actors", *map(decimal, (mean, *ends)), *about]]
    rows = [[f"  actor {i}", *map(decimal, each), *[""] * 4] for i, each in enumerate(actors)]
    return [[entry_id, "", "", "", *about], *rows]


def _success(success: Any) -> str:
    """Format the mean success, shares in percent; a dash if there is none."""
    if not isinstance(success, Mapping) or not isinstance(success.get("mean"), float | int):
        return "-"
    mean = success["mean"]
    return f"{100 * mean:.1f} %" if success.get("kind") == "share" else decimal(mean)


def _add(parsed: argparse.Namespace) -> None:
    """Make an entry from a finished run.

    The policy at the end of training plays as many episodes as the run's evaluation, but at least
    100.
    """
    from jaxagents.experiments.zoo import add_to_zoo

    entry = add_to_zoo(parsed.run, parsed.id, parsed.to, parsed.member, parsed.replace)
    print(shown_path(entry))


def _check(parsed: argparse.Namespace) -> int:
    """Evaluate entries again, with another random key.

    The exit status is 1 if a return is outside the 99.9 % interval that its card predicts.
    """
    from jaxagents.errors import ExperimentError
    from jaxagents.evaluation.zoo import PREFIX, entry_ids
    from jaxagents.experiments.zoo import check_entry

    status = 0
    for entry_id in [each.removeprefix(PREFIX) for each in parsed.ids] or entry_ids():
        try:
            found = check_entry(entry_id)
        except ExperimentError as error:
            if parsed.ids or not isinstance(error.__cause__, ImportError):
                raise
            print(f"{entry_id}: not checked: {error}", file=sys.stderr)
            continue
        if not all(each.holds for each in found):
            status = FAILED
        _print_predictions(entry_id, found)
    return status


def _print_predictions(entry_id: str, found: "Sequence[Prediction]") -> None:
    """Print a line per actor, or one if all actors' numbers are equal."""
    is_alike = all(each == found[0] for each in found)
    for i, each in enumerate(found[:1] if is_alike else found):
        who = entry_id if is_alike else f"{entry_id}, actor {i}"
        verdict = "as predicted" if each.holds else "NOT as predicted"
        low, high = decimal(each.low), decimal(each.high)
        print(f"{who}: {decimal(each.found)}, {verdict}: {low} to {high}", flush=True)
