"""Trackers record evaluations: JSON lines, TensorBoard, W&B, MLflow, or your own."""

import abc
import contextlib
import importlib
import json
import logging
import math
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, final

from jaxagents.errors import Registry
from jaxagents.training.atomic_write import naming
from jaxagents.training.callbacks import Evaluation

_logger = logging.getLogger(__name__)
_PARAMS_PER_BATCH = 100  # limit of MLflow
_FILM = "evaluation/film"


class Tracker(abc.ABC):
    """Records evaluations; subclass it to record them elsewhere.

    A tracker is also a callback, for agents that are trained without an `Experiment`.
    """

    @abc.abstractmethod
    def log(self, evaluation: Evaluation) -> None:
        """Record an evaluation, for example its `Evaluation.scalars` or `Evaluation.record`."""

    def log_film(self, evaluation: Evaluation, path: Path) -> None:
        """Record a film of the evaluated policies, a GIF file; by default do nothing."""
        return

    def close(self) -> None:
        """Finish; called once when training ends, even without any evaluation."""
        return

    def __call__(self, evaluation: Evaluation) -> None:
        """Record an evaluation."""
        self.log(evaluation)


TRACKERS: Registry[Callable[..., Tracker]] = Registry("tracker", "jaxagents.trackers")
"""Constructors of the trackers that users and installed packages add."""


def register_tracker(name: str, constructor: Callable[..., Tracker]) -> None:
    """Add a tracker that ``tracking.others`` may name.

    Args:
        name: The new name.
        constructor: A subclass of `Tracker`, or a function that returns a tracker. It is called as
            ``constructor(directory, config, **arguments)``, when training begins or is resumed:
            with the `pathlib.Path` of the run's directory, the complete configuration as nested
            dictionaries, and the arguments in ``tracking.others``.

    Raises:
        TypeError: the constructor cannot be called.
        ValueError: the name is taken by another tracker.
    """
    TRACKERS.register(name, constructor)


