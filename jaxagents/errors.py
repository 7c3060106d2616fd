"""Errors, warnings, and the registry of names, whose users must not import jax."""

import contextlib
import difflib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module, metadata
from importlib.machinery import PathFinder
from typing import Any, Generic, TypeVar, final


class CheckpointError(ValueError):
    """A run's checkpoints cannot be used as requested; the message says why in one line."""


class ExperimentError(ValueError):
    """A request cannot be fulfilled; the message says why in one line."""


class EntryPointError(ValueError):
    """An installed package's entry point cannot be used; the message names both in one line."""


_OF_CHECKS = (ImportError, OSError, TypeError, ValueError)
OF_FILES = (CheckpointError, OSError)  # other errors of training are not the user's


@contextlib.contextmanager
def explained(place: str = "", kinds: tuple[type[Exception], ...] = _OF_CHECKS) -> Iterator[None]:
    """Convert the errors of this package's or a library's checks to an `ExperimentError`."""
    try:
        yield
    except kinds as error:
        raise ExperimentError(place + " ".join(str(error).split())) from error


def pip_install(extra: str = "") -> str:
    """Say how to install this package, with an extra if one is named."""
    extras = f'".[{extra}]"' if extra else "."
    return f"pip install -c constraints.txt -e {extras} in the repository of jaxagents"


def import_extra(name: str, what: str, extra: str, kind: type[Exception] = ImportError) -> Any:
    """Import a package of an extra, or raise an error that names the extra.

    Args:
        name: The package.
        what: Who needs it, with the verb, such as "sweeps need".
        extra: The extra that installs it.
        kind: Class of the error.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise kind(f"{what} {name}, which is not installed: {pip_install(extra)}.") from error


def how_to_import(error: ImportError) -> str:
    """Name the option that finds a module of the working directory, if that one is missing.

    Returns:
        A sentence with a space before it, or nothing.
    """
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    if not name or "." in name or PathFinder.find_spec(name, [os.getcwd()]) is None:
        return ""
    return f" It is in the working directory: give --import {name}."


def stacklevel_of_caller() -> int:
    """Return the ``stacklevel`` with which a warning names the code that called this package."""
    level, frame = 0, sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("jaxagents."):
        level, frame = level + 1, frame.f_back
    return level + 1


T = TypeVar("T")


def check_callable(value: Any) -> None:
    """Check that a registered object can be called.

    Raises:
        TypeError: it cannot.
    """
    if not callable(value):
        raise TypeError(f"{value!r} cannot be called; give a class or a function.")


@final
class Registry(Generic[T]):
    """Objects by name: registered in this process, or provided by installed packages.

    The entry points of packages are read for names that are not registered, and a package is
    imported once its name is used.

    Args:
        kind: What the objects are, in error messages, such as "network".
        group: Group of the entry points.
        check: Raises TypeError for an object of another kind.
    """

    def __init__(self, kind: str, group: str, check: Callable[[Any], None] = check_callable):
        self._kind = kind
        self._group = group
        self._check = check
        self._registered: dict[str, T] = {}
        self._loaded: dict[str, T] = {}  # from entry points

    def __contains__(self, name: str) -> bool:
        """True if a name is registered in this process."""
        return name in self._registered

    def register(self, name: str, value: T) -> None:
        """Register an object; it replaces an installed package's object of that name.

        Raises:
            TypeError: the name is not text, or the object is of another kind.
            ValueError: the name is taken by another object.
        """
        if not isinstance(name, str) or not name:
            raise TypeError(f"{name!r} cannot name a registered {self._kind}; give a text.")
        self._check(value)
        if self._registered.get(name, value) is not value:
            raise ValueError(f"the {self._kind} {name!r} is taken; choose another name.")
        self._registered[name] = value

    def names(self) -> list[str]:
        """List the names of registered objects, then those of installed packages."""
        installed = {each.name for each in metadata.entry_points(group=self._group)}
        return [*self._registered, *sorted(installed - self._registered.keys())]

    def find(self, name: str) -> T | None:
        """Return the object of a name, or None if it is unknown.

        Raises:
            EntryPointError: the package that provides it cannot be used, or two packages do.
        """
        if name in self._registered:
            return self._registered[name]
        if name not in self._loaded:
            entries = tuple(metadata.entry_points(group=self._group, name=name))
            if not entries:
                return None
            self._loaded[name] = self._load(entries)
        return self._loaded[name]

    def get(self, name: str) -> T:
        """Return the object of a name.

        Raises:
            ValueError: the name is unknown.
            EntryPointError: as for `find`.
        """
        value = self.find(name)
        if value is not None:
            return value
        names = self.names()
        known = (
            f"Known: {', '.join(names)}."
            if names
            else f"None is known: call jaxagents.register_{self._kind} first, or install the "
            "package that brings it."
        )
        raise ValueError(f"unknown {self._kind} {name!r}.{did_you_mean(name, names)} {known}")

    def _load(self, entries: tuple[metadata.EntryPoint, ...]) -> T:
        first, *others = entries
        if others:
            packages = " and ".join(sorted(_package_of(each) for each in entries))
            raise EntryPointError(
                f"the {self._kind} {first.name!r} is brought by the packages {packages}; "
                "uninstall one of them."
            )
        try:
            value = first.load()
            self._check(value)
        except Exception as error:  # a package may raise anything when it is imported
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise EntryPointError(
                f"the {self._kind} {first.name!r} of the package {_package_of(first)} cannot be "
                f"loaded by its entry point {first.value!r} in {self._group}: {reason}"
            ) from error
        return value


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Suggest similar names, ignoring case; the part before a slash may be missing.

    Returns:
        A sentence with a space before it, or nothing.
    """
    names = list(names)
    by_spelling = {each.partition("/")[2].lower(): each for each in names}
    by_spelling |= {each.lower(): each for each in names}
    close = difflib.get_close_matches(name.lower(), by_spelling, n=3, cutoff=0.6)
    similar = list(dict.fromkeys(by_spelling[spelling] for spelling in close))
    return f" Did you mean {' or '.join(similar)}?" if similar else ""


def _package_of(entry: metadata.EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.module
