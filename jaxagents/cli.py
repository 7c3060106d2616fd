"""The command line: what it accepts and what it prints.

Everything heavy is imported inside the commands, so that help and usage errors come at once.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, final

import jaxagents

if TYPE_CHECKING:
    from jaxagents.experiment import Experiment, ExperimentConfig
    from jaxagents.tracking import Evaluation

_FAILED, _USAGE_ERROR, _INTERRUPTED = 1, 2, 130
_MOST_ACTORS_IN_A_LINE = 4


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
        from jaxagents.experiment import ExperimentError

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
    _add_export(commands)
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
    command.add_argument(
        "--quiet", action="store_true", help="print nothing but the run's directory, at the end"
    )
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
    command.add_argument("run", metavar="RUN", help="the directory of a run")
    command.add_argument(
        "--quiet", action="store_true", help="print nothing but the run's directory, at the end"
    )
    command.set_defaults(command=resume)


@final
class _TrainHelp(argparse.Action):
    """Shows the command's own help, then that of every key of a configuration."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from jaxagents.experiment import make_parser

        keys = make_parser().format_help()
        print(parser.format_help())
        print("Keys of CONFIG, each of which --KEY VALUE overrides:\n")
        print(keys[keys.index("The run:") :].rstrip())
        parser.exit()


def _add_eval(commands: Any) -> None:
    command = commands.add_parser(
        "eval",
        help="play the policies of a run again",
        description="Play episodes with the policies of a run, by default those of its summary.",
        allow_abbrev=False,
    )
    command.add_argument("run", metavar="RUN", help="the directory of a run")
    command.add_argument("--n-evals", type=int, metavar="N", help="number of episodes")
    command.add_argument(
        "--sampled", action="store_true", help="sample the actions, do not take the likeliest"
    )
    command.add_argument("--mode", choices=["best", "last"], help="which checkpoint")
    command.add_argument("--seed", type=int, metavar="N", help="seed of the episodes")
    command.set_defaults(command=evaluate)


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
    command.add_argument("run", metavar="RUN", help="the directory of a run")
    command.add_argument("--to", metavar="DIRECTORY", help="where to; by default RUN/export")
    command.add_argument("--mode", choices=["best", "last"], help="which checkpoint")
    command.set_defaults(command=export)


# The commands.


