"""What a run's summary says: how its policies perform, how it was trained, and how it compares."""

import contextlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Float

import jaxagents
from jaxagents.environments.host import HostEnvironmentError
from jaxagents.errors import ExperimentError
from jaxagents.evaluation.runs import read_run
from jaxagents.evaluation.statistics import summarize
from jaxagents.evaluation.success_rates import success_of_episodes, success_of_members
from jaxagents.experiments.config_files.schema import EvaluationConfig, ExperimentConfig
from jaxagents.training.atomic_write import write_atomically
from jaxagents.training.callbacks import as_json, mean_of_present

if TYPE_CHECKING:
    from jaxagents.ippo.base import IPPOBase

_logger = logging.getLogger(__name__)
_FEWEST_RANDOM, _MOST_RANDOM = 16, 128  # episodes of random actions
_MOST_RANDOM_STEPS = 10_000  # of such an episode, if no time limit is known

RandomReturns = Float[np.ndarray, "episodes actors"]


def evaluate_runner(
    agent: "IPPOBase", runner: Any, how: EvaluationConfig, config: ExperimentConfig
) -> dict[str, Any]:
    """Play episodes with trained policies.

    Args:
        agent: The agent.
        runner: State of its training.
        how: Which episodes to play.
        config: The run's configuration.

    Returns:
        Plain data: the run, the checkpoint, the evaluation's settings, statistics of ``returns``
        per actor; the ``success``, if the environment has one, from `success_of_episodes`; and
        means over episodes of the other evaluation metrics.
    """
    metrics = jax.device_get(agent.eval(jax.random.key(how.seed), how.n_evals, how.greedy, runner))
    n_updates_done = int(runner.n_updates_done)
    success = agent.environments.success
    found = {}
    if success is not None and "success" in metrics:
        found["success"] = success_of_episodes(success, metrics)
        del metrics["success"]
    return {
        "name": config.name,
        "env": config.env,
        "checkpoint": {
            "n_updates_done": n_updates_done,
            "n_environment_steps": n_updates_done * config.agent.steps_per_update,
        },
        "evaluation": asdict(how),
        "returns": _statistics(metrics.pop("returns")),
        **found,
        "means": {name: as_json(_mean(name, values).tolist()) for name, values in metrics.items()},
    }


