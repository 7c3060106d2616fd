"""Configuration files: read, checked, written and documented.

jsonargparse and PyYAML are imported where they are used, so that commands start quickly.
"""

import contextlib
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import jaxagents
from jaxagents.experiments.config_files.documented_fields import Field, fields_of, keys_of
from jaxagents.experiments.config_files.parser import parse
from jaxagents.experiments.config_files.schema import ExperimentConfig, to_plain
from jaxagents.experiments.config_files.wrong_keys import check_keys
from jaxagents.experiments.config_files.yaml_source import Source, read_source
from jaxagents.training.atomic_write import write_atomically


def load_config(path: str | PathLike[str], overrides: Sequence[str] = ()) -> ExperimentConfig:
    """Read a configuration file.

    Args:
        path: A YAML file.
        overrides: As on the command line: "--agent.n_steps", "100", ...

    Raises:
        ExperimentError: the file is missing or not YAML, a key is unknown, or a value is wrong.
    """
    source = read_source(path, overrides)
    fields = dict(keys_of(ExperimentConfig))
    check_keys(source, fields)
    return _build(ExperimentConfig, parse(source, fields), source, fields)


@contextlib.contextmanager
def locating_errors(path: str | PathLike[str], overrides: Sequence[str] = ()) -> Iterator[None]:
    """Prefix errors found after loading with the location of the wrong value.

    Args:
        path: As for `load_config`.
        overrides: As for `load_config`.

    Raises:
        ExperimentError: in place of a `TypeError` or `ValueError`.
    """
    try:
        yield
    except (TypeError, ValueError):
        with read_source(path, overrides).locating_errors(dict(keys_of(ExperimentConfig))):
            raise


def save_config(config: ExperimentConfig, path: Path, n_updates_done: int | None = None) -> None:
    """Write all fields atomically to a YAML file that `load_config` reads.

    Args:
        config: The configuration.
        path: The file.
        n_updates_done: Updates that the run had done with another configuration; None: this is its
            first.
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
    for key, field in keys_of(ExperimentConfig):
        if field.is_group:
            lines += ["", f"{field.meaning.rstrip('.')}:"]
            continue
        lines.append(f"  --{key} VALUE")
        text = f"{field.meaning} ({field.type_and_default})"
        lines += textwrap.wrap(text, width, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines)


def _build(
    cls: Any,
    values: Mapping[str, Any],
    source: Source,
    fields: Mapping[str, Field],
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
