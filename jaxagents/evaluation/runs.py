"""Runs read from their directories, without importing jax, so that commands start quickly."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from jaxagents.errors import ExperimentError
from jaxagents.evaluation.run_files import (
    check_is_complete,
    read_records,
    read_run_config,
    read_summary,
)
from jaxagents.evaluation.zoo import directory_of

MEMBERS = "members"
"""A population's folder of its members' directories, each that of a run."""
_RESUMED_CONFIG = re.compile(r"config_from_([0-9]+)\.yaml")
_MAY_DIFFER = ("seed", "runs_dir", "tracking")  # keys in which runs of a group may differ
# Keys that a resumed run may change without learning otherwise.
_NOT_LEARNING = (*_MAY_DIFFER, "name", "preset", "stop_at_return", "evaluation")
_EVALUATION_OF_AGENT = ("eval_frequency", "n_evals", "initial_evaluation", "eval_seed")
_NOT_LEARNING_OF_AGENT = ("n_steps", "keep_latest", "keep_best", "progress_bar", "devices")
_PARENTS, _VARIED = "parents", "hyperparams."  # keys of records


class Run(NamedTuple):
    """The contents of a run's directory."""

    directory: Path
    config: dict[str, Any]  # the latest configuration as plain data
    records: list[dict[str, Any]]  # metrics.jsonl, one per evaluation; see `JsonLines`
    summary: dict[str, Any] | None  # summary.json, if training has ended
    configs: dict[int, dict[str, Any]]  # all, by the updates done before each; see `configs_of`

    @property
    def name(self) -> str:
        """The run's name in its configuration."""
        return self.config["name"]

    @property
    def n_updates_done(self) -> int:
        """Updates done at the latest evaluation."""
        return self.records[-1]["n_updates_done"] if self.records else 0

    @property
    def is_unfinished(self) -> bool:
        """True if the run has no summary, or has trained since, even from an earlier checkpoint."""
        if self.summary is None:
            return True
        summarized = self.summary.get("training", {}).get("n_updates_done", self.n_updates_done)
        return bool(self.records) and self.n_updates_done != summarized

    @property
    def seconds(self) -> Float[np.ndarray, "evaluations"]:
        """Seconds of training until each evaluation, added up over resumptions."""
        own = np.array([record["seconds"] for record in self.records], np.float64)
        # The first evaluation of each process has no rate.
        starts = [each.get("steps_per_second", 0.0) is None for each in self.records[1:]]
        ended = np.where(starts, own[:-1], 0.0)
        return own + np.concatenate([[0.0], np.cumsum(ended)])[: len(own)]

    def seconds_until(self, n_updates_done: int) -> float:
        """Return the seconds of training until the latest evaluation at or before an update."""
        n_earlier = sum(each["n_updates_done"] <= n_updates_done for each in self.records)
        return float(self.seconds[n_earlier - 1]) if n_earlier else 0.0

    @property
    def random_returns(self) -> list[float] | None:
        """The mean return of random actions, per actor; None if it was not measured."""
        measured = (self.summary or {}).get("random_returns") or {}
        means = measured.get("mean") if isinstance(measured, Mapping) else None
        return means or None

    @property
    def teams(self) -> list[int] | None:
        """Each actor's team; None if the environment has none, or the run has no summary yet."""
        return (self.summary or {}).get("teams")

    @property
    def success(self) -> dict[str, Any] | None:
        """The success in its final summary; None if there is none, or no episode had it."""
        found = (self.final_summary or {}).get("success")
        return found if found and found["mean"] is not None else None

    @property
    def final_summary(self) -> dict[str, Any] | None:
        """The summary, unless the run is unfinished."""
        return None if self.is_unfinished else self.summary


def read_config(directory: str | PathLike[str]) -> dict[str, Any]:
    """Read a run's configuration as plain data, even one that is no longer valid.

    Raises:
        ExperimentError: The directory holds no run, or its configuration cannot be read.
    """
    return read_run_config(path_of_config(directory))


def read_run(directory: str | PathLike[str]) -> Run:
    """Read a run, finished or not.

    Raises:
        ExperimentError: The directory holds no run, or one of its files cannot be read.
    """
    directory = Path(directory)
    path_of_config(directory)  # or an error
    configs = {since: read_run_config(path) for since, path in configs_of(directory)}
    metrics, summary = directory / "metrics.jsonl", directory / "summary.json"
    return Run(
        directory,
        configs[max(configs)],
        read_records(metrics) if metrics.is_file() else [],
        read_summary(summary) if summary.is_file() else None,
        configs,
    )


