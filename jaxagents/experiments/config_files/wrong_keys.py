"""Unknown or misused keys of a configuration, with suggestions."""

import difflib
from collections.abc import Mapping

from jaxagents.errors import ExperimentError
from jaxagents.experiments.config_files.documented_fields import Field, type_text
from jaxagents.experiments.config_files.yaml_source import Entry, Source, is_user_key, is_within

_NULL = "tag:yaml.org,2002:null"


def check_keys(source: Source, fields: Mapping[str, Field]) -> None:
    """Check the structure of a file and of its overrides.

    Raises:
        ExperimentError: a key is unknown or has no value; a group holds a value, or a plain field
            holds keys; an override is nested too deeply.
    """
    for key, entry in source.entries.items():
        if problem := _problem(key, entry, fields):
            raise ExperimentError(f"{source.path}:{entry.line}: {problem}")
    for override in source.overrides:
        if override.split("=")[0] == "--config":  # by which the parser receives the file
            raise ExperimentError(f"command line: {describe_unknown_key('config', fields)}")
        _refuse_nested_override(override, fields)


def describe_unknown_key(key: str, fields: Mapping[str, Field]) -> str:
    """Say that a key is unknown, and suggest the one that was probably meant."""
    name = key.rpartition(".")[2]
    by_name = {each.rpartition(".")[2]: each for each in reversed(list(fields))}
    similar = [by_name[each] for each in difflib.get_close_matches(name, by_name, n=1)]
    # Best of all is the same name in another group, then a similar dotted key, then a similar name.
    if name not in by_name:
        similar = difflib.get_close_matches(key, list(fields), n=1) or similar
    suggestion = f"did you mean {similar[0]}?" if similar else "see jaxagents train --help"
    return f"unknown key {key}; {suggestion}"


def example_key_in(group: str, fields: Mapping[str, Field]) -> str:
    """Return the first key of a group."""
    return next(each for each in fields if each != group and is_within(each, group))


def _problem(key: str, entry: Entry, fields: Mapping[str, Field]) -> str | None:
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


def _refuse_nested_override(override: str, fields: Mapping[str, Field]) -> None:
    """Refuse ``--env_kwargs.a.b 3``: jsonargparse would replace all of ``a``, by text."""
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
