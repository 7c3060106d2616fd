"""The registry of names: what is registered, and what installed packages bring."""

import subprocess
import sys

import pytest

from jaxagents.errors import EntryPointError, Registry
from tests.plugins import install


@pytest.fixture
def colours():
    return Registry("network", "jaxagents.colours")


def red():
    return "red"


def test_a_registered_object_is_found_by_its_name(colours):
    colours.register("red", red)
    assert colours.get("red") is red
    assert colours.names() == ["red"]
    assert colours.find("blue") is None


def test_the_same_object_may_be_registered_again_and_another_may_not(colours):
    colours.register("red", red)
    colours.register("red", red)
    with pytest.raises(ValueError, match=r"^the network 'red' is taken; choose another name\.$"):
        colours.register("red", lambda: "scarlet")
    assert colours.get("red") is red


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("red", 3, r"^3 cannot be called; give a class or a function\.$"),
        ("", red, r"^'' cannot name a registered network; give a text\.$"),
        (3, red, r"^3 cannot name a registered network; give a text\.$"),
    ],
)
def test_what_cannot_be_registered_is_refused(name, value, message, colours):
    with pytest.raises(TypeError, match=message):
        colours.register(name, value)
    assert colours.names() == []


def test_an_unknown_name_is_refused_with_similar_and_known_ones(colours):
    colours.register("mine/red", red)
    colours.register("blue", red)
    with pytest.raises(ValueError, match="unknown network") as refusal:
        colours.get("Redd")
    assert str(refusal.value) == (
        "unknown network 'Redd'. Did you mean mine/red? Known: mine/red, blue."
    )
    with pytest.raises(ValueError, match=r"^unknown network '\?'\. Known: mine/red, blue\.$"):
        colours.get("?")


def test_where_no_name_is_known_the_remedy_is_told(colours):
    with pytest.raises(ValueError, match="unknown network") as refusal:
        colours.get("red")
    assert str(refusal.value) == (
        "unknown network 'red'. None is known: call jaxagents.register_network first, or install "
        "the package that brings it."
    )


def test_an_installed_package_is_imported_when_its_name_is_used(colours, tmp_path, monkeypatch):
    code = "def crimson(): return 'crimson'\n"
    install(monkeypatch, tmp_path, "paint-shop", code, colours="crimson = paint_shop:crimson")
    colours.register("red", red)
    assert colours.get("red") is red
    assert colours.names() == ["red", "crimson"]
    assert "paint_shop" not in sys.modules
    assert colours.get("crimson")() == "crimson"
    assert colours.get("crimson") is sys.modules["paint_shop"].crimson


def test_a_registered_object_takes_the_place_of_an_installed_packages(
    colours, tmp_path, monkeypatch
):
    code = "raise RuntimeError('imported')\n"
    install(monkeypatch, tmp_path, "paint-shop", code, colours="red = paint_shop:red")
    colours.register("red", red)
    assert colours.get("red") is red
    assert colours.names() == ["red"]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import missing_brush\n", "ModuleNotFoundError: No module named 'missing_brush'"),
        ("blue = 1\n", "AttributeError: module 'paint_shop' has no attribute 'red'"),
        ("red = 1\n", "TypeError: 1 cannot be called; give a class or a function."),
        ("raise SystemError('two\\nlines')\n", "SystemError: two lines"),
    ],
)
def test_a_broken_entry_point_is_named_with_its_package(
    code, reason, colours, tmp_path, monkeypatch
):
    install(monkeypatch, tmp_path, "paint-shop", code, colours="red = paint_shop:red")
    with pytest.raises(EntryPointError) as refusal:
        colours.get("red")
    assert str(refusal.value) == (
        "the network 'red' of the package paint-shop cannot be loaded by its entry point "
        f"'paint_shop:red' in jaxagents.colours: {reason}"
    )


def test_a_name_that_two_packages_bring_is_refused(colours, tmp_path, monkeypatch):
    for name in ("shop-b", "shop-a"):
        module = name.replace("-", "_")
        install(monkeypatch, tmp_path, name, "def red(): ...\n", colours=f"red = {module}:red")
    with pytest.raises(EntryPointError) as refusal:
        colours.get("red")
    assert str(refusal.value) == (
        "the network 'red' is brought by the packages shop-a and shop-b; uninstall one of them."
    )


def test_known_names_are_found_without_reading_entry_points():
    code = (
        "import importlib.metadata, jaxagents as ja\n"
        "def refuse(group='', **_):\n"
        "    if 'jaxagents' in group: raise SystemExit('entry points are read')\n"
        "    return ()\n"
        "importlib.metadata.entry_points = refuse\n"
        "ja.register_network('mine', print); ja.register_environment('mine/env', object)\n"
        "ja.make('hunting/discrete'), ja.make('mine/env')\n"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (finished.returncode, finished.stderr) == (0, "")
