"""Lineages of a population: which member continued from which, with which hyperparameters."""

import math
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from jaxagents.errors import ExperimentError
from jaxagents.evaluation.runs import Run, member_directories, read_run

_PARENTS, _VARIED = "parents", "hyperparams."


class Lineages(NamedTuple):
    """The history of a population with a selection.

    Rows are evaluations, columns members; NaN where a member did not train.
    """

    n_environment_steps: Int[np.ndarray, "evaluations"]
    returns: Float[np.ndarray, "evaluations members"]  # mean of episodes and actors
    parents: Float[np.ndarray, "evaluations members"]  # whose runner each block began with
    hyperparams: dict[str, Float[np.ndarray, "evaluations members"]]  # mean of the policies

    @property
    def founders(self) -> Float[np.ndarray, "evaluations members"]:
        """Index of the first member from which each block's members descend; NaN: did not train."""
        current = np.arange(self.parents.shape[1], dtype=float)
        traced = []
        for row in self.parents:
            is_training = np.isfinite(row)
            current = np.where(
                is_training, current[np.where(is_training, row, 0).astype(int)], np.nan
            )
            traced.append(current)
        return np.array(traced)


def read_lineages(directory: str | PathLike[str]) -> Lineages:
    """Read the history of a run of population-based training, finished or not.

    Raises:
        ExperimentError: it holds no such run, or nothing was evaluated yet.
    """
    members = [read_run(each) for each in member_directories(directory)]
    steps = sorted({each["n_environment_steps"] for run in members for each in run.records})
    if not steps or not any(_PARENTS in each for run in members for each in run.records):
        raise ExperimentError(f"{directory} holds no population with a selection.")
    record = next(each for run in members for each in run.records)
    names = [name for name in record if name.startswith(_VARIED)]

    def column(name: str) -> np.ndarray:
        return np.stack([_values(run, name, steps) for run in members], axis=1)

    return Lineages(
        n_environment_steps=np.array(steps),
        returns=column("return_mean"),
        parents=column(_PARENTS),
        hyperparams={name.removeprefix(_VARIED): column(name) for name in names},
    )


def _values(run: Run, name: str, steps: list[int]) -> np.ndarray:
    """Return a metric's mean at each evaluation."""
    found = {each["n_environment_steps"]: each.get(name) for each in run.records}
    return np.array([_mean(found.get(step)) for step in steps])


def _mean(value: Any) -> float:
    numbers = value if isinstance(value, list) else [value]
    return float(np.mean([math.nan if each is None else float(each) for each in numbers]))
