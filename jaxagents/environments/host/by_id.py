"""Environments of Gymnasium and PettingZoo by the ids that `registry.make` knows."""

import functools
import importlib
import inspect
import pkgutil
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any

from jaxagents.environments.host.environment import HostEnvironment
from jaxagents.environments.host.sharing import quiet_pygame
from jaxagents.environments.host.wrapping import with_wrappers
from jaxagents.errors import did_you_mean, how_to_import, pip_install

# Where the time limit is a part of the task, as in the same environments of JaxMARL.
_TERMINAL = ("mpe2",)
# Gymnasium's checking wrappers take a third of a step's time; the workers check faster.
_CHECKED = ("mpe2",)
_DRAWN = {"render_mode": "rgb_array"}
_SETTINGS = (
    "n_workers",
    "timeout",
    "on_worker_failure",
    "teams",
    "time_limits",
    "image_size",
    "grayscale",
    "scale_images",
    "vectorized",
    "infos",
    "success",
    "explored_steps",
)
_WRAPPING = ("wrappers", "reward_weights")


def make_gymnasium(name: str, env_kwargs: dict[str, Any]) -> HostEnvironment:
    """Make an environment from Gymnasium's registry, or with a constructor ``module:name``.

    Raises:
        ValueError: Gymnasium does not know it, or refuses the arguments.
        ImportError: a package that it needs is missing.
    """
    import gymnasium

    module, separator, own_name = name.rpartition(":")
    library, wrapping, settings = _split(env_kwargs)
    if separator:
        _import(f"gymnasium/{name}", module)
    if settings.get("vectorized") and "max_episode_steps" in library:
        settings["max_episode_steps"] = library["max_episode_steps"]
    construct = _constructor_of(module, own_name)
    entry = gymnasium.registry.get(own_name)
    if construct is not None:
        make_env = functools.partial(construct, **library)
        make_drawn = functools.partial(construct, **_DRAWN | library)
        if not _takes_render_mode(construct):
            make_drawn = make_env
    else:
        # Workers lack the imports that registered other packages' environments: pass the entry.
        is_own = separator or entry is None or str(entry.entry_point).startswith("gymnasium.")
        spec = name if is_own else entry
        # The workers check the same as its checker at every step, and faster.
        make_env = functools.partial(gymnasium.make, spec, disable_env_checker=True, **library)
        make_drawn = functools.partial(make_env, **_DRAWN | library)
        if settings.get("vectorized"):
            make_env = functools.partial(_make_vector, spec, library)
    try:
        return _host_environment(make_env, make_drawn, wrapping, settings)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ImportError(f"gymnasium/{name} needs another package: {error}") from error
    except (gymnasium.error.NameNotFound, gymnasium.error.NamespaceNotFound) as error:
        raise _unregistered(module, own_name) from error
    except gymnasium.error.Error as error:
        raise ValueError(f"gymnasium/{name} cannot be made: {error}") from error
    except ModuleNotFoundError as error:
        raise ImportError(
            f"gymnasium/{name} needs the package {error.name or error}, which is not installed"
            f"{_extra_of(entry)}."
        ) from error


def _host_environment(
    make_env: Callable[..., Any],
    make_drawn: Callable[..., Any],
    wrapping: dict[str, Any],
    settings: dict[str, Any],
) -> HostEnvironment:
    """Wrap what the constructors make."""
    if not wrapping:
        return HostEnvironment(make_env, make_drawn=make_drawn, **settings)
    if settings.get("vectorized"):
        raise ValueError(
            f"{' and '.join(wrapping)} with vectorized=True; a vector's environments cannot be "
            "wrapped: leave out vectorized."
        )
    wrap = functools.partial(with_wrappers, **{"wrappers": (), **wrapping})
    return HostEnvironment(wrap(make_env), make_drawn=wrap(make_drawn), **settings)


def _constructor_of(module: str, name: str) -> Callable[..., Any] | None:
    """Return what a module has under a name that Gymnasium does not know; None: nothing.

    Raises:
        ValueError: it cannot be called.
    """
    import gymnasium

    if not module or name in gymnasium.registry:
        return None
    construct = getattr(importlib.import_module(module), name, None)
    if construct is not None and not callable(construct):
        raise ValueError(
            f"gymnasium/{module}:{name} is {construct!r}, neither a registered id nor a "
            "constructor of environments."
        )
    return construct


