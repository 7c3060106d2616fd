"""Wrappers that are named ``module:name``, as in configuration files."""

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxagents.errors import did_you_mean, how_to_import

_EXAMPLE = '["minigrid.wrappers:ImgObsWrapper", {"package.module:Class": {"argument": 1}}]'


class Wrapper(NamedTuple):
    """A named class or function that takes an environment and returns another."""

    name: str
    construct: Callable[..., Any]
    arguments: Mapping[str, Any]

    def __call__(self, env: Any) -> Any:
        """Wrap an environment.

        Raises:
            ValueError: the wrapper refuses the environment or the arguments.
            TypeError: it returns no environment.
        """
        try:
            wrapped = self.construct(env, **self.arguments)
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise ValueError(f"the wrapper {self.name} raised {reason}") from error
        if not (hasattr(wrapped, "reset") and hasattr(wrapped, "step")):
            raise TypeError(
                f"the wrapper {self.name} returns {type(wrapped).__name__}, which is not an "
                "environment"
            )
        return wrapped


def named_wrappers(entries: Any) -> list[Wrapper]:
    """Look up wrappers by name.

    Args:
        entries: Each is a name, or a mapping from a name to its keyword arguments.

    Raises:
        ValueError: an entry is of another form, or names nothing that can be called.
    """
    if not isinstance(entries, list | tuple):
        raise ValueError(f"wrappers={entries!r}; give a list such as {_EXAMPLE}.")
    return [_wrapper_of(entry) for entry in entries]


def wrap(env: Any, wrappers: Sequence[Wrapper]) -> Any:
    """Wrap an environment, the first wrapper innermost."""
    return functools.reduce(lambda env, wrapper: wrapper(env), wrappers, env)


def _wrapper_of(entry: Any) -> Wrapper:
    name, arguments = entry, {}
    if isinstance(entry, Mapping) and len(entry) == 1:
        ((name, arguments),) = entry.items()
    if not isinstance(name, str) or not isinstance(arguments, Mapping | None):
        raise ValueError(f"wrappers has the entry {entry!r}; entries are as in {_EXAMPLE}.")
    module_name, separator, attribute = name.partition(":")
    if not separator or not module_name or module_name.startswith("."):
        raise ValueError(
            f"the wrapper {name!r} names no module by its full name; entries are as in {_EXAMPLE}."
        )
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        remedy = how_to_import(error)
        raise ValueError(f"the wrapper {name} cannot be imported: {error}.{remedy}") from error
    if not hasattr(module, attribute):
        suggestion = did_you_mean(attribute, vars(module))
        raise ValueError(f"{module_name} has no wrapper {attribute!r}.{suggestion}")
    construct = getattr(module, attribute)
    if not callable(construct):
        raise ValueError(f"the wrapper {name} is {construct!r}, which cannot be called.")
    return Wrapper(name, construct, dict(arguments or {}))
