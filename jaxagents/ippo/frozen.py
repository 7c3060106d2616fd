"""Objects that are static under `jax.jit`, and the programs that equal ones share."""

import contextlib
import functools
import hashlib
import sys
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import CodeType, FunctionType, MethodType, ModuleType
from types import SimpleNamespace as Namespace
from typing import Any, TypeVar

import flax.linen as nn
import jax
import numpy as np
from flax.core import FrozenDict
from jax.core import Tracer

from jaxagents.compiler.random_keys import is_key
from jaxagents.compiler.tuned_forms import is_plain

Built = TypeVar("Built", bound="Frozen")

_DATA = (bool, int, float, complex, str, bytes, tuple, list, dict, np.ndarray, jax.Array)
_OF_PYTHON = 1 << 9  # the flag Py_TPFLAGS_HEAPTYPE of classes that are not written in C
_shared: weakref.WeakValueDictionary[Hashable, Any] = weakref.WeakValueDictionary()


class Frozen:
    """Refuses to assign attributes once `_freeze` has been called.

    Compiled methods belong to an object, and their programs are freed with it. Equal agents have
    one `program_owner`: their part that programs read, built once by `shared`. Methods that call an
    agent's own recorder are compiled with ``shared=False``. Programs do not notice that a function
    of a module was replaced after they were traced; `jax.clear_caches()` drops them all.

    Attributes named in ``_mutable`` may change; traced code must not read them.
    """

    _is_frozen = False
    _mutable: tuple[str, ...] = ()
    _program_owner: "Frozen | None" = None
    _built_of: Any = None  # see `shared`

    @property
    def program_owner(self) -> "Frozen":
        """The object whose programs this one runs: itself, or the part shared by equal agents."""
        return self._program_owner or self

    def _freeze(self) -> None:
        self._is_frozen = True

    def _share(self, owner: "Frozen") -> None:
        """Take the attributes of an equal object, which may change, and run its programs."""
        own = {"_program_owner": owner, "_programs": {}, "_is_frozen": False}
        vars(self).update(vars(owner) | own)

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_frozen and name not in self._mutable:
            raise AttributeError(
                f"{type(self).__name__}.{name} is fixed at construction, because compiled code "
                "would keep the old value; build a new agent."
            )
        super().__setattr__(name, value)


def shared(parts: Any, build: Callable[[], Built], can_share: Callable[[Built], bool]) -> Built:
    """Return the object that was built from equal parts, if it is still in use; else build it.

    Plain data, arrays and collections are compared by value, objects written in Python by their
    class and attributes, or by their own equality if they are hashable. Everything else is equal
    only to itself, and so are empty collections, which may be records to be filled. A class is
    unequal to its former self once a method or attribute has been replaced, and a function once its
    code, its defaults, a variable that it closes over, or one that it reads from its own or another
    module differs. Functions, classes and objects of installed packages count as fixed.

    Args:
        parts: What the result depends on.
        build: Builds it.
        can_share: Returns True if others may share the result.
    """
    try:
        key = (is_plain(), jax.random.key_impl(jax.random.key(0)), _by_value(parts, {}))
        found = _shared.get(key)
        # An environment may have been changed since.
        is_equal = found is not None and _by_value(found._built_of, {}) == key[-1]
    except RecursionError:
        return build()
    if found is None or not is_equal:
        found = build()
        vars(found)["_built_of"] = parts
        if can_share(found):
            _shared[key] = found
    return found


class _Itself:
    """A key by identity; keeps its object alive only if it cannot be weakly referenced."""

    def __init__(self, value: Any):
        try:
            self._get: Callable[[], Any] = weakref.ref(value)
        except TypeError:
            self._get = lambda: value
        self._hash = id(value)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        value = self._get()
        return isinstance(other, _Itself) and value is not None and value is other._get()


def _by_value(value: Any, seen: dict[int, tuple[int, Any]]) -> Hashable:
    """Return a hashable key for a value: equal for equal values.

    Args:
        value: The value.
        seen: Objects that contain the value or came before it, and their places, by their ids.
    """
    if value is None or isinstance(value, bool | int | str | bytes):
        return type(value), value
    if isinstance(value, float | complex):
        return type(value), repr(value)  # tells -0.0 from 0.0
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return _array_by_value(value)
    if id(value) in seen:
        return "seen", seen[id(value)][0]
    seen[id(value)] = len(seen), value
    if isinstance(value, Frozen):
        return _Itself(value.program_owner)
    parts = _parts(value)
    if parts is None:
        return _opaque(value)
    is_object = not isinstance(value, type | FunctionType)
    kind = _by_value(type(value), seen) if is_object else _Itself(value)
    return kind, tuple((_by_value(name, seen), _by_value(part, seen)) for name, part in parts)


