"""Runs that were resumed with another configuration: what changed, and how to repeat them.

The schema is imported where it is used: reports of other runs need no jax.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

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
        commands.append(f"jaxagents resume {_NEW_RUN}{options}{_changes(before, after)}")
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
    import jax.numpy as jnp

    from jaxagents.hyperparameters import as_arrays, flat_items
    from jaxagents.ppo.schedules import scheduled

    hyperparams = as_arrays(after.hyperparams)
    # One that adapts does not jump.
    rate = jnp.asarray(hyperparams.actor_optimizer_params.learning_rate)
    n_before, n_after = before.agent.n_steps, after.agent.n_steps
    old, new = (
        flat_items(scheduled(hyperparams, agent, jnp.asarray(n_updates_done / agent.n_steps), rate))
        for agent in (before.agent, after.agent)
    )
    jumps = [
        f"{name} is {_rounded(new[name])}, not {_rounded(old[name])}"
        for name in new
        if n_before != n_after and _rounded(old[name]) != _rounded(new[name])
    ]
    if not jumps:
        return ""
    return (
        f"agent.n_steps={n_after:,} instead of {n_before:,} stretches the schedules: after update "
        f"{n_updates_done:,} {', '.join(jumps)}"
    )


def _rounded(values: Any) -> str:
    return " and ".join(dict.fromkeys(f"{value:.3g}" for value in np.ravel(values)))


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Write the fields in which two configurations differ as overrides, with the later values."""
    from jaxagents.experiments.config_files.fields import keys_of, yaml_text
    from jaxagents.experiments.config_files.schema import ExperimentConfig

    keys = [key for key, field in keys_of(ExperimentConfig) if not field.is_group]
    return "".join(
        f" --{key} {shlex.quote(yaml_text(_value(after, key)))}"
        for key in keys
        if _value(before, key) != _value(after, key)
    )


def _value(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
