"""Where the values of a configuration come from: the lines of a file, and the command line."""

import contextlib
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from jaxagents.errors import ExperimentError
from jaxagents.experiments.config_files.documented_fields import Field, type_text

_NULL = "tag:yaml.org,2002:null"


class Entry(NamedTuple):
    """A key of a file."""

    line: int  # counted from 1
    node: Any  # of PyYAML: the key's value


class Source(NamedTuple):
    """The file that a configuration is read from, and what overrides it."""

    path: str
    text: str  # of the file, in ASCII: what reads it next may know no more letters
    entries: Mapping[str, Entry]  # by dotted key; mappings, and what they hold
    overrides: Sequence[str]  # as on the command line

    def place(self, *keys: str) -> str:
        """Say where one of these was given: on the command line, or at which line of the file."""
        overridden = [each[2:].split("=")[0] for each in self.overrides if each.startswith("--")]
        if any(_is_within(a, b) or _is_within(b, a) for a in keys for b in overridden):
            return "command line"
        exact = [each for each in keys if each in self.entries]
        around = [
            each
            for key in keys
            for each in reversed(list(self.entries))  # innermost first
            if _is_within(key, each)
        ]
        for key in exact + around:
            return f"{self.path}:{self.entries[key].line}"
        return self.path

    @contextlib.contextmanager
    def blamed(self, fields: Mapping[str, Field], prefix: str = "") -> Iterator[None]:
        """Let errors say where the fields that they name were given.

        Args:
            fields: All that there are, by dotted key.
            prefix: Of the keys that the errors name.

        Raises:
            ExperimentError: A `TypeError` or a `ValueError` was raised.
        """
        try:
            yield
        except (TypeError, ValueError) as error:
            text = " ".join(str(error).split())
            place = self.place(*_named(text, fields, prefix))
            raise ExperimentError(f"{place}: {text}") from error


def read_source(path: str | PathLike[str], overrides: Sequence[str] = ()) -> Source:
    """Find the keys of a YAML file.

    Raises:
        ExperimentError: There is no such file, it is not YAML, or a key is there twice.
    """
    import yaml

    text = _text(Path(path))
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        tab = "; indent with spaces, not tabs" if r"'\t'" in str(error.problem) else ""
        raise ExperimentError(f"{path}{line}: this is no YAML: {error.problem}{tab}") from error
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ExperimentError(f"{path}: this is no YAML: {reason}") from error
    if root is None:
        raise ExperimentError(f"{path}: the file is empty; jaxagents config ENV prints a full one")
    if not isinstance(root, yaml.MappingNode):
        raise ExperimentError(f"{path}: this is no YAML file of keys and values")
    entries: dict[str, Entry] = {}
    for key, entry in _entries(root, ""):
        if key in entries:
            first = entries[key].line
            raise ExperimentError(
                f"{path}:{entry.line}: {key} is given a second time, after line {first}; keep one"
            )
        entries[key] = entry
    if not text.isascii():
        text = yaml.serialize(root, Dumper=yaml.SafeDumper)
    return Source(str(path), text, entries, overrides)


def refuse_wrong_keys(source: Source, fields: Mapping[str, Field]) -> None:
    """Refuse what of a file's structure no configuration has.

    Raises:
        ExperimentError: A key is unknown, has no value, or holds no keys where it should.
    """
    import yaml

    for key, (line, node) in source.entries.items():
        field, problem = fields.get(key), ""
        holds_keys = isinstance(node, yaml.MappingNode)
        if field is None:
            problem = "" if _is_within_open(key, fields) else unknown_key(key, fields)
        elif field.is_group and not holds_keys:
            problem = f"{key} should hold keys, such as {first_within(key, fields)}"
        elif holds_keys and not field.is_group and not field.is_open:
            problem = f"{key} should be {type_text(field.hint)}, but holds keys"
        elif node.tag == _NULL and "null" not in type_text(field.hint):
            problem = f"{key} has no value; it should be {type_text(field.hint)}"
        if problem:
            raise ExperimentError(f"{source.path}:{line}: {problem}")
    _refuse_deep_overrides(source, fields)


def _refuse_deep_overrides(source: Source, fields: Mapping[str, Field]) -> None:
    # The value would replace all that is beside it, as text.
    for override in source.overrides:
        key = override.split("=")[0].removeprefix("--")
        for name, field in fields.items():
            around, _, within = key.removeprefix(f"{name}.").partition(".")
            if field.is_open and override.startswith(f"--{name}.") and within:
                parts = within.split(".")
                value = f"{{{': {'.join(parts)}: VALUE{'}' * len(parts)}"
                raise ExperimentError(
                    f"command line: {key} lies too deep; give all that {name}.{around} is to "
                    f"hold, as --{name}.{around} '{value}'"
                )


def unknown_key(key: str, fields: Mapping[str, Field]) -> str:
    """Say that there is no such key, and which it may have been meant to be."""
    name = key.rpartition(".")[2]
    by_name = {each.rpartition(".")[2]: each for each in reversed(list(fields))}
    nearest = [by_name[each] for each in difflib.get_close_matches(name, by_name, n=1)]
    # Right but for its place, or else alike as a whole, or else alike in its last part.
    if name not in by_name:
        nearest = difflib.get_close_matches(key, list(fields), n=1) or nearest
    suggestion = f"did you mean {nearest[0]}?" if nearest else "see jaxagents train --help"
    return f"unknown key {key}; {suggestion}"


def first_within(key: str, fields: Mapping[str, Field]) -> str:
    """Give an example of what a group holds."""
    return next(each for each in fields if each != key and _is_within(each, key))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        remedy = "there is no such file; CONFIG comes before any --KEY VALUE"
        raise ExperimentError(f"{path}: {remedy}") from error
    except IsADirectoryError as error:
        config = path / "config.yaml"
        remedy = f"its configuration is {config}" if config.is_file() else "name a YAML file"
        raise ExperimentError(f"{path}: this is a directory; {remedy}") from error
    except UnicodeDecodeError as error:
        raise ExperimentError(f"{path}: this is no text in UTF-8") from error
    except OSError as error:
        raise ExperimentError(f"{path}: it cannot be read: {error.strerror}") from error


def _entries(mapping: Any, prefix: str) -> Iterator[tuple[str, Entry]]:
    """List the keys of a mapping and of those in it; what is merged in is listed elsewhere."""
    import yaml

    for name, node in mapping.value:
        if name.value == "<<":
            continue
        key = f"{prefix}{name.value if isinstance(name, yaml.ScalarNode) else '?'}"
        yield key, Entry(name.start_mark.line + 1, node)
        if isinstance(node, yaml.MappingNode):
            yield from _entries(node, f"{key}.")


def _named(text: str, fields: Mapping[str, Field], prefix: str) -> list[str]:
    """Find the fields that an error names: dotted, or before a sign that this is a name."""
    keys = []
    for token, sign in re.findall(r"([A-Za-z_][\w.]*)(=|:| has shape)?", text):
        if not sign and "." not in token:
            continue
        key = f"{prefix}{token}"
        if key in fields or _is_within_open(key, fields):
            keys.append(key)
            continue
        ends = [each for each in fields if each.endswith(f".{token}") and each.startswith(prefix)]
        keys += ends if len(ends) == 1 else []
    return keys


def _is_within(key: str, other: str) -> bool:
    return key == other or key.startswith(f"{other}.")


def _is_within_open(key: str, fields: Mapping[str, Field]) -> bool:
    """Whether a key belongs to a field that takes keys of any name."""
    return any(field.is_open and _is_within(key, each) for each, field in fields.items())
