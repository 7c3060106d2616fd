"""What training tells about each of its evaluations, and where it is recorded."""

import abc
import json
import logging
import math
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

_logger = logging.getLogger(__name__)


class Evaluation(NamedTuple):
    """An evaluation and the training block before it, as callbacks and trackers receive them."""

    n_updates_done: int
    n_environment_steps: int
    seconds: float  # since training began, or was resumed
    # This evaluation's row of what `train` returns: `returns` [n_evals, n_actors],
    # `episode_lengths` [n_evals], `info_<name>` [n_evals], ...; and the training metrics, such as
    # `actor_loss` and `kl` [n_policies], which are NaN before training.
    metrics: dict[str, np.ndarray]
    runner: Any  # the `Runner`, as the methods of an agent take it
    steps_per_second: float = math.nan  # environment steps since the evaluation before
    agent: Any = None  # the agent that is trained

    @property
    def mean_return(self) -> float:
        """The mean over episodes and actors; NaN if none were played."""
        returns = self.metrics.get("returns", np.zeros(0))
        return float(np.mean(returns, dtype=np.float64)) if np.size(returns) else math.nan

    def policy(self, observation: Any, carry: Any = None, rng: Any = None) -> Any:
        """Choose every actor's action as the policies are now; see the agent's `policy`."""
        return self.agent.policy(self.runner, observation, carry, rng)

    def record(self) -> dict[str, Any]:
        """Reduce the evaluation to plain data: a line of ``metrics.jsonl``, see `JsonLines`."""
        record: dict[str, Any] = {
            "n_updates_done": int(self.n_updates_done),
            "n_environment_steps": int(self.n_environment_steps),
            "seconds": round(float(self.seconds), 3),
            "steps_per_second": round(float(self.steps_per_second), 1),
        }
        for name, values in self.metrics.items():
            for key, value in _described(name, np.asarray(values)).items():
                record.setdefault(key, value.tolist())
        return _nulled(record)

    def scalars(self) -> dict[str, float]:
        """List the finite numbers of the record by name, in groups, as trackers show them.

        ``evaluation/return_mean`` is the mean over episodes and actors; numbers per actor or
        policy, where there are several, are ``evaluation/return_mean_actor_0``, ...,
        ``training/kl_policy_0``, ...; progress and speed are ``time/...``.
        """
        scalars = {"evaluation/return_mean": self.mean_return}
        for name, value in self.record().items():
            group, kind = _group(name)
            several = isinstance(value, list) and len(value) > 1
            each = value if isinstance(value, list) else [value]
            for i, number in enumerate(each):
                key = f"{group}/{name}_{kind}_{i}" if several else f"{group}/{name}"
                scalars[key] = math.nan if number is None else float(number)
        return {name: value for name, value in scalars.items() if math.isfinite(value)}


Callback = Callable[[Evaluation], bool | None]  # True requests that training stop here


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


_PER_ACTOR = ("returns", "final_rewards", "terminated", "truncated")  # [n_evals, n_actors]
_OF_TIME = ("n_updates_done", "n_environment_steps", "seconds", "steps_per_second")


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


def _group(name: str) -> tuple[str, str]:
    """Tell which group a name of a record belongs to, and of what a list under it has one each."""
    if name in _OF_TIME:
        return "time", ""
    stem = name.rsplit("_", 1)[0]
    evaluated = stem in ("return", "episode_length", *_PER_ACTOR) or stem.startswith("info_")
    return ("evaluation", "actor") if evaluated else ("training", "policy")


def _described(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """Reduce a metric over episodes to what a line keeps of it; others stay as they are."""
    if name == "returns":
        reductions = {"mean": np.mean, "min": np.min, "max": np.max, "std": np.std}
        return {f"return_{key}": _over_episodes(r, values) for key, r in reductions.items()}
    if name == "episode_lengths":
        return {"episode_length_mean": _over_episodes(np.mean, values)}
    if name in _PER_ACTOR or name.startswith("info_"):
        return {f"{name}_mean": _over_episodes(np.mean, values)}
    return {name: values}


def _over_episodes(reduction: Callable[..., Any], values: np.ndarray) -> np.ndarray:
    if len(values) == 0:  # evaluation is switched off
        return np.full(values.shape[1:], np.nan)
    with np.errstate(invalid="ignore"):  # an infinite return has no deviation: null says so
        return np.asarray(reduction(values.astype(np.float64), axis=0))


def _nulled(value: Any) -> Any:
    """Replace what JSON has no number for."""
    if isinstance(value, dict):
        return {key: _nulled(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_nulled(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
