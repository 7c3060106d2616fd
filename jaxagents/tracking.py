"""What training tells about each of its evaluations, and a file to keep it in."""

import json
import math
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np


class Evaluation(NamedTuple):
    """An evaluation and the training block before it, as callbacks receive them."""

    n_updates_done: int
    n_environment_steps: int
    seconds: float  # since training began
    # This evaluation's row of what `train` returns: `returns` [n_evals, n_actors],
    # `episode_lengths` [n_evals], `info_<name>` [n_evals], ...; and the training metrics, such as
    # `actor_loss` and `kl` [n_policies], which are NaN before training.
    metrics: dict[str, np.ndarray]
    runner: Any


Callback = Callable[[Evaluation], bool | None]  # True requests that training stop here

_PER_ACTOR = ("returns", "final_rewards", "terminated", "truncated")  # [n_evals, n_actors]


@final
class JsonLines:
    """A callback that appends each evaluation to a file, as one line of JSON.

    A line holds ``n_updates_done``, ``n_environment_steps`` and ``seconds``; ``return_mean``,
    ``return_min``, ``return_max`` and ``return_std`` per actor; the means over episodes of
    everything else that was evaluated (``episode_length_mean``, ``terminated_mean``,
    ``info_won_mean``, ...); and each training metric per policy. NaN and infinities are null.

    Lines are complete and on their way to the disk when the call returns, so that ``tail -f``
    follows a training. What the file held before stays: a resumed training continues it,
    repeating the evaluations made since its checkpoint.
    """

    def __init__(self, path: str | PathLike[str]):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Fail here, before training, where the file cannot be written.
        self.path.open("ab").close()

    def __call__(self, evaluation: Evaluation) -> None:
        """Append one line."""
        line = json.dumps(_nulled(_record(evaluation)), allow_nan=False).encode() + b"\n"
        with self.path.open("a+b") as file:
            if _ends_within_a_line(file):
                line = b"\n" + line
            file.write(line)


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


def _record(evaluation: Evaluation) -> dict[str, Any]:
    record: dict[str, Any] = {
        "n_updates_done": int(evaluation.n_updates_done),
        "n_environment_steps": int(evaluation.n_environment_steps),
        "seconds": round(float(evaluation.seconds), 3),
    }
    for name, values in evaluation.metrics.items():
        for key, value in _described(name, np.asarray(values)).items():
            record.setdefault(key, value.tolist())
    return record


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
