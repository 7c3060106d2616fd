"""The trackers that a configuration may ask for: TensorBoard, Weights & Biases, MLflow."""

import importlib
import logging
from collections.abc import Callable
from pathlib import Path

from jaxagents.errors import ExperimentError
from jaxagents.experiments.config_files.schema import ExperimentConfig, to_plain
from jaxagents.training.trackers import MLflow, TensorBoard, Tracker, WandB

_logger = logging.getLogger(__name__)


def open_trackers(config: ExperimentConfig, directory: Path) -> list[Tracker]:
    """Open the trackers that are configured; those that fail to open are warned of.

    Args:
        config: The configuration, which W&B and MLflow keep with the run.
        directory: Of the run.

    Raises:
        ExperimentError: One of them is not installed.
    """
    plain, tracking = to_plain(config), config.tracking
    openings: dict[str, Callable[[], Tracker]] = {}
    if tracking.tensorboard:
        openings["TensorBoard"] = lambda: TensorBoard(directory / "tensorboard")
    if (project := tracking.wandb) is not None:
        _require("wandb")
        openings["W&B"] = lambda: WandB(project, directory, plain)
    if (experiment := tracking.mlflow) is not None:
        _require("mlflow")
        openings["MLflow"] = lambda: MLflow(experiment, directory, plain)
    trackers = []
    for name, opening in openings.items():
        try:
            trackers.append(opening())
        except Exception as error:  # whatever the service or its library may raise
            reason = " ".join(str(error).split()) or type(error).__name__
            _logger.warning("%s cannot be used, training goes on without it: %s", name, reason)
    return trackers


def require_installed(config: ExperimentConfig) -> None:
    """Raise `ExperimentError` if what is configured is not installed."""
    for name in ("wandb", "mlflow"):
        if getattr(config.tracking, name) is not None:
            _require(name)


def _require(name: str) -> None:
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise ExperimentError(
            f"tracking.{name} needs {name}, which is not installed: pip install "
            f'"jaxagents[{name}]", or leave tracking.{name} null.'
        ) from error
