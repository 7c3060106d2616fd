"""Keyword arguments of environment constructors."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from jaxagents.environments.registry import make


class Argument(NamedTuple):
    """A keyword argument of an environment's constructor."""

    name: str
    default: Any  # plain data
    choices: tuple[str, ...]  # names of the possible values; empty if any plain data is accepted


def arguments_of(env_id: str) -> list[Argument]:
    """List the constructor's keyword arguments whose default is plain data or a named value.

    Raises:
        ValueError: the id is unknown or not supported.
    """
    env, _ = make(env_id)
    library_env = getattr(env, "env", env)
    bases, named = (), {}
    if env_id.startswith("jaxmarl/"):
        from jaxagents.environments.jaxmarl.families import family_of

        family = family_of(library_env)
        bases, named = family.load_bases(), family.load_values()
    defaults = dict(_defaults(type(library_env), named))
    if not _accepts(env_id, defaults):
        defaults = {}
    for cls in (*type(library_env).__mro__[1:-1], *bases):
        for name, default in _defaults(cls, named):
            # Subclasses may set arguments of their base themselves.
            if name not in defaults and _accepts(env_id, {name: default}):
                defaults[name] = default
    return [
        Argument(name, default, tuple(sorted(named.get(name, ()))))
        for name, default in defaults.items()
    ]


def _defaults(cls: type, named: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    for name, parameter in inspect.signature(cls.__init__).parameters.items():
        default = parameter.default
        names = [each for each, value in named.get(name, {}).items() if str(value) == str(default)]
        if names or default is None:
            # The library chooses in place of None. It is listed only if there are names to choose.
            if name in named:
                yield name, names[0] if names else None
        elif default is not parameter.empty and _is_plain(default):
            yield name, default


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(each) for each in value.values())
    if isinstance(value, list | tuple):
        return all(_is_plain(each) for each in value)
    return type(value) in (bool, int, float, str)


def _accepts(env_id: str, arguments: dict[str, Any]) -> bool:
    try:
        make(env_id, **arguments)
    except (TypeError, ValueError):
        return False
    return True
