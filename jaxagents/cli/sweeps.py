"""The command that searches for configurations: ``sweep``."""

import argparse
from typing import TYPE_CHECKING

from jaxagents.cli.arguments import Commands

if TYPE_CHECKING:
    from jaxagents.experiments.sweep.study import Result
    from jaxagents.experiments.sweep.sweep import Sweep


def add_to(commands: Commands) -> None:
    """Add the command of this module."""
    command = commands.add_parser(
        "sweep",
        help="search for better values of a configuration's keys",
        description=(
            "Vary keys of a configuration, train the trials as populations, and report which are "
            "best by the area under the learning curve. A directory that holds the sweep is "
            "continued; several processes may work on one. Needs the extra sweep."
        ),
        usage="jaxagents sweep CONFIG --space SPACE --to DIRECTORY [options] [--KEY VALUE ...]",
        allow_abbrev=False,
    )
    command.add_argument("config", metavar="CONFIG", help="a YAML file")
    command.add_argument(
        "--space",
        required=True,
        metavar="SPACE",
        help="a YAML file: keys with choices, [0.9, 0.99], or ranges, {low: 1.0e-4, high: 1.0e-2, "
        "log: true}",
    )
    command.add_argument("--to", required=True, metavar="DIRECTORY", help="directory of the sweep")
    command.add_argument(
        "--trials", type=int, default=32, metavar="N", help="number of trials; a grid has its own"
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
        help="of the trials that train together, let the best 1/N go on after 1/N of the updates, "
        "and likewise before",
    )
    command.add_argument(
        "--confirm",
        type=int,
        default=8,
        metavar="N",
        help="compare the best trial with CONFIG by as many fresh seeds; 8, 0: not",
    )
    command.add_argument(
        "--best-to", metavar="FILE", help="write the best trial's configuration to a new file"
    )
    command.set_defaults(command=sweep, takes_overrides=True)


def sweep(parsed: argparse.Namespace) -> None:
    """Search for configurations."""
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

    best, *_ = search.run(
        lambda result: print(result_text(result), flush=True),
        lambda text: print(text, flush=True),
    ) or [None]
    if best is None or best.score != best.score:
        raise ExperimentError(f"no trial of {parsed.to} has a score: all have diverged.")
    with search.study.concluding() as other:
        if other:
            print(f"all trials have ended; {other} compares the best one and writes the results")
        else:
            _conclude(search, best, parsed)


def _conclude(search: "Sweep", best: "Result", parsed: argparse.Namespace) -> None:
    """Compare the best trial with the configuration as it is, and write the results."""
    from jaxagents.evaluation.comparison import describe
    from jaxagents.experiments.sweep.report import result_text, write_sweep_report

    comparison = search.confirm(best.values)
    print(f"\nbest: {result_text(best)}")
    if comparison is not None:
        print(describe(comparison))
    if parsed.best_to is not None:
        search.write_best(best.values, parsed.best_to)
        print(parsed.best_to)
    print(write_sweep_report(search, comparison))
