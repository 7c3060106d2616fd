"""The YAML file of a configuration, and the locations of its keys.

PyYAML is imported where it is used, so that commands start quickly.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from jaxagents.errors import ExperimentError
from jaxagents.evaluation.run_files import check_expanded_size, in_plain_words, line_of
from jaxagents.experiments.config_files.schema import ConfigField
from jaxagents.hyperparameters import LEARNING_RATE, OWN_RATES

HYPERPARAMS = "hyperparams"
BOTH_RATES = f"{HYPERPARAMS}.{LEARNING_RATE}"
"""The key of the learning rate of both optimizers, in place of their own."""
_OWN_RATES = {f"{HYPERPARAMS}.{name}" for name in OWN_RATES}


class Entry(NamedTuple):
    """A key of a file."""

    line: int  # counted from 1
    node: Any  # PyYAML's node of the value


class Source(NamedTuple):
    """The file that a configuration is read from, and the overrides on the command line."""

    path: str
    text: str  # the file's, in ASCII: jsonargparse fails on other characters in some locales
    entries: Mapping[str, Entry]  # by dotted key, groups included
    overrides: Sequence[str]  # as on the command line

    @property
    def overridden(self) -> list[str]:
        """The keys that the command line sets."""
        return [each[2:].split("=")[0] for each in self.overrides if each.startswith("--")]

    def location_of(self, *keys: str) -> str:
        """Name the place where one of these keys is set: the command line, or a line of the file.

        A key that is set nowhere is located at the innermost group around it.
        """
        if not _OWN_RATES.isdisjoint(keys):
            keys = (*keys, BOTH_RATES)
        if any(is_within(a, b) or is_within(b, a) for a in keys for b in self.overridden):
            return "command line"
        exact = [each for each in keys if each in self.entries]
        around = [
            each
            for key in keys
            for each in reversed(list(self.entries))  # innermost first
            if is_within(key, each)
        ]
        for key in exact + around:
            return f"{self.path}:{self.entries[key].line}"
        return self.path

    @contextlib.contextmanager
    def locating_errors(
        self, fields: Mapping[str, ConfigField], prefix: str = ""
    ) -> Iterator[None]:
        """Prefix errors with the location of the fields that they name.

        Args:
            fields: All fields, by dotted key.
            prefix: Prepended to the names in errors to make dotted keys, as in "agent.".

        Raises:
            ExperimentError: in place of a `TypeError` or `ValueError`.
        """
        try:
            yield
        except (TypeError, ValueError) as error:
            message = " ".join(str(error).split())
            location = self.location_of(*_keys_named_in(message, fields, prefix))
            raise ExperimentError(f"{location}: {message}") from error


def read_source(path: str | PathLike[str], overrides: Sequence[str] = ()) -> Source:
    """Read a YAML file and locate its keys.

    Raises:
        ExperimentError: there is no such file, it is not YAML, or it sets a key twice.
    """
    import yaml

    text = _read_text(Path(path), overrides)
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        raise ExperimentError(f"{path}{line_of(error)}: {in_plain_words(error)}") from error
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ExperimentError(f"{path}: this is not valid YAML: {reason}") from error
    except RecursionError:
        raise ExperimentError(f"{path}: this is too deeply nested") from None
    if root is None:
        raise ExperimentError(f"{path}: the file is empty; jaxagents config ENV prints a full one")
    if not isinstance(root, yaml.MappingNode):
        raise ExperimentError(f"{path}: this is not a YAML file of keys and values")
    try:
        check_expanded_size(root)
        found = list(entries_in(root))
    except ValueError as error:
        raise ExperimentError(f"{path}: {error}") from error
    except RecursionError:
        raise ExperimentError(f"{path}: an anchor (&) contains an alias (*) of itself") from None
    entries: dict[str, Entry] = {}
    for key, entry in found:
        if key in entries:
            first = entries[key].line
            raise ExperimentError(
                f"{path}:{entry.line}: {key} is given a second time, after line {first}; keep one"
            )
        entries[key] = entry
    if not text.isascii():
        text = yaml.serialize(root, Dumper=yaml.SafeDumper)
    return Source(str(path), text, entries, overrides)


def is_within(key: str, group: str) -> bool:
    """True if a dotted key is the group itself or a key in it."""
    return key == group or key.startswith(f"{group}.")


def is_user_key(key: str, fields: Mapping[str, ConfigField]) -> bool:
    """True if a dotted key is in a field that takes any key."""
    return any(field.takes_any_key and is_within(key, each) for each, field in fields.items())


def _read_text(path: Path, overrides: Sequence[str]) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        # The value of an option before CONFIG is taken for it.
        is_value = overrides and path.suffix not in (".yaml", ".yml")
        remedy = "; CONFIG comes before any --KEY VALUE" if is_value else ""
        raise ExperimentError(f"{path}: there is no such file{remedy}") from error
    except IsADirectoryError as error:
        config = path / "config.yaml"
        remedy = f"its configuration is {config}" if config.is_file() else "name a YAML file"
        raise ExperimentError(f"{path}: this is a directory; {remedy}") from error
    except UnicodeDecodeError as error:
        raise ExperimentError(f"{path}: this is not UTF-8 text") from error
    except OSError as error:
        raise ExperimentError(f"{path}: it cannot be read: {error.strerror}") from error


def entries_in(mapping: Any, prefix: str = "") -> Iterator[tuple[str, Entry]]:
    """List the keys of a mapping and of the mappings in it, except those merged in by ``<<``."""
    import yaml

    for name, node in mapping.value:
        if key_text(name) == "<<":
            continue
        key = f"{prefix}{key_text(name)}"
        yield key, Entry(name.start_mark.line + 1, node)
        if isinstance(node, yaml.MappingNode):
            yield from entries_in(node, f"{key}.")


def key_text(node: Any) -> str:
    """Return a key, from PyYAML's node; a question mark in place of a list or mapping."""
    return node.value if node.id == "scalar" else "?"


def _keys_named_in(message: str, fields: Mapping[str, ConfigField], prefix: str) -> list[str]:
    """Find the dotted keys that an error message names, as in "gamma=2.0" or "agent.n_evals"."""
    keys = []
    for token, sign in re.findall(r"([A-Za-z_][\w.]*)(=|:| has shape)?", message):
        if not sign and "." not in token:
            continue
        key = f"{prefix}{token}"
        if key in fields or is_user_key(key, fields):
            keys.append(key)
            continue
        ends = [each for each in fields if each.endswith(f".{token}") and each.startswith(prefix)]
        keys += ends if len(ends) == 1 else []
    return keys


def refuse_other_keys(overrides: Sequence[str], groups: Sequence[str], command: str) -> None:
    """Raise ExperimentError if a command overrides a key of another group.

    Args:
        overrides: As for `load_config`.
        groups: Those that may be overridden, such as "agent".
        command: Its name, for the message.
    """
    for word in overrides:
        key = word.removeprefix("--").partition("=")[0]
        if word.startswith("--") and key.partition(".")[0] not in groups:
            raise ExperimentError(
                f"--{key} is no option of {command}; of the run's keys only those of "
                f"{', '.join(groups[:-1])} and {groups[-1]} can be overridden."
            )