def _takes_render_mode(construct: Callable[..., Any]) -> bool:
    parameters = inspect.signature(construct).parameters.values()
    return any(each.name == "render_mode" or each.kind is each.VAR_KEYWORD for each in parameters)


def _unregistered(module: str, name: str) -> ValueError:
    import gymnasium

    suggestion = did_you_mean(name, gymnasium.registry)
    if module:
        return ValueError(
            f"{module} neither registers {name} nor has a constructor of this name.{suggestion}"
        )
    return ValueError(
        f"gymnasium/{name} is not registered.{suggestion} An id of another package names the "
        "module that registers it, as in gymnasium/minigrid:MiniGrid-Empty-5x5-v0."
    )


def _extra_of(entry: Any) -> str:
    """Say which of Gymnasium's extras installs what one of its own environments needs."""
    family = re.match(r"gymnasium\.envs\.(\w+)", str(getattr(entry, "entry_point", "")))
    if family is None:
        return ""
    return f': pip install "gymnasium[{family[1].replace("_", "-")}]"'


def _make_vector(spec: Any, env_kwargs: dict[str, Any], n_envs: int) -> Any:
    import gymnasium

    return gymnasium.make_vec(spec, n_envs, vectorization_mode="vector_entry_point", **env_kwargs)


def make_pettingzoo(name: str, env_kwargs: dict[str, Any]) -> HostEnvironment:
    """Make an environment of PettingZoo's interface, named ``package:module``.

    Raises:
        ValueError: the name is not of this form, or there is no such environment.
        ImportError: its package is not installed.
    """
    package, separator, module = name.partition(":")
    if not separator or not package or package.startswith("."):
        raise ValueError(
            f"pettingzoo/{name} names no package by its full name; write "
            "pettingzoo/mpe2:simple_spread_v3, the environment's package and its module."
        )
    found = _import_parts(package, module)
    if not (hasattr(found, "parallel_env") or hasattr(found, "env")):
        raise ValueError(f"{package}:{module} has neither parallel_env nor env; name another.")
    library, wrapping, settings = _split(env_kwargs)
    settings.setdefault("time_limits", "terminal" if package in _TERMINAL else "bootstrap")
    # The checking wrappers clip continuous actions; other wrappers need the parallel API inside.
    is_raw = package in _CHECKED and not library.get("continuous_actions") and not wrapping
    make = functools.partial(_make_parallel, package, module, is_raw)
    make_env, make_drawn = (functools.partial(make, each) for each in (library, _DRAWN | library))
    return _host_environment(make_env, make_drawn, wrapping, settings)


def _split(env_kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Separate the arguments of the library, of wrapping and of `HostEnvironment`."""
    library = dict(env_kwargs)
    wrapping = {name: library.pop(name) for name in _WRAPPING if name in library}
    settings = {name: library.pop(name) for name in _SETTINGS if name in library}
    return library, wrapping, settings


def _import(env_id: str, module: str) -> Any:
    if not module or module.startswith("."):
        raise ValueError(
            f"{env_id} names no module before the colon; write its full name, as in "
            "gymnasium/minigrid:MiniGrid-Empty-5x5-v0."
        )
    try:
        with quiet_pygame():
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{env_id} needs the package {error.name}, which is not installed."
            f"{how_to_import(error)}"
        ) from error


def _import_parts(package: str, module: str) -> Any:
    try:
        with warnings.catch_warnings(), quiet_pygame():
            importlib.import_module(package)
            # PettingZoo prefers a registry of its own, which other packages do not have.
            warnings.simplefilter("ignore", DeprecationWarning)
            return importlib.import_module(f"{package}.{module}")
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing == f"{package}.{module}":
            found = pkgutil.iter_modules(getattr(sys.modules[package], "__path__", []))
            names = [each.name for each in found if re.search(r"_v\d+$", each.name)]
            suggestion = did_you_mean(module, names)
            raise ValueError(f"{package} has no environment {module!r}.{suggestion}") from error
        raise ImportError(
            f"{package}:{module} needs the package {missing}, which is not installed; "
            f"{pip_install('pettingzoo')} brings PettingZoo and mpe2."
            f"{how_to_import(error)}"
        ) from error


def _make_parallel(package: str, module: str, is_raw: bool, env_kwargs: dict[str, Any]) -> Any:
    library = _import_parts(package, module)
    make = getattr(library, "parallel_env", None) or library.env
    return (library.raw_env if is_raw else make)(**env_kwargs)
