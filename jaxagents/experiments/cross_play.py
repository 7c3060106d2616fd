"""Cross-play of runs that differ only in their seed."""

import csv
import os
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import jax

from jaxagents.errors import ExperimentError, explained
from jaxagents.evaluation.payoffs import CrossPlay, cross_play
from jaxagents.evaluation.runs import path_of_config, read_groups
from jaxagents.experiments.config_files.file import load_config
from jaxagents.experiments.config_files.schema import EvaluationConfig
from jaxagents.experiments.make_agent import make_environment, restored_agent
from jaxagents.experiments.zoo.places import is_entry
from jaxagents.training.atomic_write import replacing
from jaxagents.training.saved_run import structure_of
from jaxagents.visual.population_plots import draw_cross_play

_MARK = "jaxagents crossplay"  # the first cell of a table: only marked files are replaced


def table_beside(path: Path) -> Path:
    """Return the path of the table of numbers next to a picture.

    Raises:
        ExperimentError: another file is there.
    """
    numbers = path.with_suffix(".csv")
    if numbers.exists() and not numbers.read_bytes().startswith(_MARK.encode()):
        raise ExperimentError(
            f"{numbers} exists and was not made by jaxagents crossplay; choose another file with "
            "--to."
        )
    return numbers


def cross_play_of_runs(
    directories: Sequence[str | PathLike[str]], n_episodes: int | None = None
) -> CrossPlay:
    """Let the policies of runs play with each other, as each run's evaluation does.

    Args:
        directories: Of populations, or of runs that differ only in their seed; or of entries of
            the zoo for the same environment, whose policies have the same structure.
        n_episodes: Per pair and part; None: as the runs are evaluated.

    Raises:
        ExperimentError: a directory holds no run; the runs differ in more than the seed; there is
            only one; or the actors are no team.
    """
    from jaxagents.ippo.opponents import FrozenPolicies

    names = _players(directories)
    config = load_config(path_of_config(next(iter(names.values()))))
    if config.side.actors:
        raise ExperimentError("the runs play one side of an environment; use jaxagents.payoffs.")
    how: EvaluationConfig = config.evaluation
    with explained():
        env, env_params = make_environment(config)
        trained = [restored_agent(directory) for directory in names.values()]
        runners = dict(zip(names, (runner for _, runner in trained), strict=True))
        return cross_play(
            env,
            env_params,
            FrozenPolicies(trained[0][0], runners, greedy=how.greedy),
            jax.random.key(how.seed),
            how.n_evals if n_episodes is None else n_episodes,
            max_episode_steps=config.agent.max_episode_steps,
        )


def _players(directories: Sequence[str | PathLike[str]]) -> dict[str, Path]:
    """Name the players, and return their directories.

    Raises:
        ExperimentError: they do not play the same game, or entries have other structures.
    """
    if all(is_entry(each) for each in directories):
        return _entries_as_players([Path(each) for each in directories])
    groups = read_groups(directories)
    if len(groups) > 1:
        raise ExperimentError(
            f"{', '.join(groups)} differ in more than the seed; partners must play the same game."
        )
    (runs,) = groups.values()
    return {f"seed {run.config.get('seed', 0)}": run.directory for run in runs}


def _entries_as_players(directories: Sequence[Path]) -> dict[str, Path]:
    configs = {each: load_config(path_of_config(each)) for each in directories}
    first, *others = configs.values()
    for config in others:
        for name in ("env", "env_kwargs", "env_params", "side"):
            if getattr(config, name) != getattr(first, name):
                raise ExperimentError(
                    f"{name} is {getattr(first, name)!r} and {getattr(config, name)!r}; partners "
                    "must play the same game."
                )
        if structure_of(config.agent) != structure_of(first.agent):
            raise ExperimentError(
                "the entries' policies differ in structure, such as layers or parameter sharing; "
                "cross-play needs the same."
            )
    common = os.path.commonpath([each.absolute().parent for each in directories])
    names = {each.absolute().relative_to(common).as_posix(): each for each in directories}
    if len(names) < len(directories):
        raise ExperimentError("an entry is given twice; leave it out.")
    return names


def write_cross_play(table: CrossPlay, path: Path, title: str = "") -> list[Path]:
    """Draw the matrix, and write its means as CSV next to the picture.

    Raises:
        ExperimentError: a file cannot be written.
    """
    numbers = table_beside(path)
    with explained():
        draw_cross_play(table, path, title)
        with replacing(numbers) as new, new.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow([_MARK, *table.names])
            for name, row in zip(table.names, table.mean.tolist(), strict=True):
                writer.writerow([name, *row])
    return [path, numbers]
