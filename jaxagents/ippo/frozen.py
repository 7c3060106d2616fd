"""Objects that are static under `jax.jit`, and the programs that equal ones share."""

import functools
import hashlib
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from types import FunctionType, MethodType
from typing import Any, TypeVar

import flax.linen as nn
import jax
import numpy as np
from flax.core import FrozenDict
from jax.core import Tracer

from jaxagents.compiler.random_keys import is_key
from jaxagents.compiler.tuned_forms import is_plain

Built = TypeVar("Built", bound="Frozen")

_OF_PYTHON = 1 << 9  # the flag Py_TPFLAGS_HEAPTYPE of classes that are not written in C
_shared: weakref.WeakValueDictionary[Hashable, Any] = weakref.WeakValueDictionary()


class Frozen:
    """Refuses to assign attributes once `_freeze` was called.

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

    Plain data and arrays are compared by value; dataclasses, and objects without an equality of
    their own, by their class and attributes, if they are written in Python. Everything else is
    equal only to itself, and so are empty lists, dictionaries and sets, which may be records to be
    filled. A class is unequal to its former self once a method or attribute has been replaced.

    Args:
        parts: What the result depends on.
        build: Builds it.
        can_share: Returns True if others may share the result.
    """
    key = (is_plain(), jax.random.key_impl(jax.random.key(0)), _by_value(parts, {}))
    found = _shared.get(key)
    # An environment may have been changed since.
    if found is None or _by_value(found._built_of, {}) != key[-1]:
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
        return [("code", value.__code__)]  # which some notebooks replace
    if isinstance(value, MethodType):
        return [("function", value.__func__), ("object", value.__self__)]
    if isinstance(value, functools.partial):
        return [("function", value.func), ("arguments", (value.args, *value.keywords.items()))]
    if isinstance(value, tuple):
        return enumerate(value)
    if type(value) in (list, dict, FrozenDict):
        if not value:
            return None
        return enumerate(value) if isinstance(value, list) else value.items()
    kind = value if isinstance(value, type) else type(value)
    if not all(each.__flags__ & _OF_PYTHON for each in kind.__mro__[:-1]):
        return None
    if isinstance(value, type):
        return _members(value)
    if is_dataclass(value):
        own = {field.name: getattr(value, field.name, None) for field in fields(value)}
        is_module = isinstance(value, nn.Module)  # whose other attributes are flax's
        return (own if is_module else own | getattr(value, "__dict__", {})).items()
    has_slots = any(getattr(each, "__slots__", ()) for each in kind.__mro__)
    if has_slots or kind.__eq__ is not object.__eq__ or not hasattr(value, "__dict__"):
        return None
    return vars(value).items()


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
