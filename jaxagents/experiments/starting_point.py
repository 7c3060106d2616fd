"""The starting point of a training: the networks and normalizers of an earlier run, or of the zoo.

Only `Experiment.train` reads it. From its first checkpoint on a run needs it no more.
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

_OF_NETWORKS = (  # choices that change what networks of equal shapes compute
    "agent_id",
    "observes_time",
    "recurrent",
    "recurrent_critic",
    "centralized_critic",
    "shared_torso",
    "squash",
    "actor_layers",
    "critic_layers",
    "actor_network",
    "critic_network",
)


class StartingPoint(NamedTuple):
    """What a training begins with, and its description for the run's files."""

    runner: Runner
    description: dict[str, Any]


def read_starting_point(agent: "IPPOBase", config: ExperimentConfig) -> StartingPoint | None:
    """Read the policy of ``config.init_from``, and check that it fits an agent.

    Nothing is compiled.

    Args:
        agent: The agent that shall learn.
        config: Its configuration.

    Returns:
        The starting point; None if none is configured.

    Raises:
        ExperimentError: there is no such run, or its policy does not fit; the message names what
            differs, in both.
    """
    name = config.init_from
    if name is None:
        return None
    with explained(f"init_from: {name}: "):
        source, runner = restored_agent(name)
        trained = agent.runners.start_from(runner)
    own, its = agent.recorder.saved.structure, source.recorder.saved.structure
    for choice in _OF_NETWORKS:
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
        "directory": str(Path(directory_of(name)).absolute()),
        "n_updates_done": int(runner.n_updates_done),
        "sha256": digest.hexdigest(),  # of the arrays, by their names
    }
    return StartingPoint(runner, {"init_from": description})
