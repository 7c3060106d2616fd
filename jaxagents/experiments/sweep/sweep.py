"""A sweep: asks a study for trials, and trains those of one structure as one population."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jaxagents.errors import ExperimentError, explained
from jaxagents.evaluation.comparison import Comparison, Group, compare
from jaxagents.experiments.config_files.file import load_config, save_config
from jaxagents.experiments.config_files.schema import ExperimentConfig, to_plain
from jaxagents.experiments.make_agent import agent_class, make_environment
from jaxagents.experiments.run_directory import check_holds
from jaxagents.experiments.sweep.search_space import (
    Values,
    configure,
    load_space,
    structure_of_trial,
)
from jaxagents.experiments.sweep.study import LOCK, Result, Sampler, Study, import_optuna
from jaxagents.hyperparameters import HyperParameters, check_hyperparams
from jaxagents.ippo.population.selection import ENDED, PARENTS, SuccessiveHalving
from jaxagents.ppo.finiteness import NonFiniteError

_FRESH = 1_000_000  # added to the seeds that confirm the best trial


class SweepSettings(NamedTuple):
    """How a sweep searches."""

    n_trials: int = 32
    n_seeds: int = 2  # per trial
    n_at_once: int = 8  # trials of a population
    sampler: Sampler = "tpe"
    storage: str | None = None
    n_confirming: int = 8  # fresh seeds of the best trial and of the configuration; 0: none
    halving: int | None = None  # factor of `SuccessiveHalving` among the trials of a population


class Scores(NamedTuple):
    """The scores of a population's trials."""

    values: Float[np.ndarray, "trials seeds"]  # mean returns of all evaluations; NaN: diverged
    n_updates: list[int | None]  # updates after which a trial ended early


