"""The command ``plan``."""

import argparse
from typing import TYPE_CHECKING

from jaxagents.cli.arguments import Commands
from jaxagents.cli.exit_status import FAILED
from jaxagents.cli.output import table

if TYPE_CHECKING:
    from jaxagents.experiments.planning import Links, Plan

_GIGA, _MEGA, _MICRO = 1e9, 1e6, 1e-6


def add_to(commands: Commands) -> None:
    """Add the commands of this module."""
    command = commands.add_parser(
        "plan",
        help="tell what a training will cost: memory, steps per second, time",
        description=(
            "Try one device's share of a training for some seconds, and tell the memory that each "
            "device needs, the environment steps per second, and the time to finish. Nothing is "
            "written. Every key listed by `jaxagents train --help` may be overridden."
        ),
        usage="jaxagents plan CONFIG [--devices N] [--memory GB] [--KEY VALUE ...]",
        allow_abbrev=False,
    )
    command.add_argument("config", metavar="CONFIG", help="a YAML file")
    command.add_argument(
        "--devices",
        type=int,
        metavar="N",
        help="devices that the training shall use, which need not be here",
    )
    command.add_argument(
        "--memory", type=float, metavar="GB", help="of each device; by default as much as here"
    )
    command.add_argument(
        "--link-bandwidth",
        type=float,
        default=25.0,
        metavar="GB/S",
        help="that a device sends to the others; 25 by default",
    )
    command.add_argument(
        "--link-latency",
        type=float,
        default=7.0,
        metavar="US",
        help="microseconds from one device to the next, however little is sent; 7 by default",
    )
    command.set_defaults(command=plan, takes_overrides=True)


def plan(parsed: argparse.Namespace) -> int:
    """Print what a training will cost; the status tells whether it fits."""
    from jaxagents.errors import ExperimentError
    from jaxagents.experiments.config_files.file import load_config, locating_errors
    from jaxagents.experiments.experiment import Experiment

    for name in ("devices", "memory", "link_bandwidth", "link_latency"):
        value = getattr(parsed, name)
        if value is not None and not value > 0:
            option = f"--{name.replace('_', '-')}"
            raise ExperimentError(f"{option} {value:g} is too small; give more than 0")
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
    result = plan(experiment.agent, config.hyperparams, n_devices, links, memory)
    print(plan_text(result, links))
    if config.seeds > 1:
        print(f"\nThis is one member of {config.seeds}, trained alone.")
    return 0 if result.fits else FAILED


def plan_text(plan: "Plan", links: "Links") -> str:
    """Format a plan as a table, and say what it rests on."""
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
            ["to start", _duration(plan.start_seconds)],
            ["to finish", _duration(plan.seconds)],
        ]
    return "\n".join([table(rows, right_from=2), "", *_notes(plan, links)])


def _memory(plan: "Plan") -> str:
    needed = _bytes(plan.memory)
    if plan.memory_limit is None:
        return needed
    verdict = "" if plan.fits else ": DOES NOT FIT"
    return f"{needed} of {_bytes(plan.memory_limit)}{verdict}"


def _notes(plan: "Plan", links: "Links") -> list[str]:
    if plan.measured is None:
        return [
            "Not tried: it does not fit. Use more devices, a smaller batch_size or rollout_length."
        ]
    notes = ["Tried on this machine, one device's share; see docs/capacity.md."]
    if plan.n_devices > 1:
        notes.append(
            f"Assumed of the links: {links.bytes_per_second / _GIGA:g} GB/s and "
            f"{links.seconds_per_hop / _MICRO:g} µs a hop, "
            f"{_milliseconds(plan.communication_seconds)} per update."
        )
    return notes


def _bytes(number: float) -> str:
    return f"{number / _GIGA:,.2f} GB" if number >= _GIGA else f"{number / _MEGA:,.2f} MB"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.2f} ms"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
