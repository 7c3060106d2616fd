"""The commands ``profile`` and ``plan``: the cost of an update and of a training."""

import argparse
from typing import TYPE_CHECKING

from jaxagents.cli.arguments import Commands, add_command, add_config
from jaxagents.cli.output import table
from jaxagents.cli.streams import FAILED

if TYPE_CHECKING:
    from jaxagents.experiments.planning import Links, Plan
    from jaxagents.experiments.profiling import Profile

_GIGA, _MEGA, _MICRO = 1e9, 1e6, 1e-6
_MOST = 1e18  # of each option of a plan; far larger numbers and infinity overflow


def add_cost_commands(commands: Commands) -> None:
    """Add the commands of this module."""
    _add_profile(commands)
    _add_plan(commands)


def _add_profile(commands: Commands) -> None:
    command = add_command(
        commands, "profile", _profile, usage="CONFIG [--rounds N] [--KEY VALUE ...]"
    )
    add_config(command)
    command.add_argument(
        "--rounds",
        type=int,
        default=20,
        metavar="N",
        help="how often to time each stage; 20 by default",
    )


def _add_plan(commands: Commands) -> None:
    command = add_command(
        commands, "plan", _plan, usage="CONFIG [--devices N] [--memory GB] [--KEY VALUE ...]"
    )
    add_config(command)
    command.add_argument(
        "--devices",
        type=int,
        metavar="N",
        help="devices that the training will use, which need not be in this machine",
    )
    command.add_argument(
        "--memory",
        type=float,
        metavar="GB",
        help="memory of each device; by default that of this machine's",
    )
    command.add_argument(
        "--link-bandwidth",
        type=float,
        default=25.0,
        metavar="GB/S",
        help="GB per second that a device sends to the others; 25 by default",
    )
    command.add_argument(
        "--link-latency",
        type=float,
        default=7.0,
        metavar="US",
        help="latency between two devices, in microseconds; 7 by default",
    )


def _profile(parsed: argparse.Namespace) -> None:
    """Measure where the time of an update goes.

    Each stage is compiled as a separate program, and timed in alternation with whole updates.
    Nothing is written. Every key listed by `jaxagents train --help` may be overridden.
    """
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


def profile_text(profile: "Profile") -> str:
    """Format a profile as a table."""
    from jaxagents.experiments.profiling import PARTS
    from jaxagents.experiments.report.sentences import counted

    stages = profile.stages
    labels = {name: name for name in PARTS} | {
        "actor": f"actor, {counted(profile.actor_epochs, 'epoch')}",
        "critic": f"critic, {counted(profile.critic_epochs, 'epoch')}",
        "environment": "environment, within rollout",
        "update": "whole update",
    }
    for name in stages.keys() - labels.keys():
        seconds, every = _milliseconds(stages[name].seconds), stages[name].every
        labels[name] = f"{name}, {seconds} every {counted(every, 'update')}"

    def row(name: str) -> list[str]:
        limit = profile.share_of_limit(name)
        return [
            labels[name],
            f"{1e3 * stages[name].seconds_per_update:,.2f}",
            _percent(profile.share(name)),
            "" if limit is None else _percent(limit),
            f"{stages[name].compile_seconds:.1f}",
        ]

    remainder = profile.remainder
    share = _percent(remainder / stages["update"].seconds)
    rows = [
        ["", "ms per update", "share", "of the limit", "s to start"],
        *map(row, PARTS),
        ["remainder", f"{1e3 * remainder:,.2f}", share, "", ""],
        row("update"),
        [""] * 5,
        *[row(name) for name in stages if name not in (*PARTS, "update")],
    ]
    return "\n".join([table(rows, right_from=1), "", *_profile_notes(profile)])


def _profile_notes(profile: "Profile") -> list[str]:
    from jaxagents.experiments.report.sentences import counted

    rate, size = profile.product_flops_per_second, profile.product_size
    return [
        f"An update is {counted(profile.n_envs, 'environment')} of "
        f"{counted(profile.rollout_length, 'step')}: {profile.steps_per_second:,.0f} environment "
        "steps/s,",
        f"and {profile.steps_per_second_of_training:,.0f} including what runs between updates. "
        "Each stage was compiled by itself; the remainder",
        "is the time of the whole update beyond its stages, negative if compiling them together "
        "saves time.",
        f"The limit is the rate of matrix products: {rate / 1e9:,.0f} GFLOP/s, measured with "
        f"{size:,} x {size:,} matrices on",
        f"{profile.device}. All epochs ran, as without early stopping. Seconds to start include "
        "tracing and the first run.",
    ]


