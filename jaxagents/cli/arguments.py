"""Arguments shared by several commands."""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Commands = argparse.Action


def add_run(command: argparse.ArgumentParser) -> None:
    """Add the argument RUN."""
    command.add_argument("run", metavar="RUN", help="the directory of a run")


def add_runs(command: argparse.ArgumentParser) -> None:
    """Add the arguments RUN..."""
    command.add_argument("runs", metavar="RUN", nargs="+", help="the directories of runs")


def add_mode(command: argparse.ArgumentParser) -> None:
    """Add the option --mode."""
    command.add_argument("--mode", choices=["best", "last"], help="which checkpoint to use")


def add_quiet(command: argparse.ArgumentParser) -> None:
    """Add the option --quiet."""
    text = "print only the run's directory, at the end"
    command.add_argument("--quiet", action="store_true", help=text)
