"""The command line: what it accepts and what it prints.

Everything heavy is imported inside the commands, so that help and usage errors come at once.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, final

import jaxagents
from jaxagents.printing import (
    EvaluationLines,
    described,
    markdown_table,
    next_steps_text,
    summary_text,
    table,
    titled,
)

if TYPE_CHECKING:
    from jaxagents.experiment import Experiment

_MOST_COLUMNS = 100
_FAILED, _USAGE_ERROR, _INTERRUPTED = 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: Those of the command line; None: the process's own.

    Returns:
        The exit status: 0, 2 where something asked for cannot be done, 130 after Ctrl-C, 143
        after SIGTERM, 1 where training failed or nobody reads the output any more.
    """
    parser = _make_parser()
    try:
        parsed, overrides = parser.parse_known_args(arguments)
        if overrides and parsed.command not in (train, resume):
            parser.error(f"unrecognized arguments: {' '.join(overrides)}")
        status = parsed.command(parsed, overrides) or 0
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _end("interrupted", _INTERRUPTED)
    except BrokenPipeError:
        # As Python's manual of signals advises: its own flush at exit would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILED
    except Exception as error:
        from jaxagents.errors import ExperimentError

        if not isinstance(error, ExperimentError):
            raise
        return _end(f"error: {error}", _USAGE_ERROR)
    return status


def _end(message: str, status: int) -> int:
    print(f"jaxagents: {message}", file=sys.stderr)
    return status


@final
class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(_USAGE_ERROR, f"{self.prog}: error: {message}; see {self.prog} --help\n")


def _make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="jaxagents",
        description="Train, evaluate and keep multi-agent IPPO agents.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=jaxagents.__version__)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_train(commands)
    _add_resume(commands)
    _add_eval(commands)
    _add_replay(commands)
    _add_export(commands)
    _add_plot(commands)
    _add_compare(commands)
    _add_config(commands)
    _add_report(commands)
    listing = commands.add_parser(
        "envs",
        help="list the environments",
        description="List the environments: their actors, and what one of these observes and does.",
        allow_abbrev=False,
    )
    listing.add_argument("filter", metavar="FILTER", nargs="?", default="", help="part of an id")
    listing.add_argument("--markdown", action="store_true", help="as a table in Markdown")
    listing.set_defaults(command=envs)
    return parser


def _add_train(commands: Any) -> None:
    command = commands.add_parser(
        "train",
        help="train an agent as a configuration file says",
        usage="jaxagents train CONFIG [--quiet] [--KEY VALUE ...]",
        add_help=False,
        allow_abbrev=False,
    )
    command.add_argument("config", metavar="CONFIG", help="a YAML file")
    _add_quiet(command)
    command.add_argument("--help", "-h", action=_TrainHelp, nargs=0, help="show this and exit")
    command.set_defaults(command=train)


def _add_resume(commands: Any) -> None:
    command = commands.add_parser(
        "resume",
        help="go on with a training that was interrupted, or extend one",
        description=(
            "Go on from a run's last good checkpoint, as if it had never been interrupted. "
            "--agent.n_steps N extends a run; hyperparameters may change too, networks may not."
        ),
        usage="jaxagents resume RUN [--quiet] [--KEY VALUE ...]",
        allow_abbrev=False,
    )
    _add_run(command)
    _add_quiet(command)
    command.set_defaults(command=resume)


