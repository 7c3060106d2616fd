"""Runs in the format of MARL-eval, whose statistics and plots are those of rliable.

Source: Gorsane et al. 2022, https://arxiv.org/abs/2209.10485, and its format of raw data,
https://github.com/instadeepai/marl-eval.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxagents.errors import ExperimentError
from jaxagents.evaluation.comparison import final_return
from jaxagents.evaluation.runs import Run, environments_and_names

_METRICS = {"return": "return_mean", "success": "success_mean"}  # keys of records


def marl_eval_text(groups: Mapping[str, Sequence[Run]]) -> str:
    """Return all evaluations of runs as JSON for MARL-eval.

    Metrics are the ``return``, averaged over actors and episodes, and the ``success`` if all runs
    recorded it. An environment's id is divided at its last slash into environment and task. The
    absolute metrics are those of the evaluation after training.

    Args:
        groups: From `read_groups`; each is an algorithm.

    Raises:
        ExperimentError: A run is unfinished or was not evaluated during training; a name has a
            comma; groups have unequal numbers of runs; or runs have unequal numbers of evaluations.
            MARL-eval allows neither.
    """
    every = [run for runs in groups.values() for run in runs]
    _check_equal({label: len(runs) for label, runs in groups.items()}, "runs")
    _check_equal({str(run.directory): len(_evaluations(run)) for run in every}, "evaluations")
    metrics = _METRICS if all(map(_has_success, every)) else {"return": _METRICS["return"]}
    # MARL-eval compares runs of the same key.
    seeds = {tuple(sorted(map(_seed, runs))) for runs in groups.values()}
    data: dict[str, Any] = {}
    for env, name, runs in environments_and_names(groups):
        if "," in name:
            raise ExperimentError(f"{name!r} has a comma, which MARL-eval does not allow.")
        environment, _, task = env.rpartition("/")
        data.setdefault(environment or task, {}).setdefault(task, {})[name] = {
            f"seed_{_seed(run)}" if len(seeds) == 1 else f"run_{i}": _of_run(run, metrics)
            for i, run in enumerate(sorted(runs, key=_seed))
        }
    return json.dumps(data, indent=1) + "\n"


def _check_equal(counts: Mapping[str, int], what: str) -> None:
    (first, n_first), *others = counts.items()
    for name, n in others:
        if n != n_first:
            raise ExperimentError(
                f"{first} has {n_first} {what} and {name} has {n}; MARL-eval needs equal numbers."
            )
    if not n_first:
        raise ExperimentError(f"{first} has no {what}; MARL-eval needs some.")


def _of_run(run: Run, metrics: Mapping[str, str]) -> dict[str, Any]:
    seconds = run.seconds.tolist()
    steps = {
        f"step_{i}": {
            "step_count": run.records[index]["n_environment_steps"],
            "elapsed_time": seconds[index],
            **{name: [_mean(run, index, key)] for name, key in metrics.items()},
        }
        for i, index in enumerate(_evaluations(run))
    }
    final = {"return": final_return(run), "success": (run.success or {}).get("mean")}
    return {**steps, "absolute_metrics": {name: [final[name]] for name in metrics}}


def _evaluations(run: Run) -> list[int]:
    """Return the indices of the records with a finite return."""
    indices = range(len(run.records))
    return [i for i in indices if np.isfinite(_mean(run, i, _METRICS["return"]))]


def _has_success(run: Run) -> bool:
    own = [_mean(run, index, _METRICS["success"]) for index in _evaluations(run)]
    return run.success is not None and bool(np.isfinite(own).all())


def _mean(run: Run, index: int, key: str) -> float:
    """Average a metric over actors; NaN where it was not recorded."""
    return float(np.mean(np.array(run.records[index].get(key), np.float64)))


def _seed(run: Run) -> int:
    return run.config.get("seed") or 0
