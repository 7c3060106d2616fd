"""Commands before training: ``doctor``, ``demo``, ``envs``, ``check`` and ``config``."""

import argparse
import errno
import itertools
import operator
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jaxagents.cli.arguments import Commands, add_command, importing
from jaxagents.cli.output import markdown_table, shown_path, table, titled
from jaxagents.cli.streams import FAILED
from jaxagents.cli.training import run, shown


def add_first_commands(commands: Commands) -> None:
    """Add the commands of this module."""
    _add_doctor(commands)
    _add_demo(commands)
    _add_envs(commands)
    _add_check(commands)
    _add_config(commands)


def _add_doctor(commands: Commands) -> None:
    command = add_command(commands, "doctor", doctor)
    command.add_argument(
        "--runs-dir", metavar="FOLDER", default="runs", help="folder of runs; runs by default"
    )
    command.add_argument("--json", action="store_true", help="print a JSON list instead")


def _add_demo(commands: Commands) -> None:
    command = add_command(
        commands, "demo", demo, usage="[--no-open] [--KEY VALUE ...]", takes_overrides=True
    )
    command.add_argument("--no-open", action="store_true", help="open no browser")


def doctor(parsed: argparse.Namespace) -> int:
    """Check what training needs on this machine.

    Each failure comes with a remedy. Exits with 1 if something necessary fails. No files are left.
    """
    from jaxagents.experiments.installation import examine_installation

    findings = []
    for each in examine_installation(Path(parsed.runs_dir)):
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
    """Train three agents in about half a minute, and show the result.

    They learn to spread over three landmarks. The report with their learning curve and an episode
    opens in a browser. Every key listed by `jaxagents train --help` may be overridden.
    """
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
    page = write_report([shown_path(experiment.directory)])
    print(f"\nOpen {page} in a browser.")
    if not parsed.no_open:
        _open(page)
    return 0


def _open(page: Path) -> None:
    """Open a page in the user's browser, unless that browser runs in the terminal."""
    import webbrowser

    is_linux = sys.platform not in ("darwin", "win32")
    wanted = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
    if not is_linux or any(os.environ.get(name) for name in wanted):
        webbrowser.open(page.absolute().as_uri())


def _add_envs(commands: Commands) -> None:
    command = add_command(commands, "envs", envs)
    command.add_argument(
        "filter", metavar="FILTER", nargs="?", default="", help="list ids that contain this"
    )
    command.add_argument("--markdown", action="store_true", help="print a Markdown table")


def _add_check(commands: Commands) -> None:
    command = add_command(
        commands,
        "check",
        check,
        usage="ENV [--steps N] [--seed N] [--env_kwargs.NAME VALUE ...]",
        takes_overrides=True,
    )
    command.add_argument(
        "env", metavar="ENV", help="an id as for `ja.make`, or a constructor as MODULE:NAME"
    )
    command.add_argument("--steps", type=int, default=1000, metavar="N", help="1000 by default")
    command.add_argument("--seed", type=int, default=0, metavar="N", help="0 by default")


def _add_config(commands: Commands) -> None:
    command = add_command(commands, "config", config)
    command.add_argument(
        "env", metavar="ENV", help="an id as for `ja.make`; `jaxagents envs` lists most"
    )
    command.add_argument("--to", metavar="FILE", help="write a new file instead")


def envs(parsed: argparse.Namespace) -> None:
    """List the environments, with their actors, observations and actions.

    Each family has a table, which is printed as soon as its environments have been constructed. A
    Markdown table holds all of them.
    """
    from jaxagents.environments.registry import missing_ids, registered_ids

    matching = _containing(parsed.filter, registered_ids())
    if not matching:
        from jaxagents.errors import ExperimentError, pip_install

        extras = missing_ids()
        if hidden := _containing(parsed.filter, extras):
            ids, needed = ", ".join(hidden), ",".join({extras[each]: None for each in hidden})
            raise ExperimentError(f"not listed without {needed}: {ids}; {pip_install(needed)}")
        raise ExperimentError(
            f"no environment's id contains {parsed.filter!r}; ids of Gymnasium and PettingZoo are "
            "not listed: name them as in gymnasium/rware:rware-tiny-2ag-v2"
        )
    header = ["id", "actors", "observation", "actions", "also", "episodes are truncated by"]
    families = itertools.groupby(matching, key=lambda each: each.partition("/")[0])
    parts = [matching] if parsed.markdown else (ids for _, ids in families)
    for i, ids in enumerate(parts):
        rows = [header, *map(_description_of, ids)]
        text = markdown_table(rows) if parsed.markdown else table(rows)
        print(text if i == 0 else f"\n{text}", flush=True)