def check_can_be_reported(run: Run) -> None:
    """Check that a run's files hold the values that reports show.

    Raises:
        ExperimentError: they do not.
    """
    if "n_steps" not in run.config["agent"]:
        path = path_of_config(run.directory)
        raise ExperimentError(f"{path}: agent.n_steps is missing; give the number of updates")
    if run.summary is not None:
        check_is_complete(run.summary, run.directory / "summary.json")


def path_of_config(directory: str | PathLike[str]) -> Path:
    """Return the path of a run's configuration: the latest, if it was resumed with another.

    Raises:
        ExperimentError: The directory holds no run, or a symbolic link out of it, through which
            commands would write elsewhere.
    """
    path = Path(directory) / "config.yaml"
    root = Path(directory).resolve()
    for each in root.iterdir() if root.is_dir() else ():
        if each.is_symlink() and not each.resolve().is_relative_to(root):
            raise ExperimentError(
                f"{each} is a symbolic link out of the run's directory; put what it links to in "
                "its place."
            )
    if not path.is_file():
        if any(each.name.isdecimal() for each in root.glob("*/")):
            raise ExperimentError(
                f"{directory} holds the checkpoints of an agent, but no config.yaml, and is not a "
                "run; load them by agent.restore(). Runs are what `jaxagents train` and "
                "jaxagents.Experiment write."
            )
        raise ExperimentError(
            f"{directory} is not a run: it has no config.yaml. Runs are in the folder runs/, "
            "unless their configuration names another."
        )
    return configs_of(directory)[-1][1]


def configs_of(directory: str | PathLike[str]) -> list[tuple[int, Path]]:
    """List a run's configurations, with the number of updates done before each took effect.

    The first is ``config.yaml``; resuming with another adds ``config_from_N.yaml``.
    """
    found = [(_RESUMED_CONFIG.fullmatch(path.name), path) for path in Path(directory).glob("*")]
    resumed = [(int(match[1]), path) for match, path in found if match and path.is_file()]
    return [(0, Path(directory) / "config.yaml"), *sorted(resumed)]


def is_population_based(config: Mapping[str, Any]) -> bool:
    """Return True if a population's members continued from each other, and so are one run."""
    return bool((config.get("population_based_training") or {}).get("vary"))


def independent_runs(directory: str | PathLike[str]) -> list[Path]:
    """List the directories of independent runs in a run's directory: itself, or its members'."""
    members = member_directories(directory)
    if members and is_population_based(read_config(directory)):
        return [Path(directory)]
    return members or [Path(directory)]


def member_directories(directory: str | PathLike[str]) -> list[Path]:
    """List the directories of a population's members, in their order; none for a single run."""
    folders = [each for each in Path(directory, MEMBERS).glob("*") if each.name.isdigit()]
    return sorted(folders, key=lambda each: int(each.name))


def population_of(directory: str | PathLike[str]) -> tuple[Path, int] | None:
    """Return a member's population and its index there; None for any other run."""
    path = Path(directory).absolute()
    root = path.parent.parent
    is_member = path.parent.name == MEMBERS and path.name.isdigit()
    return (root, int(path.name)) if is_member and (root / "config.yaml").is_file() else None


def root_of(directory: str | PathLike[str]) -> Path:
    """Return the directory of a member's population, or of any other run itself."""
    population = population_of(directory)
    return Path(directory) if population is None else population[0]


def read_groups(directories: Sequence[str | PathLike[str]]) -> dict[str, list[Run]]:
    """Read runs, and all independent members of populations, and group them by `group_runs`.

    Entries of the zoo are runs too, without records and a summary.

    Raises:
        ExperimentError: As for `read_run`; or two runs of a group have the same seed, and thus
            are not independent samples.
    """
    every = [each for given in directories for each in independent_runs(directory_of(given))]
    groups = group_runs([read_run(directory) for directory in every])
    for group in groups.values():
        by_seed: dict[Any, Run] = {}
        for run in group:
            other = by_seed.setdefault(run.config.get("seed"), run)
            if other is not run:
                raise ExperimentError(
                    f"{other.directory} and {run.directory} are the same run, of seed "
                    f"{run.config.get('seed')}; leave one of them out."
                )
    return groups


def labelled(
    groups: Mapping[str, Sequence[Run]], labels: Sequence[str] | Mapping[str, str]
) -> dict[str, Sequence[Run]]:
    """Give groups other labels: in their order, or by name.

    Raises:
        ExperimentError: There are more or fewer labels than groups, two are equal, or there is no
            group of a name.
    """
    if isinstance(labels, Mapping):
        if unknown := labels.keys() - groups.keys():
            raise ExperimentError(
                f"labels: there is no group {min(unknown)!r}; there are {', '.join(groups)}."
            )
        labels = [labels.get(name, name) for name in groups]
    if len(labels) != len(groups) or len(set(labels)) < len(labels):
        raise ExperimentError(
            f"labels={','.join(labels)!r} must be {len(groups)} different ones, of the groups "
            f"{', '.join(groups)}."
        )
    return dict(zip(labels, groups.values(), strict=True))


