"""Parse the values of a configuration with jsonargparse, and describe its errors in one line."""

import re
from collections.abc import Mapping
from typing import Any

from jaxagents.config import AgentConfig
from jaxagents.errors import ExperimentError
from jaxagents.experiments.config_files.documented_fields import Field, type_text, yaml_text
from jaxagents.experiments.config_files.wrong_keys import describe_unknown_key, example_key_in
from jaxagents.experiments.config_files.yaml_source import Source
from jaxagents.ippo.presets import TEXTBOOK_LEARNING_RATE, textbook_config

_INFINITY = ("inf", "infinity")  # YAML reads these as text


def parse(source: Source, fields: Mapping[str, Field]) -> dict[str, Any]:
    """Parse a file and its overrides into nested values, defaults included.

    Raises:
        ExperimentError: a value or an override is wrong.
    """
    from jsonargparse import ArgumentError

    given = ["--config", source.text, *source.overrides]
    try:
        values = _make_parser(fields).parse_args(given).as_dict()
        if values["preset"] is None:
            return values
        preset = [f"--{key}={value}" for key, value in _values_of_preset(values).items()]
        return _make_parser(fields).parse_args([*preset, *given]).as_dict()
    except ArgumentError as error:
        raise ExperimentError(_describe(error, source, fields)) from error


def _values_of_preset(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the values that a preset has instead of the defaults, by dotted key."""
    given: dict[str, Any] = {"recurrent": values["agent"]["recurrent"]}
    if values["agent"]["minibatch_size"] != AgentConfig.minibatch_size:
        given["minibatch_size"] = values["agent"]["minibatch_size"]
    agent = textbook_config(given)
    rates = {
        f"hyperparams.{network}_optimizer_params.learning_rate": TEXTBOOK_LEARNING_RATE
        for network in ("actor", "critic")
    }
    values_by_key = {f"agent.{name}": value for name, value in agent.items()} | rates
    return {key: yaml_text(value) for key, value in values_by_key.items()}


def _make_parser(fields: Mapping[str, Field]) -> Any:
    from jsonargparse import SUPPRESS, ArgumentParser

    parser = ArgumentParser(exit_on_error=False, print_config=None, allow_abbrev=False)
    parser.add_argument("--config", action="config", help=SUPPRESS)
    for key, field in fields.items():
        if not field.is_group:
            given = {"required": True} if field.is_required else {"default": field.default}
            parser.add_argument(f"--{key}", type=field.hint, **given)
    return parser


def _describe(error: Exception, source: Source, fields: Mapping[str, Field]) -> str:
    """Turn an error of jsonargparse into one line: the location, the key, and what it should be."""
    text = " ".join(str(error).replace('in "<unicode string>", ', "in ").split())
    if tagged := re.search(r"(could not .*?) in line (\d+), column", text):
        lines = [each.line for each in source.entries.values() if f"'{each.node.tag}'" in text]
        return f"{source.path}:{(lines or [tagged[2]])[0]}: {tagged[1]}"
    if wrong := re.match(r'Parser key "([^"]+)": (.*)', text):
        key, text = wrong.groups()
        return f"{source.location_of(key)}: {_describe_value(key, text, fields)}"
    if missing := re.match("the following arguments are required: ([^,]+)", text):
        return f"{source.path}: {missing[1]} is missing; give it there or as --{missing[1]} VALUE"
    override = _describe_override(text, fields)
    return f"command line: {override}" if override else f"{source.path}: {text}"


def _describe_value(key: str, text: str, fields: Mapping[str, Field]) -> str:
    if key not in fields:
        return f"{key}: {text}"
    value = re.split("(?:Got|Given) value: ?", text)[-1]
    hint = "; infinity is written .inf" if value.lstrip("+-").lower() in _INFINITY else ""
    return f"{key} should be {type_text(fields[key].hint)}, but is {value or 'empty'}{hint}"


def _describe_override(text: str, fields: Mapping[str, Field]) -> str | None:
    """Describe a wrong argument; None if the error is not about one."""
    if unknown := re.match("(?:unrecognized arguments: --|Option ')([^ =']+)", text):
        key = unknown[1]
        if key not in fields:
            return describe_unknown_key(key, fields)
        if not fields[key].is_group:
            return f"give --{key} and its value as two arguments, or write --{key}=VALUE"
        return f"{key} holds keys; give one of them, as --{example_key_in(key, fields)} VALUE"
    if incomplete := re.match("argument --(.*): expected one argument", text):
        return f"--{incomplete[1]} needs a value"
    if stray := re.match("unrecognized arguments: ([^ ]+)", text):
        hint = f"; did you mean --{stray[1]}?" if stray[1].split("=")[0] in fields else ""
        return f"unrecognized argument {stray[1]}{hint}"
    return None
