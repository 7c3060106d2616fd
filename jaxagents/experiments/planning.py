"""The predicted cost of a training run: memory per device, steps per second, and time to finish.

One device's share of the work is tried on this device, with the programs of a training run. Only
the exchange between devices is not tried, but counted in their program.
"""

import math
import resource
import statistics
import sys
import time
import warnings
from dataclasses import dataclass, replace
from typing import NamedTuple, final

import jax

from jaxagents.compiler.devices import ENVIRONMENTS
from jaxagents.compiler.platform import explaining_exhausted_memory
from jaxagents.compiler.program_costs import Costs, count_costs
from jaxagents.config import AgentConfig
from jaxagents.experiments.profiling import TimedTraining
from jaxagents.hyperparameters import HyperParameters
from jaxagents.ippo.base import IPPOBase
from jaxagents.ippo.population.memory import bytes_of_member, memory_of_device
from jaxagents.ppo.finiteness import Residues, skip_nonfinite
from jaxagents.training.blocks import block_sizes
from jaxagents.types import Metrics, Runner

_MOST_OF_ESTIMATED = 6  # convolutions need up to four times what the formula says
_FAR_BEYOND = 20
_N_ROUNDS = 3
_SECONDS_OF_ROUND = 1.0


class Links(NamedTuple):
    """The links between devices: assumed, not measured.

    Attributes:
        bytes_per_second: Rate at which each device sends and receives.
        seconds_per_hop: Latency from one device to the next.
    """

    bytes_per_second: float = 25e9
    seconds_per_hop: float = 7e-6

    def seconds(self, communication: Costs, n_devices: int) -> float:
        """Return the time of an exchange: its calls go up a tree, its bytes around a ring."""
        hops = communication.n_calls * math.ceil(math.log2(n_devices))
        sent = 2 * (n_devices - 1) / n_devices * communication.n_bytes
        return hops * self.seconds_per_hop + sent / self.bytes_per_second


class MeasuredShare(NamedTuple):
    """The measured costs of a device's share of a training run.

    Attributes:
        start_seconds: Seconds until the first update is done, mostly compilation.
        update_seconds: Median seconds of an update.
        evaluation_start_seconds: Seconds until the first evaluation is done, mostly compilation.
        evaluation_seconds: Seconds of an evaluation whose longest episode lasts as long as allowed.
        memory: Peak memory in bytes: of the device, or of the whole process on a CPU.
    """

    start_seconds: float
    update_seconds: float
    evaluation_start_seconds: float
    evaluation_seconds: float
    memory: int


@final
@dataclass(frozen=True)
class Plan:
    """The predicted cost of a training run.

    Attributes:
        device: Kind of the device that was tried; the others are assumed to be of the same kind.
        n_devices: Number of devices.
        n_updates: Updates of the run.
        n_evaluations: Evaluations of the run.
        steps_per_update: Environment steps of an update, of all devices.
        estimated_memory: Bytes that a device's arrays need: by a formula, or by XLA's own count if
            the formula may exceed the memory.
        memory_limit: Bytes that a device has; None: unknown.
        measured: A device's share; None if it does not fit.
        communication: A device's exchange in an update.
        communication_seconds: Seconds of this exchange, over the assumed links.
    """

    device: str
    n_devices: int
    n_updates: int
    n_evaluations: int
    steps_per_update: int
    estimated_memory: float
    memory_limit: int | None
    measured: MeasuredShare | None
    communication: Costs
    communication_seconds: float

    @property
    def memory(self) -> int | float:
        """Bytes that a device needs: measured, or estimated if it was not tried."""
        return self.estimated_memory if self.measured is None else self.measured.memory

    @property
    def fits(self) -> bool:
        """True if a share was measured, and its memory is within the limit, if that is known."""
        limit = math.inf if self.memory_limit is None else self.memory_limit
        return self.measured is not None and self.memory <= limit

    @property
    def update_seconds(self) -> float:
        """Seconds of an update, communication included; infinity if it does not fit."""
        if self.measured is None:
            return math.inf
        return self.measured.update_seconds + self.communication_seconds

    @property
    def start_seconds(self) -> float:
        """Seconds until the first update and the first evaluation are done."""
        if self.measured is None:
            return math.inf
        return self.measured.start_seconds + self.measured.evaluation_start_seconds

    @property
    def steps_per_second(self) -> float:
        """Environment steps per second, evaluations included, once all is compiled."""
        return self.n_updates * self.steps_per_update / self._seconds_of_work

    @property
    def seconds(self) -> float:
        """Seconds from the call of ``train`` to its end."""
        return self.start_seconds + self._seconds_of_work

    @property
    def _seconds_of_work(self) -> float:
        if self.measured is None:
            return math.inf
        evaluations = self.n_evaluations * self.measured.evaluation_seconds
        return self.n_updates * self.update_seconds + evaluations


