"""Commands on runs: playing, exporting, plotting, comparing and reporting them."""

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxagents.cli.arguments import Commands, add_command, add_mode, add_run, add_runs
from jaxagents.cli.output import shown_path, summary_text

if TYPE_CHECKING:
    from jaxagents.evaluation.comparison import PerformanceProfile
    from jaxagents.evaluation.runs import Run


def add_result_commands(commands: Commands) -> None:
    """Add the commands of this module."""
    _add_eval(commands)
    _add_replay(commands)
    _add_export(commands)
    _add_plot(commands)
    _add_compare(commands)
    _add_report(commands)
    _add_cross_play(commands)


def _add_plot(commands: Commands) -> None:
    command = add_command(commands, "plot", plot)
    add_runs(command)
    command.add_argument(
        "--metrics",
        metavar="NAME,...",
        help=(
            "metrics to plot, named as in metrics.jsonl, such as return,kl,actor_loss; by default "
            "the return, explained variance, clip fraction, entropy and gradient norms"
        ),
    )
    command.add_argument(
        "--to",
        metavar="FILE",
        help="a .png or .svg file; RUN/curves.png by default, ./curves.png for several runs",
    )


def _add_compare(commands: Commands) -> None:
    command = add_command(commands, "compare", _compare)
    add_runs(command)
    command.add_argument("--csv", metavar="FILE", help="write the numbers to a new file, too")
    command.add_argument(
        "--profiles",
        metavar="FILE",
        help="a .png or .svg file of performance profiles: the share of runs above each return",
    )


def _add_report(commands: Commands) -> None:
    command = add_command(commands, "report", report)
    add_runs(command)
    command.add_argument(
        "--to",
        metavar="FILE.html",
        help="RUN/report.html by default, ./report.html for several runs; replaces an earlier "
        "report, but no other file",
    )
    command.add_argument("--no-replay", action="store_true", help="show no episode")


def _add_cross_play(commands: Commands) -> None:
    command = add_command(commands, "crossplay", _cross_play)
    add_runs(command)
    command.add_argument("--n-evals", type=int, metavar="N", help="episodes per pair and actor")
    command.add_argument(
        "--to",
        metavar="FILE",
        help="a .png or .svg file, next to which the numbers are written as .csv; "
        "RUN/crossplay.png by default, ./crossplay.png for several runs",
    )


def plot(parsed: argparse.Namespace) -> None:
    """Plot the learning curves of runs.

    Runs that differ only in their seed share a curve: their interquartile mean with its 95 %
    bootstrap interval. A curve ends with its shortest run.
    """
    from jaxagents.errors import explained
    from jaxagents.evaluation.learning_curves import health_metrics
    from jaxagents.evaluation.runs import read_groups
    from jaxagents.evaluation.zoo import folder_of_results
    from jaxagents.visual.plots import check_replaceable, check_suffix, plot_runs

    path = Path(parsed.to or folder_of_results(parsed.runs) / "curves.png")
    check_suffix(path)
    groups = read_groups(parsed.runs)
    metrics = parsed.metrics.split(",") if parsed.metrics else ["return", *health_metrics(groups)]
    with explained(kinds=(OSError,)):
        check_replaceable(path)
        plot_runs(groups, path, metrics=list(dict.fromkeys(metrics)))
    print(path)


def _compare(parsed: argparse.Namespace) -> None:
    """Compare the returns of runs.

    Returns are those of the summaries. Runs that differ only in their seed form a group. Over
    several environments, runs are compared by their name, on one scale.
    """
    from jaxagents.errors import ExperimentError
    from jaxagents.evaluation.runs import read_groups
    from jaxagents.visual.plots import check_replaceable, check_suffix

    if parsed.csv is not None and os.path.exists(parsed.csv):
        raise ExperimentError(f"{parsed.csv} exists already; name another file.")
    if parsed.profiles is not None:
        check_suffix(Path(parsed.profiles))
        check_replaceable(Path(parsed.profiles))
    groups = read_groups(parsed.runs)
    envs = {runs[0].config["env"] for runs in groups.values()}
    compare_on = _compare_on_one if len(envs) == 1 else _compare_on_several
    compare_on(groups, parsed.csv, parsed.profiles)


def _compare_on_one(
    runs: "Mapping[str, Sequence[Run]]", table: str | None, picture: str | None
) -> None:
    from jaxagents.cli.output import comparison_text
    from jaxagents.evaluation.comparison import compare_groups, performance_profiles, table_of

    comparisons = compare_groups(runs)
    print(comparison_text(comparisons))
    if table is not None:
        _write_table(table, table_of(comparisons))
    if picture is not None:
        groups = {each.label: each for pair in comparisons for each in (pair.first, pair.second)}
        profiles = performance_profiles(list(groups.values()))
        (env,) = {of_group[0].config["env"] for of_group in runs.values()}
        _draw_profiles(picture, profiles, env, "return of the evaluation after training")


