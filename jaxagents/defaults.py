"""The defaults of a configuration, had without importing jax as the modules do that define them."""

import ast
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

_MODULES = ("hyperparameters", "config", "configuration")  # each builds on those before it


def default_config() -> dict[str, Any]:
    """Read the defaults of all fields that a configuration file may set, nested as there.

    Fields without a default, and those that cannot stand in a file, are missing.
    """
    classes: dict[str, Callable[[], dict[str, Any]]] = {}
    for module in _MODULES:
        source = Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8")
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef):
                classes[node.name] = partial(_defaults, node, dict(classes))
    return classes["ExperimentConfig"]() | {"agent": classes["AgentConfig"]()}


def _defaults(node: ast.ClassDef, known: Mapping[str, Any]) -> dict[str, Any]:
    """Evaluate the defaults of a class's fields, each class that they name being its defaults."""
    names = {"math": math, "dict": dict, "field": lambda default_factory: default_factory()}
    defaults = {}
    for field in node.body:
        if isinstance(field, ast.AnnAssign) and field.value and isinstance(field.target, ast.Name):
            expression = compile(ast.Expression(field.value), node.name, "eval")
            try:
                value = eval(expression, {**names, **known})
            except NameError:  # it is defined by code, as the optimizer is
                continue
            defaults[field.target.id] = list(value) if isinstance(value, tuple) else value
    return defaults
