"""Arguments that several commands take."""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Commands = argparse.Action


def add_run(command: argparse.ArgumentParser) -> None:
    """Add the directory of a run."""
    command.add_argument("run", metavar="RUN", help="the directory of a run")


def add_runs(command: argparse.ArgumentParser) -> None:
    """Add the directories of runs."""
    command.add_argument("runs", metavar="RUN", nargs="+", help="the directories of runs")


def add_mode(command: argparse.ArgumentParser) -> None:
    """Add which of a run's checkpoints."""
    command.add_argument("--mode", choices=["best", "last"], help="which checkpoint")


def add_quiet(command: argparse.ArgumentParser) -> None:
    """Add that little is printed."""
    text = "print nothing but the run's directory, at the end"
    command.add_argument("--quiet", action="store_true", help=text)
