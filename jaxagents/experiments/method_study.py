"""Studies: methods on environments, with several seeds each, from one file.

Each pair of a method and an environment is an experiment with a directory of its own. Plots and
reports are imported where they are used, so that errors in a file are reported without delay.
"""

import contextlib
import json
import logging
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, final

from jaxagents.errors import OF_FILES, ExperimentError, explained
from jaxagents.evaluation.comparison_tables import Row, csv_text, latex_of, table_of
from jaxagents.evaluation.run_files import read_records
from jaxagents.evaluation.runs import read_groups
from jaxagents.experiments.config_files.file import config_of, keys_of_files
from jaxagents.experiments.config_files.schema import (
    ConfigField,
    ExperimentConfig,
    to_plain,
    yaml_text,
)
from jaxagents.experiments.config_files.source import read_source
from jaxagents.experiments.config_files.study_file import study_sources
from jaxagents.experiments.experiment import Experiment
from jaxagents.experiments.make_agent import CHECKPOINTS
from jaxagents.experiments.run_directory import METRICS, check_holds, numbered_if_taken
from jaxagents.training.atomic_write import write_atomically
from jaxagents.training.held_directory import HeldDirectory

_DEFINITION = "study.json"
_OF_START = ("config.yaml", "environment.json", METRICS)
_logger = logging.getLogger(__name__)


class StudyRun(NamedTuple):
    """An experiment of a study; its configuration has the name of the method."""

    config: ExperimentConfig
    directory: Path

    @property
    def is_finished(self) -> bool:
        """True if it has been trained and evaluated."""
        return (self.directory / "summary.json").is_file()

    def begin(self, **shown: Any) -> tuple[Experiment, Callable[[], dict[str, Any]]]:
        """Return the experiment, and its method that trains or resumes the run.

        Without a checkpoint the run starts from the beginning: its directory is renamed, or removed
        if it holds only what a run writes before its first checkpoint.

        Args:
            **shown: Callbacks and other arguments, as for `Experiment`.

        Raises:
            ExperimentError: the directory cannot be read or written.
        """
        experiment = Experiment(self.config, self.directory, **shown)
        with explained(kinds=OF_FILES):
            if experiment.has_checkpoint:
                return experiment, experiment.resume
            if self.directory.exists():
                _make_way(self.directory)
        return experiment, experiment.train


def _make_way(directory: Path) -> None:
    """Remove the directory of a run that was killed early; rename any other, with a warning."""
    if _is_of_unbegun_run(directory):
        shutil.rmtree(directory)
        return
    kept = directory.rename(numbered_if_taken(directory.with_name(f"{directory.name}.unused")))
    _logger.warning(
        "%s has no checkpoint, so its run starts from the beginning; what it holds is kept as %s",
        directory,
        kept,
    )


def _is_of_unbegun_run(directory: Path) -> bool:
    """Return True if a directory holds only what a run writes before its first checkpoint."""
    files = [each.relative_to(directory) for each in directory.rglob("*") if not each.is_dir()]
    metrics = [each for each in files if each.name == METRICS]
    try:
        records = [each for path in metrics for each in read_records(directory / path)]
    except ExperimentError:  # they were edited
        return False
    # Without its metrics nothing tells how far a tracker's run had come.
    trackers = ("tensorboard",) if metrics else ()

    def is_of_start(file: Path) -> bool:
        folder, *others = file.parts
        is_of_writer = folder == CHECKPOINTS and others != [] and others[0].startswith(".")
        return is_of_writer or folder in trackers or file.name in _OF_START

    return all(map(is_of_start, files)) and all(not each["n_updates_done"] for each in records)


