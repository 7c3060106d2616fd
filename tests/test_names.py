"""Tests of names."""

import ast
from collections import Counter
from pathlib import Path

import jaxagents


def test_no_class_and_no_public_function_has_a_name_twice():
    modules = Path(jaxagents.__file__).parent.rglob("*.py")
    names = Counter(
        node.name
        for module in modules
        for node in ast.parse(module.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []
