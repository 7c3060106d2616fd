"""Configuration files: parsed by jsonargparse, checked, written and documented.

jsonargparse and PyYAML are imported where they are used, so that commands start quickly.
"""

import contextlib
import difflib
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import jaxagents
from jaxagents.config import AgentConfig
from jaxagents.errors import ExperimentError
from jaxagents.experiments.config_files.schema import (
    ConfigField,
    ExperimentConfig,
    fields_of,
    keys_of,
    to_plain,
    type_text,
    yaml_text,
)
from jaxagents.experiments.config_files.source import (
    BOTH_RATES,
    HYPERPARAMS,
    Entry,
    Source,
    is_user_key,
    is_within,
    read_source,
)
from jaxagents.hyperparameters import LEARNING_RATE, OPTIMIZERS, OWN_RATES, check_one_rate
from jaxagents.ippo.presets import TEXTBOOK_LEARNING_RATE, textbook_config
from jaxagents.training.atomic_write import write_atomically

_INFINITY = ("inf", "infinity")  # YAML reads these as text
_NULL = "tag:yaml.org,2002:null"


def load_config(path: str | PathLike[str], overrides: Sequence[str] = ()) -> ExperimentConfig:
    """Read a configuration file.

    Args:
        path: A YAML file.
        overrides: As on the command line: "--agent.n_steps", "100", ...

    Raises:
        ExperimentError: the file is missing or not YAML, a key is unknown, or a value is wrong.
    """
    return config_of(read_source(path, overrides))


def config_of(source: Source) -> ExperimentConfig:
    """Build the configuration of a file that has been read.

    Raises:
        ExperimentError: a key is unknown, or a value is wrong.
    """
    fields = dict(keys_of_files())
    check_keys(source, fields)
    return _build(ExperimentConfig, _parse(source, fields), source, fields)


@contextlib.contextmanager
def locating_errors(path: str | PathLike[str], overrides: Sequence[str] = ()) -> Iterator[None]:
    """Prefix errors found after loading with the location of the wrong value.

    Raises:
        ExperimentError: in place of a `TypeError` or `ValueError`.
    """
    try:
        yield
    except (TypeError, ValueError):
        with read_source(path, overrides).locating_errors(dict(keys_of_files())):
            raise


def save_config(config: ExperimentConfig, path: Path, n_updates_done: int | None = None) -> None:
    """Write all fields atomically to a YAML file that `load_config` reads.

    Args:
        config: The configuration.
        path: The file.
        n_updates_done: Updates that the run had done with another configuration; None: this is its
            first configuration.
    """
    import yaml

    use = f"To repeat: jaxagents train {path if is_one_line(path) else repr(str(path))}"
    if n_updates_done is not None:
        use = f"In force since the run was resumed after update {n_updates_done}."
    header = f"# Written by jaxagents {jaxagents.__version__}. {use}\n"
    write_atomically(path, header + yaml.safe_dump(to_plain(config), sort_keys=False))


def is_one_line(path: Path) -> bool:
    """Return False if a path has line breaks or control characters, which would end a comment."""
    return not re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]", str(path))


def help_text(width: int) -> str:
    """Document every key that a file or an override may set.

    Args:
        width: Length of a line, in characters.
    """
    lines = ["The run:"]
    for key, field in keys_of_files():
        if field.is_group:
            lines += ["", f"{field.meaning.rstrip('.')}:"]
            continue
        lines.append(f"  --{key} VALUE")
        text = f"{field.meaning} ({field.type_and_default})"
        lines += textwrap.wrap(text, width, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines)


def keys_of_files() -> Iterator[tuple[str, ConfigField]]:
    """List the keys of a file: those of the schema, and the learning rate of both optimizers."""
    for key, field in keys_of(ExperimentConfig):
        yield key, field
        if key == HYPERPARAMS:
            meaning = "Learning rate of both optimizers, in place of their own."
            yield BOTH_RATES, ConfigField(LEARNING_RATE, float | list[float] | None, None, meaning)


def _build(
    cls: Any,
    values: Mapping[str, Any],
    source: Source,
    fields: Mapping[str, ConfigField],
    prefix: str = "",
) -> Any:
    """Build a dataclass and the dataclasses in it from nested values."""
    arguments = {}
    for field in fields_of(cls):
        value = values[field.name]
        if field.is_group:
            value = _build(field.hint, value, source, fields, f"{prefix}{field.name}.")
        arguments[field.name] = value
    with source.locating_errors(fields, prefix):
        return cls(**arguments)


def _parse(source: Source, fields: Mapping[str, ConfigField]) -> dict[str, Any]:
    """Parse a file and its overrides into nested values, defaults included.

    Raises:
        ExperimentError: a value or an override is wrong.
    """
    from jsonargparse import ArgumentError

    given = ["--config", source.text, *source.overrides]
    try:
        values = _make_parser(fields).parse_args(given).as_dict()
        if values["preset"] is not None:
            preset = [f"--{key}={value}" for key, value in _values_of_preset(values).items()]
            values = _make_parser(fields).parse_args([*preset, *given]).as_dict()
    except ArgumentError as error:
        raise ExperimentError(_describe(error, source, fields)) from error
    if values[HYPERPARAMS][LEARNING_RATE] is not None:
        with source.locating_errors(fields):
            _set_both_rates(values[HYPERPARAMS], source)
    return values