@final
class Trackers(Tracker):
    """Several trackers as one; a tracker that fails is reported once and does not end training."""

    def __init__(self, trackers: Sequence[Tracker]):
        self._trackers = tuple(trackers)
        self._failed: set[int] = set()  # indices of trackers

    def log(self, evaluation: Evaluation) -> None:
        """Record an evaluation with each tracker."""
        for i, tracker in enumerate(self._trackers):
            self._try(i, lambda tracker=tracker: tracker.log(evaluation))

    def log_film(self, evaluation: Evaluation, path: Path) -> None:
        """Record a film with each tracker."""
        for i, tracker in enumerate(self._trackers):
            self._try(i, lambda tracker=tracker: tracker.log_film(evaluation, path))

    def close(self) -> None:
        """Close each tracker."""
        for i, tracker in enumerate(self._trackers):
            self._try(i, tracker.close)

    def _try(self, index: int, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            if index not in self._failed:
                self._failed.add(index)
                name = type(self._trackers[index]).__name__
                reason = " ".join(str(error).split()) or type(error).__name__
                _logger.warning("%s has failed, training continues: %s", name, reason)


@final
class PerMember(Tracker):
    """A tracker for each member of a population, as of a single run, without the runner."""

    def __init__(self, trackers: Sequence[Tracker]):
        self._trackers = tuple(trackers)

    def log(self, evaluation: Evaluation) -> None:
        """Record the evaluation of each member that has not stopped with its own tracker."""
        evaluation = evaluation._replace(runner=None)  # which takes long to slice
        for i, tracker in enumerate(self._trackers):
            if math.isfinite(evaluation.metrics["n_updates_done"][i]):
                tracker.log(evaluation.member(i))

    def close(self) -> None:
        """Close each tracker."""
        for tracker in self._trackers:
            tracker.close()


@final
class OfBestMember(Tracker):
    """A tracker of the population's best member: the one with the highest return at the time."""

    def __init__(self, tracker: Tracker):
        self._tracker = tracker

    def log(self, evaluation: Evaluation) -> None:
        """Record the evaluation of the best member."""
        best = evaluation._replace(runner=None).of_best_member()
        if best is not None:
            self._tracker.log(best)

    def close(self) -> None:
        """Close the tracker."""
        self._tracker.close()


@final
class JsonLines(Tracker):
    """Appends each evaluation to a file, as one line of JSON.

    A line holds ``n_updates_done``, ``n_environment_steps``, ``seconds`` and, from the second
    evaluation on, ``steps_per_second`` since the previous one; ``return_mean``, ``return_min``,
    ``return_max`` and ``return_std`` per actor; means over episodes of the other evaluation
    metrics (``episode_length_mean``, ``terminated_mean``, ``info_won_mean``, ..., and ``success``
    if the environment has one); and each training metric per policy. NaN and infinities are null.

    Each call writes a complete line, so that ``tail -f`` follows training. An existing file is
    continued: a resumed run repeats the evaluations made after its last checkpoint. Where the file
    of an `Experiment` has such evaluations, a line ``{"resumed_after_update": N}`` precedes the new
    ones, and earlier lines of later updates do not count.
    """

    def __init__(self, path: str | PathLike[str]):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Fail now, before training, if the file cannot be written.
        self.path.open("ab").close()

    def log(self, evaluation: Evaluation) -> None:
        """Append one line."""
        if not self.path.exists():
            _warn_of_deleted(self.path, evaluation)
        append_line(self.path, evaluation.record())


def _warn_of_deleted(path: Path, evaluation: Evaluation) -> None:
    _logger.warning(
        "%s was deleted while the run trained: its evaluations before update %d are lost, and "
        "later ones are written again",
        path,
        evaluation.n_updates_done,
    )


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Append a line of JSON to a file, after an incomplete one if the file ends in it."""
    line = json.dumps(record, allow_nan=False).encode() + b"\n"
    with naming(path), path.open("a+b") as file:
        if _ends_mid_line(file):
            line = b"\n" + line
        file.write(line)


def json_lines(path: str | PathLike[str]) -> Iterator[tuple[int, Any]]:
    """Read the lines of a file that are valid JSON, each with its number, counted from 1."""
    for number, line in enumerate(Path(path).read_bytes().splitlines(), start=1):
        with contextlib.suppress(ValueError):
            yield number, json.loads(line)


def _ends_mid_line(file: Any) -> bool:
    """Return True if the last line is incomplete; move the position to the file's end."""
    if file.seek(0, 2) == 0:
        return False
    file.seek(-1, 2)
    return file.read(1) != b"\n"


@final
class TensorBoard(Tracker):
    """Writes event files for TensorBoard; steps are environment steps.

    A directory with event files is continued: TensorBoard discards their values from the first
    new step on. Events are written in the calling thread, because tensorboardX's own writer hangs
    when a full disk has ended its background thread.
    """

    def __init__(self, directory: Path):
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2, summary_pb2

        self._directory = directory
        directory.parent.mkdir(parents=True, exist_ok=True)
        self._open_file = EventsWriter
        self._events: Any = event_pb2  # generated modules have no static types
        self._summaries: Any = summary_pb2
        self._file: Any = None

    def log(self, evaluation: Evaluation) -> None:
        """Write the scalars and flush the file."""
        event, summary = self._events.Event, self._summaries.Summary
        step = evaluation.n_environment_steps
        if self._file is not None and not any(self._directory.glob("*")):
            _warn_of_deleted(self._directory, evaluation)
            self.close()
            self._file = None
        if self._file is None:
            self._directory.mkdir(exist_ok=True)
            # TensorBoard reads files in the order of their names: the suffix is the time.
            self._file = self._open_file(str(self._directory / "events"), f".{time.time_ns()}")
            start = self._events.SessionLog(status=self._events.SessionLog.START)
            self._file.write_event(event(wall_time=time.time(), step=step, session_log=start))
        values = [
            summary.Value(tag=name, simple_value=value)
            for name, value in evaluation.scalars().items()
        ]
        self._write(step, values)

    def log_film(self, evaluation: Evaluation, path: Path) -> None:
        """Write a film as an image, and flush the file."""
        from PIL import Image

        summary = self._summaries.Summary
        with Image.open(path) as gif:
            width, height = gif.size
        image = summary.Image(
            height=height, width=width, colorspace=3, encoded_image_string=path.read_bytes()
        )
        self._write(evaluation.n_environment_steps, [summary.Value(tag=_FILM, image=image)])

    def _write(self, step: int, values: Sequence[Any]) -> None:
        summary = self._summaries.Summary(value=values)
        event = self._events.Event(wall_time=time.time(), step=step, summary=summary)
        self._file.write_event(event)
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


@final
class WandB(Tracker):
    """Logs to a run of Weights & Biases, which resumed training continues.

    W&B's environment variables, such as `WANDB_ENTITY` and `WANDB_MODE`, apply.

    Args:
        project: W&B project of the run.
        directory: The run's directory; W&B's own files go to its folder wandb.
        config: The configuration that W&B shows.
    """

    def __init__(self, project: str, directory: Path, config: Mapping[str, Any]):
        wandb = importlib.import_module("wandb")
        run_id = _read_or_create(directory / "wandb" / "run_id", lambda: uuid.uuid4().hex)
        self._run = wandb.init(
            project=project,
            name=directory.name,
            id=run_id,
            resume="allow",
            dir=directory,
            config=dict(config),
            # Leave the terminal's output alone: capturing it can stall training.
            settings=wandb.Settings(console="off"),
        )
        # Resumed training repeats evaluations, but W&B's own step must not repeat.
        self._run.define_metric("*", step_metric="time/n_environment_steps")

    def log(self, evaluation: Evaluation) -> None:
        """Hand the scalars to W&B's process."""
        self._run.log(evaluation.scalars())

    def log_film(self, evaluation: Evaluation, path: Path) -> None:
        """Hand a film to W&B's process."""
        video = importlib.import_module("wandb").Video(str(path), format="gif")
        self._run.log({_FILM: video, "time/n_environment_steps": evaluation.n_environment_steps})

    def close(self) -> None:
        """Wait until everything is uploaded, or written to disk in offline mode."""
        self._run.finish()


@final
class MLflow(Tracker):
    """Logs to a run of MLflow, which resumed training continues; steps are environment steps.

    MLflow's environment variables, such as `MLFLOW_TRACKING_URI`, apply.

    Args:
        experiment: Name of the experiment; it is created if it does not exist.
        directory: The run's directory; mlflow/run_id in it holds the id of the MLflow run.
        config: Logged as the run's parameters.
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
            params = [mlflow.entities.Param(name, str(value)) for name, value in flat_keys(config)]
            for i in range(0, len(params), _PARAMS_PER_BATCH):
                self._client.log_batch(run_id, params=params[i : i + _PARAMS_PER_BATCH])
            return run_id

        self._run_id = _read_or_create(directory / "mlflow" / "run_id", create)
        self._client.update_run(self._run_id, status="RUNNING")

    def log(self, evaluation: Evaluation) -> None:
        """Hand the scalars to MLflow's thread."""
        now, step = int(1000 * time.time()), evaluation.n_environment_steps
        metrics = [
            self._entities.Metric(name, value, now, step)
            for name, value in evaluation.scalars().items()
        ]
        self._pending = self._client.log_batch(self._run_id, metrics=metrics, synchronous=False)

    def close(self) -> None:
        """Wait until everything is sent and mark the run as finished."""
        if self._pending is not None:
            self._pending.wait()  # batches are sent in order
        self._client.set_terminated(self._run_id)


def _read_or_create(path: Path, make: Callable[[], str]) -> str:
    """Read a file's text; create the file with the result of ``make`` if it does not exist."""
    if path.is_file():
        return path.read_text(encoding="utf-8").strip()
    value = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{value}\n", encoding="utf-8")
    return value


def flat_keys(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested values under their keys joined by dots."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from flat_keys(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
