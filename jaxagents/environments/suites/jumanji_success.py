"""What Jumanji's episodes are judged by, where the library's states say it."""

import importlib
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from jaxagents.environments.success import Success

SUCCESSES = {
    "Cleaner": Success("cleaned", "tiles cleaned"),
    "Connector": Success("ratio_connections", "actors connected"),
    "LevelBasedForaging": Success("food_eaten", "food eaten"),
    "Maze": Success("reached_target", "targets reached"),
    "RobotWarehouse": Success("delivered", "shelves delivered", "count", "sum"),
    "RubiksCube": Success("solved", "cubes solved"),
    "SearchAndRescue": Success("targets_found", "targets found"),
    "Sokoban": Success("solved", "levels solved"),
}
"""By the name of the environment's class. Connector and Sokoban report their infos themselves."""


def infos_of_step(name: str, state: Any, timestep: Any) -> dict[str, Array]:
    """Return the infos that the library does not report itself.

    Args:
        name: The environment's class.
        state: The library's, after the step.
        timestep: The library's result of the step.
    """
    return _INFOS[name](state, timestep) if name in _INFOS else {}


def _cleaner(state: Any, timestep: Any) -> dict[str, Array]:
    del state
    return {"cleaned": 1.0 - timestep.extras["ratio_dirty_tiles"]}


def _foraging(state: Any, timestep: Any) -> dict[str, Array]:
    """Return the share of items, whatever their levels."""
    del timestep
    return {"food_eaten": jnp.mean(state.food_items.eaten.astype(jnp.float32))}


def _maze(state: Any, timestep: Any) -> dict[str, Array]:
    del timestep
    at, target = state.agent_position, state.target_position
    reached = (at.row == target.row) & (at.col == target.col)
    return {"reached_target": reached.astype(jnp.float32)}


def _warehouse(state: Any, timestep: Any) -> dict[str, Array]:
    """Return the deliveries of this step, each of which earns 1."""
    del state
    return {"delivered": jnp.asarray(timestep.reward, jnp.float32)}


def _cube(state: Any, timestep: Any) -> dict[str, Array]:
    del timestep
    utils: Any = importlib.import_module("jumanji.environments.logic.rubiks_cube.utils")
    return {"solved": utils.is_solved(state.cube).astype(jnp.float32)}


def _rescue(state: Any, timestep: Any) -> dict[str, Array]:
    del timestep
    return {"targets_found": jnp.mean(state.targets.found.astype(jnp.float32))}


_INFOS: dict[str, Callable[[Any, Any], dict[str, Array]]] = {
    "Cleaner": _cleaner,
    "LevelBasedForaging": _foraging,
    "Maze": _maze,
    "RobotWarehouse": _warehouse,
    "RubiksCube": _cube,
    "SearchAndRescue": _rescue,
}
