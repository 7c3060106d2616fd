"""Make the environment and the trackers of a configuration, and choose its agent.

Libraries are imported where they are used: the imports take seconds, and errors in a
configuration are reported without delay.
"""

import dataclasses
import importlib
import logging
import typing
from collections.abc import Callable
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from jaxagents.errors import ExperimentError, explained, pip_install
from jaxagents.evaluation.runs import path_of_config, population_of
from jaxagents.evaluation.zoo import directory_of, is_entry_name, is_policy_alone
from jaxagents.experiments.config_files.file import load_config
from jaxagents.experiments.config_files.schema import ExperimentConfig, SideConfig, to_plain
from jaxagents.training.trackers import TRACKERS, MLflow, TensorBoard, Tracker, WandB

if typing.TYPE_CHECKING:
    from jaxagents.ippo.base import IPPOBase
    from jaxagents.types import Runner

_logger = logging.getLogger(__name__)
CHECKPOINTS = "checkpoints"
"""A run's folder of checkpoints."""


def make_environment(config: ExperimentConfig) -> tuple[Any, Any]:
    """Make the configured environment, or a side of it, and its parameters.

    Raises:
        ExperimentError: the environment cannot be made; or an opponent's directory holds no run,
            or its id is unknown in the zoo.
        ValueError: a parameter is unknown, not finite, or not of its default's shape; or the actors
            are not a side of the environment.
        TypeError: the value of a parameter is not a number.
    """
    env, params = _make_whole_environment(config)
    if not config.side.actors:
        return env, params
    with explained("side: "):
        return _side(env, config.side), params


def restored_agent(
    directory: str | PathLike[str], mode: str | None = None
) -> "tuple[IPPOBase, Runner]":
    """Build the agent of a run or of an entry of the zoo, and read a checkpoint.

    Of a population it is the best member.

    Args:
        directory: Directory of the run, or ``zoo:ID``.
        mode: "best" or "last"; None: as the run's configuration chooses.

    Raises:
        ExperimentError: the directory holds no run.
        ValueError: there is no checkpoint.
    """
    directory = directory_of(directory)
    config = load_config(path_of_config(directory))
    env, params = make_environment(config)
    checkpoints, member = checkpoints_of(directory, config)
    agent_config = dataclasses.replace(config.agent, checkpoint_dir=checkpoints)
    agent = agent_class(env, params, config.agent_class)(env, params, agent_config)
    runner, _ = agent.restore(mode or config.evaluation.mode, member=member)
    return agent, runner


def checkpoints_of(
    directory: str | PathLike[str], config: ExperimentConfig
) -> tuple[Path, int | str | None]:
    """Return a run's folder of checkpoints, and the member that plays for it.

    The best member plays for a population; None: a single run. An entry of the zoo has a policy in
    place of that folder.
    """
    if is_policy_alone(directory):
        return Path(directory).absolute(), None
    member = population_of(directory)
    if member is not None:
        return member[0] / CHECKPOINTS, member[1]
    return Path(directory).absolute() / CHECKPOINTS, "best" if config.seeds > 1 else None


def _side(env: Any, config: SideConfig) -> Any:
    from jaxagents.environments.sides.opponents import RandomOpponent
    from jaxagents.environments.sides.side import PastSelves, Side
    from jaxagents.ippo.opponents import FrozenPolicies

    opponents = []
    for name in config.opponents:
        if name == "random":
            opponents.append(RandomOpponent())
        else:
            _check_is_found(name)
            agent, runner = restored_agent(name)
            shown = name if is_entry_name(name) else Path(name).name
            opponents.append(FrozenPolicies(agent, {shown: runner}))
    every = config.past_selves_every
    selves = None if every is None else PastSelves(every, config.n_past_selves)
    return Side(env, config.actors, opponents, selves, config.prioritized)


def _check_is_found(opponent: str) -> None:
    """Check that an opponent's directory exists, if it is one.

    Raises:
        ExperimentError: it does not.
    """
    if not is_entry_name(opponent) and not Path(opponent).exists():
        raise ExperimentError(
            f"there is no opponent {opponent} in {Path.cwd()}; relative paths begin in the folder "
            "where a run was trained: change to it (environment.json names it), or train or resume "
            "with --side.opponents '[PATH, ...]'."
        )


