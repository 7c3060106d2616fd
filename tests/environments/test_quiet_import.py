"""Import of one module without running the packages around it."""

import importlib
import sys

import pytest

from jaxagents.environments.quiet_import import load


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package whose import fails until ``MAY_RUN`` is set."""
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


def test_the_package_runs_when_one_of_its_own_attributes_is_read(package, monkeypatch, capsys):
    value = load(f"{package}.part.value")
    module = importlib.import_module(package)
    for _ in range(2):  # at every access
        with pytest.raises(ImportError, match="not yet"):
            _ = module.own
    monkeypatch.setenv("MAY_RUN", "1")
    assert module.own == [value, "own"]
    assert capsys.readouterr().out == ""
    with pytest.raises(AttributeError, match="nothing"):
        _ = module.nothing


def test_missing_modules_and_packages_are_import_errors(package):
    with pytest.raises(ImportError):
        load(f"{package}.missing.value")
    with pytest.raises(ImportError, match="no package no_such_package"):
        load("no_such_package.part.value")
