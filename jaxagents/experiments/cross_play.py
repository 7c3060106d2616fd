"""Cross-play of runs that play the same environment."""

import csv
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

import jax

from jaxagents.errors import ExperimentError, explained
from jaxagents.evaluation.payoffs import CrossPlay, cross_play
from jaxagents.evaluation.runs import Run, path_of_config, read_groups
from jaxagents.experiments.config_files.file import load_config
from jaxagents.experiments.config_files.schema import EvaluationConfig, ExperimentConfig
from jaxagents.experiments.make_agent import make_environment, restored_agent
from jaxagents.training.atomic_write import replacing
from jaxagents.visual.population_plots import draw_cross_play

_MARK = "jaxagents crossplay"  # the first cell of a table: only marked files are replaced


def table_beside(path: Path) -> Path:
    """Return the path of the table of numbers next to a picture.

    Raises:
        ExperimentError: another file or a folder is there.
    """
    numbers = path.with_suffix(".csv")
    if numbers.is_dir():
        raise ExperimentError(
            f"{numbers} is a folder, but the numbers are written to a file of that name; choose "
            "another file with --to."
        )
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
        directories: Directories of populations or runs, or entries of the zoo as ``zoo:ID``.
        n_episodes: Episodes per pair and part; None: as many as in the runs' evaluations.

    Raises:
        ExperimentError: a directory holds no run; the runs play different environments; there is
            only one; or the actors are not a team.
    """
    from jaxagents.ippo.opponents import FrozenPolicies

    groups = read_groups(directories)
    runs = [run for group in groups.values() for run in group]
    config = load_config(path_of_config(runs[0].directory))
    _check_same_game(config, runs[1:])
    if config.side.actors:
        raise ExperimentError("the runs play one side of an environment; use jaxagents.payoffs.")
    how: EvaluationConfig = config.evaluation
    with explained():
        env, env_params = make_environment(config)
        trained = [restored_agent(run.directory) for run in runs]
        players = [
            FrozenPolicies(agent, {name: runner}, greedy=how.greedy)
            for name, (agent, runner) in zip(_names_of(groups), trained, strict=True)
        ]
        return cross_play(
            env,
            env_params,
            players,
            jax.random.key(how.seed),
            how.n_evals if n_episodes is None else n_episodes,
            max_episode_steps=config.agent.max_episode_steps,
        )


def _check_same_game(config: ExperimentConfig, others: Sequence[Run]) -> None:
    """Raise ExperimentError if a run plays another environment than a configuration's."""
    for run in others:
        other = load_config(path_of_config(run.directory))
        for name in ("env", "env_kwargs", "env_params", "side"):
            own, its = getattr(config, name), getattr(other, name)
            if own != its:
                raise ExperimentError(
                    f"{run.directory}: its {name} is {its!r}, and that of the first run is "
                    f"{own!r}; partners must play the same game."
                )


def _names_of(groups: Mapping[str, Sequence[Run]]) -> list[str]:
    """Name the players: by their seeds, and by the groups' labels if there are several."""
    names = []
    for label, runs in groups.items():
        seeds = [f"seed {run.config.get('seed', 0)}" for run in runs]
        if len(groups) > 1:
            seeds = [label] if len(runs) == 1 else [f"{label}, {seed}" for seed in seeds]
        names += seeds
    return names


def write_cross_play(table: CrossPlay, path: Path) -> list[Path]:
    """Draw the matrix, and write its means as CSV next to the picture.

    Raises:
        ExperimentError: a file cannot be written.
    """
    numbers = table_beside(path)
    with explained():
        draw_cross_play(table, path)
        with replacing(numbers) as new, new.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow([_MARK, *table.names])
            for name, row in zip(table.names, table.mean.tolist(), strict=True):
                writer.writerow([name, *row])
    return [path, numbers]
