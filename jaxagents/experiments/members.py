"""What an experiment trains: one agent, or the members of a population of seeds."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import jax
import numpy as np
from jaxtyping import Array, Key

from jaxagents.compiler.devices import Devices
from jaxagents.errors import explained
from jaxagents.evaluation.runs import MEMBERS, read_lineages
from jaxagents.experiments.config_files.file import save_config
from jaxagents.experiments.config_files.schema import (
    EvaluationConfig,
    ExperimentConfig,
    PopulationBasedTrainingConfig,
)
from jaxagents.experiments.run_directory import METRICS, keep_config
from jaxagents.experiments.summaries import (
    RandomReturns,
    combine,
    evaluate_runner,
    stopped_text,
    training_of_member,
    write_summary,
)
from jaxagents.hyperparameters import HyperParameters, flat_items, with_items
from jaxagents.training.trackers import JsonLines, OfBestMember, PerMember, Tracker, Trackers
from jaxagents.types import Runner

if TYPE_CHECKING:
    from jaxagents.ippo.base import IPPOBase
    from jaxagents.ippo.population.selection import PopulationBasedTraining


@final
class SingleRun:
    """The run of one agent; it has the methods of `MemberRuns`.

    Args:
        config: The experiment's configuration.
        directory: Directory of the run.
        member: Which member of a population plays for it, if the checkpoints are a population's.
    """

    def __init__(self, config: ExperimentConfig, directory: Path, member: int | str | None):
        self._config = config
        self._member = member
        self.folders: list[Path] = [directory]

    def keys(self) -> Key[Array, ""]:
        """Return the random key."""
        return jax.random.key(self._config.seed)

    def initial_hyperparams(self) -> HyperParameters:
        """Return the hyperparameters to begin with."""
        return self._config.hyperparams

    def begin(self, agent: "IPPOBase", start: Runner) -> Runner:
        """Return the runner to begin with, from a trained one."""
        return agent.init(self.keys(), self.initial_hyperparams(), start, self._config.init_parts)

    def hyperparams_to_resume(self, runner: Runner) -> HyperParameters:
        """Return the hyperparameters to resume with."""
        return self._config.hyperparams

    def write_configs(self) -> None:
        """Write nothing: the run's own configuration is its only one."""

    def keep_configs(self, config: ExperimentConfig, n_updates_done: int) -> None:
        """Write nothing, as in `write_configs`."""

    def open_metrics(self) -> Tracker:
        """Open the run's file of metrics."""
        return JsonLines(self.folders[0] / METRICS)

    def latest_returns(self, metrics: Mapping[str, Any]) -> np.ndarray:
        """Return the returns of the last evaluation."""
        return metrics["returns"][-1]

    def evaluate(self, agent: "IPPOBase", how: EvaluationConfig) -> dict[str, Any]:
        """Play episodes with the policies of a checkpoint.

        Raises:
            ExperimentError: there is no such checkpoint.
        """
        with explained():
            runner, _ = agent.restore(how.mode, member=self._member)
        return evaluate_runner(agent, runner, how, self._config)

    def summarize(
        self,
        agent: "IPPOBase",
        trained: tuple[Any, Mapping[str, Any]],
        evaluation: Mapping[str, Any],
        random_returns: RandomReturns | None,
        about: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Return the summary of the run.

        Args:
            agent: The agent.
            trained: What ``agent.train`` has returned.
            evaluation: What `evaluate` has returned.
            random_returns: Returns of random actions.
            about: What `about_training` has returned.
        """
        return {**evaluation, "diagnosis": agent.diagnose(*trained, random_returns), **about}

    def plot(self) -> None:
        """Draw the learning curve of the files that were written."""
        from jaxagents.visual.run_plots import draw_learning_curve

        draw_learning_curve(self.folders[0])


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
        """Return the hyperparameters to begin with, which may differ between members."""
        config = self._config
        if self._selection is None:
            return config.hyperparams
        return self._selection.spread(config.hyperparams, config.seeds, self._n_policies)

    def begin(self, agent: "IPPOBase", start: Runner) -> Runner:
        """Return the runners to begin with, ``[members, ...]``, from a trained one."""
        from jaxagents.ippo.population.members import split_hyperparams, stack

        each = split_hyperparams(self.initial_hyperparams(), len(self.seeds), self._n_policies)
        keys, parts = self.keys(), self._config.init_parts
        return stack([agent.init(keys[i], own, start, parts) for i, own in enumerate(each)])

    def hyperparams_to_resume(self, runner: Runner) -> HyperParameters:
        """Return the hyperparameters to resume with; varied ones have a value per member."""
        if self._selection is None:
            return self._config.hyperparams
        own = flat_items(runner.hyperparams)
        varied = {name: own[name] for name in self._selection.varied}
        return with_items(self._config.hyperparams, varied)

    def write_configs(self) -> None:
        """Write each member's configuration."""
        for folder, own in zip(self.folders, self._configs_in(self._config), strict=True):
            folder.mkdir(parents=True, exist_ok=True)
            save_config(own, folder / "config.yaml")

    def keep_configs(self, config: ExperimentConfig, n_updates_done: int) -> None:
        """Write each member's configuration where it has changed after these updates.

        Args:
            config: The population's.
            n_updates_done: Updates done before it took effect.
        """
        for folder, own in zip(self.folders, self._configs_in(config), strict=True):
            keep_config(own, folder, n_updates_done)

    def open_metrics(self) -> Tracker:
        """Open each member's file of metrics, and the run's own if members continue from others."""
        of_members = PerMember([JsonLines(folder / METRICS) for folder in self.folders])
        if self._selection is None:
            return of_members
        return Trackers([of_members, OfBestMember(JsonLines(self._directory / METRICS))])

    def latest_returns(self, metrics: Mapping[str, Any]) -> np.ndarray:
        """Return the returns of all members' last evaluations."""
        return metrics["returns"][:, -1]

    def evaluate(self, agent: "IPPOBase", how: EvaluationConfig) -> dict[str, Any]:
        """Play episodes with the policies of each member's checkpoint; see `combine`.

        With a selection, the members are not independent: the result is the best one's, with its
        index, ``best_member``, and the evaluations of all ``members``.

        Raises:
            ExperimentError: there is no such checkpoint.
        """
        with explained():
            runners, metrics = agent.restore(how.mode)
        members = [agent.member(runners, i) for i in range(len(self.seeds))]
        evaluations = [evaluate_runner(agent, each, how, self._config) for each in members]
        if self._selection is None:
            return combine(evaluations)
        from jaxagents.ippo.population.members import best_member

        best = best_member(metrics, how.mode)
        return {**evaluations[best], "best_member": best, "members": evaluations}

    def summarize(
        self,
        agent: "IPPOBase",
        trained: tuple[Any, Mapping[str, Any]],
        evaluation: Mapping[str, Any],
        random_returns: RandomReturns | None,
        about: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Write each member's summary, and return that of all; as in `SingleRun`.

        The training of a member that has stopped alone ends at its last evaluation.
        """
        runners, metrics = trained
        whole, of_all = about["training"], []
        for i, (seed, folder) in enumerate(zip(self.seeds, self.folders, strict=True)):
            own, its = agent.member((runners, dict(metrics)), i)
            training = training_of_member(self._config, whole, its["n_updates_done"])
            diagnosis = agent.diagnose(own, its, random_returns)
            if training["n_updates_done"] < whole["n_updates_done"]:
                diagnosis.insert(0, stopped_text(training, whole))
            summary = {**evaluation["members"][i], "diagnosis": diagnosis, **about}
            write_summary({**summary, "training": training}, folder)
            if evaluation.get("best_member", i) == i:
                of_all += [f"seed {seed}: {sentence}" for sentence in diagnosis]
        return {**evaluation, "diagnosis": of_all, **about}

    def plot(self) -> None:
        """Draw the learning curve, and the lineages if members continue from others."""
        from jaxagents.visual.population_plots import draw_lineages
        from jaxagents.visual.run_plots import draw_learning_curve

        draw_learning_curve(self._directory)
        if self._selection is not None:
            draw_lineages(read_lineages(self._directory), self._directory / "lineages.png")

    def _configs_in(self, config: ExperimentConfig) -> list[ExperimentConfig]:
        """Return each member's configuration, with the hyperparameters that it began with.

        It repeats the member as a single run; but members of population-based training continue
        from each other, and no single run repeats them.
        """
        devices = Devices(config.agent.devices, config.seeds)
        alone = replace(
            config,
            seeds=1,
            agent=replace(config.agent, devices=devices.n_per_member),
            population_based_training=PopulationBasedTrainingConfig(),
        )
        configs = [replace(alone, seed=seed) for seed in self.seeds]
        selection = config.population_based_training.rule(config.seed)
        if selection is None:
            return configs
        from jaxagents.ippo.population.members import split_hyperparams

        spread = selection.spread(config.hyperparams, config.seeds, self._n_policies)
        each = split_hyperparams(spread, config.seeds, self._n_policies)
        plain = [jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), own) for own in each]
        return [replace(one, hyperparams=own) for one, own in zip(configs, plain, strict=True)]
