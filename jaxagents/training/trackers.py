"""Where evaluations are recorded: JSON lines, TensorBoard, W&B, MLflow, or one of your own."""

import abc
import importlib
import json
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, final

from jaxagents.training.callbacks import Evaluation

_logger = logging.getLogger(__name__)
_MOST_PARAMETERS = 100  # that MLflow takes at once


class Tracker(abc.ABC):
    """Where evaluations are recorded: implement this to record them elsewhere.

    A tracker is a callback too, for agents that are trained without an `Experiment`.
    """

    @abc.abstractmethod
    def log(self, evaluation: Evaluation) -> None:
        """Record an evaluation: its `Evaluation.scalars`, its `Evaluation.record`, or anything."""

    def close(self) -> None:
        """Finish, as no evaluation follows; maybe without any having been recorded."""
        return

    def __call__(self, evaluation: Evaluation) -> None:
        """Record an evaluation."""
        self.log(evaluation)


@final
class Trackers(Tracker):
    """Several trackers that cannot end a training: one that fails is warned of, once."""

    def __init__(self, trackers: Sequence[Tracker]):
        self._trackers = tuple(trackers)
        self._failed: set[int] = set()  # their indices

    def log(self, evaluation: Evaluation) -> None:
        """Let each tracker record the evaluation."""
        for i, tracker in enumerate(self._trackers):
            self._try(i, lambda tracker=tracker: tracker.log(evaluation))

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
                _logger.warning("%s has failed, training goes on: %s", name, reason)


@final
class JsonLines(Tracker):
    """Appends each evaluation to a file, as one line of JSON.

    A line holds ``n_updates_done``, ``n_environment_steps``, ``seconds`` and, from the second
    evaluation on, ``steps_per_second`` since the one before; ``return_mean``, ``return_min``,
    ``return_max`` and ``return_std`` per actor; the means over episodes of everything else that
    was evaluated (``episode_length_mean``, ``terminated_mean``, ``info_won_mean``, ...); and each
    training metric per policy. NaN and infinities are null.

    Lines are complete and on their way to the disk when the call returns, so that ``tail -f``
    follows a training. What the file held before stays: a resumed training continues it,
    repeating the evaluations made since its checkpoint.
    """

    def __init__(self, path: str | PathLike[str]):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Fail here, before training, where the file cannot be written.
        self.path.open("ab").close()

    def log(self, evaluation: Evaluation) -> None:
        """Append one line."""
        line = json.dumps(evaluation.record(), allow_nan=False).encode() + b"\n"
        with self.path.open("a+b") as file:
            if _ends_within_a_line(file):
                line = b"\n" + line
            file.write(line)

    def close(self) -> None:
        """Do nothing: the file is closed between lines."""


def read_json_lines(path: str | PathLike[str]) -> list[dict[str, Any]]:
    """Read the lines that `JsonLines` wrote, oldest first.

    A line that is none, because a crash cut it short for example, is skipped. Of an evaluation that
    a resumed training repeated, the later line counts.
    """
    records = {}
    for line in Path(path).read_bytes().splitlines():
        try:
            record = json.loads(line)
            records[record["n_updates_done"]] = record
        except (ValueError, TypeError, KeyError):
            continue
    return [records[n_updates_done] for n_updates_done in sorted(records)]


def _ends_within_a_line(file: Any) -> bool:
    """Tell whether a writer was interrupted; leaves the position at the file's end."""
    if file.seek(0, 2) == 0:
        return False
    file.seek(-1, 2)
    return file.read(1) != b"\n"


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
