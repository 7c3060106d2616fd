"""Measurements of one device's share of a training run, by the run's own programs."""

import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.hyperparameters import HyperParameters
from jaxagents.ippo.base import IPPOBase
from jaxagents.types import Updates

_SECONDS_OF_UPDATES = 3.0
_MIN_UPDATES, _MAX_UPDATES = 3, 200


class MeasuredShare(NamedTuple):
    """What a device's share of a training run costs.

    Attributes:
        start_seconds: Until the first update is done, mostly compilation.
        update_seconds: Of an update: the median.
        evaluation_start_seconds: Until the first evaluation is done, likewise.
        evaluation_seconds: Of an evaluation whose longest episode lasts as long as it may.
        memory: Peak in bytes: of the device, or of the whole process on a CPU.
    """

    start_seconds: float
    update_seconds: float
    evaluation_start_seconds: float
    evaluation_seconds: float
    memory: int


def measure_share(agent: IPPOBase, hyperparams: HyperParameters) -> MeasuredShare | None:
    """Train for some seconds; nothing is written, and no callback is called.

    Args:
        agent: The agent of the share.
        hyperparams: As for ``agent.train``.

    Returns:
        The measurements, or None if the device's memory is exhausted.
    """
    try:
        with agent.environments.raising_faults():
            return _measure(agent, hyperparams)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return None


def memory_of_update(agent: IPPOBase) -> int | None:
    """Return the bytes that an update needs by XLA's account, if XLA keeps one on this device.

    Compiles the update, and runs nothing.
    """
    analysis = (
        jax.jit(agent.step_and_check).lower(agent.runners.shapes()).compile().memory_analysis()
    )
    if analysis is None:
        return None
    total = analysis.argument_size_in_bytes + analysis.output_size_in_bytes
    return total + analysis.temp_size_in_bytes - analysis.alias_size_in_bytes


def _measure(agent: IPPOBase, hyperparams: HyperParameters) -> MeasuredShare:
    run = agent.run
    one = jnp.ones((), jnp.int32)
    started = time.perf_counter()
    runner = agent.runners.begin(jax.random.key(0), agent.checked(hyperparams))
    update_repeatedly = run.updates_compiled_for(runner)
    updates = update_repeatedly(run, run.open_block(run.first_block(runner), one))
    jax.block_until_ready(updates)
    start_seconds = time.perf_counter() - started

    def update() -> Updates:
        nonlocal updates
        updates = update_repeatedly(run, updates._replace(n_left=jnp.copy(one)))
        return updates

    update_seconds = _median_seconds(update)
    evaluation = (0.0, 0.0)
    if agent.config.n_evals:
        evaluation = _measure_evaluation(agent, updates)
    return MeasuredShare(start_seconds, update_seconds, *evaluation, _peak_memory())


def _measure_evaluation(agent: IPPOBase, updates: Updates) -> tuple[float, float]:
    """Return the seconds until the first is done, and of one of full length."""
    started = time.perf_counter()
    lengths = np.asarray(agent.run._evaluate(updates)["episode_lengths"])
    first = time.perf_counter()
    jax.block_until_ready(agent.run._evaluate(updates))
    seconds = time.perf_counter() - first
    longest = lengths.max()  # an evaluation lasts until the last episode ends
    return first - started, seconds * (agent.environments.time_limit.n_steps or longest) / longest


def _median_seconds(run: Callable[[], object]) -> float:
    """Time a few runs, or as many as take some seconds."""
    seconds: list[float] = []
    while len(seconds) < _MIN_UPDATES or (
        sum(seconds) < _SECONDS_OF_UPDATES and len(seconds) < _MAX_UPDATES
    ):
        started = time.perf_counter()
        jax.block_until_ready(run())
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def _peak_memory() -> int:
    peak = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    if peak is not None:
        return peak
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
