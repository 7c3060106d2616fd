"""The command line."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn, final

import jaxagents
from jaxagents.cli import environments, policies, profiling, results, training
from jaxagents.cli.exit_status import FAILED, INTERRUPTED, USAGE_ERROR, complain


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: Those of the command line; None: the process's own.

    Returns:
        The exit status: 0, 2 where something asked for cannot be done, 130 after Ctrl-C, 143
        after SIGTERM, 1 where training failed or nobody reads the output any more.
    """
    parser = _make_parser()
    _keep_compiled_programs()
    try:
        parsed, parsed_not = parser.parse_known_args(arguments)
        if parsed_not and not parsed.takes_overrides:
            parser.error(f"unrecognized arguments: {' '.join(parsed_not)}")
        parsed.overrides = parsed_not
        status = parsed.command(parsed) or 0
        sys.stdout.flush()
    except KeyboardInterrupt:
        return complain("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # As Python's manual of signals advises: its own flush at exit would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        from jaxagents.errors import ExperimentError

        if not isinstance(error, ExperimentError):
            raise
        return complain(f"error: {error}", USAGE_ERROR)
    return status


def _keep_compiled_programs() -> None:
    """Let jax find on the disk what earlier commands compiled, where the user chose no place."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.join(caches, "jaxagents"))


@final
class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_ERROR, f"{self.prog}: error: {message}; see {self.prog} --help\n")


def _make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="jaxagents",
        description="Train, evaluate and keep multi-agent IPPO agents.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=jaxagents.__version__)
    parser.set_defaults(takes_overrides=False)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in (environments, training, profiling, policies, results):
        module.add_to(commands)
    return parser
