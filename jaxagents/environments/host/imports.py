"""Modules that are imported for what they register, in this process and in its workers."""

import contextlib
import importlib
from collections.abc import Iterable, Iterator

_modules: dict[str, None] = {}  # an ordered set


def import_modules(names: Iterable[str]) -> None:
    """Import modules, and have the workers that start from now on import them too."""
    for name in names:
        importlib.import_module(name)
        _modules[name] = None


@contextlib.contextmanager
def importing_for_workers() -> Iterator[None]:
    """Enter a context that workers import nothing more for once it has been left."""
    before = dict(_modules)
    try:
        yield
    finally:
        _modules.clear()
        _modules.update(before)


def imported_modules() -> tuple[str, ...]:
    """Return the names that `import_modules` was given."""
    return tuple(_modules)


def import_options() -> str:
    """Return the options --import that a command needs for what this process has imported."""
    return "".join(f" --import {name}" for name in _modules)