def plan(
    agent: IPPOBase,
    hyperparams: HyperParameters,
    n_devices: int | None = None,
    links: Links | None = None,
    memory_limit: int | None = None,
) -> Plan:
    """Try one device's share of an agent's training, and predict the cost of the whole.

    Nothing is written, and callbacks are not called.

    Args:
        agent: The agent.
        hyperparams: As for ``agent.train``.
        n_devices: Devices of the planned training, which this machine need not have. None: those of
            the agent's configuration.
        links: The links between them.
        memory_limit: Bytes of each planned device; None: those of this one.

    Returns:
        The plan. If the share needs more memory than there is, by the estimate or when it is tried,
        nothing is measured.

    Raises:
        ValueError: a hyperparameter is out of range; the work does not divide among the devices; or
            the share needs more memory than this machine has, and less than ``memory_limit``.
    """
    config = agent.config
    n_devices = config.devices if n_devices is None else n_devices
    agent.checked(hyperparams)
    share = type(agent)(agent.env, agent.env_params, share_of(config, n_devices))
    limit = memory_of_device() if memory_limit is None else memory_limit
    communication = Costs()
    if n_devices > 1:
        communication = communication_of_update(agent, share, n_devices)
    estimated = _estimated_memory(share, limit)
    does_not_fit = limit is not None and estimated > limit
    return Plan(
        device=jax.devices()[0].device_kind,
        n_devices=n_devices,
        n_updates=config.n_steps,
        n_evaluations=len(block_sizes(0, config, config.initial_evaluation))
        if config.n_evals
        else 0,
        steps_per_update=config.steps_per_update,
        estimated_memory=estimated,
        memory_limit=limit,
        measured=None if does_not_fit else measure_share(share, hyperparams),
        communication=communication,
        communication_seconds=(links or Links()).seconds(communication, n_devices),
    )


def share_of(config: AgentConfig, n_devices: int) -> AgentConfig:
    """Return the configuration of one device's share.

    Raises:
        ValueError: environments, minibatches or evaluations do not divide.
    """
    if n_devices > 1:
        config.check_division(n_devices, f"devices={n_devices}")
    return replace(
        config,
        devices=1,
        batch_size=config.batch_size // n_devices,
        minibatch_size=max(1, config.minibatch_size // n_devices),
        n_evals=config.n_evals // n_devices,
        progress_bar=False,
        checkpoint_dir=None,
    )


def communication_of_update(agent: IPPOBase, share: IPPOBase, n_devices: int) -> Costs:
    """Count a device's exchange in an update in which no policy's epochs end early.

    Args:
        agent: The agent of the whole training.
        share: The agent of a device's share.
        n_devices: Number of devices.
    """

    def update(runner: Runner) -> tuple[Runner, Metrics, Residues]:
        keys = agent.split_key(runner)
        return agent.learn(*agent.collector.collect(runner, keys.rollout), keys)

    n_epochs = agent.config.actor_epochs
    axis = (ENVIRONMENTS, n_devices)
    shapes = share.runners.shapes()
    return count_costs(skip_nonfinite(update), shapes, n_iterations=n_epochs, axis=axis)


def measure_share(agent: IPPOBase, hyperparams: HyperParameters) -> MeasuredShare | None:
    """Train for a few seconds; nothing is written, and no callback is called.

    Args:
        agent: The agent of the share.
        hyperparams: As for ``agent.train``.

    Returns:
        The measurements, or None if the device's memory is exhausted.
    """
    try:
        with explaining_exhausted_memory(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of trainings as short as the share's
            training = TimedTraining(agent, hyperparams)
            update_seconds = _seconds_of_update(training, agent.config.n_steps)
            evaluation = (0.0, 0.0)
            if agent.config.n_evals:
                evaluation = _measure_evaluation(agent, training.runner)
    except MemoryError:
        return None
    return MeasuredShare(training.start_seconds, update_seconds, *evaluation, _peak_memory())


def _seconds_of_update(training: TimedTraining, n_most: int) -> float:
    """Time a few rounds, with enough updates in each to make its start negligible."""

    def seconds_of(n_updates: int) -> float:
        started = time.perf_counter()
        training.update(n_updates)
        return (time.perf_counter() - started) / n_updates

    n_updates = int(min(max(1, _SECONDS_OF_ROUND / seconds_of(1)), n_most))
    return statistics.median(seconds_of(n_updates) for _ in range(_N_ROUNDS))


def _measure_evaluation(agent: IPPOBase, runner: Runner) -> tuple[float, float]:
    """Return the seconds until the first evaluation is done, and of one of full length."""

    def evaluate() -> tuple[float, float]:
        started = time.perf_counter()
        evaluation = agent.eval(jax.random.key(agent.config.eval_seed), runner=runner)
        longest = float(evaluation["episode_lengths"].max())  # it lasts until that one ends
        return time.perf_counter() - started, longest

    (first, _), (seconds, longest) = evaluate(), evaluate()
    return first, seconds * (agent.environments.time_limit.n_steps or longest) / longest


def _peak_memory() -> int:
    peak = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    if peak is not None:
        return peak
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def memory_of_update(agent: IPPOBase) -> int | None:
    """Return the bytes that an update needs by XLA's own count, if it has one for this device.

    Compiles the update, and runs nothing.
    """
    analysis = jax.jit(agent.step).lower(agent.runners.shapes()).compile().memory_analysis()
    if analysis is None:
        return None
    total = analysis.argument_size_in_bytes + analysis.output_size_in_bytes
    return total + analysis.temp_size_in_bytes - analysis.alias_size_in_bytes


def _estimated_memory(share: IPPOBase, limit: int | None) -> float:
    estimated = bytes_of_member(share)
    # An update far beyond the memory may be too large for XLA, too, or compile for minutes.
    if limit is None or not limit / _MOST_OF_ESTIMATED <= estimated <= _FAR_BEYOND * limit:
        return estimated
    return memory_of_update(share) or estimated
