"""Arguments shared by several commands."""

import argparse
import contextlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Any]
else:
    Commands = argparse.Action


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int | None],
    usage: str = "",
    takes_overrides: bool = False,
    of: str = "",
    **options: Any,
) -> argparse.ArgumentParser:
    """Add a command, described by the docstring of its function.

    Args:
        commands: All commands.
        name: Its name.
        run: The function; the list of commands shows its docstring's first line, and the command's
            help all of it.
        usage: Its arguments as the usage line shows them; empty: argparse's own list.
        takes_overrides: True if it takes --KEY VALUE.
        of: The command of which this is an action; empty: it is itself a command.
        **options: Passed to argparse's parser.
    """
    description = inspect.cleandoc(run.__doc__ or "")  # none with python -OO
    summary = description.partition("\n")[0]
    command = commands.add_parser(
        name,
        help=summary[:1].lower() + summary[1:].rstrip("."),
        description=description,
        usage=" ".join(["jaxagents", *([of] if of else []), name, usage]) if usage else None,
        **options,
    )
    command.set_defaults(command=run, takes_overrides=takes_overrides)
    return command


def add_config(command: argparse.ArgumentParser) -> None:
    """Add the argument CONFIG, whose keys may be overridden."""
    command.add_argument("config", metavar="CONFIG", help="a YAML file")
    command.set_defaults(takes_overrides=True)


def add_run(command: argparse.ArgumentParser, or_entry: bool = True) -> None:
    """Add the argument RUN.

    Args:
        command: The command.
        or_entry: True if it also takes an entry of the zoo.
    """
    entry = ", or zoo:ID" if or_entry else ""
    command.add_argument("run", metavar="RUN", help=f"the directory of a run{entry}")


def add_runs(command: argparse.ArgumentParser, or_entries: bool = True) -> None:
    """Add the arguments RUN...

    Args:
        command: The command.
        or_entries: True if it also takes entries of the zoo.
    """
    entries = ", or zoo:ID" if or_entries else ""
    command.add_argument("runs", metavar="RUN", nargs="+", help=f"directories of runs{entries}")


def add_mode(command: argparse.ArgumentParser) -> None:
    """Add the option --mode."""
    command.add_argument("--mode", choices=["best", "last"], help="which checkpoint to use")


def add_processes(command: argparse.ArgumentParser) -> None:
    """Add the options for several devices and processes."""
    command.add_argument(
        "--devices",
        type=int,
        metavar="N",
        help="train on several devices; agent.devices",
    )
    group = command.add_argument_group(
        "several processes, of one machine or of many",
        "Start the same command in each; the first saves and reports.",
    )
    group.add_argument(
        "--coordinator", metavar="HOST:PORT", help="address of the first process, with a free port"
    )
    group.add_argument("--num-processes", type=int, metavar="N", help="number of processes")
    group.add_argument("--process-id", type=int, metavar="I", help="index of this process, from 0")
    group.add_argument(
        "--distributed",
        action="store_true",
        help="take these from SLURM, Kubernetes or Open MPI",
    )


def join_processes(parsed: argparse.Namespace) -> None:
    """Make this process one of several, if requested, and choose the devices.

    Raises:
        ExperimentError: options are missing, or the other processes cannot be reached.
    """
    from jaxagents.compiler.processes import connect_processes
    from jaxagents.errors import ExperimentError

    given = (parsed.coordinator, parsed.num_processes, parsed.process_id)
    is_one_of_several = parsed.distributed or any(each is not None for each in given)
    if is_one_of_several and not parsed.distributed:
        if None in given:
            raise ExperimentError(
                "several processes need --coordinator HOST:PORT, --num-processes N and "
                "--process-id I together; or --distributed, under a scheduler."
            )
        if not 0 <= parsed.process_id < parsed.num_processes:
            raise ExperimentError(
                f"--process-id {parsed.process_id} is none of {parsed.num_processes} processes; "
                f"count from 0 to {parsed.num_processes - 1}."
            )
    if is_one_of_several:
        connect_processes(*given)
    n_devices = parsed.devices
    if n_devices is None and is_one_of_several:
        import jax

        n_devices = jax.device_count()
    if n_devices is not None:
        parsed.overrides += ["--agent.devices", str(n_devices)]


def add_imports(command: argparse.ArgumentParser, default: Any = None) -> None:
    """Add the option --import.

    Args:
        command: The command.
        default: The value without the option; None: no modules. `argparse.SUPPRESS` keeps the
            modules that were given before an action's name.
    """
    command.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[] if default is None else default,
        metavar="MODULE",
        help="first import a Python module, which registers environments, networks, ...; may be "
        "repeated",
    )


@contextlib.contextmanager
def importing(modules: Sequence[str]) -> Iterator[None]:
    """Import the modules of --import, also from the current directory, as `python -m` does.

    Workers that start in this context import them too.

    Raises:
        ExperimentError: a module cannot be imported.
    """
    if not modules:
        yield
        return
    from jaxagents.environments.host.sharing import import_modules, importing_for_workers
    from jaxagents.errors import ExperimentError

    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())
    with importing_for_workers():
        for module in modules:
            try:
                import_modules([module])
            except Exception as error:  # a module may raise anything
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                raise ExperimentError(f"--import {module}: {reason}") from error
        yield


def add_quiet(command: argparse.ArgumentParser) -> None:
    """Add the option --quiet."""
    text = "print only the run's directory, at the end"
    command.add_argument("--quiet", action="store_true", help=text)