def train(parsed: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Train as a configuration file says, and show how it goes."""
    from jaxagents.experiment import Experiment, load_config

    config = load_config(parsed.config, overrides)
    if not parsed.quiet:
        print(_titled(config), flush=True)
    experiment = Experiment(config, **_shown(parsed.quiet))
    return _run(experiment, experiment.train, parsed.quiet)


def resume(parsed: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Go on with a run, and show how it goes."""
    from jaxagents.experiment import Experiment

    experiment = Experiment.of_run(parsed.run, overrides, **_shown(parsed.quiet))
    if not parsed.quiet:
        print(_titled(experiment.config), flush=True)
    return _run(experiment, experiment.resume, parsed.quiet)


def _shown(quiet: bool) -> dict[str, Any]:
    show_bar = not quiet and sys.stderr.isatty()
    callbacks = [] if quiet else [_EvaluationLines(beside_bar=show_bar)]
    return {"callbacks": callbacks, "progress_bar": show_bar}


def _run(experiment: "Experiment", work: Callable[[], dict[str, Any]], quiet: bool) -> int:
    """Do the work of a command that trains; return its exit status."""
    from jaxagents.finiteness import NonFiniteError
    from jaxagents.interruption import Interrupted

    if not quiet:
        print(_described(experiment), flush=True)
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
        print(_summary_text(summary), _next_steps_text(experiment), sep="\n")
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
    print(_summary_text(experiment.evaluate(how)))


def export(parsed: argparse.Namespace, _: Sequence[str]) -> None:
    """Export the policies of a run."""
    from jaxagents.experiment import Experiment

    directory = parsed.to or os.path.join(parsed.run, "export")
    for path in Experiment.of_run(parsed.run).export(directory, parsed.mode):
        print(path)


def envs(parsed: argparse.Namespace, _: Sequence[str]) -> None:
    """List the environments whose ids contain the filter."""
    from jaxagents.environments.registry import describe, registered_ids

    matching = [each for each in registered_ids() if parsed.filter.lower() in each.lower()]
    if not matching:
        from jaxagents.experiment import ExperimentError

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
    print(_markdown_table(rows) if parsed.markdown else _table(rows))


# What is printed.


@final
class _EvaluationLines:
    """A callback that prints a line per evaluation."""

    def __init__(self, beside_bar: bool):
        self._beside_bar = beside_bar
        self._latest: tuple[int, float] | None = None  # environment steps, seconds

    def __call__(self, evaluation: "Evaluation") -> None:
        returns = _mean_returns(evaluation.metrics)
        n_steps, seconds = evaluation.n_environment_steps, evaluation.seconds
        rate = ""
        if self._latest is None:
            self._print(_line(["updates", "env steps", "steps/s", "time", *_titles(returns)]))
        else:
            rate = f"{(n_steps - self._latest[0]) / (seconds - self._latest[1]):,.0f}"
        self._latest = (n_steps, seconds)
        numbers = [f"{evaluation.n_updates_done:,}", f"{n_steps:,}", rate, _clock(seconds)]
        self._print(_line([*numbers, *map(_number, returns)]))

    def _print(self, line: str) -> None:
        # Training matters more than a line that nobody may be reading any more.
        with contextlib.suppress(OSError, ValueError):
            if self._beside_bar:
                import tqdm

                tqdm.tqdm.write(line, file=sys.stdout)
                sys.stdout.flush()
            else:
                print(line, flush=True)


def _line(cells: Sequence[str]) -> str:
    widths = (8, 12, 10, 8, 12)
    return "".join(cell.rjust(widths[min(i, 4)]) for i, cell in enumerate(cells))


def _mean_returns(metrics: dict[str, Any]) -> list[float]:
    """Average over episodes: per actor, or one number if all are equal or they are many."""
    if "returns" not in metrics:
        return []
    means = metrics["returns"].mean(axis=0)
    alike = bool((metrics["returns"] == metrics["returns"][:, :1]).all())
    many = len(means) > _MOST_ACTORS_IN_A_LINE
    return [float(means.mean())] if alike or many else means.tolist()


def _titles(returns: Sequence[float]) -> list[str]:
    if len(returns) == 1:
        return ["return"]
    return [f"return {i}" for i in range(len(returns))]


def _titled(config: "ExperimentConfig") -> str:
    return (
        f"{config.name}: {config.env}, {config.agent.n_steps:,} updates, "
        f"{config.n_environment_steps:,} environment steps"
    )


def _described(experiment: "Experiment") -> str:
    agent = experiment.agent
    n_actors, n_policies = agent.environments.n_actors, agent.policies.n_policies
    policies = "one policy" if n_policies == 1 else f"{n_policies} policies"
    actors = "one actor" if n_actors == 1 else f"{n_actors} actors"
    return f"{type(agent).__name__}, {policies} for {actors}, in {experiment.directory}\n"


def _summary_text(summary: dict[str, Any]) -> str:
    evaluation, checkpoint, returns = (
        summary[key] for key in ("evaluation", "checkpoint", "returns")
    )
    n_actors = len(returns["mean"])
    columns = ("mean", "ci_low", "ci_high", "std", "min", "median", "max")
    titles = ["", "mean", "95 % from", "to", "std", "min", "median", "max"]
    values = [[_number(returns[name][i]) for name in columns] for i in range(n_actors)]
    if all(each == values[0] for each in values):
        rows = [["return" if n_actors == 1 else f"return of each of {n_actors} actors", *values[0]]]
    else:
        rows = [[f"return of actor {i}", *each] for i, each in enumerate(values)]
    length = _number(summary["means"]["episode_lengths"])
    return "\n".join(
        [
            f"\n{summary['name']} ({summary['env']}), the {evaluation['mode']} checkpoint: "
            f"{checkpoint['n_updates_done']:,} updates, "
            f"{checkpoint['n_environment_steps']:,} environment steps",
            f"{evaluation['n_evals']:,} {'greedy' if evaluation['greedy'] else 'sampled'} "
            f"episodes of {length} steps on average\n",
            _table([titles, *rows], right_from=1),
        ]
    )


def _next_steps_text(experiment: "Experiment") -> str:
    directory = experiment.directory
    rows = [
        ["learning curve", str(directory / "learning_curve.png")],
        ["evaluate again", f"jaxagents eval {directory}"],
        ["repeat the run", f"jaxagents train {directory / 'config.yaml'}"],
        ["extend the run", f"jaxagents resume {directory} --agent.n_steps N"],
        ["from Python", "from jaxagents.experiment import Experiment"],
        ["", f'agent = Experiment.of_run("{directory}").restore()'],
    ]
    return "\n" + _table(rows)


def _table(rows: Sequence[Sequence[str]], right_from: int = 100) -> str:
    """Align columns, those from ``right_from`` on at their right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if i >= right_from else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def _markdown_table(rows: Sequence[Sequence[str]]) -> str:
    title, *body = rows
    lines = [title, ["---"] * len(title), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes}:{seconds:02}"
