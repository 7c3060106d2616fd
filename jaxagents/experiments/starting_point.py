"""The starting point of a training: the networks and normalizers of an earlier run, or of the zoo.

Once a run has a checkpoint, it no longer needs the starting point.
"""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from jaxagents.errors import ExperimentError, explained
from jaxagents.evaluation.zoo import directory_of
from jaxagents.experiments.config_files.schema import ExperimentConfig
from jaxagents.experiments.make_agent import restored_agent
from jaxagents.training.named_arrays import to_leaves
from jaxagents.training.saved_run import differences
from jaxagents.types import Runner

if TYPE_CHECKING:
    from jaxagents.ippo.base import IPPOBase

# Choices that change what networks of equal shapes compute.
_OF_BOTH = ("agent_id", "observes_time", "recurrent")
_OF_PARTS = {
    "actor": ("squash", "actor_layers", "actor_network"),
    "critic": (
        "recurrent_critic",
        "centralized_critic",
        "shared_torso",
        "critic_layers",
        "critic_network",
    ),
}


class StartingPoint(NamedTuple):
    """What a training begins with, and its description for the run's files."""

    runner: Runner
    description: dict[str, Any]


def read_starting_point(
    agent: "IPPOBase", config: ExperimentConfig, mode: str | None = None
) -> StartingPoint | None:
    """Read the policy of ``config.init_from``, and check that it fits an agent.

    Nothing is compiled.

    Args:
        agent: The agent that will learn.
        config: Its configuration.
        mode: "best" or "last"; None: as the configuration of that run chooses.

    Returns:
        The starting point; None if none is configured.

    Raises:
        ExperimentError: there is no such run, or its policy does not fit; the message names what
            differs, with both values.
    """
    name, parts = config.init_from, config.init_parts
    if name is None:
        with explained():
            agent.runners.start_from(None)
        return None
    with explained(f"init_from: {name}: "):
        source, runner = restored_agent(name, mode)
        trained = agent.runners.start_from(runner, parts)
    own, its = agent.recorder.saved.structure, source.recorder.saved.structure
    for choice in (*_OF_BOTH, *(choice for part in parts for choice in _OF_PARTS[part])):
        if own[choice] != its[choice]:
            different = [
                f"{field} is {there} there and {here} here"
                for field, (there, here) in differences(choice, its[choice], own[choice]).items()
            ]
            raise ExperimentError(f"init_from: {name}: {', '.join(different)}; choose the same.")
    digest = hashlib.sha256()
    for path, array in sorted(to_leaves(jax.device_get(trained)).items()):
        digest.update(path.encode() + array.tobytes())
    description = {
        "run": name,
        "parts": list(parts),
        "directory": str(Path(directory_of(name)).absolute()),
        "n_updates_done": int(runner.n_updates_done),
        "sha256": digest.hexdigest(),  # of the arrays, by their names
    }
    return StartingPoint(runner, {"init_from": description})
