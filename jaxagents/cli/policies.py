"""Commands that use the policies of a run: ``eval``, ``replay`` and ``export``."""

import argparse
import os

from jaxagents.cli.arguments import Commands, add_mode, add_run
from jaxagents.cli.output import summary_text


def add_to(commands: Commands) -> None:
    """Add the commands of this module."""
    _add_eval(commands)
    _add_replay(commands)
    _add_export(commands)


def _add_eval(commands: Commands) -> None:
    command = commands.add_parser(
        "eval",
        help="evaluate the policies of a run",
        description=(
            "Play episodes with the policies of a run, by default the episodes of its summary."
        ),
        allow_abbrev=False,
    )
    add_run(command)
    command.add_argument("--n-evals", type=int, metavar="N", help="number of episodes")
    _add_how_to_play(command)
    command.set_defaults(command=evaluate)


def _add_replay(commands: Commands) -> None:
    command = commands.add_parser(
        "replay",
        help="animate episodes of a run",
        description=(
            "Play episodes with the policies of a run and write them as episode-1.gif, ... "
            "They are the first episodes that `jaxagents eval` plays."
        ),
        allow_abbrev=False,
    )
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
    command.set_defaults(command=replay)


def _add_how_to_play(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--sampled", action="store_true", help="sample actions instead of taking the most probable"
    )
    add_mode(command)
    command.add_argument("--seed", type=int, metavar="N", help="seed of the episodes")


def _add_export(commands: Commands) -> None:
    command = commands.add_parser(
        "export",
        help="write the policies of a run as safetensors",
        description=(
            "Write the policies of a run as policy.safetensors, and a description of how to act "
            "with them as policy.json."
        ),
        allow_abbrev=False,
    )
    add_run(command)
    command.add_argument(
        "--to", metavar="DIRECTORY", help="directory of the files; RUN/export by default"
    )
    add_mode(command)
    command.set_defaults(command=export)


def evaluate(parsed: argparse.Namespace) -> None:
    """Evaluate the policies of a run."""
    from jaxagents.experiments.experiment import Experiment

    experiment = Experiment.of_run(parsed.run)
    how = experiment.evaluation_by(
        n_evals=parsed.n_evals, greedy=_greedy(parsed), mode=parsed.mode, seed=parsed.seed
    )
    print(summary_text(experiment.evaluate(how)))


def replay(parsed: argparse.Namespace) -> None:
    """Write animations of a run's episodes."""
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
        print(path)


def _greedy(parsed: argparse.Namespace) -> bool | None:
    return False if parsed.sampled else None


def export(parsed: argparse.Namespace) -> None:
    """Export the policies of a run."""
    from jaxagents.experiments.experiment import Experiment

    directory = parsed.to or os.path.join(parsed.run, "export")
    for path in Experiment.of_run(parsed.run).export(directory, parsed.mode):
        print(path)