@final
class _TrainHelp(argparse.Action):
    """Shows the command's own help, then that of every key of a configuration."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from jaxagents.configuration import help_text

        print(parser.format_help())
        print("Keys of CONFIG, each of which --KEY VALUE overrides:\n")
        print(help_text(min(shutil.get_terminal_size().columns, _MOST_COLUMNS)))
        parser.exit()


def _add_eval(commands: Any) -> None:
    command = commands.add_parser(
        "eval",
        help="play the policies of a run again",
        description="Play episodes with the policies of a run, by default those of its summary.",
        allow_abbrev=False,
    )
    _add_run(command)
    command.add_argument("--n-evals", type=int, metavar="N", help="number of episodes")
    command.add_argument(
        "--sampled", action="store_true", help="sample the actions, do not take the likeliest"
    )
    _add_mode(command)
    command.add_argument("--seed", type=int, metavar="N", help="seed of the episodes")
    command.set_defaults(command=evaluate)


def _add_replay(commands: Any) -> None:
    command = commands.add_parser(
        "replay",
        help="show episodes of a run as animations",
        description=(
            "Play episodes with the policies of a run and write them as episode-1.gif, ... "
            "They are the first of those that `jaxagents eval` plays."
        ),
        allow_abbrev=False,
    )
    _add_run(command)
    command.add_argument(
        "--episodes", type=int, default=1, metavar="N", help="how many; by default 1"
    )
    command.add_argument(
        "--sampled", action="store_true", help="sample the actions, do not take the likeliest"
    )
    _add_mode(command)
    command.add_argument("--seed", type=int, metavar="N", help="seed of the episodes")
    command.add_argument(
        "--to", metavar="FOLDER", help="where to; by default a new one, RUN/replay or RUN/replay-2"
    )
    command.add_argument("--mp4", action="store_true", help="write films as well; needs ffmpeg")
    command.set_defaults(command=replay)


def _add_export(commands: Any) -> None:
    command = commands.add_parser(
        "export",
        help="write the policies of a run as safetensors",
        description=(
            "Write the policies of a run as policy.safetensors, and what it takes to act by them "
            "as policy.json."
        ),
        allow_abbrev=False,
    )
    _add_run(command)
    command.add_argument("--to", metavar="DIRECTORY", help="where to; by default RUN/export")
    _add_mode(command)
    command.set_defaults(command=export)


def _add_plot(commands: Any) -> None:
    command = commands.add_parser(
        "plot",
        help="draw the learning curves of runs",
        description=(
            "Draw the learning curves of runs. Runs that differ in their seed only are one curve: "
            "their interquartile mean, and its 95 %% bootstrap interval. A curve ends where its "
            "shortest run does."
        ),
        allow_abbrev=False,
    )
    _add_runs(command)
    command.add_argument(
        "--metrics",
        metavar="NAME,...",
        default="return",
        help="what to draw, as in metrics.jsonl: return,kl,actor_loss for example",
    )
    command.add_argument(
        "--to",
        metavar="FILE",
        help="a .png or .svg file; by default RUN/curves.png, of several runs ./curves.png",
    )
    command.set_defaults(command=plot)


def _add_compare(commands: Any) -> None:
    command = commands.add_parser(
        "compare",
        help="tell whether some runs earn more than others",
        description=(
            "Compare the returns of groups of runs, by their summaries. Runs that differ in their "
            "seed only are one group."
        ),
        allow_abbrev=False,
    )
    _add_runs(command)
    command.set_defaults(command=compare)


def _add_runs(command: Any) -> None:
    command.add_argument("runs", metavar="RUN", nargs="+", help="the directories of runs")


def _add_config(commands: Any) -> None:
    command = commands.add_parser(
        "config",
        help="print a configuration file to begin with",
        description="Print a configuration file for an environment: every key, explained.",
        allow_abbrev=False,
    )
    command.add_argument("env", metavar="ENV", help="one of those that `jaxagents envs` lists")
    command.add_argument("--to", metavar="FILE", help="write it there, where there is none yet")
    command.set_defaults(command=config)


def _add_report(commands: Any) -> None:
    command = commands.add_parser(
        "report",
        help="write a page about runs: curves, evaluation, an episode, configuration",
        description=(
            "Write one HTML page about runs, finished or still training, which needs nothing "
            "beside itself. Runs that differ in their seed only are shown as a group."
        ),
        allow_abbrev=False,
    )
    _add_runs(command)
    command.add_argument(
        "--to",
        metavar="FILE.html",
        help="by default RUN/report.html, of several runs ./report.html; an earlier report there "
        "is replaced, any other file is not",
    )
    command.add_argument("--no-replay", action="store_true", help="show no episode")
    command.set_defaults(command=report)


def _add_run(command: Any) -> None:
    command.add_argument("run", metavar="RUN", help="the directory of a run")


def _add_mode(command: Any) -> None:
    command.add_argument("--mode", choices=["best", "last"], help="which checkpoint")


def _add_quiet(command: Any) -> None:
    text = "print nothing but the run's directory, at the end"
    command.add_argument("--quiet", action="store_true", help=text)


# The commands.


def train(parsed: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Train as a configuration file says, and show how it goes."""
    from jaxagents.configuration import load_config, places_named
    from jaxagents.experiment import Experiment

    config = load_config(parsed.config, overrides)
    if not parsed.quiet:
        print(titled(config), flush=True)
    with places_named(parsed.config, overrides):
        experiment = Experiment(config, **_shown(parsed.quiet))
    return _run(experiment, experiment.train, parsed.quiet)


