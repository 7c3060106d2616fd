"""The fields that a configuration file may set, documented by the dataclasses' own docstrings."""

import dataclasses
import re
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from jaxagents.config import NetworkChoice, OptimizerChoice
from jaxagents.hyperparameters import PerPolicy

_NOT_IN_FILES = ("checkpoint_dir",)
_TYPE_NAMES = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
    type(None): "null",
}
_IN_FILES = (
    (PerPolicy, float | list[float]),
    (NetworkChoice, str | dict[str, Any] | None),
    (OptimizerChoice, Literal["clipped_adam", "adam"]),
)
"""Types of fields, and of their values in files."""


class ConfigField(NamedTuple):
    """A field that a file may set."""

    name: str
    hint: Any  # its type; a dataclass if it is a group of fields
    default: Any  # dataclasses.MISSING: it is required
    meaning: str  # its docstring, in the words of YAML

    @property
    def is_group(self) -> bool:
        """True if it holds fields itself."""
        return dataclasses.is_dataclass(self.hint)

    @property
    def takes_any_key(self) -> bool:
        """True if it is a mapping with keys of the user's choice."""
        return any(typing.get_origin(each) is dict for each in (self.hint, *_members(self.hint)))

    @property
    def is_required(self) -> bool:
        """True if it has no default."""
        return self.default is dataclasses.MISSING

    @property
    def type_and_default(self) -> str:
        """Its type and its default, as text."""
        default = "required" if self.is_required else f"default {yaml_text(self.default)}"
        return f"{type_text(self.hint)}; {default}"


def fields_of(cls: Any) -> list[ConfigField]:
    """List the fields of a dataclass that a file may set."""
    from docstring_parser import parse

    hints = typing.get_type_hints(cls)
    meanings = {each.arg_name: each.description or "" for each in parse(cls.__doc__ or "").params}
    fields = []
    for each in dataclasses.fields(cls):
        if each.name in _NOT_IN_FILES:
            continue
        factory = each.default_factory
        fields.append(
            ConfigField(
                each.name,
                next(
                    (hint for own, hint in _IN_FILES if own == hints[each.name]), hints[each.name]
                ),
                each.default if factory is dataclasses.MISSING else factory(),
                _in_words_of_yaml(meanings.get(each.name, "")),
            )
        )
    return fields


def keys_of(cls: Any, prefix: str = "") -> Iterator[tuple[str, ConfigField]]:
    """List all fields with their dotted keys: simple fields first, then each group and its own."""
    fields = fields_of(cls)
    for field in sorted(fields, key=lambda each: each.is_group):
        yield f"{prefix}{field.name}", field
        if field.is_group:
            yield from keys_of(field.hint, f"{prefix}{field.name}.")


def changed_fields_not_in_files(config: Any) -> list[str]:
    """List the fields that no file can set and that differ from their defaults."""
    return [
        each.name
        for each in dataclasses.fields(config)
        if each.name in _NOT_IN_FILES and getattr(config, each.name) is not each.default
    ]


def type_text(hint: Any) -> str:
    """Describe the values of a type, as in "an integer or null"."""
    options = _options(hint)
    return " or ".join([", ".join(options[:-1]), options[-1]] if options[1:] else options)


def yaml_text(value: Any) -> str:
    """Format a value as one line of YAML."""
    import yaml

    plain = list(value) if isinstance(value, tuple) else value
    text = yaml.safe_dump(plain, default_flow_style=True, width=10**9, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


def _members(hint: Any) -> tuple[Any, ...]:
    """List the members of a union; empty for other types."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else ()


def _options(hint: Any) -> list[str]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if members := _members(hint):
        return [text for each in members for text in _options(each)]
    if origin is Literal:
        return [str(each) for each in arguments]
    if origin in (tuple, list):
        return [f"a list of {_TYPE_NAMES[arguments[0]].split()[-1]}s"]
    return ["keys and values"] if origin is dict else [_TYPE_NAMES.get(hint, str(hint))]


def _in_words_of_yaml(docstring: str) -> str:
    text = " ".join(docstring.split()).replace("AgentConfig.", "agent.")
    words = {"None": "null", "True": "true", "False": "false"}
    return re.sub(r"\b(None|True|False)\b", lambda match: words[match[0]], text)
