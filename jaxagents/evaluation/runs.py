"""What is on disk of runs, read without jax: commands that only look at it start at once."""

import json
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from jaxagents.errors import ExperimentError
from jaxagents.training.trackers import read_json_lines

_NOT_OF_THE_EXPERIMENT = ("seed", "runs_dir", "tracking")  # of a configuration


class Run(NamedTuple):
    """A run as its directory holds it."""

    directory: Path
    config: dict[str, Any]  # of config.yaml, as plain data
    records: list[dict[str, Any]]  # of metrics.jsonl, one per evaluation; see `tracking.JsonLines`
    summary: dict[str, Any] | None  # of summary.json, if training has ended

    @property
    def name(self) -> str:
        """What the configuration calls the run."""
        return self.config["name"]

    @property
    def n_updates_done(self) -> int:
        """How far it had come at its latest evaluation."""
        return self.records[-1]["n_updates_done"] if self.records else 0

    @property
    def is_unfinished(self) -> bool:
        """Whether it has not been evaluated at its end, or has gone on since."""
        if self.summary is None:
            return True
        summarized = self.summary.get("training", {}).get("n_updates_done", self.n_updates_done)
        return self.n_updates_done > summarized

    @property
    def final_summary(self) -> dict[str, Any] | None:
        """The summary, if it is of all that has been trained."""
        return None if self.is_unfinished else self.summary


def read_config(directory: str | PathLike[str]) -> dict[str, Any]:
    """Read a run's configuration as plain data, be it one that no agent takes any more.

    Raises:
        ExperimentError: The directory holds no run, or its configuration cannot be read.
    """
    import yaml

    path = path_of_config(directory)
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ExperimentError(f"{directory} cannot be read as a run: {reason}") from error
    if not isinstance(config, Mapping) or not {"name", "env", "agent"} <= config.keys():
        raise ExperimentError(f"{path} is no configuration of a run.")
    return dict(config)


def read_run(directory: str | PathLike[str]) -> Run:
    """Read what there is of a run, be it still training.

    Raises:
        ExperimentError: The directory holds no run, or one of its files cannot be read.
    """
    directory = Path(directory)
    config = read_config(directory)
    try:
        metrics, summary = directory / "metrics.jsonl", directory / "summary.json"
        records = read_json_lines(metrics) if metrics.is_file() else []
        read = json.loads(summary.read_text(encoding="utf-8")) if summary.is_file() else None
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ExperimentError(f"{directory} cannot be read as a run: {reason}") from error
    return Run(directory, config, records, read)


def path_of_config(directory: str | PathLike[str]) -> Path:
    """Find the configuration of a run.

    Raises:
        ExperimentError: The directory holds no run.
    """
    path = Path(directory) / "config.yaml"
    if not path.is_file():
        raise ExperimentError(
            f"{directory} is no run: it has no config.yaml. Runs are in the folder runs/, if their "
            "configuration names no other."
        )
    return path


def read_groups(directories: Sequence[str | PathLike[str]]) -> dict[str, list[Run]]:
    """Read runs, and group them by `group_runs`.

    Raises:
        ExperimentError: As `read_run`; or two runs of a group have the same seed, which makes
            them one run, and no evidence of what other seeds bring.
    """
    groups = group_runs([read_run(directory) for directory in directories])
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


def group_runs(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Put runs together that differ in their seed only, by a label that tells the groups apart.

    What has another name is another group, though it be configured alike: of another version of
    the code, perhaps. A group is called by its name, or where another has the same, by its first
    run's directory.
    """
    by_experiment: dict[str, list[Run]] = {}
    for run in runs:
        key = json.dumps(_experiment(run.config), sort_keys=True)
        by_experiment.setdefault(key, []).append(run)
    groups = list(by_experiment.values())
    names = [group[0].name for group in groups]
    folders = [group[0].directory.resolve().name for group in groups]

    def label(run: Run) -> str:
        if names.count(run.name) == 1:
            return run.name
        folder = run.directory.resolve().name
        return folder if [*names, *folders].count(folder) == 1 else str(run.directory)

    return {label(group[0]): group for group in groups}


def _experiment(config: Mapping[str, Any]) -> dict[str, Any]:
    """Take what matters of a configuration; a key that an older one lacks is null in newer ones."""
    agent = _given(config["agent"], except_for=("progress_bar",))
    return _given({**config, "agent": agent}, except_for=_NOT_OF_THE_EXPERIMENT)


def _given(values: Mapping[str, Any], except_for: Sequence[str]) -> dict[str, Any]:
    return {
        name: each for name, each in values.items() if each is not None and name not in except_for
    }