@final
class Sweep:
    """A search for better values of some keys of a configuration.

    A trial's score is the area under its learning curve: the mean return over all evaluations,
    episodes and actors. It rewards fast, good and lasting learning. With halving, most trials end
    early, and rank below those that did not. A trial whose values do not go together is impossible,
    and counts as failed like one that has diverged.

    Args:
        config: The configuration file.
        space: The file of the search space.
        directory: The sweep's directory; a sweep in it is continued, and extended by a larger
            number of trials.
        settings: How it searches.
        overrides: Changes to the configuration, as for `load_config`.

    Raises:
        ExperimentError: a file or value is wrong; optuna is not installed; the storage cannot be
            reached; or the directory holds another sweep, or one of more trials.
    """

    def __init__(
        self,
        config: str | PathLike[str],
        space: str | PathLike[str],
        directory: str | PathLike[str],
        settings: SweepSettings | None = None,
        overrides: Sequence[str] = (),
    ):
        settings = SweepSettings() if settings is None else settings
        _check(settings)
        import_optuna()  # or an error before anything is written
        self.directory = Path(directory)
        self._path, self._overrides = config, tuple(overrides)
        self._settings = settings
        self.config: ExperimentConfig = load_config(config, overrides)
        _check_can_be_trial(self.config)
        self.space = load_space(space, config, overrides)
        self._agents: dict[str, Any] = {}  # by structure: each is compiled once
        self._agent(self.config, structure_of_trial({}))  # or an error before anything is written
        check_holds(self.directory, LOCK, "sweep")
        with explained(f"{directory} cannot be written: ", kinds=(OSError,)):
            self.directory.mkdir(parents=True, exist_ok=True)
        self.study = Study(
            self.directory,
            settings.storage,
            self.space,
            settings.sampler,
            settings.n_trials,
            self.config.seed,
            {
                "configuration": to_plain(self.config),
                "space": {key: list(domain) for key, domain in self.space.items()},
                "number of seeds": settings.n_seeds,
                "sampler": settings.sampler,
                "halving": settings.halving,
            },
        )

    def run(
        self,
        report: Callable[[Result], None] = lambda result: None,
        report_waiting: Callable[[str], None] = lambda text: None,
    ) -> list[Result]:
        """Train until all trials have ended; several processes may do so at once.

        Args:
            report: Called with each trial that this process has finished.
            report_waiting: Called with a line about the processes that train the last trials.

        Returns:
            The trials that have ended, the best first.
        """
        with self.study.beating():
            self._train_open(report)
            while self.study.wait_for_others(report_waiting):
                self._train_open(report)
        return ranked(self.study.results())

    def _train_open(self, report: Callable[[Result], None]) -> None:
        """Train until all trials have begun."""
        while asked := self.study.ask(self._settings.n_at_once):
            by_structure: dict[str, list[tuple[Any, Values]]] = {}
            for trial, values in asked:
                if reason := self._why_impossible(values):
                    no_scores = [math.nan] * self._settings.n_seeds
                    if self.study.tell(trial, no_scores, impossible=reason):
                        report(Result(trial.number, values, math.nan, no_scores, None, reason))
                    continue
                key = json.dumps(structure_of_trial(values), sort_keys=True)
                by_structure.setdefault(key, []).append((trial, values))
            for trials in by_structure.values():
                scores = self.train(
                    [values for _, values in trials], self._seeds(), self._settings.halving
                )
                for (trial, values), own, end in zip(trials, *scores, strict=True):
                    if self.study.tell(trial, own.tolist(), end):
                        report(Result(trial.number, values, float(np.mean(own)), own.tolist(), end))

    def _why_impossible(self, values: Values) -> str | None:
        """Say why a trial cannot be trained, as some values do not go together; None if it can."""
        try:
            config = configure(self._path, self._overrides, values)
            _check_can_be_trial(config)
            agent = self._agent(config, structure_of_trial(values))
            with explained():
                check_hyperparams(config.hyperparams, agent.policies.n_policies)
        except ExperimentError as error:
            # The values are not to blame for a file or package that is missing on this machine, or
            # for a configuration file that has been edited since.
            if isinstance(error.__cause__, ImportError | OSError):
                raise
            configure(self._path, self._overrides, {})
            return str(error)
        return None

    def train(
        self, trials: Sequence[Values], seeds: Sequence[int], halving: int | None = None
    ) -> Scores:
        """Train trials of one structure as one population.

        Args:
            trials: Values of the varied keys.
            seeds: Seeds of each trial.
            halving: Factor of successive halving; None trains all to the end.
        """
        configs = [configure(self._path, self._overrides, values) for values in trials]
        agent = self._agent(configs[0], structure_of_trial(trials[0]))
        n_policies = agent.policies.n_policies
        members = [config.hyperparams for config in configs for _ in seeds]
        keys = jax.vmap(jax.random.key)(np.array([*seeds] * len(trials)))
        rule = None
        if halving is not None:
            n_blocks = math.ceil(agent.config.n_steps / agent.config.eval_frequency)
            rule = SuccessiveHalving(n_blocks, halving, group_size=len(seeds))
        try:
            _, metrics = agent.train(keys, _stacked(members, n_policies), selection=rule)
        except NonFiniteError:  # in every one of them
            return Scores(np.full((len(trials), len(seeds)), np.nan), [None] * len(trials))
        return score_trials(jax.device_get(metrics), len(trials))

    def confirm(self, best: Values) -> Comparison | None:
        """Compare the best trial with the unchanged configuration, with fresh seeds.

        Returns:
            The comparison; None if there are no such seeds.
        """
        if not self._settings.n_confirming:
            return None
        first = self.config.seed + _FRESH
        seeds = range(first, first + self._settings.n_confirming)
        labels = ("the best trial", "the configuration as it is")
        scores = [self.train([values], seeds).values[0] for values in (best, {})]
        groups = [Group(label, own) for label, own in zip(labels, scores, strict=True)]
        return compare(groups[0], groups[1])

    def write_best(self, best: Values, path: str | PathLike[str]) -> None:
        """Write the best trial's configuration; no file is replaced.

        Raises:
            ExperimentError: the file exists, or cannot be written.
        """
        check_is_new(path)
        with explained():
            save_config(configure(self._path, self._overrides, best), Path(path))

    def _seeds(self) -> list[int]:
        return [self.config.seed + i for i in range(self._settings.n_seeds)]

    def _agent(self, config: ExperimentConfig, structure: Values) -> Any:
        key = json.dumps(structure, sort_keys=True)
        if key not in self._agents:
            with explained():
                from jaxagents.ippo.population.training import check_can_be_population

                env, env_params = make_environment(config)
                quiet = replace(config.agent, progress_bar=False, on_nonfinite="stop")
                make = agent_class(env, env_params, config.agent_class)
                agent = make(env, env_params, quiet)
                check_can_be_population(agent, n_members=1)  # there may be any number
                agent.devices.check()
                self._agents[key] = agent
        return self._agents[key]


