"""What fits into memory: an agent's arrays, and how many members of a population at once."""

import contextlib
import functools
import math
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.types import PyTree

_SHARE_OF_MEMORY = 0.8  # the rest is fragmented, or used by others
_BYTES_PER_NUMBER = 12  # of an update's arrays: their values, gradients and permuted copies
_SHARE_OF_HIDDEN = 0.8
_NUMBERS_OF_A_SAMPLE = 4  # besides observation and activations
_necessary: weakref.WeakKeyDictionary[Any, list[tuple[str, float]]] = weakref.WeakKeyDictionary()


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


def memory_of_device() -> int | None:
    """Return the bytes that this device has, or the machine if it is a CPU; None: unknown."""
    if jax.default_backend() != "cpu":
        return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    return _memory_of_machine()


@functools.cache
def _memory_of_machine() -> int | None:
    """Return the bytes that this process may use: the machine's, or its container's."""
    limits = _limits_of_groups(Path("/"))
    with contextlib.suppress(ValueError, OSError):  # not on this system
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(limits, default=None)


def _limits_of_groups(root: Path) -> list[int]:
    """List the limits of this process's control groups (cgroups), those around them included."""
    limits: list[int] = []
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            folder, name = root / "sys/fs/cgroup", "memory.max"
            if controllers:  # version 1, where each controller has groups of its own
                folder, name = folder / controllers, "memory.limit_in_bytes"
            inner = folder / group.lstrip("/")
            for place in (inner, *inner.parents):
                if place.is_relative_to(folder):
                    with contextlib.suppress(OSError, ValueError):  # "max": none
                        limits.append(int((place / name).read_text()))
    return limits


def check_fits(agent: Any) -> None:
    """Refuse a training whose arrays alone, without an update's temporary ones, exceed the memory.

    Nothing is allocated or compiled.

    Raises:
        ValueError: it cannot fit.
    """
    limit = memory_of_device()
    if limit is None:
        return
    n_sharing = 1 if jax.default_backend() == "cpu" else agent.config.devices
    if agent not in _necessary:  # `Agent.step` asks at each update
        _necessary[agent] = list(_necessary_arrays(agent))
    for what, n_bytes in _necessary[agent]:
        if n_bytes / n_sharing > limit:
            where = "this machine" if jax.default_backend() == "cpu" else "each device"
            raise ValueError(
                f"{what} needs at least {n_bytes / n_sharing / 1e9:,.1f} GB of memory, but {where} "
                f"has {limit / 1e9:,.1f} GB; reduce it, and see what fits by `jaxagents plan`."
            )


def _necessary_arrays(agent: Any) -> Iterator[tuple[str, float]]:
    """List arrays that every program needs, with their bytes; the cheapest to determine first."""
    config, environments = agent.config, agent.environments
    features = environments.observation.features
    step = math.prod(features.shape) * np.dtype(features.dtype).itemsize  # of all actors
    n_rollouts = 1 + (config.replay_updates or 0)
    rollout = f"batch_size={config.batch_size:,} with rollout_length={config.rollout_length:,}"
    if config.replay_updates:
        rollout += f" and replay_updates={config.replay_updates}"
    yield rollout, float(n_rollouts * config.steps_per_update * step)
    yield f"n_evals={config.n_evals:,}", float(config.n_evals * step)
    state = sum(
        leaf.size * np.dtype(leaf.dtype).itemsize for leaf in _arrays(agent.runners.shapes())
    )
    yield "the state of training (networks, optimizers and environments)", float(state)


def bytes_of_member(agent: Any, n_devices: int = 1) -> float:
    """Estimate the memory of a member: its runner before and after a block, and an update.

    The devices that divide its environments divide the update.

    An update needs about 12 bytes * (observation size + 0.8 * widest hidden layer + 4) for each of
    its samples; measured for feed-forward networks on a CPU.
    """
    config = agent.config
    runner = agent.runners.shapes()
    n_samples = config.steps_per_update * agent.environments.n_actors
    features = runner.observation.features
    observation_size = math.prod(features.shape[2:])
    widest = max((leaf.shape[-1] for leaf in _arrays(runner.actor.params) if leaf.ndim), default=0)
    sample = observation_size + _SHARE_OF_HIDDEN * widest + _NUMBERS_OF_A_SAMPLE
    state = sum(leaf.size * np.dtype(leaf.dtype).itemsize for leaf in _arrays(runner))
    return 2 * state + _BYTES_PER_NUMBER * n_samples / n_devices * sample


def batch_size(n_training: int, n_members: int, at_once: int | None) -> int:
    """Return how many members train as one batch; more members train in several batches.

    Each size is compiled once: when members stop, the size is kept until half of it is enough.

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