@final
class MethodStudy:
    """Methods that are compared on environments.

    Attributes:
        directory: The study's directory.
        runs: A population of the seeds for each pair of a method and an environment; where the
            environment is outside of JAX, a run for each seed.

    Args:
        path: The file; see `study_sources`.
        directory: The study's directory; None: named after the file, in the base's ``runs_dir``.
        overrides: Changes to all configurations, as for `load_config`.

    Raises:
        ExperimentError: a key or value is wrong, a list is empty, there is only one method, an
            environment is unknown or given twice, or the directory holds something else. Nothing is
            written before `holding`.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        directory: str | PathLike[str] | None = None,
        overrides: Sequence[str] = (),
    ):
        sources = study_sources(read_source(path, overrides))
        configs = [config_of(source) for source in sources]
        self._fields = dict(keys_of_files())
        self._configs = {_pair_name(config): to_plain(config) for config in configs}
        if len(self._configs) < len(configs):
            raise ExperimentError(
                "command line: a study's file names its methods and environments; leave --name and "
                "--env out."
            )
        if len({config.name for config in configs}) == 1:
            raise ExperimentError(
                f"{path}: one method leaves nothing to compare; add another, or use jaxagents "
                "train."
            )
        folder = Path(configs[0].runs_dir).expanduser() / Path(path).stem
        self.directory: Path = folder if directory is None else Path(directory)
        self._check_directory()
        self.runs: list[StudyRun] = []
        for source, config in zip(sources, configs, strict=True):
            with source.locating_errors(self._fields):
                self.runs += _runs_of(config, self.directory / _pair_name(config))

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Within this context, lock the study's directory, which is created if necessary.

        Raises:
            ExperimentError: another process holds it, or it cannot be written.
        """
        with contextlib.ExitStack() as held:
            with explained(kinds=OF_FILES):
                held.enter_context(HeldDirectory(self.directory))
                if not (self.directory / _DEFINITION).exists():
                    text = json.dumps(self._configs, indent=1)
                    write_atomically(self.directory / _DEFINITION, f"{text}\n")
            yield

    def compare(self) -> list[list[Row]]:
        """Compare the methods, as in `compare_runs`.

        Returns:
            The rows of one table. If there are several environments and no method has learned on
            one of them, returns have no common scale, and each environment has a table of its own.

        Raises:
            ExperimentError: a run has not been trained, or has NaN or infinite returns.
        """
        by_env = self._directories()
        try:
            return [table_of(read_groups([each for own in by_env.values() for each in own]))]
        except ExperimentError as error:
            if len(by_env) == 1:
                raise
            tables = [table_of(read_groups(own)) for own in by_env.values()]
            _logger.warning("each environment is compared alone: %s", error)
            return tables

    def write_tables(self, tables: Sequence[Sequence[Row]], text: str) -> list[Path]:
        """Write ``comparison.csv``, ``comparison.tex`` and ``comparison.txt``.

        Args:
            tables: From `compare`.
            text: The comparison in words.

        Returns:
            Their paths.
        """
        files = {
            "comparison.txt": f"{text}\n",
            "comparison.csv": csv_text([row for rows in tables for row in rows]),
            "comparison.tex": "\n\n".join(map(latex_of, tables)) + "\n",
        }
        with explained(kinds=OF_FILES):
            for name, content in files.items():
                write_atomically(self.directory / name, content)
        return [self.directory / name for name in files]

    def write_pages(self, replay: bool = True) -> list[Path]:
        """Write ``report.html``, and the returns on each environment as a figure in PDF.

        Args:
            replay: Show an episode of each pair in the report.

        Returns:
            Their paths.
        """
        from jaxagents.experiments.report.page import write_report
        from jaxagents.visual.run_plots import plot_runs

        by_env = self._directories()
        figures = {self.directory / f"returns-{_slug(env)}.pdf": by_env[env] for env in by_env}
        with explained(kinds=OF_FILES):
            for path, directories in figures.items():
                plot_runs(directories, path, size="column")
        every = [each for own in by_env.values() for each in own]
        return [*figures, write_report(every, self.directory / "report.html", replay)]

    def _directories(self) -> dict[str, list[Path]]:
        """List the runs' directories by environment."""
        found: dict[str, list[Path]] = {}
        for run in self.runs:
            found.setdefault(run.config.env, []).append(run.directory)
        return found

    def _check_directory(self) -> None:
        """Check that the directory is new, or holds this study."""
        check_holds(self.directory, _DEFINITION, "study")
        path = self.directory / _DEFINITION
        if not path.exists():
            return
        with explained(f"{path} cannot be read: "):
            before = dict(json.loads(path.read_text(encoding="utf-8")))
        changes = [f"{each} is gone" for each in before if each not in self._configs]
        for name, now in self._configs.items():
            if name not in before:
                changes.append(f"{name} is new")
            else:
                changes += [f"{name}: {each}" for each in _changes(before[name], now, self._fields)]
        if changes:
            raise ExperimentError(
                f"{self.directory} holds the study of another file: {changes[0]}; undo the change, "
                "or name a new directory by --to."
            )


def _runs_of(config: ExperimentConfig, directory: Path) -> list[StudyRun]:
    """Return the runs of a method on an environment, after checking that the agent is possible."""
    from jaxagents.ippo.population.training import check_can_be_population

    if not config.agent.n_evals:
        raise ExperimentError("agent.n_evals=0 leaves a study no curves; evaluate in training.")
    agent = Experiment(replace(config, seeds=1), directory).agent
    if config.seeds == 1 or agent.environments.can_be_vmapped:
        with explained():
            check_can_be_population(agent, config.seeds)
        return [StudyRun(config, directory)]
    seeds = range(config.seed, config.seed + config.seeds)
    return [
        StudyRun(
            replace(config, seed=seed, seeds=1),
            directory.with_name(f"{directory.name}-seed-{seed}"),
        )
        for seed in seeds
    ]


def _changes(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    fields: Mapping[str, ConfigField],
    prefix: str = "",
) -> Iterator[str]:
    """Describe the fields that have changed, apart from those of a later version of the package."""
    for name in before.keys() & now.keys():
        key = f"{prefix}{name}"
        if fields[key].is_group:
            yield from _changes(before[name], now[name], fields, f"{key}.")
        elif before[name] != now[name]:
            yield f"{key} is {yaml_text(now[name])}, and was {yaml_text(before[name])}"


def _pair_name(config: ExperimentConfig) -> str:
    """Name the directory of a method, whose name has no @, on an environment."""
    return f"{config.name}@{_slug(config.env)}"


def _slug(env: str) -> str:
    """Return an environment's id as the name of a file."""
    return re.sub(r"[^\w.-]+", "-", env)