def _description_of(env_id: str) -> list[str]:
    from jaxagents.environments.registry import describe
    from jaxagents.errors import EntryPointError

    try:
        info = describe(env_id)
    except OSError:
        return [env_id, "", "", "", "", "needs a connection: its data is downloaded"]
    except EntryPointError as error:
        return [env_id, "", "", "", "", f"not available here: {error}"]
    shape = "x".join(map(str, info.observation_shape)) or "scalar"
    return [
        env_id,
        str(info.n_actors),
        f"{shape} {info.observation_dtype}",
        info.action_space,
        ", ".join(info.traits),
        info.truncation_rule,
    ]


def _containing(part: str, ids: Iterable[str]) -> list[str]:
    return [each for each in ids if part.lower() in each.lower()]


def check(parsed: argparse.Namespace) -> int:
    """Play random actions in an environment, and say what breaks the protocol.

    The constructor of ENV is a class or a function that returns the environment, or the environment
    and its parameters; --env_kwargs.NAME VALUE passes it an argument. Errors break the protocol,
    and the command exits with 1. Hints point to something that may be right for your task.
    """
    from jaxagents.environments.environment_check import check_environment
    from jaxagents.errors import explained

    with explained():
        env, env_params = _construct(parsed.env, _env_kwargs(parsed.overrides))
        findings = check_environment(env, env_params, parsed.steps, parsed.seed)
    for level, text in findings:
        print(f"{level:6} {text}")
    return FAILED if any(each.level == "error" for each in findings) else 0


def _construct(name: str, env_kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Construct an environment by its id, or by its constructor's module and name."""
    from jaxagents.environments.registry import make
    from jaxagents.errors import ExperimentError

    module, _, path = name.partition(":")
    if not path or "/" in module:
        return make(name, **env_kwargs)
    try:
        with importing([module]):
            made = operator.attrgetter(path)(sys.modules[module])(**env_kwargs)
    except ExperimentError as error:
        raise ExperimentError(str(error).removeprefix("--import ")) from error
    except Exception as error:  # a constructor may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ExperimentError(f"{name} cannot be constructed: {reason}") from error
    return made if isinstance(made, tuple) else (made, getattr(made, "default_params", None))


def _env_kwargs(overrides: Sequence[str]) -> dict[str, Any]:
    """Read --env_kwargs.NAME VALUE, or --env_kwargs.NAME=VALUE."""
    from jaxagents.errors import ExperimentError

    prefix, words, env_kwargs = "--env_kwargs.", list(overrides), {}
    while words:
        option, has_value, value = words.pop(0).partition("=")
        if not option.startswith(prefix) or not (has_value or words):
            raise ExperimentError(f"unrecognized argument {option}; give {prefix}NAME VALUE")
        text = value if has_value else words.pop(0)
        env_kwargs[option.removeprefix(prefix)] = _value_of(option, text)
    return env_kwargs


def _value_of(option: str, text: str) -> Any:
    """Read a value of the command line as YAML."""
    import json

    import yaml

    from jaxagents.errors import ExperimentError

    try:
        return yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(getattr(error, "problem", error)).split())
        raise ExperimentError(
            f"{option} {text} is not valid YAML: {reason}; correct it, or quote it as text: "
            f"{option} '{json.dumps(text)}'"
        ) from error


def config(parsed: argparse.Namespace) -> None:
    """Print a configuration file to start from, with every key explained."""
    from jaxagents.errors import explained
    from jaxagents.experiments.config_files.starting_file import starting_file
    from jaxagents.training.atomic_write import write_atomically

    with explained(), explained("its data cannot be downloaded: ", kinds=(OSError,)):
        text = starting_file(parsed.env)
    if parsed.to is None:
        print(text, end="")
        return
    with explained("the file cannot be written: "):
        if os.path.lexists(parsed.to):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), parsed.to)
        write_atomically(Path(parsed.to), text)
    print(f"jaxagents train {parsed.to}")