def renamed(groups: Mapping[str, Sequence[Run]], names: Mapping[str, str]) -> dict[str, list[Run]]:
    """Regroup runs by other names, which replace those of their configurations.

    Raises:
        ExperimentError: A name belongs to no run.
    """
    runs = [run for each in groups.values() for run in each]
    own = dict.fromkeys(run.name for run in runs)
    if unknown := names.keys() - own.keys():
        raise ExperimentError(
            f"labels: there is no run named {min(unknown)!r}; there are {', '.join(own)}."
        )
    return group_runs(
        [run._replace(config=run.config | {"name": names.get(run.name, run.name)}) for run in runs]
    )


def group_runs(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Group the runs that differ only in their seed, by a unique label.

    A run that was resumed with settings that change how it learns is in no group with runs that had
    them from the start; one that was extended, or evaluated otherwise, may be.

    Runs with different names are in different groups even if their configurations are equal: the
    code may have changed between them. A group's label is its name; if groups on other environments
    have the same name, its name and environment; and if a group on the same environment does, the
    directory of its first run, or of that run's population.
    """
    by_experiment: dict[str, list[Run]] = {}
    for run in runs:
        key = json.dumps([_without_seed(run.config), _changes_in_learning(run)], sort_keys=True)
        by_experiment.setdefault(key, []).append(run)
    groups = list(by_experiment.values())
    names = [group[0].name for group in groups]
    tasks = [(group[0].name, group[0].config["env"]) for group in groups]
    roots = [root_of(group[0].directory) for group in groups]
    # Two members of one population are told apart by their own directories.
    places = [
        root if roots.count(root) == 1 else group[0].directory
        for root, group in zip(roots, groups, strict=True)
    ]
    folders = [place.resolve().name for place in places]

    def label(run: Run, place: Path) -> str:
        if names.count(run.name) == 1:
            return run.name
        if tasks.count((run.name, run.config["env"])) == 1:
            return f"{run.name} on {run.config['env']}"
        folder = place.resolve().name
        return folder if [*names, *folders].count(folder) == 1 else str(place)

    return {label(own[0], place): own for own, place in zip(groups, places, strict=True)}


def environments_and_names(
    groups: Mapping[str, Sequence[Run]],
) -> list[tuple[str, str, Sequence[Run]]]:
    """List each group's environment, name and runs.

    The name is the label or, over several environments, where the runs of one method are in several
    groups, the configured name.
    """
    envs = [runs[0].config["env"] for runs in groups.values()]
    several = len(set(envs)) > 1
    return [
        (env, runs[0].name if several else label, runs)
        for env, (label, runs) in zip(envs, groups.items(), strict=True)
    ]


def _without_seed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys in which runs of a group agree.

    Null counts as missing, because older configurations lack keys that are null in newer ones.
    """
    agent = _keep_given(config["agent"], except_for=("progress_bar",))
    return _keep_given({**config, "agent": agent}, except_for=_MAY_DIFFER)


def _changes_in_learning(run: Run) -> list[tuple[int, dict[str, Any]]]:
    """Return how a run learnt before its latest configuration, if it was resumed with another.

    Returns:
        Settings that differ from the latest ones, with the updates done before each took effect;
        empty if none differ. A field that only one of two configurations has is of another version
        of the package, and does not count.
    """
    latest = _of_learning(run.config)
    changes: list[tuple[int, dict[str, Any]]] = [(0, {})]
    for since, config in sorted(run.configs.items()):
        own = _of_learning(config)
        differing = {key: own[key] for key in own if own[key] != latest.get(key, own[key])}
        if differing != changes[-1][1]:
            changes.append((since, differing))
    return changes[1:]


def _of_learning(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that determine how a run learns, by dotted key."""
    agent = config["agent"]
    own = {key: each for key, each in config.items() if key not in (*_NOT_LEARNING, "agent")}
    without = _NOT_LEARNING_OF_AGENT
    if not is_population_based(config):  # whose evaluations select among its members
        without += _EVALUATION_OF_AGENT
    own |= {f"agent.{key}": each for key, each in agent.items() if key not in without}
    schedules = [each for key, each in agent.items() if key.endswith("_schedule")]
    if agent.get("anneal_learning_rate") or "linear" in schedules or "cosine" in schedules:
        own["agent.n_steps"] = agent.get("n_steps")  # to which schedules are stretched
    return own


def _keep_given(values: Mapping[str, Any], except_for: Sequence[str]) -> dict[str, Any]:
    return {
        name: each for name, each in values.items() if each is not None and name not in except_for
    }


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
