"""Importing what one module defines, without all that the packages around it import."""

import importlib
import sys

import pytest

from jaxagents.environments.jaxmarl.lazy_import import load


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that counts its runs, and fails until it is allowed to succeed."""
    name = "package_to_postpone"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "import os\n"
        "if not os.environ.get('MAY_RUN'):\n"
        "    raise ImportError('not yet')\n"
        "print('words')\n"
        "from .part import value\n"
        "own = [value, 'own']\n"
    )
    (folder / "part.py").write_text("value = object()\n")
    (folder / "other.py").write_text("value = 'other'\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield name
    for module in [module for module in sys.modules if module.startswith(name)]:
        del sys.modules[module]


def test_a_module_is_imported_without_its_package(package):
    value = load(f"{package}.part.value")
    assert value is sys.modules[f"{package}.part"].value
    assert sys.modules[package].other.value == "other"


def test_the_package_runs_once_it_is_asked_for_something_of_its_own(package, monkeypatch, capsys):
    value = load(f"{package}.part.value")
    module = importlib.import_module(package)
    for _ in range(2):  # as often as it is asked
        with pytest.raises(ImportError, match="not yet"):
            _ = module.own
    monkeypatch.setenv("MAY_RUN", "1")
    assert module.own == [value, "own"]
    assert capsys.readouterr().out == ""
    with pytest.raises(AttributeError, match="nothing"):
        _ = module.nothing


def test_what_is_not_there_cannot_be_imported(package):
    with pytest.raises(ImportError):
        load(f"{package}.missing.value")
    with pytest.raises(ImportError, match="no package no_such_package"):
        load("no_such_package.part.value")
