"""Runs that were resumed with another configuration: what changed, and how to repeat them.

The schema is imported where it is used: reports of other runs need no jax.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxagents.environments.host.sharing import import_options
from jaxagents.evaluation.run_files import read_run_config
from jaxagents.evaluation.runs import configs_of

if TYPE_CHECKING:
    from jaxagents.experiments.config_files.schema import ExperimentConfig

_NEW_RUN = "NEW_RUN"


def recipe(directory: Path) -> list[str]:
    """List the commands that repeat a run; one, unless it was resumed with another configuration.

    ``NEW_RUN`` stands for the directory that the first command writes.
    """
    (_, first), *resumed = configs_of(directory)
    options = import_options()
    commands = [f"jaxagents train {shlex.quote(str(first))}{options}"]
    before = read_run_config(first) if resumed else {}
    for n_updates_done, path in resumed:
        after = read_run_config(path)
        if n_updates_done < _value(before, "agent.n_steps"):
            commands[-1] += f"  # unless it has ended, press Ctrl-C after update {n_updates_done}"
        changes = [
            f"--{key} {shlex.quote(_flow_text(value))}" for key, value in _changes(before, after)
        ]
        commands.append(" ".join([f"jaxagents resume {_NEW_RUN}{options}", *changes]))
        before = after
    return commands


def stretched_schedules(
    before: "ExperimentConfig", after: "ExperimentConfig", n_updates_done: int
) -> str:
    """Say in a line which hyperparameters jump because another ``n_steps`` stretches schedules.

    Args:
        before: Configuration of the run that is resumed.
        after: Configuration to resume it with.
        n_updates_done: Updates done before.

    Returns:
        The line; empty if none jumps.
    """
    n_before, n_after = before.agent.n_steps, after.agent.n_steps
    old, new = (_scheduled(config, n_updates_done) for config in (before, after))
    jumps = [
        f"{name} is {_rounded(new[name])}, not {_rounded(old[name])}"
        for name in new
        if n_before != n_after and name in old and _rounded(old[name]) != _rounded(new[name])
    ]
    if not jumps:
        return ""
    return (
        f"agent.n_steps={n_after:,} instead of {n_before:,} stretches the schedules: after update "
        f"{n_updates_done:,} {', '.join(jumps)}"
    )


def _scheduled(config: "ExperimentConfig", n_updates_done: int) -> dict[str, Any]:
    """Return the hyperparameters that follow a schedule, at an update."""
    agent, hyperparams = config.agent, config.hyperparams
    of_rate = "linear" if agent.anneal_learning_rate else agent.learning_rate_schedule
    schedules = {
        "actor_optimizer_params.learning_rate": of_rate,
        "critic_optimizer_params.learning_rate": of_rate,
        "ent_coeff": agent.ent_coeff_schedule,
        "eps_clip": agent.eps_clip_schedule,
    }
    return {
        name: _times(
            _attribute(hyperparams, name), _factor(schedule, n_updates_done, agent.n_steps)
        )
        for name, schedule in schedules.items()
        if schedule not in ("constant", "kl")
    }


def _factor(schedule: str, n_updates_done: int, n_steps: int) -> float:
    from jaxagents.ppo.schedules import factor_at

    return float(factor_at(schedule, n_updates_done / n_steps))  # type: ignore[arg-type]


def _attribute(hyperparams: Any, name: str) -> Any:
    value: Any = hyperparams
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _times(value: Any, factor: float) -> list[float]:
    return [float(each) * factor for each in (value if isinstance(value, list) else [value])]


def _rounded(values: list[float]) -> str:
    return " and ".join(dict.fromkeys(f"{value:.3g}" for value in values))


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """List the fields in which two configurations differ, with the later values."""
    from jaxagents.experiments.config_files.fields import keys_of
    from jaxagents.experiments.config_files.schema import ExperimentConfig

    keys = [key for key, field in keys_of(ExperimentConfig) if not field.is_group]
    return [(key, _value(after, key)) for key in keys if _value(before, key) != _value(after, key)]


def _value(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _flow_text(value: Any) -> str:
    import yaml

    text = yaml.safe_dump(value, default_flow_style=True, width=float("inf"))
    return text.strip().removesuffix("...").strip()
