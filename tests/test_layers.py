"""Imports between the packages go one way, and nothing heavy is imported before its use."""

import ast
import functools
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

import jaxagents

ROOT = Path(jaxagents.__file__).parent

# The packages, in order, and those that each may import.
TOP_LEVEL = "top-level modules"
_CORE = {TOP_LEVEL, "compiler"}
_EPISODES = {"environments", "training", *_CORE}
_AGENTS = {"evaluation", "networks", "ppo", *_EPISODES}
PACKAGES = {
    "compiler": set(),
    TOP_LEVEL: {"compiler"},
    "ppo": _CORE,
    "networks": _CORE,
    "environments": _CORE,
    "training": _CORE,
    "evaluation": _EPISODES,
    "ippo": _AGENTS,
    "visual": {"evaluation", *_EPISODES},
    "experiments": {"ippo", "visual", *_AGENTS},
    "cli": {"experiments", "ippo", "visual", *_AGENTS},
}
MOST_PACKAGES, MOST_LAYERS, MOST_TOP_LEVEL_MODULES = 10, 9, 7


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


FILES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}
TOP = {"", "__main__"}  # `jaxagents` itself and its command, which may import all packages


def package_of(module: str) -> str:
    return module.partition(".")[0] if "." in module or (ROOT / module).is_dir() else TOP_LEVEL


@functools.cache
def imports_of(module: str) -> frozenset[str]:
    """Find the modules that a module imports, inside functions and for type checkers too."""
    found = set()
    for node in ast.walk(ast.parse(FILES[module].read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "jaxagents":
            source = (node.module or "").removeprefix("jaxagents").removeprefix(".")
            names = {f"{source}.{alias.name}".removeprefix(".") for alias in node.names}
            found |= (names & FILES.keys()) or {source}
        elif isinstance(node, ast.Import):
            names = {alias.name for alias in node.names}
            found |= {name.removeprefix("jaxagents.") for name in names if "jaxagents." in name}
    return frozenset(found - TOP)


def import_graph() -> dict[str, set[str]]:
    """Draw the packages' imports from the code."""
    graph = {package: set() for package in PACKAGES}
    for module in FILES.keys() - TOP:
        graph[package_of(module)] |= {package_of(each) for each in imports_of(module)}
    return {package: imported - {package} for package, imported in graph.items()}


def test_every_folder_is_a_package_of_the_table():
    assert {package_of(module) for module in FILES.keys() - TOP} == PACKAGES.keys()
    assert len(PACKAGES.keys() - {TOP_LEVEL}) <= MOST_PACKAGES
    assert len(list(ROOT.glob("*.py"))) <= MOST_TOP_LEVEL_MODULES


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_from_those_that_the_table_allows(package):
    assert import_graph()[package] <= PACKAGES[package]


def test_the_packages_form_few_layers_without_a_circle():
    graph, layer = import_graph(), {}
    for package in graphlib.TopologicalSorter(graph).static_order():  # raises for a circle
        layer[package] = 1 + max((layer[each] for each in graph[package]), default=0)
    assert max(layer.values()) <= MOST_LAYERS


def test_no_two_modules_import_each_other_even_in_a_roundabout_way():
    graph = {module: imports_of(module) for module in FILES.keys() - TOP}
    assert len(list(graphlib.TopologicalSorter(graph).static_order())) >= len(graph)


def test_the_algorithm_names_nothing_of_the_compilers():
    """Flags, emitters, barriers and the like stand in the package ``compiler`` only."""
    words = ("xla", "optimization_barrier", "platform_dependent", "threefry", "emitter")
    for module in FILES.keys() - TOP:
        if package_of(module) in ("ippo", "ppo", "networks", "evaluation", "training"):
            text = FILES[module].read_text().lower()
            assert not [word for word in words if word in text], module


def test_each_package_says_what_it_contains():
    for package in PACKAGES.keys() - {TOP_LEVEL}:
        docstring = ast.get_docstring(ast.parse(FILES[package].read_text()))
        assert docstring is not None
        assert docstring.count(".") >= 2


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, jaxagents; print([m for m in ('jax', 'numpy', 'flax') if m in sys.modules])"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == "[]"


def test_a_discrete_agent_imports_no_library_that_it_does_not_need():
    code = (
        "import sys, jaxagents as ja; ja.DiscreteIPPO;"
        "print([m for m in ('distrax', 'orbax', 'matplotlib', 'jaxmarl') if m in sys.modules])"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == "[]"


def test_every_public_name_can_be_imported():
    for name in jaxagents.__all__:
        assert getattr(jaxagents, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'DiscretIPPO'"):
        _ = jaxagents.DiscretIPPO
