"""Commands before training: ``doctor``, ``demo``, ``envs`` and ``config``."""

import argparse
import errno
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from jaxagents.cli.arguments import Commands, add_command
from jaxagents.cli.output import markdown_table, shown_path, table, titled
from jaxagents.cli.streams import FAILED
from jaxagents.cli.training import run, shown


def add_first_commands(commands: Commands) -> None:
    """Add the commands of this module."""
    _add_doctor(commands)
    _add_demo(commands)
    _add_envs(commands)
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
    """Try what training needs on this machine.

    Each failure has its remedy. Exits with 1 if something necessary fails. Nothing is left behind.
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
    """Open a page in the user's browser, unless that would be one in the terminal."""
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


def _add_config(commands: Commands) -> None:
    command = add_command(commands, "config", config)
    command.add_argument("env", metavar="ENV", help="an id listed by `jaxagents envs`")
    command.add_argument("--to", metavar="FILE", help="write a new file instead")


def envs(parsed: argparse.Namespace) -> None:
    """List the environments, with their actors, observations and actions."""
    from jaxagents.environments.registry import describe, missing_ids, registered_ids
    from jaxagents.errors import EntryPointError

    matching = _containing(parsed.filter, registered_ids())
    if not matching:
        from jaxagents.errors import ExperimentError, pip_install

        extras = missing_ids()
        if hidden := _containing(parsed.filter, extras):
            ids, needed = ", ".join(hidden), ",".join({extras[each]: None for each in hidden})
            raise ExperimentError(f"not listed without {needed}: {ids}; {pip_install(needed)}")
        raise ExperimentError(
            f"no environment's id contains {parsed.filter!r}; ids of Gymnasium and PettingZoo are "
            "not listed"
        )
    rows = [["id", "actors", "observation", "actions", "also", "episodes are truncated by"]]
    for env_id in matching:
        try:
            info = describe(env_id)
        except OSError:
            rows.append([env_id, "", "", "", "", "not available here: its data must be downloaded"])
            continue
        except EntryPointError as error:
            rows.append([env_id, "", "", "", "", f"not available here: {error}"])
            continue
        shape = "x".join(map(str, info.observation_shape)) or "scalar"
        observation = f"{shape} {info.observation_dtype}"
        traits = ", ".join(info.traits)
        rows.append(
            [
                env_id,
                str(info.n_actors),
                observation,
                info.action_space,
                traits,
                info.truncation_rule,
            ]
        )
    print(markdown_table(rows) if parsed.markdown else table(rows))


def _containing(part: str, ids: Iterable[str]) -> list[str]:
    return [each for each in ids if part.lower() in each.lower()]


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
