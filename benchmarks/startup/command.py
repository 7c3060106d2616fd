"""Run a command of the package under a ledger: ``python command.py STARTED train FILE ...``."""

import sys

from ledger import Ledger

ledger = Ledger(float(sys.argv[1]))


def watch() -> None:
    """Name the stages of a training."""
    from jaxagents.experiments import experiment, members, run_directory
    from jaxagents.ippo import agent, training_run
    from jaxagents.training.recorder import Recorder

    ledger.watch(experiment, "make_environment", "environment")
    ledger.watch(agent.Agent, "__init__", "agent")
    ledger.watch(agent.Agent, "init", "first runner")
    ledger.watch(experiment, "describe_start", "git and versions")
    ledger.watch(training_run.TrainingRun, "run_block", "updates and evaluations")
    ledger.watch(training_run, "wait_for", "updates and evaluations")
    ledger.watch(Recorder, "on_evaluation", "report and checkpoint")
    ledger.watch(Recorder, "save", "report and checkpoint")
    ledger.watch(members.SingleRun, "evaluate", "final evaluation")
    ledger.watch(experiment, "random_returns_of", "random policy's returns")
    ledger.watch(members.SingleRun, "plot", "picture")
    del run_directory


def main() -> None:
    """Run the command."""
    ledger.listen()
    with ledger.stage("imports"):
        from jaxagents.cli.main import main

        watch()
    status = main(sys.argv[2:])
    ledger.tell()
    sys.exit(status)


main()