def resume(parsed: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Go on with a run, and show how it goes."""
    from jaxagents.experiment import Experiment

    experiment = Experiment.of_run(parsed.run, overrides, **_shown(parsed.quiet))
    if not parsed.quiet:
        print(titled(experiment.config), flush=True)
    return _run(experiment, experiment.resume, parsed.quiet)


def _shown(quiet: bool) -> dict[str, Any]:
    show_bar = not quiet and sys.stderr.isatty()
    callbacks = [] if quiet else [EvaluationLines(beside_bar=show_bar)]
    return {"callbacks": callbacks, "progress_bar": show_bar}


def _run(experiment: "Experiment", work: Callable[[], dict[str, Any]], quiet: bool) -> int:
    """Do the work of a command that trains; return its exit status."""
    from jaxagents.finiteness import NonFiniteError
    from jaxagents.interruption import Interrupted

    if not quiet:
        print(described(experiment), flush=True)
    try:
        summary = work()
    except Interrupted as interrupted:
        sys.stdout.flush()
        status = 128 + interrupted.signal_number
        _end(f"interrupted; go on by: jaxagents resume {experiment.directory}", status)
        if interrupted.at_once:
            os._exit(status)  # nothing else ends the thread that trains
        return status
    except KeyboardInterrupt:  # while something else than training went on
        sys.stdout.flush()
        return _end(f"interrupted; go on by: jaxagents resume {experiment.directory}", _INTERRUPTED)
    except NonFiniteError as error:
        return _end(f"error: {error} What there is, is in {experiment.directory}", _FAILED)
    if quiet:
        print(experiment.directory)
    else:
        print(summary_text(summary), next_steps_text(experiment), sep="\n")
    return 0


def evaluate(parsed: argparse.Namespace, _: Sequence[str]) -> None:
    """Evaluate the policies of a run."""
    import dataclasses

    from jaxagents.experiment import Experiment

    experiment = Experiment.of_run(parsed.run)
    given = {"n_evals": parsed.n_evals, "mode": parsed.mode, "seed": parsed.seed}
    given["greedy"] = False if parsed.sampled else None
    changes = {name: value for name, value in given.items() if value is not None}
    how = dataclasses.replace(experiment.config.evaluation, **changes)
    print(summary_text(experiment.evaluate(how)))


def replay(parsed: argparse.Namespace, _: Sequence[str]) -> None:
    """Write animations of a run's episodes."""
    from jaxagents.experiment import Experiment

    greedy = False if parsed.sampled else None
    for path in Experiment.of_run(parsed.run).replay(
        parsed.to, parsed.episodes, greedy, parsed.mode, parsed.seed, parsed.mp4
    ):
        print(path)


def export(parsed: argparse.Namespace, _: Sequence[str]) -> None:
    """Export the policies of a run."""
    from jaxagents.experiment import Experiment

    directory = parsed.to or os.path.join(parsed.run, "export")
    for path in Experiment.of_run(parsed.run).export(directory, parsed.mode):
        print(path)


def plot(parsed: argparse.Namespace, _: Sequence[str]) -> None:
    """Draw the learning curves of runs."""
    from pathlib import Path

    from jaxagents.errors import explained
    from jaxagents.plotting import check_replaceable, check_suffix, plot_runs
    from jaxagents.runs import read_groups

    directory = parsed.runs[0] if len(parsed.runs) == 1 else "."
    path = Path(parsed.to or os.path.join(directory, "curves.png"))
    check_suffix(path)
    groups = read_groups(parsed.runs)
    metrics = list(dict.fromkeys(parsed.metrics.split(",")))
    with explained(kinds=(OSError,)):
        check_replaceable(path)
        plot_runs(groups, path, metrics=metrics)
    print(path)


def compare(parsed: argparse.Namespace, _: Sequence[str]) -> None:
    """Compare the returns of groups of runs."""
    from jaxagents.comparison import compare_groups
    from jaxagents.printing import comparison_text
    from jaxagents.runs import read_groups

    print(comparison_text(compare_groups(read_groups(parsed.runs))))


def config(parsed: argparse.Namespace, _: Sequence[str]) -> None:
    """Print a configuration file for an environment, or write it."""
    from jaxagents.errors import explained
    from jaxagents.starting_file import starting_file

    with explained(), explained("its data cannot be had: ", kinds=(OSError,)):
        text = starting_file(parsed.env)
    if parsed.to is None:
        print(text, end="")
        return
    with explained("the file cannot be written: "), open(parsed.to, "x", encoding="utf-8") as file:
        file.write(text)
    print(f"jaxagents train {parsed.to}")


def report(parsed: argparse.Namespace, _: Sequence[str]) -> None:
    """Write a page about runs."""
    from jaxagents.reporting.page import write_report

    print(write_report(parsed.runs, parsed.to, replay=not parsed.no_replay))


def envs(parsed: argparse.Namespace, _: Sequence[str]) -> None:
    """List the environments whose ids contain the filter."""
    from jaxagents.environments.registry import describe, registered_ids

    matching = [each for each in registered_ids() if parsed.filter.lower() in each.lower()]
    if not matching:
        from jaxagents.errors import ExperimentError

        raise ExperimentError(f"no environment's id contains {parsed.filter!r}")
    rows = [["id", "actors", "observation", "actions", "also", "episodes are truncated by"]]
    for env_id in matching:
        try:
            info = describe(env_id)
        except OSError:  # of one of them
            rows.append([env_id, "", "", "", "", "not available here: its data are downloaded"])
            continue
        shape = "x".join(map(str, info.observation_shape)) or "scalar"
        observation = f"{shape} {info.observation_dtype}"
        traits = ", ".join(info.traits)
        rows.append(
            [
                env_id,
                str(info.n_actors),
                observation,
                info.action_space,
                traits,
                info.truncation_rule,
            ]
        )
    print(markdown_table(rows) if parsed.markdown else table(rows))
