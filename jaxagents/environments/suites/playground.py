"""MuJoCo Playground: DM Control, locomotion and manipulation."""

import importlib
from typing import Any

from jaxagents.environments.suites.brax import BraxEnvironment

registry: Any = importlib.import_module("mujoco_playground").registry  # an extra


def make_playground(name: str, **config: Any) -> BraxEnvironment:
    """Construct a task.

    Args:
        name: The library's name.
        config: Changes of its configuration, such as ``episode_length`` and ``impl``.
    """
    defaults = registry.get_default_config(name)
    unknown = sorted(config.keys() - defaults.keys())
    if unknown:
        raise TypeError(
            f"unexpected keyword argument {', '.join(map(repr, unknown))}; its configuration has "
            f"{', '.join(sorted(defaults.keys()))}"
        )
    defaults.update({"impl": "jax", **config})
    # The configuration's action_repeat is the trainer's, as its episode_length is.
    return BraxEnvironment(
        registry.load(name, config=defaults), defaults.episode_length, defaults.action_repeat
    )
