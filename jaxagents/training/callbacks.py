"""Callbacks: functions that receive each `Evaluation` of a training run and may end it."""

import math
from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple, final

import numpy as np

_PER_ACTOR = ("returns", "final_rewards", "terminated", "truncated")  # [n_evals, n_actors]
_OF_TIME = ("n_updates_done", "n_environment_steps", "seconds", "steps_per_second")


class Evaluation(NamedTuple):
    """An evaluation and the block of training before it, as callbacks and trackers receive them.

    Metrics and the runner of a population have its members as their first axis; see `member`.
    """

    n_updates_done: int
    n_environment_steps: int
    seconds: float  # since training began or was resumed
    # This evaluation's row of the metrics that `train` returns: `returns` [n_evals, n_actors],
    # `episode_lengths`, `info_<name>` and `success` [n_evals], ...; and training metrics such as
    # `actor_loss` and `kl` [n_policies], which are NaN before training.
    metrics: dict[str, np.ndarray]
    runner: Any  # the `Runner`, as the agent's methods take it
    steps_per_second: float = math.nan  # environment steps, since the previous evaluation
    agent: Any = None  # the agent in training

    @property
    def n_members(self) -> int | None:
        """The number of members of a population; None: a single run."""
        done = np.shape(self.metrics.get("n_updates_done", 0))
        return done[0] if done else None

    @property
    def mean_return(self) -> float:
        """Mean return over episodes, actors and members that have not stopped; NaN without any."""
        returns = np.asarray(self.metrics.get("returns", np.zeros(0)), np.float64)
        if self.n_members is not None:
            returns = returns[np.isfinite(returns)]
        return float(np.mean(returns)) if returns.size else math.nan

    @property
    def interquartile_mean_return(self) -> float:
        """Mean over the middle half of a population's members that have not stopped."""
        if self.n_members is None:
            return self.mean_return
        returns = [each.mean_return for each in self._metrics_of_members()]
        returns = np.sort([each for each in returns if math.isfinite(each)])
        n_trimmed = len(returns) // 4
        middle = returns[n_trimmed : len(returns) - n_trimmed]
        return float(np.mean(middle)) if middle.size else math.nan

    def policy(self, observation: Any, carry: Any = None, rng: Any = None) -> Any:
        """Choose every actor's action with the current policies; see the agent's `policy`."""
        return self.agent.policy(self.runner, observation, carry, rng)

    def member(self, index: int) -> "Evaluation":
        """Return the evaluation of one member of a population."""
        import jax

        runner = None if self.runner is None else jax.tree.map(itemgetter(index), self.runner)
        metrics = {name: values[index] for name, values in self.metrics.items()}
        return self._replace(metrics=metrics, runner=runner)

    def of_best_member(self) -> "Evaluation | None":
        """Return the evaluation of a population's member with the highest mean return.

        None: all members have stopped, or there are no returns.
        """
        members = enumerate(self._metrics_of_members())
        returns = {i: own.mean_return for i, own in members if math.isfinite(own.mean_return)}
        return self.member(max(returns, key=lambda i: returns[i])) if returns else None

    def _metrics_of_members(self) -> "list[Evaluation]":
        """Return each member's evaluation without its runner, which takes long to slice."""
        alone = self._replace(runner=None)
        return [alone.member(i) for i in range(self.n_members or 0)]

    def record(self) -> dict[str, Any]:
        """Reduce the evaluation to plain data: a line of ``metrics.jsonl``, see `JsonLines`."""
        record: dict[str, Any] = {
            "n_updates_done": int(self.n_updates_done),
            "n_environment_steps": int(self.n_environment_steps),
            "seconds": round(float(self.seconds), 3),
            "steps_per_second": round(float(self.steps_per_second), 1),
        }
        if self.n_members is not None:
            members = [each.record() for each in self._metrics_of_members()]
            numbers = {"return_iqm": self.interquartile_mean_return}
            return as_json({**record, **numbers, "members": members})
        for name, values in self.metrics.items():
            for key, value in _reduce_over_episodes(name, np.asarray(values)).items():
                record.setdefault(key, value.tolist())
        return as_json(record)

    def scalars(self) -> dict[str, float]:
        """List the finite numbers of the record under grouped names, as trackers show them.

        ``evaluation/return_mean`` is the mean over episodes and actors, and ``evaluation/success``
        that of the environment's `Success`, if it has one. Several actors or policies
        have a number each: ``evaluation/return_mean_actor_0``, ``training/kl_policy_0``, ....
        Progress and speed are under ``time/``. A population has ``evaluation/return_iqm``, the
        interquartile mean over its members, and each one's numbers under ``member_0/``, ....
        """
        scalars = {"evaluation/return_mean": self.mean_return}
        if self.n_members is not None:
            scalars["evaluation/return_iqm"] = self.interquartile_mean_return
            for i, own in enumerate(self._metrics_of_members()):
                scalars |= {f"member_{i}/{name}": value for name, value in own.scalars().items()}
            return {name: value for name, value in scalars.items() if math.isfinite(value)}
        for name, value in self.record().items():
            group, owner = _group_and_owner(name)
            several = isinstance(value, list) and len(value) > 1
            each = value if isinstance(value, list) else [value]
            for i, number in enumerate(each):
                key = f"{group}/{name}_{owner}_{i}" if several else f"{group}/{name}"
                scalars[key] = math.nan if number is None else float(number)
        return {name: value for name, value in scalars.items() if math.isfinite(value)}


