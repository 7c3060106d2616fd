"""MuJoCo Playground: DM Control, locomotion and manipulation."""

import importlib
from typing import Any

from jaxagents.environments.suites.brax import BraxEnvironment

registry: Any = importlib.import_module("mujoco_playground").registry  # an extra
mjx_env: Any = importlib.import_module("mujoco_playground._src.mjx_env")
dm_control_suite: Any = importlib.import_module("mujoco_playground").dm_control_suite

_DOWNLOAD = "from mujoco_playground._src import mjx_env; mjx_env.ensure_menagerie_exists()"


def make_playground(name: str, **config: Any) -> BraxEnvironment:
    """Construct a task.

    Args:
        name: The library's name.
        config: Changes to its configuration, such as ``episode_length`` and ``impl``.

    Raises:
        FileNotFoundError: the task's robots have not been downloaded.
    """
    # The library would download them itself.
    if name not in dm_control_suite.ALL_ENVS and not mjx_env.MENAGERIE_PATH.exists():
        raise FileNotFoundError(
            f"playground/{name} needs the robots of mujoco_menagerie; download them by "
            f'python -c "{_DOWNLOAD}".'
        )
    defaults = registry.get_default_config(name)
    unknown = sorted(config.keys() - defaults.keys())
    if unknown:
        raise TypeError(
            f"unexpected keyword argument {', '.join(map(repr, unknown))}; its configuration has "
            f"{', '.join(sorted(defaults.keys()))}"
        )
    defaults.update({"impl": "jax", **config})
    # The configuration's action_repeat is meant for the trainer, as is its episode_length.
    return BraxEnvironment(
        registry.load(name, config=defaults), defaults.episode_length, defaults.action_repeat
    )
