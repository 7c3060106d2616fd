"""Configuration files, read, checked and written.

What is heavy is imported where it is used: seconds may pass before what is wrong with a
configuration is said otherwise.
"""

import contextlib
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import jaxagents
from jaxagents.errors import ExperimentError
from jaxagents.experiments.config_files.documented_fields import (
    Field,
    fields_of,
    keys_of,
    type_text,
)
from jaxagents.experiments.config_files.schema import ExperimentConfig, to_plain
from jaxagents.experiments.config_files.yaml_source import (
    Source,
    first_within,
    read_source,
    refuse_wrong_keys,
    unknown_key,
)
from jaxagents.training.atomic_write import write_at_once

_INFINITY = ("inf", "infinity")  # of which YAML makes text


def load_config(path: str | PathLike[str], overrides: Sequence[str] = ()) -> ExperimentConfig:
    """Read a configuration file.

    Args:
        path: A YAML file.
        overrides: As on the command line: "--agent.n_steps", "100", ...

    Raises:
        ExperimentError: The file is missing or not YAML, a key is unknown, or a value is wrong.
    """
    from jsonargparse import ArgumentError

    source = read_source(path, overrides)
    fields = dict(keys_of(ExperimentConfig))
    refuse_wrong_keys(source, fields)
    try:
        values = _make_parser().parse_args(["--config", source.text, *overrides]).as_dict()
    except ArgumentError as error:
        raise ExperimentError(_explain(error, source, fields)) from error
    return _from_plain(values, source)


@contextlib.contextmanager
def places_named(path: str | PathLike[str], overrides: Sequence[str] = ()) -> Iterator[None]:
    """Let what is found wrong with a configuration later say where its value was given.

    Args:
        path: As for `load_config`.
        overrides: Likewise.

    Raises:
        ExperimentError: Something was wrong.
    """
    try:
        yield
    except (TypeError, ValueError):
        with read_source(path, overrides).blamed(dict(keys_of(ExperimentConfig))):
            raise


def save_config(config: ExperimentConfig, path: Path) -> None:
    """Write every field to a YAML file that `load_config` reads, or leave what there was."""
    import yaml

    header = f"# Written by jaxagents {jaxagents.__version__}. To repeat: jaxagents train {path}\n"
    write_at_once(path, header + yaml.safe_dump(to_plain(config), sort_keys=False))


def help_text(width: int) -> str:
    """Document every key that a file and overrides may set.

    Args:
        width: Of a line, in characters.
    """
    lines = ["The run:"]
    for key, field in keys_of(ExperimentConfig):
        if field.is_group:
            lines += ["", f"{field.meaning.rstrip('.')}:"]
            continue
        lines.append(f"  --{key} VALUE")
        text = f"{field.meaning} ({field.type_and_default})"
        lines += textwrap.wrap(text, width, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines)


def _make_parser() -> Any:
    """Build the jsonargparse parser of a configuration file and its overrides."""
    from jsonargparse import SUPPRESS, ArgumentParser

    parser = ArgumentParser(exit_on_error=False, print_config=None, allow_abbrev=False)
    parser.add_argument("--config", action="config", help=SUPPRESS)
    for key, field in keys_of(ExperimentConfig):
        if not field.is_group:
            given = {"required": True} if field.is_required else {"default": field.default}
            parser.add_argument(f"--{key}", type=field.hint, **given)
    return parser


def _explain(error: Exception, source: Source, fields: Mapping[str, Field]) -> str:
    """Say in one line what jsonargparse objects to: where, which key, what it should be."""
    text = " ".join(str(error).replace('in "<unicode string>", ', "in ").split())
    if tagged := re.search(r"(could not .*?) in line (\d+), column", text):
        lines = [each.line for each in source.entries.values() if f"'{each.node.tag}'" in text]
        return f"{source.path}:{(lines or [tagged[2]])[0]}: {tagged[1]}"
    if wrong := re.match(r'Parser key "([^"]+)": (.*)', text):
        key, text = wrong.groups()
        place = source.place(key)
        if key not in fields:
            return f"{place}: {key}: {text}"
        value = re.split("(?:Got|Given) value: ?", text)[-1]
        wanted = type_text(fields[key].hint)
        hint = "; infinity is written .inf" if value.lstrip("+-").lower() in _INFINITY else ""
        return f"{place}: {key} should be {wanted}, but is {value or 'empty'}{hint}"
    if missing := re.match("the following arguments are required: ([^,]+)", text):
        return f"{source.path}: {missing[1]} is missing; give it there or as --{missing[1]} VALUE"
    if unknown := re.match("(?:unrecognized arguments: --|Option ')([^ =']+)", text):
        key = unknown[1]
        if key in fields:
            example = first_within(key, fields)
            return f"command line: {key} holds keys; give one of them, as --{example} VALUE"
        return f"command line: {unknown_key(key, fields)}"
    if incomplete := re.match("argument --(.*): expected one argument", text):
        return f"command line: --{incomplete[1]} needs a value"
    if stray := re.match("unrecognized arguments: ([^ ]+)", text):
        hint = f"; did you mean --{stray[1]}?" if stray[1].split("=")[0] in fields else ""
        return f"command line: unrecognized argument {stray[1]}{hint}"
    return f"{source.path}: {text}"


def _from_plain(values: Mapping[str, Any], source: Source) -> ExperimentConfig:
    all_fields = dict(keys_of(ExperimentConfig))

    def build(cls: Any, values: Mapping[str, Any], prefix: str) -> Any:
        arguments = {
            field.name: build(field.hint, values[field.name], f"{prefix}{field.name}.")
            if field.is_group
            else values[field.name]
            for field in fields_of(cls)
        }
        with source.blamed(all_fields, prefix):
            return cls(**arguments)

    return build(ExperimentConfig, values, "")
