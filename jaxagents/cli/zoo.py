"""Commands on the zoo of trained policies."""

import argparse

from jaxagents.cli.arguments import Commands, add_command
from jaxagents.cli.streams import FAILED


def add_zoo_commands(commands: Commands) -> None:
    """Add the command of this module."""
    command = add_command(commands, "zoo", _zoo)
    command.set_defaults(action=_list)
    actions = command.add_subparsers(title="actions", metavar="ACTION")
    listing = actions.add_parser("list", help="list the entries; also without an action")
    listing.set_defaults(action=_list)
    adding = actions.add_parser("add", help="make an entry from a finished run")
    adding.add_argument("run", metavar="RUN", help="the directory of a run")
    adding.add_argument("--id", help="the entry's id; the environment's by default")
    adding.add_argument("--to", metavar="FOLDER", help="folder of entries; the zoo by default")
    adding.add_argument("--replace", action="store_true", help="replace an entry of this id")
    adding.set_defaults(action=_add)
    checking = actions.add_parser("check", help="evaluate entries again")
    checking.add_argument("ids", metavar="ID", nargs="*", help="ids; all entries by default")
    checking.set_defaults(action=_check)


def _zoo(parsed: argparse.Namespace) -> int | None:
    """List trained policies, add one, or evaluate them again.

    Other commands take an entry as zoo:ID in place of a run.
    """
    return parsed.action(parsed)


def _list(parsed: argparse.Namespace) -> None:
    from jaxagents.cli.output import table
    from jaxagents.experiments.zoo.cards import read_cards, rows_of_cards
    from jaxagents.experiments.zoo.places import zoo_folder

    print(table(rows_of_cards(read_cards(zoo_folder())), right_from=2))


def _add(parsed: argparse.Namespace) -> None:
    from jaxagents.experiments.zoo.adding import add_entry

    print(add_entry(parsed.run, parsed.id, parsed.to, parsed.replace))


def _check(parsed: argparse.Namespace) -> int:
    from jaxagents.experiments.zoo.cards import read_card
    from jaxagents.experiments.zoo.checking import recheck_entry
    from jaxagents.experiments.zoo.places import (
        PREFIX,
        entry_directory,
        entry_ids,
        zoo_folder,
    )

    folder = zoo_folder()
    ids = [each.removeprefix(PREFIX) for each in parsed.ids] or entry_ids(folder)
    directories = {each: entry_directory(each) for each in ids}  # checked before any evaluation
    status = 0
    for entry_id, directory in directories.items():
        actors = recheck_entry(directory, read_card(folder, entry_id))
        agrees = all(actor.agrees for actor in actors)
        numbers = ", ".join(
            f"{actor.now:,.2f} (card {actor.before:,.2f} +- {actor.bound:,.2f})" for actor in actors
        )
        print(f"{entry_id}: {'agrees' if agrees else 'DIFFERS'}: {numbers}", flush=True)
        status = status if agrees else FAILED
    return status
