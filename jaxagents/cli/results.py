"""Commands on runs: playing, exporting, plotting, comparing and reporting them."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxagents.cli.arguments import Commands, add_command, add_mode, add_run, add_runs
from jaxagents.cli.output import comparison_text, cross_play_text, shown_path, summary_text

if TYPE_CHECKING:
    from jaxagents.evaluation.runs import Run
    from jaxagents.experiments.experiment import Experiment


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
    add_runs(command, or_entries=False)
    command.add_argument(
        "--metrics",
        metavar="NAME,...",
        help=(
            "metrics to plot, named as in metrics.jsonl, such as return,kl,actor_loss; by default "
            "the return, explained variance, clip fraction, entropy and gradient norms"
        ),
    )
    command.add_argument(
        "--labels",
        metavar="NAME=LABEL,...",
        help="labels of the curves, by the names of their configurations; or only the labels, in "
        "the order in which the runs are given",
    )
    command.add_argument(
        "--x",
        choices=["steps", "updates", "time"],
        default="steps",
        help="horizontal axis: environment steps, updates, or time of training",
    )
    command.add_argument(
        "--smooth",
        type=int,
        default=1,
        metavar="N",
        help="smooth curves by the mean of N evaluations around each, or fewer at either end",
    )
    command.add_argument(
        "--actors",
        choices=["mean", "each", "team"],
        help="one panel for the mean over actors, for each actor that differs, or for each team; "
        "by default each for a single curve; for several curves team if the runs have teams, "
        "otherwise mean",
    )
    command.add_argument(
        "--size",
        choices=["column", "page"],
        help="width of a paper's column, 3.4 inches, or page, 7 inches, with fonts of 7 and 8 "
        "points",
    )
    command.add_argument(
        "--to",
        metavar="FILE",
        help="a .png, .svg or .pdf file; RUN/curves.png by default, ./curves.png for several runs",
    )


def _add_compare(commands: Commands) -> None:
    command = add_command(commands, "compare", _compare)
    add_runs(command, or_entries=False)
    command.add_argument(
        "--labels",
        metavar="NAME=LABEL,...",
        help="what to call groups, by the names of their configurations",
    )
    command.add_argument(
        "--csv",
        metavar="FILE",
        help="write all numbers to a new file; with -, print them and nothing else",
    )
    command.add_argument(
        "--latex", action="store_true", help="print tables in LaTeX, for the package booktabs"
    )
    command.add_argument(
        "--marl-eval",
        metavar="FILE",
        help="write all evaluations to a new JSON file, in the format of MARL-eval and rliable",
    )
    command.add_argument(
        "--profiles",
        metavar="FILE",
        help="a .png, .svg or .pdf file of performance profiles: the share of runs above each "
        "return",
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
        help="a .png, .svg or .pdf file, next to which the numbers are written as .csv; "
        "RUN/crossplay.png by default, ./crossplay.png for several runs",
    )


def plot(parsed: argparse.Namespace) -> None:
    """Plot the learning curves of runs.

    Runs that differ only in their seed share a curve: their interquartile mean with its 95 %
    bootstrap interval. A curve ends where the shortest of its runs ends. For papers, --size prints
    the caption.
    """
    from jaxagents.errors import explained
    from jaxagents.evaluation.learning_curves import health_metrics
    from jaxagents.evaluation.runs import read_groups
    from jaxagents.evaluation.zoo import folder_of_results
    from jaxagents.visual.picture_files import check_replaceable, check_suffix
    from jaxagents.visual.run_plots import plot_runs

    path = Path(parsed.to or folder_of_results(parsed.runs) / "curves.png")
    check_suffix(path)
    groups = read_groups(parsed.runs)
    metrics = parsed.metrics.split(",") if parsed.metrics else ["return", *health_metrics(groups)]
    with explained(kinds=(OSError,)):
        check_replaceable(path)
        figure = plot_runs(
            groups,
            path,
            metrics=list(dict.fromkeys(metrics)),
            labels=_labels(parsed.labels),
            x=parsed.x,
            smooth=parsed.smooth,
            actors=parsed.actors,
            size=parsed.size,
        )
    print(path)
    if parsed.size is not None:
        print(figure.get_label())


def _labels(text: str | None) -> list[str] | dict[str, str] | None:
    """Parse --labels: a dictionary if each label has a name, otherwise a list."""
    if text is None:
        return None
    labels = text.split(",")
    if not all("=" in each for each in labels):
        return labels
    return {name: label for name, _, label in (each.partition("=") for each in labels)}


def _compare(parsed: argparse.Namespace) -> None:
    """Compare the returns of runs.

    Returns are read from the runs' summaries. Runs that differ only in their seed form a group.
    Over several environments, all runs of one name are compared as one method, on a common scale.
    """
    from jaxagents.errors import ExperimentError, explained
    from jaxagents.evaluation.comparison_tables import csv_text, latex_of, table_of
    from jaxagents.evaluation.marl_eval import marl_eval_text
    from jaxagents.evaluation.runs import read_groups, renamed
    from jaxagents.training.atomic_write import write_atomically
    from jaxagents.visual.picture_files import check_replaceable, check_suffix

    for path in (parsed.csv, parsed.marl_eval):
        if path is not None and path != "-" and os.path.exists(path):
            raise ExperimentError(f"{path} exists already; name another file.")
    if parsed.profiles is not None:
        check_suffix(Path(parsed.profiles))
        check_replaceable(Path(parsed.profiles))
    labels = _labels(parsed.labels) or {}
    if not isinstance(labels, Mapping):
        raise ExperimentError(f"--labels {parsed.labels} is not of the form NAME=LABEL,...")
    groups = renamed(read_groups(parsed.runs), labels)
    rows = table_of(groups)
    tables = [latex_of(rows)] if parsed.latex else []
    files = {} if parsed.marl_eval is None else {parsed.marl_eval: marl_eval_text(groups)}
    if parsed.csv == "-":
        tables.append(csv_text(rows).rstrip())
    elif parsed.csv is not None:
        files[parsed.csv] = csv_text(rows)
    print(*tables or [comparison_text(rows)], sep="\n")
    with explained(kinds=(OSError,)):
        for path, text in files.items():
            write_atomically(Path(path), text)
        if parsed.profiles is not None:
            _draw_profiles(groups, Path(parsed.profiles))
            files[parsed.profiles] = ""
    if files:  # not among tables, which other programs read
        print(*files, sep="\n", file=sys.stderr if tables else sys.stdout)


def _draw_profiles(groups: "Mapping[str, Sequence[Run]]", path: Path) -> None:
    from jaxagents.evaluation.aggregates import aggregate, aggregate_profiles
    from jaxagents.evaluation.comparison import make_group, performance_profiles
    from jaxagents.visual.run_plots import plot_profiles

    envs = {runs[0].config["env"] for runs in groups.values()}
    if len(envs) == 1:
        profiles = performance_profiles([make_group(*each) for each in groups.items()])
        where, quantity = envs.pop(), "return of the evaluation after training"
    else:
        profiles = aggregate_profiles(aggregate(groups))
        where, quantity = f"{len(envs)} environments", "score"
    plot_profiles(profiles, path, where, quantity)


def _cross_play(parsed: argparse.Namespace) -> None:
    """Let trained policies play with each other.

    They come from runs, from the seeds of a population, or from the zoo, and all play the same
    environment. The policy of a row plays one actor and that of a column the others, for every
    actor in turn.
    """
    from jaxagents.evaluation.zoo import folder_of_results
    from jaxagents.experiments.cross_play import (
        cross_play_of_runs,
        table_beside,
        write_cross_play,
    )
    from jaxagents.visual.picture_files import check_replaceable, check_suffix

    path = Path(parsed.to or folder_of_results(parsed.runs) / "crossplay.png")
    check_suffix(path)
    check_replaceable(path)
    table_beside(path)
    table = cross_play_of_runs(parsed.runs, parsed.n_evals)
    print(cross_play_text(table))
    print(*write_cross_play(table, path), sep="\n")


def report(parsed: argparse.Namespace) -> None:
    """Write an HTML page about runs: curves, evaluation, an episode, configuration.

    The page is self-contained; the runs may still be training. Runs that differ only in their seed
    are shown as a group.
    """
    from jaxagents.experiments.report.page import write_report

    print(write_report(parsed.runs, parsed.to, replay=not parsed.no_replay))


def _add_eval(commands: Commands) -> None:
    usage = "RUN [-h] [--n-evals N] [--sampled] [--mode {best,last}] [--seed N] [--KEY VALUE ...]"
    command = add_command(commands, "eval", evaluate, usage, takes_overrides=True)
    add_run(command)
    command.add_argument("--n-evals", type=int, metavar="N", help="number of episodes")
    _add_how_to_play(command)


def _add_replay(commands: Commands) -> None:
    command = add_command(
        commands, "replay", replay, "RUN [OPTION ...] [--KEY VALUE ...]", takes_overrides=True
    )
    add_run(command)
    command.add_argument(
        "--episodes", type=int, default=1, metavar="N", help="number of episodes; 1 by default"
    )
    _add_how_to_play(command)
    command.add_argument(
        "--to",
        metavar="FOLDER",
        help="folder of the files; by default a new one: RUN/replay, RUN/replay-2, ..., or, if "
        "keys are changed, replay in the current folder",
    )
    command.add_argument(
        "--mp4", action="store_true", help="write MP4 films too; needs ffmpeg or the extra mp4"
    )
    command.add_argument(
        "--view", action="store_true", help="also show each actor's value and likely actions"
    )
    command.add_argument(
        "--max-frames",
        type=int,
        metavar="N",
        help="show only every second, third, ... state of longer episodes; 300 by default",
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
    command.add_argument(
        "--onnx", action="store_true", help="write policy.onnx too; needs the extra onnx"
    )
    add_mode(command)


def evaluate(parsed: argparse.Namespace) -> None:
    """Evaluate the policies of a run.

    By default it plays the episodes of the run's summary. --KEY VALUE changes the run's
    configuration: the policies then play in another environment, such as one with a larger team.
    """
    experiment = _experiment_to_play(parsed, "eval")
    how = experiment.evaluation_by(
        n_evals=parsed.n_evals, greedy=_greedy(parsed), mode=parsed.mode, seed=parsed.seed
    )
    print(summary_text(experiment.evaluate(how)))


def _experiment_to_play(parsed: argparse.Namespace, command: str) -> "Experiment":
    from jaxagents.experiments.config_files.source import refuse_other_keys
    from jaxagents.experiments.experiment import Experiment

    if not parsed.overrides:
        return Experiment.of_run(parsed.run)
    groups = ("env", "env_kwargs", "env_params", "side", "agent")
    refuse_other_keys(parsed.overrides, groups, command)
    return Experiment.elsewhere(parsed.run, parsed.overrides)


def replay(parsed: argparse.Namespace) -> None:
    """Animate episodes of a run.

    The files episode-1.gif, ... show the first episodes that `jaxagents eval` plays. --KEY VALUE
    changes the run's configuration, as it does there.
    """
    for path in _experiment_to_play(parsed, "replay").replay(
        parsed.to,
        parsed.episodes,
        _greedy(parsed),
        parsed.mode,
        parsed.seed,
        parsed.mp4,
        parsed.max_frames,
        parsed.view,
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
    for path in Experiment.of_run(parsed.run).export(directory, parsed.mode, parsed.onnx):
        print(path)
