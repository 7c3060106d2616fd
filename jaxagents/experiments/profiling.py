"""Where an update's time goes."""

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import jax
import jax.numpy as jnp

from jaxagents.compiler.program_costs import Program, compiled
from jaxagents.experiments.update_stages import programs_of_block, programs_of_update
from jaxagents.hyperparameters import HyperParameters
from jaxagents.ippo.base import IPPOBase
from jaxagents.types import Metrics, Runner, Updates

PARTS = ("environment", "policy", "values", "advantages", "actor", "critic")
"""The stages of an update, in order."""

_N_WARM_UP_UPDATES = 3  # so that not all episodes are at their first step
_PRODUCT_SIZES = (2048, 4096, 8192)
_LONG_ENOUGH = 0.01  # seconds of a matrix product


class Stage(NamedTuple):
    """Measurements of one stage."""

    seconds: float  # median of its runs
    compile_seconds: float  # tracing included; short if found in jax's compilation cache
    every: int = 1  # updates per run
    flops: int | None = None  # of its matrix products, if they were counted

    @property
    def seconds_per_update(self) -> float:
        """Average seconds per update."""
        return self.seconds / self.every


@final
@dataclass(frozen=True)
class Profile:
    """Where an update's time goes, each stage measured as a compiled program of its own.

    Attributes:
        stages: The `PARTS` by name; ``shuffle``, a part of ``actor`` and ``critic``; ``update``,
            the whole update; and, if they are configured, the stages after a block of updates:
            ``evaluation``, and ``callbacks``, which hands an evaluation to the host.
        n_envs: Number of parallel environments.
        rollout_length: Environment steps per trajectory.
        actor_epochs: Number of timed actor epochs: all, without early stopping.
        critic_epochs: Number of timed critic epochs.
        product_size: Rows and columns of the square matrices whose product was timed.
        product_flops_per_second: Rate of that product, which no stage can exceed by much.
        device: Kind of the device.
    """

    stages: Mapping[str, Stage]
    n_envs: int
    rollout_length: int
    actor_epochs: int
    critic_epochs: int
    product_size: int
    product_flops_per_second: float
    device: str

    @property
    def remainder(self) -> float:
        """Seconds of the whole update beyond the sum of its parts.

        Negative if compiling the parts together saves time: independent stages may run in
        parallel.
        """
        return self.stages["update"].seconds - sum(self.stages[part].seconds for part in PARTS)

    @property
    def steps_per_second(self) -> float:
        """Environment steps per second of updates alone."""
        return self.n_envs * self.rollout_length / self.stages["update"].seconds

    @property
    def steps_per_second_of_training(self) -> float:
        """Environment steps per second of training, the stages after a block included."""
        names = ("update", "evaluation", "callbacks")
        stages = [self.stages[name] for name in names if name in self.stages]
        return self.n_envs * self.rollout_length / sum(each.seconds_per_update for each in stages)

    def share(self, name: str) -> float:
        """Return a stage's time as a fraction of the whole update's."""
        return self.stages[name].seconds_per_update / self.stages["update"].seconds

    def share_of_limit(self, name: str) -> float | None:
        """Return a stage's rate of matrix products as a fraction of the measured limit.

        None if its matrix products were not counted.
        """
        stage = self.stages[name]
        if stage.flops is None:
            return None
        return stage.flops / stage.seconds / self.product_flops_per_second


def profile(agent: IPPOBase, hyperparams: HyperParameters, n_rounds: int = 20) -> Profile:
    """Measure where the time of an agent's update goes.

    The stages run in turn, so that other load on the machine affects all of them equally. No
    callback is called and nothing is written.

    Args:
        agent: The agent.
        hyperparams: As for ``agent.train``; ``kl_threshold`` is replaced by infinity.
        n_rounds: How often each stage is timed.

    Raises:
        ValueError: a hyperparameter or ``n_rounds`` is out of range.
    """
    if n_rounds < 1:
        raise ValueError(f"n_rounds={n_rounds} is too small; time each stage at least once.")
    config = agent.config
    runner = agent.init(jax.random.key(0), hyperparams.replace(kl_threshold=math.inf))
    runner, metrics, update = _warm_up(agent, runner)
    of_update = {**programs_of_update(agent, runner), "update": update}
    of_block = programs_of_block(agent, runner, metrics)
    product, size = _large_product()
    programs = {**of_update, **of_block}
    *seconds, product_seconds = _time_in_turn([*programs.values(), product], n_rounds)
    device = jax.devices()[0]
    return Profile(
        stages={
            name: Stage(
                seconds=each,
                compile_seconds=program.compile_seconds,
                every=config.eval_frequency if name in of_block else 1,
                flops=program.flops,
            )
            for (name, program), each in zip(programs.items(), seconds, strict=True)
        },
        n_envs=config.batch_size,
        rollout_length=config.rollout_length,
        actor_epochs=config.actor_epochs,
        critic_epochs=config.critic_epochs,
        product_size=size,
        product_flops_per_second=2 * size**3 / product_seconds,
        device=device.device_kind,
    )


def _warm_up(agent: IPPOBase, runner: Runner) -> tuple[Runner, Metrics, Program]:
    """Do a few updates; return also their metrics, and a program for one more update per call."""
    started = time.perf_counter()
    run = agent.run
    update_repeatedly = run.updates_compiled_for(runner)
    n_updates = jnp.asarray(_N_WARM_UP_UPDATES, jnp.int32)
    updates = update_repeatedly(run, run.open_block(run.first_block(runner), n_updates))
    metrics = jax.block_until_ready(jax.tree.map(lambda leaf: leaf / n_updates, updates.total))
    # The time of the few updates is negligible beside compilation.
    seconds = time.perf_counter() - started
    runner = jax.tree.map(jnp.copy, updates.runner)

    def update() -> Updates:
        nonlocal updates
        updates = update_repeatedly(run, updates._replace(n_left=jnp.ones((), jnp.int32)))
        return updates

    return runner, metrics, Program(update, (), seconds)


def _time_in_turn(programs: Sequence[Program], n_rounds: int) -> list[float]:
    """Time each program once per round; return the medians, in seconds."""
    rounds = [[_seconds_of(program) for program in programs] for _ in range(n_rounds)]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def _seconds_of(program: Program) -> float:
    program()  # so that its inputs are in the processor's caches, as within an update
    started = time.perf_counter()
    program()
    return time.perf_counter() - started


def _large_product() -> tuple[Program, int]:
    """Return a matrix product that is large enough to be timed, and its size."""
    size, *larger = _PRODUCT_SIZES
    product = _product_of(size)
    while larger and _seconds_of(product) < _LONG_ENOUGH:
        size, *larger = larger
        product = _product_of(size)
    return product, size


def _product_of(size: int) -> Program:
    matrix = jax.random.normal(jax.random.key(0), (size, size))
    return compiled(jnp.dot, matrix, matrix)
