"""The fields of a configuration: what a file may set, as the docstrings document it."""

import dataclasses
import re
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from jaxagents.hyperparameters import PerPolicy

_NO_PLAIN_DATA = ("actor_network", "critic_network", "optimizer", "checkpoint_dir")
_NAMES = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
    type(None): "null",
}


class Field(NamedTuple):
    """A field that a file may set."""

    name: str
    hint: Any  # its type; a dataclass, if it holds fields itself
    default: Any  # dataclasses.MISSING: it has to be given
    meaning: str  # as its docstring has it, in the words of a file

    @property
    def is_group(self) -> bool:
        """Whether it holds fields itself."""
        return dataclasses.is_dataclass(self.hint)

    @property
    def is_open(self) -> bool:
        """Whether it takes keys of any name."""
        return typing.get_origin(self.hint) is dict

    @property
    def is_required(self) -> bool:
        """Whether it has to be given."""
        return self.default is dataclasses.MISSING

    @property
    def type_and_default(self) -> str:
        """What values it takes, and which it has if none is given."""
        default = "required" if self.is_required else f"default {yaml_text(self.default)}"
        return f"{type_text(self.hint)}; {default}"


def fields_of(cls: Any) -> list[Field]:
    """List the fields of a dataclass that a file may set."""
    from docstring_parser import parse

    hints = typing.get_type_hints(cls)
    meanings = {each.arg_name: each.description or "" for each in parse(cls.__doc__ or "").params}
    fields = []
    for each in dataclasses.fields(cls):
        if each.name in _NO_PLAIN_DATA:
            continue
        factory = each.default_factory
        fields.append(
            Field(
                each.name,
                float | list[float] if hints[each.name] == PerPolicy else hints[each.name],
                each.default if factory is dataclasses.MISSING else factory(),
                _in_the_words_of_a_file(meanings.get(each.name, "")),
            )
        )
    return fields


def keys_of(cls: Any, prefix: str = "") -> Iterator[tuple[str, Field]]:
    """List all fields by dotted key: those that are no groups, then each group and its own."""
    fields = fields_of(cls)
    for field in sorted(fields, key=lambda each: each.is_group):
        yield f"{prefix}{field.name}", field
        if field.is_group:
            yield from keys_of(field.hint, f"{prefix}{field.name}.")


def of_no_file(config: Any) -> list[str]:
    """Name the fields with other than default values that no file can set."""
    return [
        each.name
        for each in dataclasses.fields(config)
        if each.name in _NO_PLAIN_DATA and getattr(config, each.name) is not each.default
    ]


def type_text(hint: Any) -> str:
    """Say in words which values a type has."""
    options = _options(hint)
    return " or ".join([", ".join(options[:-1]), options[-1]] if options[1:] else options)


def yaml_text(value: Any) -> str:
    """Write a value as YAML does in one line."""
    import yaml

    plain = list(value) if isinstance(value, tuple) else value
    text = yaml.safe_dump(plain, default_flow_style=True, width=10**9)
    return text.removesuffix("\n").removesuffix("\n...")


def _options(hint: Any) -> list[str]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return [text for each in arguments for text in _options(each)]
    if origin is Literal:
        return [str(each) for each in arguments]
    if origin in (tuple, list):
        return [f"a list of {_NAMES[arguments[0]].split()[-1]}s"]
    return ["keys and values"] if origin is dict else [_NAMES.get(hint, str(hint))]


def _in_the_words_of_a_file(text: str) -> str:
    text = " ".join(text.split()).replace("AgentConfig.", "agent.")
    words = {"None": "null", "True": "true", "False": "false"}
    return re.sub(r"\b(None|True|False)\b", lambda match: words[match[0]], text)
