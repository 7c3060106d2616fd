"""One agent for all tests of recorded runs, so that its programs are compiled only once."""

import dataclasses
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jax

import jaxagents as ja
from jaxagents.training.callbacks import Callback
from jaxagents.training.named_arrays import Leaves, strip_keys, to_leaves
from jaxagents.training.recorder import Recorder
from tests.agents import WALK, tiny

# Evaluated at 0, 2, 4, 6 and 8.
RECORDED = tiny(n_steps=8, learning_rate_schedule="linear", checkpoint_dir=Path("unused"))


@cache
def _agent() -> ja.DiscreteIPPO:
    return ja.DiscreteIPPO(WALK, None, RECORDED)


def recording_agent(
    directory: Path, callbacks: Sequence[Callback] = (), **changes: Any
) -> ja.DiscreteIPPO:
    """Return the shared agent, with a new recorder.

    Args:
        directory: Of the checkpoints.
        callbacks: Called with each evaluation.
        changes: Of the fields of `AgentConfig` that only the recorder reads: ``keep_latest``,
            ``keep_best`` and ``progress_bar``.
    """
    agent = _agent()
    config = dataclasses.replace(RECORDED, checkpoint_dir=directory, **changes)
    # Compiled programs look the recorder up when they run, so that it can be exchanged.
    recorder = Recorder(config, callbacks, agent.recorder._metadata)
    object.__setattr__(agent, "recorder", recorder)
    return agent


def leaves_of(runner: ja.Runner) -> Leaves:
    """Return a runner's leaves as checkpoints hold them."""
    return to_leaves(jax.device_get(strip_keys(runner)))