def _plan(parsed: argparse.Namespace) -> int:
    """Estimate what a training will cost: memory, steps per second, time.

    One device's share is trained for a few seconds. Nothing is written. Every key listed by
    `jaxagents train --help` may be overridden. The exit status is 1 if the training does not fit.
    """
    from jaxagents.errors import ExperimentError
    from jaxagents.experiments.config_files.file import load_config, locating_errors
    from jaxagents.experiments.experiment import Experiment

    for name in ("devices", "memory", "link_bandwidth", "link_latency"):
        value = getattr(parsed, name)
        option = f"--{name.replace('_', '-')}"
        if value is not None and not value > 0:
            raise ExperimentError(f"{option} {value:g} is too small; give more than 0")
        if value is not None and value > _MOST:
            raise ExperimentError(f"{option} {value} is too large; give at most {_MOST:g}")
    devices = () if parsed.devices is None else ("--agent.devices", str(parsed.devices))
    overrides = [*parsed.overrides, *devices]
    config = load_config(parsed.config, overrides)
    with locating_errors(parsed.config, overrides):
        experiment = Experiment(config, progress_bar=False)
    print(f"{config.name}: {config.env}\n", flush=True)

    from jaxagents.compiler.devices import Devices
    from jaxagents.experiments.planning import Links, plan

    links = Links(parsed.link_bandwidth * _GIGA, parsed.link_latency * _MICRO)
    memory = None if parsed.memory is None else int(parsed.memory * _GIGA)
    n_devices = Devices(config.agent.devices, config.seeds).n_per_member
    with locating_errors(parsed.config, overrides):  # more than this machine has, by --memory
        result = plan(experiment.agent, config.hyperparams, n_devices, links, memory)
    print(plan_text(result, links))
    if config.seeds > 1:
        print(f"\nThis is one member of {config.seeds}, trained alone.")
    return 0 if result.fits else FAILED


def plan_text(plan: "Plan", links: "Links") -> str:
    """Format a plan as a table, with its assumptions."""
    from jaxagents.experiments.report.sentences import clock

    measured, exchange = plan.measured, plan.communication
    rows = [["devices", f"{plan.n_devices} x {plan.device}"], ["memory of each", _memory(plan)]]
    if plan.n_devices > 1:
        volume = _bytes(exchange.n_bytes)
        rows.append(["exchanged", f"{volume} in {exchange.n_calls} calls per update"])
    if measured is not None:
        rows += [
            ["an update", _milliseconds(plan.update_seconds)],
            ["an evaluation", f"{_milliseconds(measured.evaluation_seconds)} at most"],
            ["environment steps", f"{plan.steps_per_second:,.0f} per second"],
            ["to start", clock(plan.start_seconds)],
            ["to finish", clock(plan.seconds)],
        ]
    return "\n".join([table(rows, right_from=2), "", *_notes(plan, links)])


def _memory(plan: "Plan") -> str:
    limit = "" if plan.memory_limit is None else f" of {_bytes(plan.memory_limit)}"
    return f"{_bytes(plan.memory)}{limit}{'' if plan.fits else ': DOES NOT FIT'}"


def _notes(plan: "Plan", links: "Links") -> list[str]:
    if plan.measured is None:
        return [
            "Not measured: it does not fit. Use more devices, or a smaller batch_size or "
            "rollout_length."
        ]
    notes = ["One device's share was tried on this machine; see docs/capacity.md."]
    if plan.n_devices > 1:
        notes.append(
            f"Assumed of the links: {links.bytes_per_second / _GIGA:g} GB/s and "
            f"{links.seconds_per_hop / _MICRO:g} µs a hop, "
            f"{_milliseconds(plan.communication_seconds)} per update."
        )
    return notes


def _bytes(number: int | float) -> str:
    return f"{number / _GIGA:,.2f} GB" if number >= _GIGA else f"{number / _MEGA:,.2f} MB"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.2f} ms"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