def combine(evaluations: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Combine the evaluations of all members.

    Returns:
        As a single run's, except that the statistics of ``returns`` and ``success`` are over the
        members' means. The evaluations themselves are ``members``.
    """
    first = evaluations[0]
    means = np.array([each["returns"]["mean"] for each in evaluations], np.float64)
    furthest = max(evaluations, key=lambda each: each["checkpoint"]["n_updates_done"])
    averages = {
        name: as_json(_mean(name, [each["means"][name] for each in evaluations]).tolist())
        for name in first["means"]
    }
    successes = [each["success"] for each in evaluations if "success" in each]
    return {
        **first,
        **({"success": success_of_members(successes)} if successes else {}),
        "checkpoint": furthest["checkpoint"],
        "returns": _statistics(means),
        "means": averages,
        "members": list(evaluations),
    }


def random_returns_of(agent: "IPPOBase", how: EvaluationConfig) -> RandomReturns | None:
    """Return the returns of random actions; None if they cannot be measured.

    They are measured at the end of training, so that training begins without delay.
    """
    n_evals = min(max(how.n_evals, _FEWEST_RANDOM), _MOST_RANDOM)
    max_steps = _MOST_RANDOM_STEPS if agent.environments.time_limit.n_steps is None else None
    try:
        metrics = agent.eval_random(jax.random.key(how.seed), n_evals, max_steps)
    except (HostEnvironmentError, ValueError) as error:
        _logger.warning("The return of random actions could not be measured: %s", error)
        return None
    returns, lengths = (np.asarray(metrics[name]) for name in ("returns", "episode_lengths"))
    has_ended = max_steps is None or lengths.max() < max_steps
    return returns if has_ended and np.isfinite(returns).all() else None


def seconds_until(n_updates_done: int, folders: Sequence[Path]) -> float:
    """Return how long a run has trained until an update, from its members' metrics.

    0 if they are missing or damaged.
    """
    with contextlib.suppress(ExperimentError):
        return max(read_run(folder).seconds_until(n_updates_done) for folder in folders)
    return 0.0


def describe_training(
    config: ExperimentConfig,
    n_updates_done: int,
    seconds: float,
    n_updates_before: int = 0,
    seconds_before: float = 0.0,
) -> dict[str, Any]:
    """Return how long a run has trained, and how fast since it began or was resumed.

    Args:
        config: The configuration.
        n_updates_done: Updates of the whole training.
        seconds: Time since it began or was resumed; compilation and evaluations included.
        n_updates_before: Updates before it was resumed.
        seconds_before: Time before it was resumed.
    """
    n_steps_now = config.seeds * (n_updates_done - n_updates_before) * config.agent.steps_per_update
    return {
        "n_updates_done": n_updates_done,
        "n_environment_steps": n_updates_done * config.agent.steps_per_update,
        "seconds": round(seconds_before + seconds, 3),
        "environment_steps_per_second": round(n_steps_now / seconds, 1),
    }


def training_of_member(
    config: ExperimentConfig,
    training: Mapping[str, Any],
    n_updates_done: Float[np.ndarray, " evaluations"],
) -> dict[str, Any]:
    """Return how long a member of a population has trained.

    Args:
        config: The configuration.
        training: The population's, from `describe_training`.
        n_updates_done: Updates before each of the member's evaluations; NaN once it has stopped.
    """
    own = np.asarray(n_updates_done)
    n_own = int(own[np.isfinite(own)].max(initial=0))
    return {
        **training,
        "n_updates_done": n_own,
        "n_environment_steps": n_own * config.agent.steps_per_update,
    }


def stopped_text(training: Mapping[str, Any], whole: Mapping[str, Any]) -> str:
    """Say that a member of a population has stopped before the others.

    Args:
        training: The member's, from `training_of_member`.
        whole: The population's, from `describe_training`.
    """
    return (
        f"Training has stopped after {training['n_updates_done']:,} of "
        f"{whole['n_updates_done']:,} updates: the next ones had NaN or infinite quantities."
    )


def about_training(
    training: Mapping[str, Any],
    random_returns: RandomReturns | None,
    teams: Sequence[int] | None,
) -> dict[str, Any]:
    """Return what the summaries of a run and of its members have in common."""
    versions = {"jaxagents": jaxagents.__version__, "jax": jax.__version__}
    about = {"training": training, "versions": versions}
    if teams is not None:
        about |= {"teams": [int(team) for team in teams]}
    if random_returns is None:
        return about
    means, deviations = np.mean(random_returns, axis=0), np.std(random_returns, axis=0)
    return about | {
        "random_returns": {
            "mean": as_json(means.tolist()),
            "std": as_json(deviations.tolist()),
            "n_evals": len(random_returns),
        }
    }


def write_summary(summary: dict[str, Any], directory: Path) -> None:
    """Write ``summary.json``."""
    text = json.dumps(summary, indent=2, allow_nan=False)
    write_atomically(directory / "summary.json", text + "\n")


def read_training_summary(directory: Path, n_updates_done: int) -> dict[str, Any] | None:
    """Read ``training`` in ``summary.json``; return None unless it ends after these updates."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        text = (directory / "summary.json").read_text(encoding="utf-8")
        training = json.loads(text)["training"]
        return training if training["n_updates_done"] == n_updates_done else None
    return None


def _statistics(returns: Float[np.ndarray, "episodes actors"]) -> dict[str, Any]:
    stats = summarize(returns)._asdict()
    del stats["episodes"]
    return {name: as_json(values.tolist()) for name, values in stats.items()}


def _mean(name: str, values: Any) -> Any:
    """Average a metric over episodes or members; an info over those that have it."""
    if name.startswith("info_"):
        return mean_of_present(np.asarray(values, np.float64))
    return np.mean(values, axis=0)
