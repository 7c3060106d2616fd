"""The trackers that a configuration may ask for: TensorBoard, Weights & Biases, MLflow."""

import importlib
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, final

from jaxagents.configuration import ExperimentConfig, to_plain
from jaxagents.errors import ExperimentError
from jaxagents.tracking import Evaluation, Tracker

_logger = logging.getLogger(__name__)

_MOST_PARAMETERS = 100  # that MLflow takes at once


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


@final
class TensorBoard(Tracker):
    """Writes event files for TensorBoard; steps are environment steps.

    A directory that holds event files is continued: TensorBoard drops what they say of steps from
    the first new one on. (tensorboardX's own writer hands its events to a thread, which a full disk
    ends and which is then waited for; this one writes at once.)
    """

    def __init__(self, directory: Path):
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2, summary_pb2

        self._directory = directory
        self._open_file = EventsWriter
        self._events: Any = event_pb2  # generated: what they hold is known at run time only
        self._summaries: Any = summary_pb2
        self._file: Any = None

    def log(self, evaluation: Evaluation) -> None:
        """Write the scalars, all the way to the file."""
        event, summary = self._events.Event, self._summaries.Summary
        step = evaluation.n_environment_steps
        if self._file is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            # TensorBoard reads files in the order of their names.
            self._file = self._open_file(str(self._directory / "events"), f".{time.time_ns()}")
            start = self._events.SessionLog(status=self._events.SessionLog.START)
            self._file.write_event(event(wall_time=time.time(), step=step, session_log=start))
        values = [
            summary.Value(tag=name, simple_value=value)
            for name, value in evaluation.scalars().items()
        ]
        self._file.write_event(
            event(wall_time=time.time(), step=step, summary=summary(value=values))
        )
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


@final
class WandB(Tracker):
    """Logs to a run of Weights & Biases, which a resumed training continues.

    `WANDB_ENTITY`, `WANDB_MODE` and the others of W&B's variables apply.

    Args:
        project: Of the run.
        directory: Of the training; W&B's own files go to its folder wandb.
        config: What W&B shows as the run's configuration.
    """

    def __init__(self, project: str, directory: Path, config: Mapping[str, Any]):
        wandb = importlib.import_module("wandb")
        run_id = _remembered(directory / "wandb" / "run_id", lambda: uuid.uuid4().hex)
        self._run = wandb.init(
            project=project,
            name=directory.name,
            id=run_id,
            resume="allow",
            dir=directory,
            config=dict(config),
            # What is printed is the user's terminal's; a pause for it would be the training's.
            settings=wandb.Settings(console="off"),
        )
        # Not W&B's own step, which must not repeat: a resumed training repeats evaluations.
        self._run.define_metric("*", step_metric="time/n_environment_steps")

    def log(self, evaluation: Evaluation) -> None:
        """Hand the scalars to W&B's own process."""
        self._run.log(evaluation.scalars())

    def close(self) -> None:
        """Wait until everything is sent, or written where W&B is offline."""
        self._run.finish()


@final
class MLflow(Tracker):
    """Logs to a run of MLflow, which a resumed training continues; steps are environment steps.

    `MLFLOW_TRACKING_URI` and the others of MLflow's variables apply.

    Args:
        experiment: Name of the experiment, which is created if it does not exist.
        directory: Of the training; it remembers the run in mlflow/run_id.
        config: What becomes the run's parameters.
    """

    def __init__(self, experiment: str, directory: Path, config: Mapping[str, Any]):
        mlflow = importlib.import_module("mlflow")
        self._entities = mlflow.entities
        self._client = mlflow.MlflowClient()
        self._pending: Any = None

        def create() -> str:
            found = self._client.get_experiment_by_name(experiment)
            number = found.experiment_id if found else self._client.create_experiment(experiment)
            run_id = self._client.create_run(number, run_name=directory.name).info.run_id
            params = [mlflow.entities.Param(name, str(value)) for name, value in _flat(config)]
            for i in range(0, len(params), _MOST_PARAMETERS):
                self._client.log_batch(run_id, params=params[i : i + _MOST_PARAMETERS])
            return run_id

        self._run_id = _remembered(directory / "mlflow" / "run_id", create)
        self._client.update_run(self._run_id, status="RUNNING")

    def log(self, evaluation: Evaluation) -> None:
        """Hand the scalars to MLflow's own thread."""
        now, step = int(1000 * time.time()), evaluation.n_environment_steps
        metrics = [
            self._entities.Metric(name, value, now, step)
            for name, value in evaluation.scalars().items()
        ]
        self._pending = self._client.log_batch(self._run_id, metrics=metrics, synchronous=False)

    def close(self) -> None:
        """Wait until everything is sent, and end the run."""
        if self._pending is not None:
            self._pending.wait()  # they are sent in order
        self._client.set_terminated(self._run_id)


def _remembered(path: Path, make: Callable[[], str]) -> str:
    """Read what a file holds, or make it and keep it there."""
    if path.is_file():
        return path.read_text(encoding="utf-8").strip()
    value = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{value}\n", encoding="utf-8")
    return value


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """List nested values by their keys, joined by dots."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
