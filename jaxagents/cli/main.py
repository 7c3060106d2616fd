"""The entry point of the command line."""

import argparse
import contextlib
import itertools
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, final

import jaxagents
from jaxagents.cli.arguments import add_imports, importing
from jaxagents.cli.costs import add_cost_commands
from jaxagents.cli.exploitability import add_exploit_command
from jaxagents.cli.first_steps import add_first_commands
from jaxagents.cli.results import add_result_commands
from jaxagents.cli.streams import (
    FAILED,
    INTERRUPTED,
    USAGE_ERROR,
    OutputError,
    complain,
    guarded_streams,
)
from jaxagents.cli.training import add_training_commands
from jaxagents.cli.zoo import add_zoo_commands
from jaxagents.evaluation.zoo import is_entry_name
from jaxagents.training.interruption import ending_stuck_calls

_TRAINING = {"train", "resume", "demo", "sweep", "study"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: Command-line arguments; None takes those of the process.

    Returns:
        The exit status: 0 on success, 1 if training failed or the output is a closed pipe, 2 if
        the request is wrong, 130 after Ctrl-C, 143 after SIGTERM, 129
        after SIGHUP.
    """
    command: list[str] = []
    try:
        with guarded_streams(goes_on=lambda: bool(_TRAINING & set(command))):
            return _run(arguments, command)
    except BrokenPipeError:
        return FAILED
    except OutputError as error:
        return complain(f"error: standard output: {error}", FAILED)


def _run(arguments: Sequence[str] | None, command: list[str]) -> int:
    """Run a command, and append its name to ``command``."""
    parser = _make_parser()
    _keep_compiled_programs()
    try:
        parsed, overrides = parser.parse_known_args(arguments)
        command.append(parsed.command_name)
        _check_is_one_run(parser, parsed, overrides)
        if overrides and not parsed.takes_overrides:
            parser.error(f"unrecognized arguments: {' '.join(overrides)}")
        parsed.overrides = overrides
        with (
            _warnings_in_one_line(),
            ending_stuck_calls(INTERRUPTED, lambda: complain("interrupted", INTERRUPTED)),
            importing(parsed.imports),
        ):
            status = parsed.command(parsed) or 0
        sys.stdout.flush()
    except KeyboardInterrupt as interrupt:
        is_plain = type(interrupt) is KeyboardInterrupt
        complain((is_plain and str(interrupt)) or "interrupted", INTERRUPTED)
        if arguments is None:  # a compiled program may still run, and would crash Python's exit
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        return INTERRUPTED
    except (BrokenPipeError, OutputError):
        raise
    except Exception as error:
        from jaxagents.compiler.rendezvous import ProcessError
        from jaxagents.errors import ExperimentError

        if about := _about_jax(error):
            return complain(f"error: {about}", USAGE_ERROR)
        if not isinstance(error, ExperimentError | ProcessError):
            raise
        return complain(f"error: {error}", USAGE_ERROR)
    return status


def _about_jax(error: Exception) -> str:
    """Name in one line the variable of jax that caused an error; empty if none did."""
    text = " ".join(str(error).split())
    for name in os.environ:
        if isinstance(error, ValueError) and name.startswith("JAX_") and name in text:
            return text if text.startswith(name) else f"{name}={os.environ[name]}: {text}"
    if isinstance(error, RuntimeError | AssertionError) and "jax" in sys.modules:
        from jaxagents.compiler.platform import check_platform

        try:
            check_platform()
        except ValueError as of_platform:
            return str(of_platform)
    return ""


def _check_is_one_run(
    parser: argparse.ArgumentParser, parsed: argparse.Namespace, others: Sequence[str]
) -> None:
    """Refuse further runs after RUN, such as all that match a shell pattern."""

    def is_run(name: str) -> bool:
        return os.path.isdir(name) or is_entry_name(name)

    more = list(itertools.takewhile(is_run, others))
    if more and hasattr(parsed, "run"):
        runs = ", ".join([parsed.run, *more])
        parser.error(f"{parsed.command_name} takes one run, but several were given: {runs}")


def _keep_compiled_programs() -> None:
    """Turn on jax's persistent compilation cache, in a directory of the user's choice if set."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if caches.startswith("~"):  # this user has no home, as in a container
        return
    folder = os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.join(caches, "jaxagents"))
    while folder and not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder or ".") or not os.access(folder or ".", os.W_OK):
        # jax would warn of each program.
        os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "false")
    # By default jax keeps no program that compiles in less than a second, and a run has a dozen.
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


@contextlib.contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Shorten warnings for the user to one line, without their location in the code."""
    of_python = warnings.formatwarning

    def format_warning(
        message: Warning | str, category: type[Warning], *where: Any, **line: Any
    ) -> str:
        if issubclass(category, UserWarning):
            return f"Warning: {message}\n"
        return of_python(message, category, *where, **line)

    warnings.formatwarning = format_warning
    try:
        yield
    finally:
        warnings.formatwarning = of_python


@final
class _Parser(argparse.ArgumentParser):
    """A parser that takes no abbreviations, and whose usage errors are one line."""

    def __init__(self, **options: Any):
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_ERROR, f"{self.prog}: error: {message}; see {self.prog} --help\n")


def _make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="jaxagents",
        description="Train, evaluate and export multi-agent IPPO agents.",
    )
    parser.add_argument("--version", action="version", version=jaxagents.__version__)
    parser.set_defaults(takes_overrides=False)
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, dest="command_name"
    )
    for add in (
        add_first_commands,
        add_training_commands,
        add_cost_commands,
        add_result_commands,
        add_exploit_command,
        add_zoo_commands,
    ):
        add(commands)
    for command in commands.choices.values():
        add_imports(command)
    return parser
