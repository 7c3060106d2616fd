"""The members of a population of seeds: their directories and their results."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import jax
import numpy as np
from jaxtyping import Array, Key

from jaxagents.compiler.devices import Devices
from jaxagents.evaluation.runs import MEMBERS
from jaxagents.evaluation.statistics import summarize
from jaxagents.experiments.config_files.file import save_config
from jaxagents.experiments.config_files.schema import (
    ExperimentConfig,
    PopulationBasedTrainingConfig,
)
from jaxagents.experiments.run_directory import METRICS, as_json, keep_config, write_summary
from jaxagents.hyperparameters import HyperParameters
from jaxagents.training.trackers import JsonLines, OfBestMember, PerMember, Tracker, Trackers

if TYPE_CHECKING:
    from jaxagents.ippo.population.population_based_training import PopulationBasedTraining


@final
class MemberRuns:
    """The members of an experiment that trains a population.

    Args:
        config: The experiment's configuration.
        directory: Directory of the run.
        n_policies: Policies of each member.
        selection: Selects among the members; None: they are independent.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        directory: Path,
        n_policies: int,
        selection: "PopulationBasedTraining | None",
    ):
        self._config = config
        self._directory = directory
        self._n_policies = n_policies
        self._selection = selection
        self.seeds: list[int] = [config.seed + i for i in range(config.seeds)]
        self.folders: list[Path] = [directory / MEMBERS / str(i) for i in range(config.seeds)]

    def keys(self) -> Key[Array, " members"]:
        """Return the members' random keys."""
        return jax.vmap(jax.random.key)(np.array(self.seeds))

    def initial_hyperparams(self) -> HyperParameters:
        """Return the hyperparameters to begin with, perhaps of each member its own."""
        config = self._config
        if self._selection is None:
            return config.hyperparams
        return self._selection.spread(config.hyperparams, config.seeds, self._n_policies)

    def write_configs(self) -> None:
        """Write each member's configuration."""
        for folder, config in zip(self.folders, self._configs(), strict=True):
            folder.mkdir(parents=True, exist_ok=True)
            save_config(config, folder / "config.yaml")

    def keep_configs(self, n_updates_done: int) -> None:
        """Write each member's configuration where it has changed after these updates."""
        for folder, config in zip(self.folders, self._configs(), strict=True):
            keep_config(config, folder, n_updates_done)

    def open_metrics(self) -> Tracker:
        """Open each member's file of metrics, and the run's own if members continue from others."""
        of_members = PerMember([JsonLines(folder / METRICS) for folder in self.folders])
        if self._selection is None:
            return of_members
        return Trackers([of_members, OfBestMember(JsonLines(self._directory / METRICS))])

    def summarize(
        self,
        evaluation: dict[str, Any],
        diagnoses: Sequence[Sequence[str]],
        about: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Write each member's summary, and return the population's.

        Args:
            evaluation: The population's, as `combine` or `of_best` returned it.
            diagnoses: Each member's.
            about: Entries of all summaries.
        """
        parts = zip(self.folders, evaluation["members"], diagnoses, strict=True)
        for folder, own, diagnosis in parts:
            write_summary({**own, "diagnosis": list(diagnosis), **about}, folder)
        of_all = [
            f"seed {seed}: {sentence}"
            for i, (seed, diagnosis) in enumerate(zip(self.seeds, diagnoses, strict=True))
            if evaluation.get("best_member", i) == i
            for sentence in diagnosis
        ]
        return evaluation | {"diagnosis": of_all, **about}

    def _configs(self) -> list[ExperimentConfig]:
        """Return each member's configuration, with the hyperparameters that it began with.

        It repeats the member as a single run; but members of population-based training continue
        from each other, and no single run repeats them.
        """
        config = self._config
        devices = Devices(config.agent.devices, config.seeds)
        alone = replace(
            config,
            seeds=1,
            agent=replace(config.agent, devices=devices.n_per_member),
            population_based_training=PopulationBasedTrainingConfig(),
        )
        configs = [replace(alone, seed=seed) for seed in self.seeds]
        if self._selection is None:
            return configs
        from jaxagents.ippo.population.members import split_hyperparams

        each = split_hyperparams(self.initial_hyperparams(), config.seeds, self._n_policies)
        plain = [jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), own) for own in each]
        return [replace(one, hyperparams=own) for one, own in zip(configs, plain, strict=True)]


def of_best(evaluations: Sequence[dict[str, Any]], index: int) -> dict[str, Any]:
    """Return the evaluation of a population whose members are not independent: the best one's.

    Returns:
        As a single run's; ``best_member`` is its index, ``members`` all evaluations.
    """
    return {**evaluations[index], "best_member": index, "members": list(evaluations)}


def combine(evaluations: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Combine the evaluations of all members.

    Returns:
        As a single run's, except that the statistics of ``returns`` are over the members' mean
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
