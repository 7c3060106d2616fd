"""The trackers of a configuration: TensorBoard, Weights & Biases, MLflow, registered ones."""

import importlib
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from jaxagents.errors import ExperimentError, explained, pip_install
from jaxagents.experiments.config_files.schema import ExperimentConfig, to_plain
from jaxagents.training.trackers import TRACKERS, MLflow, TensorBoard, Tracker, WandB

_logger = logging.getLogger(__name__)


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
            _logger.warning("%s cannot be used, training goes on without it: %s", name, reason)
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