def _set_both_rates(hyperparams: dict[str, Any], source: Source) -> None:
    """Set the rate of both optimizers, except one that only the command line gives.

    Raises:
        ValueError: the file, or the command line, gives an optimizer's own rate as well.
    """
    rate, prefix = hyperparams[LEARNING_RATE], f"{HYPERPARAMS}."
    for given in (source.entries, source.overridden):
        if BOTH_RATES in given:
            check_one_rate(rate, [each for each in OWN_RATES if f"{prefix}{each}" in given], prefix)
    for each, own in zip(OPTIMIZERS, OWN_RATES, strict=True):
        if f"{prefix}{own}" not in source.overridden:
            hyperparams[each][LEARNING_RATE] = rate


def _values_of_preset(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the values that a preset has instead of the defaults, by dotted key."""
    given: dict[str, Any] = {"recurrent": values["agent"]["recurrent"]}
    if values["agent"]["minibatch_size"] != AgentConfig.minibatch_size:
        given["minibatch_size"] = values["agent"]["minibatch_size"]
    agent = textbook_config(given)
    rates = {f"{HYPERPARAMS}.{name}": TEXTBOOK_LEARNING_RATE for name in OWN_RATES}
    values_by_key = {f"agent.{name}": value for name, value in agent.items()} | rates
    return {key: yaml_text(value) for key, value in values_by_key.items()}


def _make_parser(fields: Mapping[str, ConfigField]) -> Any:
    from jsonargparse import SUPPRESS, ArgumentParser

    parser = ArgumentParser(exit_on_error=False, print_config=None, allow_abbrev=False)
    parser.add_argument("--config", action="config", help=SUPPRESS)
    for key, field in fields.items():
        if not field.is_group:
            given = {"required": True} if field.is_required else {"default": field.default}
            parser.add_argument(f"--{key}", type=field.hint, **given)
    return parser


def _describe(error: Exception, source: Source, fields: Mapping[str, ConfigField]) -> str:
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


def _describe_value(key: str, text: str, fields: Mapping[str, ConfigField]) -> str:
    if key not in fields:
        return f"{key}: {text}"
    value = re.split("(?:Got|Given) value: ?", text)[-1]
    hint = "; infinity is written .inf" if value.lstrip("+-").lower() in _INFINITY else ""
    return f"{key} should be {type_text(fields[key].hint)}, but is {value or 'empty'}{hint}"


def _describe_override(text: str, fields: Mapping[str, ConfigField]) -> str | None:
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


def check_keys(source: Source, fields: Mapping[str, ConfigField]) -> None:
    """Check the structure of a file and of its overrides.

    Raises:
        ExperimentError: a key is unknown or has no value; a group holds a value, or a plain field
            holds keys; an override is nested too deeply.
    """
    for key, entry in source.entries.items():
        if problem := _problem(key, entry, fields):
            raise ExperimentError(f"{source.path}:{entry.line}: {problem}")
    for override in source.overrides:
        if override.split("=")[0] == "--config":  # through which the parser receives the file
            raise ExperimentError(f"command line: {describe_unknown_key('config', fields)}")
        _refuse_nested_override(override, fields)


def describe_unknown_key(key: str, fields: Mapping[str, ConfigField]) -> str:
    """Say that a key is unknown, and suggest the one that was probably meant."""
    name = key.rpartition(".")[2]
    by_name = {each.rpartition(".")[2]: each for each in reversed(list(fields))}
    similar = [by_name[each] for each in difflib.get_close_matches(name, by_name, n=1)]
    # The best match is the same name in another group, then a similar dotted key, then a similar
    # name.
    if name not in by_name:
        similar = difflib.get_close_matches(key, list(fields), n=1) or similar
    suggestion = f"did you mean {similar[0]}?" if similar else "see jaxagents train --help"
    return f"unknown key {key}; {suggestion}"


def example_key_in(group: str, fields: Mapping[str, ConfigField]) -> str:
    """Return the first key of a group."""
    return next(each for each in fields if each != group and is_within(each, group))


def _problem(key: str, entry: Entry, fields: Mapping[str, ConfigField]) -> str | None:
    import yaml

    field, is_mapping = fields.get(key), isinstance(entry.node, yaml.MappingNode)
    if field is None:
        return None if is_user_key(key, fields) else describe_unknown_key(key, fields)
    if field.is_group:
        example = example_key_in(key, fields)
        return None if is_mapping else f"{key} should hold keys, such as {example}"
    if is_mapping and not field.takes_any_key:
        return f"{key} should be {type_text(field.hint)}, but holds keys"
    if entry.node.tag == _NULL and "null" not in type_text(field.hint):
        return f"{key} has no value; it should be {type_text(field.hint)}"
    return None


def _refuse_nested_override(override: str, fields: Mapping[str, ConfigField]) -> None:
    """Refuse ``--env_kwargs.a.b 3``: jsonargparse would replace all of ``a`` with text."""
    key = override.split("=")[0].removeprefix("--")
    for name, field in fields.items():
        outer, _, inner = key.removeprefix(f"{name}.").partition(".")
        if field.takes_any_key and override.startswith(f"--{name}.") and inner:
            parts = inner.split(".")
            value = f"{{{': {'.join(parts)}: VALUE{'}' * len(parts)}"
            raise ExperimentError(
                f"command line: {key} is nested too deeply; set {name}.{outer} as a "
                f"whole: --{name}.{outer} '{value}'"
            )
