"""Commands that train: ``train``, ``resume``, ``study`` and ``sweep``."""

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, final

from jaxagents.cli.arguments import (
    Commands,
    add_command,
    add_config,
    add_processes,
    add_quiet,
    add_run,
    join_processes,
)
from jaxagents.cli.output import (
    EvaluationLines,
    comparison_text,
    described,
    diagnosis_text,
    early_end_text,
    next_steps_text,
    shown_path,
    summary_text,
    titled,
)
from jaxagents.cli.streams import FAILED, complain

if TYPE_CHECKING:
    from jaxagents.experiments.experiment import Experiment
    from jaxagents.experiments.method_study import StudyRun
    from jaxagents.experiments.sweep.study import Result
    from jaxagents.experiments.sweep.sweep import Sweep

_MOST_COLUMNS = 100


def add_training_commands(commands: Commands) -> None:
    """Add the commands of this module."""
    _add_train(commands)
    _add_resume(commands)
    _add_study(commands)
    _add_sweep(commands)


def _add_train(commands: Commands) -> None:
    command = add_command(
        commands,
        "train",
        train,
        usage="CONFIG [--from RUN] [--quiet] [--KEY VALUE ...]",
        add_help=False,
    )
    add_config(command)
    command.add_argument(
        "--from",
        dest="start",
        metavar="RUN",
        help="start from the policy of a run, or of the zoo as zoo:ID; sets init_from",
    )
    add_quiet(command)
    add_processes(command)
    command.add_argument("--help", "-h", action=_TrainHelp, nargs=0, help="show this and exit")


def _add_resume(commands: Commands) -> None:
    command = add_command(
        commands, "resume", resume, usage="RUN [--quiet] [--KEY VALUE ...]", takes_overrides=True
    )
    add_run(command, or_entry=False)
    add_quiet(command)
    add_processes(command)


