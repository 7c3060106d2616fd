"""Quiet imports of single modules of JaxMARL and gymnax.

The ``__init__`` of their packages imports all environments, which takes seconds, and prints.
"""

import contextlib
import importlib
import importlib.util
import io
import sys
import threading
import warnings
from collections.abc import Iterator
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast, final

_POSTPONING = threading.Lock()


def load(path: str) -> Any:
    """Import a name from a module.

    An enclosing package's ``__init__`` runs when one of its attributes is first read, so other code
    can use it as usual.

    Args:
        path: The module's path and the name in it, separated by dots.

    Raises:
        ImportError: the module does not exist, or one of its own imports fails.
    """
    module, _, name = path.rpartition(".")
    packages = module.split(".")[:-1]
    # Two threads must not register a package twice: one would set attributes of the discarded one.
    with _POSTPONING:
        for i in range(len(packages)):
            _postpone(".".join(packages[: i + 1]))
    with SILENCE:
        return getattr(importlib.import_module(module), name)


def _postpone(package: str) -> None:
    """Register a package in `sys.modules` without running it, unless it is there already."""
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
    """A package that runs at the first access to an attribute that it lacks."""

    def __getattr__(self, name: str) -> Any:
        # Python probes any module for such optional names.
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
            cast(Any, self).__class__ = _Postponed  # fail in the same way the next time
            raise
        return getattr(self, name)


@contextlib.contextmanager
def _replaced() -> Iterator[None]:
    """Discard the process's output and ignore warnings.

    On import JaxMARL resets `sys.stdout` to `sys.__stdout__`, which undoes a redirection. Both are
    therefore replaced, and all streams are restored.
    """
    streams = {name: getattr(sys, name) for name in ("stdout", "stderr", "__stdout__")}
    sys.stdout = sys.__stdout__ = io.StringIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, stream in streams.items():
            setattr(sys, name, stream)


@final
class Silence:
    """Context manager that mutes the process from the first entry to the last exit.

    If each thread restored the streams that it found, it could restore another's replacement.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._n_within = 0
        self._streams = contextlib.ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if self._n_within == 0:
                self._streams.enter_context(_replaced())
            self._n_within += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._n_within -= 1
            if self._n_within == 0:
                self._streams.close()


SILENCE = Silence()