def check_is_new(path: str | PathLike[str]) -> None:
    """Raise ExperimentError if a file exists, or has no folder."""
    if Path(path).exists():
        raise ExperimentError(f"{path} exists already; name another file.")
    if not Path(path).absolute().parent.is_dir():
        raise ExperimentError(f"there is no folder for {path}; create it, or name another file.")


def ranked(results: Sequence[Result]) -> list[Result]:
    """Sort trials, the best first; those that ended early after the others, failed ones last."""

    def key(result: Result) -> tuple[bool, float, float]:
        n_updates = math.inf if result.n_updates is None else float(result.n_updates)
        return (math.isnan(result.score), -n_updates, -result.score)

    return sorted(results, key=key)


def score_trials(metrics: Mapping[str, np.ndarray], n_trials: int) -> Scores:
    """Score the trials of a population by its metrics, ``[members, evaluations, ...]``."""
    returns = metrics["returns"].astype(np.float64).mean(axis=(2, 3))
    has_diverged = np.isnan(returns)
    ends: list[int | None] = [None] * n_trials
    if PARENTS in metrics:
        has_ended = metrics[PARENTS] == ENDED
        has_diverged &= ~has_ended
        done = np.where(has_ended, np.nan, metrics["n_updates_done"]).reshape(n_trials, -1)
        ended = has_ended[:, -1].reshape(n_trials, -1).all(axis=1)
        ends = [
            int(np.nanmax(of_trial)) if is_over and np.isfinite(of_trial).any() else None
            for of_trial, is_over in zip(done, ended, strict=True)
        ]
    values = [
        np.nan if diverged.any() or not np.isfinite(row).any() else float(np.nanmean(row))
        for row, diverged in zip(returns, has_diverged, strict=True)
    ]
    return Scores(np.array(values).reshape(n_trials, -1), ends)


def _check(settings: SweepSettings) -> None:
    least_values = {"n_trials": 1, "n_seeds": 1, "n_at_once": 1, "n_confirming": 0, "halving": 2}
    for name, least in least_values.items():
        value = getattr(settings, name)
        if value is not None and value < least:
            raise ExperimentError(f"{name}={value} is too small; give at least {least}.")


def _check_can_be_trial(config: ExperimentConfig) -> None:
    if not config.agent.n_evals:
        raise ExperimentError(
            "agent.n_evals=0 leaves a sweep nothing to compare; evaluate in training."
        )
    if config.init_from is not None:
        raise ExperimentError(
            f"init_from={config.init_from!r}: a sweep's trials begin with new networks; "
            "leave init_from out."
        )


def _stacked(members: Sequence[HyperParameters], n_policies: int) -> HyperParameters:
    """Stack members' hyperparameters, ``[members, policies]``."""

    def stack(*values: Any) -> jax.Array:
        rows = [jnp.broadcast_to(jnp.asarray(value, jnp.float32), n_policies) for value in values]
        return jnp.stack(rows)

    return jax.tree.map(stack, *members, is_leaf=lambda node: isinstance(node, list | tuple))