Callback = Callable[[Evaluation], bool | None]
"""Called with each evaluation; True ends the training."""


@final
class StopAtReturn:
    """A callback that ends training once the return has reached a target.

    Args:
        target: Mean return over an evaluation's episodes and actors.
        patience: Number of consecutive evaluations that must reach it.
    """

    def __init__(self, target: float, patience: int = 1):
        if patience < 1:
            raise ValueError(f"patience={patience} is too small; wait for at least 1 evaluation.")
        self._target = target
        self._patience = patience
        self._n_reached = 0
        self._latest = -1

    def __call__(self, evaluation: Evaluation) -> bool:
        """Return True to end training."""
        if "returns" not in evaluation.metrics:
            raise ValueError("StopAtReturn needs evaluations, but n_evals=0: choose n_evals > 0.")
        if evaluation.n_updates_done <= self._latest:  # another run has begun
            self._n_reached = 0
        self._latest = evaluation.n_updates_done
        reached = evaluation.mean_return >= self._target
        self._n_reached = self._n_reached + 1 if reached else 0
        return self._n_reached >= self._patience


def _group_and_owner(name: str) -> tuple[str, str]:
    """Return a metric's group in trackers, and whether its values are per actor or per policy."""
    if name in _OF_TIME:
        return "time", ""
    stem = name.rsplit("_", 1)[0]
    evaluated = stem in ("return", "episode_length", *_PER_ACTOR, "success")
    evaluated |= stem.startswith("info_")
    return ("evaluation", "actor") if evaluated else ("training", "policy")


def _reduce_over_episodes(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """Reduce an evaluation metric to statistics over episodes; return training metrics as given."""
    if name == "returns":
        reductions = {"mean": np.mean, "min": np.min, "max": np.max, "std": np.std}
        return {f"return_{key}": _over_episodes(r, values) for key, r in reductions.items()}
    if name == "episode_lengths":
        return {"episode_length_mean": _over_episodes(np.mean, values)}
    if name == "success":
        return {name: _over_episodes(mean_of_present, values)}
    if name in _PER_ACTOR:
        return {f"{name}_mean": _over_episodes(np.mean, values)}
    if name.startswith("info_"):
        return {f"{name}_mean": _over_episodes(mean_of_present, values)}
    return {name: values}


def _over_episodes(reduction: Callable[..., Any], values: np.ndarray) -> np.ndarray:
    if len(values) == 0:  # evaluation is switched off
        return np.full(values.shape[1:], np.nan)
    with np.errstate(invalid="ignore"):  # the deviation of an infinite return is NaN
        return np.asarray(reduction(values.astype(np.float64), axis=0))


def mean_of_present(values: Any, axis: int = 0) -> Any:
    """Average over the episodes that have an info: those where it is not NaN."""
    is_present = ~np.isnan(values)
    total = np.sum(np.where(is_present, values, 0.0), axis=axis)
    with np.errstate(invalid="ignore"):  # NaN where no episode has it
        return total / np.sum(is_present, axis=axis)


def as_json(value: Any) -> Any:
    """Replace NaN and infinities in nested data with None, because JSON cannot hold them."""
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
