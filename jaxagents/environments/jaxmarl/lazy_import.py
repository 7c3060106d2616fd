"""Importing what one module of a package defines, without all that its packages import."""

import importlib
import importlib.util
import sys
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast

from jaxagents.environments.jaxmarl.muted_output import SILENCE


def load(path: str) -> Any:
    """Import what a module defines.

    The packages that the module lies in are run once they are asked for something of their own,
    so that to others they look as ever.

    Args:
        path: The module's path and the name in it, with dots.

    Raises:
        ImportError: it is not there, or lacks something itself.
    """
    module, _, name = path.rpartition(".")
    packages = module.split(".")[:-1]
    for i in range(len(packages)):
        _postpone(".".join(packages[: i + 1]))
    with SILENCE:
        return getattr(importlib.import_module(module), name)


def _postpone(package: str) -> None:
    """Put a package where it is imported from, but do not run it yet, unless it has run."""
    if package in sys.modules:
        return
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise ImportError(f"there is no package {package}")
    module = importlib.util.module_from_spec(spec)
    module.__class__ = _Postponed
    sys.modules[package] = module
    parent, _, name = package.rpartition(".")
    if parent:
        setattr(sys.modules[parent], name, module)


class _Postponed(ModuleType):
    """A package that runs once it is asked for what it does not have."""

    def __getattr__(self, name: str) -> Any:
        # Python asks any module for such names, and lives without them.
        if name.startswith("__") and name not in ("__all__", "__version__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if importlib.util.find_spec(f"{self.__name__}.{name}"):
            return importlib.import_module(f"{self.__name__}.{name}")
        cast(Any, self).__class__ = ModuleType
        loader = cast(Loader, cast(ModuleSpec, self.__spec__).loader)
        try:
            with SILENCE:
                loader.exec_module(self)
        except BaseException:
            cast(Any, self).__class__ = _Postponed  # to fail likewise when it is asked again
            raise
        return getattr(self, name)
