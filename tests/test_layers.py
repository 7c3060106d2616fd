"""Imports between the package's rooms go one way, and nothing heavy is imported before its use."""

import ast
import functools
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

import jaxagents

PACKAGE = Path(jaxagents.__file__).parent

# The rooms, from the bottom, and the rooms that each may import.
_VOCABULARY = {"compiler"}
_CORE = {"vocabulary", *_VOCABULARY}
_EPISODES = {"environments", "training", *_CORE}
_AGENTS = {"evaluation", "networks", "ppo", *_EPISODES}
ROOMS = {
    "compiler": set(),
    "vocabulary": _VOCABULARY,  # the modules at the top of the package
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
MOST_ROOMS, MOST_FLOORS, MOST_TOP_MODULES = 10, 9, 6


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


FILES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
TOP = {"", "__main__"}  # the package itself and its command, above all rooms


def room_of(module: str) -> str:
    return (
        module.partition(".")[0] if "." in module or (PACKAGE / module).is_dir() else "vocabulary"
    )


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
    """Draw the rooms' imports from the code."""
    graph = {room: set() for room in ROOMS}
    for module in FILES.keys() - TOP:
        graph[room_of(module)] |= {room_of(each) for each in imports_of(module)}
    return {room: imported - {room} for room, imported in graph.items()}


def test_every_folder_is_a_room_of_the_table():
    assert {room_of(module) for module in FILES.keys() - TOP} == ROOMS.keys()
    assert len(ROOMS.keys() - {"vocabulary"}) <= MOST_ROOMS
    assert len(list(PACKAGE.glob("*.py"))) <= MOST_TOP_MODULES


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_from_the_rooms_that_the_table_allows(room):
    assert import_graph()[room] <= ROOMS[room]


def test_the_rooms_lie_on_few_floors_without_a_circle():
    graph, floor = import_graph(), {}
    for room in graphlib.TopologicalSorter(graph).static_order():  # raises for a circle
        floor[room] = 1 + max((floor[each] for each in graph[room]), default=0)
    assert max(floor.values()) <= MOST_FLOORS


def test_no_two_modules_import_each_other_even_in_a_roundabout_way():
    graph = {module: imports_of(module) for module in FILES.keys() - TOP}
    assert len(list(graphlib.TopologicalSorter(graph).static_order())) >= len(graph)


def test_the_algorithm_names_nothing_of_the_compilers():
    """Flags, emitters, barriers and the like stand in the room ``compiler`` only."""
    words = ("xla", "optimization_barrier", "platform_dependent", "threefry", "emitter")
    for module in FILES.keys() - TOP:
        if room_of(module) in ("ippo", "ppo", "networks", "evaluation", "training"):
            text = FILES[module].read_text().lower()
            assert not [word for word in words if word in text], module


def test_each_room_says_what_lives_there():
    for room in ROOMS.keys() - {"vocabulary"}:
        docstring = ast.get_docstring(ast.parse(FILES[room].read_text()))
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
