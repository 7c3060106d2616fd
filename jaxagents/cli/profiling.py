"""The command ``profile``."""

import argparse

from jaxagents.cli.arguments import Commands
from jaxagents.cli.output import profile_text


def add_to(commands: Commands) -> None:
    """Add the commands of this module."""
    command = commands.add_parser(
        "profile",
        help="measure where the time of an update goes",
        description=(
            "Time the stages of an update, each compiled as a program of its own, and the whole "
            "update. Nothing is written. Every key listed by `jaxagents train --help` may be "
            "overridden."
        ),
        usage="jaxagents profile CONFIG [--rounds N] [--KEY VALUE ...]",
        allow_abbrev=False,
    )
    command.add_argument("config", metavar="CONFIG", help="a YAML file")
    command.add_argument(
        "--rounds",
        type=int,
        default=20,
        metavar="N",
        help="how often to time each stage; 20 by default",
    )
    command.set_defaults(command=profile, takes_overrides=True)


def profile(parsed: argparse.Namespace) -> None:
    """Print where the time of an update goes."""
    from jaxagents.errors import ExperimentError
    from jaxagents.experiments.config_files.file import load_config, locating_errors
    from jaxagents.experiments.experiment import Experiment
    from jaxagents.ippo.training_run import check_division

    config = load_config(parsed.config, parsed.overrides)
    if parsed.rounds < 1:
        raise ExperimentError(f"--rounds {parsed.rounds} times nothing; give 1 or more")
    with locating_errors(parsed.config, parsed.overrides):
        experiment = Experiment(config, progress_bar=False)
        check_division(experiment.agent)
    print(f"{config.name}: {config.env}\n", flush=True)

    from jaxagents.experiments.profiling import profile

    print(profile_text(profile(experiment.agent, config.hyperparams, parsed.rounds)))
