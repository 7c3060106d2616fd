"""Matrax's matrix games, which have Jumanji's interface."""

import importlib
from typing import Any

from jaxagents.environments.suites.jumanji import JumanjiEnvironment, jumanji

importlib.import_module("matrax")  # registers its games with jumanji


def make_matrax(name: str, **env_kwargs: Any) -> JumanjiEnvironment:
    """Construct a game.

    Args:
        name: The library's id.
        env_kwargs: ``time_limit`` and ``keep_state``.
    """
    return JumanjiEnvironment(jumanji.make(name, **env_kwargs))
