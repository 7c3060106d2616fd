"""Reference generated at build time: the command line's help and the keys of configurations."""

import argparse
import os
import re
from collections.abc import Iterator
from itertools import groupby
from unittest import mock

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from jaxagents.cli import main as cli
from jaxagents.experiments.config_files.schema import ConfigField, ExperimentConfig, keys_of

COLUMNS = 88


class CommandLine(SphinxDirective):
    """The help of each command, as the parser prints it."""

    def run(self) -> list[nodes.Node]:
        """Parse the generated text."""
        return self.parse_text_to_nodes("\n".join(command_line()), allow_section_headings=True)


class ConfigurationKeys(SphinxDirective):
    """Each key with its values, default and meaning, as the schema documents them."""

    def run(self) -> list[nodes.Node]:
        """Parse the generated text."""
        return self.parse_text_to_nodes("\n".join(configuration()), allow_section_headings=True)


def command_line() -> Iterator[str]:
    """Write a section per command."""
    parser = cli._make_parser()
    (commands,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    with mock.patch.dict(os.environ, COLUMNS=str(COLUMNS)):
        for command in [parser, *commands.choices.values()]:
            help_text = command.format_help().strip().splitlines()
            yield from [command.prog, "-" * len(command.prog), "", ".. code-block:: text", ""]
            yield from [f"   {line}".rstrip() for line in help_text]
            yield ""


def configuration() -> Iterator[str]:
    """Write a section per group of keys."""
    keys = [(key, field) for key, field in keys_of(ExperimentConfig) if not field.is_group]
    meanings = {key: field.meaning for key, field in keys_of(ExperimentConfig) if field.is_group}
    for group, members in groupby(keys, key=lambda each: each[0].rpartition(".")[0]):
        title = group or "The run"
        yield from [title, "-" * len(title), "", as_text(meanings.get(group, "")), ""]
        for key, field in members:
            yield from entry(key, field)


def entry(key: str, field: ConfigField) -> list[str]:
    """Document a key."""
    values, _, default = field.type_and_default.partition("; ")
    lines = [f".. confval:: {key}", f"   :type: {values}"]
    if not field.is_required:
        lines.append(f"   :default: ``{default.removeprefix('default ')}``")
    return [*lines, "", f"   {as_text(field.meaning)}", ""]


def as_text(meaning: str) -> str:
    """Escape asterisks, as in [*batch, *obs], which are no emphasis."""
    return meaning.replace("*", r"\*")


def escape_axes(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Do the same in docstrings, but for literals and bold text."""
    lines[:] = [re.sub(r"(?<![*`\\])\*(?=\w)", r"\\*", line) for line in lines]


def mark_untyped_returns(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Say that what is returned, or is the value of a property, begins with no type."""
    if what in ("attribute", "property") and lines:
        lines[0] = f": {lines[0]}"
    for index, line in enumerate(lines[:-1]):
        if line.strip() in ("Returns:", "Yields:"):
            text = lines[index + 1]
            indent = len(text) - len(text.lstrip())
            lines[index + 1] = f"{text[:indent]}: {text[indent:]}"


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directives."""
    app.add_directive("command-line", CommandLine)
    app.add_directive("configuration-keys", ConfigurationKeys)
    app.connect("autodoc-process-docstring", mark_untyped_returns, priority=400)  # before it
    app.connect("autodoc-process-docstring", escape_axes, priority=900)  # after napoleon
    return {"parallel_read_safe": True, "parallel_write_safe": True}