@final
class _TrainHelp(argparse.Action):
    """Show the help of the command and of every key of a configuration."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from jaxagents.experiments.config_files.file import help_text

        print(parser.format_help())
        print("Keys of CONFIG; --KEY VALUE overrides a key:\n")
        print(help_text(min(shutil.get_terminal_size().columns, _MOST_COLUMNS)))
        parser.exit()


def train(parsed: argparse.Namespace) -> int:
    """Train an agent from a configuration file."""
    from jaxagents.compiler.processes import is_first
    from jaxagents.experiments.config_files.file import load_config, locating_errors
    from jaxagents.experiments.experiment import Experiment

    join_processes(parsed)
    if parsed.start is not None:
        parsed.overrides += ["--init_from", parsed.start]
    config = load_config(parsed.config, parsed.overrides)
    quiet = parsed.quiet or not is_first()
    if not quiet:
        print(titled(config), flush=True)
    with locating_errors(parsed.config, parsed.overrides):
        experiment = Experiment(config, **shown(quiet))
    return run(experiment, experiment.train, quiet)


def resume(parsed: argparse.Namespace) -> int:
    """Resume an interrupted run, or extend a finished one.

    Continue from a run's last undamaged checkpoint, as if it had never been interrupted.
    --agent.n_steps N extends a run; hyperparameters may change, networks may not.
    """
    from jaxagents.compiler.processes import is_first
    from jaxagents.experiments.experiment import Experiment

    join_processes(parsed)
    quiet = parsed.quiet or not is_first()
    experiment = Experiment.of_run(parsed.run, parsed.overrides, **shown(quiet))
    if not quiet:
        print(titled(experiment.config), flush=True)
    return run(experiment, experiment.resume, quiet)


def shown(quiet: bool) -> dict[str, Any]:
    """Return the callbacks and settings with which an experiment reports while it trains."""
    show_bar = not quiet and sys.stderr.isatty()
    callbacks = [] if quiet else [EvaluationLines(beside_bar=show_bar)]
    return {"callbacks": callbacks, "progress_bar": show_bar}


def run(experiment: "Experiment", train: Callable[[], dict[str, Any]], quiet: bool) -> int:
    """Train, and print the results; return the exit status."""
    from jaxagents.compiler.processes import is_first

    summary = try_training(experiment, train, quiet)
    if isinstance(summary, int):
        return summary
    if not is_first():
        return 0
    if quiet:
        print(shown_path(experiment.directory))
    else:
        print(_outcome(experiment, summary), next_steps_text(experiment), sep="\n")
    return 0


def try_training(
    experiment: "Experiment",
    train: Callable[[], dict[str, Any]],
    quiet: bool,
    to_continue: str | None = None,
) -> dict[str, Any] | int:
    """Train; return the summary, or the exit status after an error or an interruption.

    Args:
        experiment: The experiment.
        train: The experiment's method that trains.
        quiet: Print nothing but errors.
        to_continue: The command that continues it after an interruption; None: ``resume``.
    """
    from jaxagents.compiler.rendezvous import ProcessError
    from jaxagents.environments.host import HostEnvironmentError
    from jaxagents.ppo.finiteness import NonFiniteError
    from jaxagents.training.interruption import Interrupted

    if not quiet:
        print(described(experiment), flush=True)
    try:
        return train()
    except Interrupted as interrupted:
        about = _about_interruption(experiment, to_continue)
        status = complain(about, 128 + interrupted.signal_number)
        if interrupted.at_once:
            os._exit(status)  # Python would wait for the running program
        return status
    except KeyboardInterrupt as interrupt:  # outside of training
        raise KeyboardInterrupt(_about_interruption(experiment, to_continue)) from interrupt
    except (NonFiniteError, HostEnvironmentError, MemoryError) as error:
        return complain(f"error: {error} {_what_is_left(experiment)}", FAILED)
    except ProcessError as error:
        sys.stdout.flush()
        complain(f"error: {error} {_what_is_left(experiment)}", FAILED)
        os._exit(FAILED)  # jax would wait for the other processes


def _outcome(experiment: "Experiment", summary: dict[str, Any]) -> str:
    texts = (early_end_text(experiment, summary), summary_text(summary), diagnosis_text(summary))
    return "\n".join(filter(None, texts))


def _what_is_left(experiment: "Experiment") -> str:
    if experiment.has_checkpoint:
        return f"The run so far is in {shown_path(experiment.directory)}"
    return "This was before the first checkpoint: there is nothing to resume."


def _about_interruption(experiment: "Experiment", to_continue: str | None) -> str:
    from jaxagents.environments.host.sharing import import_options

    sys.stdout.flush()
    if to_continue is not None:
        return f"interrupted; continue with: {to_continue}"
    if not experiment.has_checkpoint:
        return "interrupted before the first checkpoint: there is nothing to resume"
    command = f"jaxagents resume {shown_path(experiment.directory)}{import_options()}"
    return f"interrupted; resume with: {command}"


def _add_study(commands: Commands) -> None:
    command = add_command(
        commands,
        "study",
        study,
        usage="FILE [--to DIRECTORY] [--no-replay] [--KEY VALUE ...]",
        takes_overrides=True,
    )
    command.add_argument(
        "file", metavar="FILE", help="a YAML file: study with base, methods, environments, seeds"
    )
    command.add_argument(
        "--to",
        metavar="DIRECTORY",
        help="directory of the study; by default named after FILE, in the base's runs_dir",
    )
    command.add_argument("--no-replay", action="store_true", help="show no episodes in the report")


def study(parsed: argparse.Namespace) -> int:
    """Compare methods on environments, with several seeds.

    Each method is trained on each environment in a directory of its own; then tables, figures and a
    report are written. The same command continues an interrupted study. --KEY VALUE changes a key
    of all configurations.
    """
    from jaxagents.experiments.method_study import MethodStudy

    methods = MethodStudy(parsed.file, parsed.to, parsed.overrides)
    failed = 0
    with methods.holding():
        for i, run in enumerate(methods.runs, 1):
            title = f"{i} of {len(methods.runs)}: {titled(run.config)}"
            if run.is_finished:
                print(f"{title}, is finished", flush=True)
                continue
            print(f"\n{title}", flush=True)
            status = _train_in_study(run)
            if status not in (0, FAILED):
                return status
            failed += status == FAILED
        if failed:
            n_runs = len(methods.runs)
            return complain(f"error: {failed} of {n_runs} runs failed, see above", FAILED)
        pages = methods.write_pages(replay=not parsed.no_replay)
        tables = methods.compare()
        text = "\n\n".join(map(comparison_text, tables))
        paths = [*methods.write_tables(tables, text), *pages]
        print("", text, "", *map(shown_path, paths), sep="\n")
    return 0


def _train_in_study(run: "StudyRun") -> int:
    """Train a run of a study, and print its results; return the exit status."""
    from jaxagents.errors import ExperimentError

    try:
        experiment, train = run.begin(**shown(quiet=False))
        summary = try_training(experiment, train, False, "the same command")
    except ExperimentError as error:  # such as damaged files of an interrupted run
        return complain(f"error: {error}", FAILED)
    if isinstance(summary, int):
        return summary
    print(_outcome(experiment, summary), flush=True)
    return 0


def _add_sweep(commands: Commands) -> None:
    command = add_command(
        commands,
        "sweep",
        sweep,
        usage="CONFIG --space SPACE --to DIRECTORY [options] [--KEY VALUE ...]",
    )
    add_config(command)
    command.add_argument(
        "--space",
        required=True,
        metavar="SPACE",
        help="a YAML file: keys with choices, [0.9, 0.99], or ranges, {low: 1.0e-4, high: 1.0e-2, "
        "log: true}",
    )
    command.add_argument("--to", required=True, metavar="DIRECTORY", help="directory of the sweep")
    command.add_argument(
        "--trials",
        type=int,
        default=32,
        metavar="N",
        help="number of trials; 32 by default; more extend a sweep; a grid sets its own",
    )
    command.add_argument("--seeds", type=int, default=2, metavar="N", help="seeds per trial; 2")
    command.add_argument(
        "--at-once", type=int, default=8, metavar="N", help="trials that train together; 8"
    )
    command.add_argument(
        "--sampler", choices=["tpe", "random", "grid"], default="tpe", help="tpe by default"
    )
    command.add_argument(
        "--storage",
        metavar="URL",
        help="optuna's storage: a database, or journal:FILE; by default a file in DIRECTORY",
    )
    command.add_argument(
        "--halving",
        type=int,
        metavar="N",
        help="of the trials that train together, let only the best 1/N continue after 1/N of the "
        "updates, and likewise after 1/N of these, and so on",
    )
    command.add_argument(
        "--confirm",
        type=int,
        default=8,
        metavar="N",
        help="number of fresh seeds to compare the best trial with CONFIG; 8 by default, 0: no "
        "comparison",
    )
    command.add_argument(
        "--best-to", metavar="FILE", help="write the best trial's configuration to a new file"
    )


def sweep(parsed: argparse.Namespace) -> None:
    """Search for better values of a configuration's keys.

    The trials train as populations, and are ranked by the area under the learning curve. A sweep
    that the directory already holds is continued, and several processes may work on it. Needs the
    extra sweep.
    """
    from jaxagents.errors import ExperimentError
    from jaxagents.experiments.sweep.report import result_text
    from jaxagents.experiments.sweep.sweep import Sweep, SweepSettings, check_is_new

    if parsed.best_to is not None:
        check_is_new(parsed.best_to)
    settings = SweepSettings(
        n_trials=parsed.trials,
        n_seeds=parsed.seeds,
        n_at_once=parsed.at_once,
        sampler=parsed.sampler,
        storage=parsed.storage,
        n_confirming=parsed.confirm,
        halving=parsed.halving,
    )
    search = Sweep(parsed.config, parsed.space, parsed.to, settings, parsed.overrides)

    results = search.run(
        lambda result: print(result_text(result), flush=True),
        lambda text: print(text, flush=True),
    )
    if not results or results[0].score != results[0].score:
        raise ExperimentError(
            f"no trial of {parsed.to} has a score: all have diverged or are impossible."
        )
    with search.study.concluding(lambda text: print(text, flush=True)) as other:
        if other:
            print(f"all trials have ended; {other} compares the best one and writes the results")
        else:
            _conclude(search, results, parsed)


def _conclude(search: "Sweep", results: "Sequence[Result]", parsed: argparse.Namespace) -> None:
    """Compare the best trial with the unchanged configuration, and write the results."""
    from jaxagents.evaluation.comparison import describe_comparison
    from jaxagents.experiments.sweep.report import result_text, ties_text, write_sweep_report

    best = results[0]
    comparison = search.confirm(best.values)
    print(f"\nbest: {result_text(best)}", *ties_text(results), sep="\n")
    if comparison is not None:
        print(describe_comparison(comparison))
    if parsed.best_to is not None:
        search.write_best(best.values, parsed.best_to)
        print(parsed.best_to)
    print(write_sweep_report(search, comparison))