def _make_whole_environment(config: ExperimentConfig) -> tuple[Any, Any]:
    """Make the configured environment and its parameters, with ``env_params`` applied."""
    from jaxagents.environments.registry import make

    with explained("env: "):
        env, params = make(config.env, **config.env_kwargs)
    if not config.env_params:
        return env, params
    if not hasattr(params, "replace"):
        raise ValueError(
            f"env_params: {config.env} has no parameters; empty env_params, or use env_kwargs."
        )
    known = [each.name for each in dataclasses.fields(params)]
    for name, value in config.env_params.items():
        if name not in known:
            raise ValueError(
                f"env_params.{name} is no parameter of {config.env}; it has {', '.join(known)}."
            )
        _check_param(f"env_params.{name}", value, getattr(params, name))
    arrays = {
        name: np.asarray(value) if isinstance(value, list) else value
        for name, value in config.env_params.items()
    }
    return env, params.replace(**arrays)


def agent_class(env: Any, env_params: Any, name: str | None = None) -> "type[IPPOBase]":
    """Return the agent class of a name, or, if that is None, the one for the action space.

    Raises:
        ValueError: the name is unknown.
    """
    from jaxagents.ippo.agent_classes import AGENTS, class_for

    if name is None:
        return class_for(env, env_params)
    with explained("agent_class: "):
        return AGENTS.get(name)


def _check_param(name: str, value: Any, default: Any) -> None:
    numbers = value if isinstance(value, list) else [value]
    if not all(isinstance(each, bool | int | float | np.number) for each in numbers):
        raise TypeError(f"{name} should be a number, but is {value!r}.")
    if not np.all(np.isfinite(numbers)):
        raise ValueError(f"{name} should be finite, but is {value!r}.")
    if np.shape(value) != np.shape(default):
        wanted = f"a list of {len(default)} numbers" if np.shape(default) else "one number"
        raise ValueError(f"{name} should be {wanted}, but is {value!r}.")


def open_trackers(config: ExperimentConfig, directory: Path) -> list[Tracker]:
    """Open the configured trackers; log a warning for each that fails to open.

    Args:
        config: The configuration; W&B and MLflow save it with the run.
        directory: The run's directory.

    Raises:
        ExperimentError: a tracker's library is not installed, or its name is unknown.
    """
    require_trackers(config)
    plain, tracking = to_plain(config), config.tracking
    constructors: list[tuple[str, Callable[[], Tracker]]] = []
    if tracking.tensorboard:
        constructors.append(("TensorBoard", lambda: TensorBoard(directory / "tensorboard")))
    if (project := tracking.wandb) is not None:
        constructors.append(("W&B", lambda: WandB(project, directory, plain)))
    if (experiment := tracking.mlflow) is not None:
        constructors.append(("MLflow", lambda: MLflow(experiment, directory, plain)))
    for name, arguments in tracking.others.items():
        construct = partial(TRACKERS.get(name), directory, plain, **(arguments or {}))
        constructors.append((name, construct))
    trackers = []
    for name, construct in constructors:
        try:
            tracker = construct()
            if not isinstance(tracker, Tracker):
                raise TypeError(f"{tracker!r} does not inherit from jaxagents.Tracker.")
            trackers.append(tracker)
        except Exception as error:  # the service or its library may raise anything
            reason = " ".join(str(error).split()) or type(error).__name__
            _logger.warning("%s cannot be used, training continues without it: %s", name, reason)
    return trackers


def require_trackers(config: ExperimentConfig) -> None:
    """Check that the configured trackers are known and their libraries installed.

    Raises:
        ExperimentError: one is not.
    """
    for name in config.tracking.others:
        with explained(f"tracking.others.{name}: "):
            TRACKERS.get(name)
    for name in ("wandb", "mlflow"):
        if getattr(config.tracking, name) is None:
            continue
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ExperimentError(
                f"tracking.{name} needs {name}, which is not installed: {pip_install(name)}, "
                f"or leave tracking.{name} null."
            ) from error
