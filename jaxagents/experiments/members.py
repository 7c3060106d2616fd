"""The members of a population of seeds: their directories and their results."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from jaxagents.compiler.devices import Devices
from jaxagents.evaluation.runs import MEMBERS
from jaxagents.evaluation.statistics import summarize
from jaxagents.experiments.config_files.file import save_config
from jaxagents.experiments.config_files.schema import (
    ExperimentConfig,
    PopulationBasedTrainingConfig,
)
from jaxagents.experiments.run_directory import as_json


def seeds_of(config: ExperimentConfig) -> list[int]:
    """Return the members' seeds."""
    return [config.seed + i for i in range(config.seeds)]


def configs_of(config: ExperimentConfig) -> list[ExperimentConfig]:
    """Return each member's configuration, which repeats it as a single run.

    Members of population-based training go on from each other: no single run repeats them.
    """
    devices = Devices(config.agent.devices, config.seeds)
    agent = replace(config.agent, devices=devices.n_per_member)
    alone = replace(config, agent=agent, population_based_training=PopulationBasedTrainingConfig())
    return [replace(alone, seed=seed, seeds=1) for seed in seeds_of(config)]


def directory_of(directory: Path, index: int) -> Path:
    """Return a member's directory in that of its population."""
    return directory / MEMBERS / str(index)


def write_members(configs: Sequence[ExperimentConfig], directory: Path) -> None:
    """Write each member's configuration."""
    for i, member in enumerate(configs):
        folder = directory_of(directory, i)
        folder.mkdir(parents=True, exist_ok=True)
        save_config(member, folder / "config.yaml")


def of_best(evaluations: Sequence[dict[str, Any]], index: int) -> dict[str, Any]:
    """Return the evaluation of a population whose members are not independent: the best one's.

    Returns:
        As that of a single run; ``best_member`` is its index, ``members`` all evaluations.
    """
    return {**evaluations[index], "best_member": index, "members": list(evaluations)}


def combine(evaluations: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Combine the evaluations of all members.

    Returns:
        As that of a single run, but for ``returns``: the statistics are over the members' mean
        returns. The evaluations themselves are ``members``.
    """
    first = evaluations[0]
    means = [[np.nan if x is None else x for x in each["returns"]["mean"]] for each in evaluations]
    stats = summarize(np.asarray(means, np.float64))._asdict()
    del stats["episodes"]
    furthest = max(evaluations, key=lambda each: each["checkpoint"]["n_updates_done"])
    averages = {
        name: as_json(np.mean([each["means"][name] for each in evaluations], axis=0).tolist())
        for name in first["means"]
    }
    return {
        **first,
        "checkpoint": furthest["checkpoint"],
        "returns": {name: as_json(values.tolist()) for name, values in stats.items()},
        "means": averages,
        "members": list(evaluations),
    }
