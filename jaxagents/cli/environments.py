"""Commands before training: ``envs`` and ``config``."""

import argparse
from collections.abc import Iterable

from jaxagents.cli.arguments import Commands
from jaxagents.cli.output import markdown_table, table


def add_to(commands: Commands) -> None:
    """Add the commands of this module."""
    _add_envs(commands)
    _add_config(commands)


def _add_envs(commands: Commands) -> None:
    command = commands.add_parser(
        "envs",
        help="list the environments",
        description="List the environments, with the actors, observations and actions of each.",
        allow_abbrev=False,
    )
    command.add_argument(
        "filter", metavar="FILTER", nargs="?", default="", help="list ids that contain this"
    )
    command.add_argument("--markdown", action="store_true", help="print a Markdown table")
    command.set_defaults(command=envs)


def _add_config(commands: Commands) -> None:
    command = commands.add_parser(
        "config",
        help="print a configuration file to start from",
        description="Print a configuration file for an environment, with every key explained.",
        allow_abbrev=False,
    )
    command.add_argument("env", metavar="ENV", help="an id listed by `jaxagents envs`")
    command.add_argument("--to", metavar="FILE", help="write a new file instead")
    command.set_defaults(command=config)


def envs(parsed: argparse.Namespace) -> None:
    """List the environments whose ids contain the filter."""
    from jaxagents.environments.registry import MABRAX_IDS, describe, registered_ids
    from jaxagents.errors import EntryPointError

    matching = _containing(parsed.filter, registered_ids())
    if not matching:
        from jaxagents.errors import ExperimentError, pip_install

        if hidden := _containing(parsed.filter, MABRAX_IDS):
            ids = ", ".join(hidden)
            raise ExperimentError(f"not listed without brax: {ids}; {pip_install('brax')}")
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
    """Print or write a configuration file for an environment."""
    from jaxagents.errors import explained
    from jaxagents.experiments.config_files.starting_file import starting_file
    from jaxagents.training.atomic_write import naming

    with explained(), explained("its data cannot be downloaded: ", kinds=(OSError,)):
        text = starting_file(parsed.env)
    if parsed.to is None:
        print(text, end="")
        return
    with (
        explained("the file cannot be written: "),
        naming(parsed.to),
        open(parsed.to, "x", encoding="utf-8") as file,
    ):
        file.write(text)
    print(f"jaxagents train {parsed.to}")