def _array_by_value(array: Any) -> Hashable:
    if isinstance(array, Tracer):
        return _Itself(array)
    kind = (type(array), str(array.dtype), array.shape, getattr(array, "weak_type", False))
    if is_key(array):
        array = jax.random.key_data(array)
    values = np.asarray(array)
    if values.dtype.hasobject:
        return _Itself(array)
    return kind, hashlib.blake2b(values.tobytes()).digest()


def _parts(value: Any) -> Iterable[tuple[Any, Any]] | None:
    """Return the parts by which a value equals others; None: they are unknown."""
    if isinstance(value, FunctionType):
        return _parts_of_function(value)
    if isinstance(value, MethodType):
        return [("function", value.__func__), ("object", value.__self__)]
    if isinstance(value, functools.partial):
        return [("function", value.func), ("arguments", (value.args, *value.keywords.items()))]
    if isinstance(value, tuple):
        return enumerate(value)
    if isinstance(value, list | dict | FrozenDict | set | deque):
        if not value:
            return None
        items = sorted(value, key=hash) if isinstance(value, set) else value
        return value.items() if isinstance(value, dict | FrozenDict) else enumerate(items)
    kind = value if isinstance(value, type) else type(value)
    is_written_in_c = not all(each.__flags__ & _OF_PYTHON for each in kind.__mro__[:-1])
    if kind is object or (is_written_in_c and not isinstance(value, Namespace)):
        return None
    if isinstance(value, type):
        return _members(value)
    if isinstance(value, nn.Module):  # whose other attributes are flax's
        return [(field.name, getattr(value, field.name, None)) for field in fields(value)]
    if kind.__eq__ is not object.__eq__ and kind.__hash__ is not None and not is_dataclass(value):
        return None
    return _attributes(value)


def _parts_of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a function's results depend on, other than its arguments."""
    yield "code", function.__code__  # which some notebooks replace
    yield "defaults", (function.__defaults__, function.__kwdefaults__)
    closed_over = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in closed_over:
        with contextlib.suppress(ValueError):  # not assigned yet
            yield name, cell.cell_contents
    names = _names(function.__code__)
    yield from _read_of(function.__globals__, names)


def _read_of(module: Mapping[str, Any], names: set[str]) -> Iterator[tuple[str, Any]]:
    """Yield the named variables of a module that may change: of libraries, only data."""
    for name in sorted(names & module.keys()):
        value = getattr(module[name], "__wrapped__", module[name])  # of a compiled function
        if isinstance(value, ModuleType):
            yield from _read_of(vars(value), names - {name})
        elif isinstance(value, _DATA) or not _is_of_library(value):
            yield name, value


def _is_of_library(value: Any) -> bool:
    """Return True if a function, class or object comes from an installed package or Python."""
    kind = value if isinstance(value, FunctionType | type) else type(value)
    package = str(kind.__module__).partition(".")[0]
    if package == "jaxagents" or package in sys.stdlib_module_names:
        return True
    path = getattr(sys.modules.get(package), "__file__", None) or ""
    return "site-packages" in path or "dist-packages" in path


def _names(code: CodeType) -> set[str]:
    """Return the names of attributes and of variables of the module in a function's code."""
    inner = (_names(each) for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*inner)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield an object's attributes, also those in slots."""
    yield from getattr(value, "__dict__", {}).items()
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            own = f"_{kind.__name__.lstrip('_')}{name}" if name.startswith("__") else name
            if hasattr(value, own):
                yield own, getattr(value, own)


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the functions and data of a class."""
    for base in kind.__mro__[:-1]:
        for name, member in vars(base).items():
            member = getattr(member, "fget", None) or getattr(member, "__wrapped__", member)
            if isinstance(member, FunctionType) or not name.startswith("__"):
                yield name, member


def _opaque(value: Any) -> Hashable:
    """Return a key by the value's own equality if it is hashable, else by identity."""
    if type(value).__eq__ is not object.__eq__:
        try:
            hash(value)
        except Exception:
            return _Itself(value)
        return type(value), value
    return _Itself(value)