def _compare_on_several(
    runs: "Mapping[str, Sequence[Run]]", table: str | None, picture: str | None
) -> None:
    from jaxagents.cli.output import aggregates_text
    from jaxagents.evaluation.comparison import (
        aggregate,
        aggregate_profiles,
        improvements,
        table_of_aggregates,
    )

    methods = aggregate(runs)
    print(aggregates_text(methods, improvements(methods)))
    if table is not None:
        _write_table(table, table_of_aggregates(methods))
    if picture is not None:
        where = f"{len(methods[0].returns)} environments"
        _draw_profiles(picture, aggregate_profiles(methods), where, "score")


def _write_table(path: str, rows: "Sequence[Mapping[str, Any]]") -> None:
    import csv

    from jaxagents.errors import explained
    from jaxagents.training.atomic_write import replacing

    with (
        explained(kinds=(OSError,)),
        replacing(path) as new,
        open(new, "w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    print(path)


def _draw_profiles(
    path: str, profiles: "Mapping[str, PerformanceProfile]", env: str, quantity: str
) -> None:
    from jaxagents.errors import explained
    from jaxagents.visual.plots import plot_profiles

    with explained(kinds=(OSError,)):
        plot_profiles(profiles, Path(path), env, quantity)
    print(path)


def _cross_play(parsed: argparse.Namespace) -> None:
    """Let trained policies play with each other.

    They are of runs, of a population's seeds, or of the zoo, and all play the same environment.
    Each row plays one actor and each column the others, for every actor in turn.
    """
    from jaxagents.cli.output import cross_play_text
    from jaxagents.evaluation.zoo import folder_of_results
    from jaxagents.experiments.cross_play import (
        cross_play_of_runs,
        table_beside,
        write_cross_play,
    )
    from jaxagents.visual.plots import check_replaceable, check_suffix

    path = Path(parsed.to or folder_of_results(parsed.runs) / "crossplay.png")
    check_suffix(path)
    check_replaceable(path)
    table_beside(path)
    table = cross_play_of_runs(parsed.runs, parsed.n_evals)
    print(cross_play_text(table))
    print(*write_cross_play(table, path), sep="\n")


def report(parsed: argparse.Namespace) -> None:
    """Write an HTML page about runs: curves, evaluation, an episode, configuration.

    The page is self-contained; the runs may still train. Runs that differ only in their seed are
    shown as a group.
    """
    from jaxagents.experiments.report.page import write_report

    print(write_report(parsed.runs, parsed.to, replay=not parsed.no_replay))


def _add_eval(commands: Commands) -> None:
    command = add_command(commands, "eval", evaluate)
    add_run(command)
    command.add_argument("--n-evals", type=int, metavar="N", help="number of episodes")
    _add_how_to_play(command)


def _add_replay(commands: Commands) -> None:
    command = add_command(commands, "replay", replay)
    add_run(command)
    command.add_argument(
        "--episodes", type=int, default=1, metavar="N", help="number of episodes; 1 by default"
    )
    _add_how_to_play(command)
    command.add_argument(
        "--to",
        metavar="FOLDER",
        help="folder of the files; by default a new one, RUN/replay or RUN/replay-2",
    )
    command.add_argument("--mp4", action="store_true", help="write MP4 films too; needs ffmpeg")
    command.add_argument(
        "--max-frames",
        type=int,
        metavar="N",
        help="of longer episodes show every second, third, ... state only; 300 by default",
    )


def _add_how_to_play(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--sampled", action="store_true", help="sample actions instead of taking the most probable"
    )
    add_mode(command)
    command.add_argument("--seed", type=int, metavar="N", help="seed of the episodes")


def _add_export(commands: Commands) -> None:
    command = add_command(commands, "export", export)
    add_run(command)
    command.add_argument(
        "--to", metavar="DIRECTORY", help="directory of the files; RUN/export by default"
    )
    add_mode(command)


def evaluate(parsed: argparse.Namespace) -> None:
    """Evaluate the policies of a run.

    The episodes are by default those of its summary.
    """
    from jaxagents.experiments.experiment import Experiment

    experiment = Experiment.of_run(parsed.run)
    how = experiment.evaluation_by(
        n_evals=parsed.n_evals, greedy=_greedy(parsed), mode=parsed.mode, seed=parsed.seed
    )
    print(summary_text(experiment.evaluate(how)))


def replay(parsed: argparse.Namespace) -> None:
    """Animate episodes of a run.

    The files are episode-1.gif, ..., of the first episodes that `jaxagents eval` plays.
    """
    from jaxagents.experiments.experiment import Experiment

    for path in Experiment.of_run(parsed.run).replay(
        parsed.to,
        parsed.episodes,
        _greedy(parsed),
        parsed.mode,
        parsed.seed,
        parsed.mp4,
        parsed.max_frames,
    ):
        print(shown_path(path))


def _greedy(parsed: argparse.Namespace) -> bool | None:
    return False if parsed.sampled else None


def export(parsed: argparse.Namespace) -> None:
    """Write the policies of a run as safetensors.

    The files are policy.safetensors, and policy.json, which describes how to act with them.
    """
    from jaxagents.evaluation.zoo import folder_of_results
    from jaxagents.experiments.experiment import Experiment

    directory = parsed.to or folder_of_results([parsed.run]) / "export"
    for path in Experiment.of_run(parsed.run).export(directory, parsed.mode):
        print(path)
