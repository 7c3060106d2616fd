"""How many members of a population fit an accelerator's memory at once."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.types import PyTree

_SHARE_OF_MEMORY = 0.8  # the rest is fragmented, or used by others
_BYTES_PER_NUMBER = 12  # of an update's arrays: their values, gradients and permuted copies
_SHARE_OF_HIDDEN = 0.8
_NUMBERS_OF_A_SAMPLE = 4  # beside observation and activations


def members_at_once(agent: Any, n_devices: int = 1) -> int | None:
    """Return how many members a device trains as one batch; None: the limit is unknown.

    Args:
        agent: The agent.
        n_devices: Number of devices that divide the environments of a member.
    """
    stats = jax.local_devices()[0].memory_stats() or {}
    limit = stats.get("bytes_limit")
    if limit is None:
        return None
    return max(1, int(_SHARE_OF_MEMORY * limit / bytes_of_member(agent, n_devices)))


def bytes_of_member(agent: Any, n_devices: int = 1) -> float:
    """Estimate the memory of a member: its runner before and after a block, and an update.

    The devices that divide its environments divide the update.

    An update needs about 12 bytes * (observation size + 0.8 * widest hidden layer + 4) for each of
    its samples; measured for feed-forward networks on a CPU.
    """
    config = agent.config
    runner = agent._runner_shapes()
    n_samples = config.steps_per_update * agent.environments.n_actors
    features = runner.observation.features
    observation_size = math.prod(features.shape[2:])
    widest = max((leaf.shape[-1] for leaf in _arrays(runner.actor.params) if leaf.ndim), default=0)
    sample = observation_size + _SHARE_OF_HIDDEN * widest + _NUMBERS_OF_A_SAMPLE
    state = sum(leaf.size * np.dtype(leaf.dtype).itemsize for leaf in _arrays(runner))
    return 2 * state + _BYTES_PER_NUMBER * n_samples / n_devices * sample


def batch_size(n_training: int, n_members: int, at_once: int | None) -> int:
    """Return how many members train as one batch: more are trained in several of this size.

    Members that stop leave the size as it is, as each is compiled for, until half of it is enough.

    Args:
        n_training: Members that have not stopped.
        n_members: All members.
        at_once: The most that fit the memory; None: any number.
    """
    n_batches = 1 if at_once is None else math.ceil(n_members / at_once)
    size = math.ceil(n_members / n_batches)
    while size > 1 and math.ceil(size / 2) >= n_training:
        size = math.ceil(size / 2)
    return size


def _arrays(tree: PyTree) -> list[Any]:
    """List the arrays of a tree, random keys apart."""
    return [
        leaf
        for leaf in jax.tree.leaves(tree)
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    ]
