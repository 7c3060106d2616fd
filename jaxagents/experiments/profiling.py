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
"""The stages that an update consists of."""

_N_UPDATES_BEFORE = 3  # so that episodes are not all at their first step
_PRODUCT_SIZES = (2048, 4096, 8192)
_LONG = 0.01  # seconds: a product that takes this is large enough


class Stage(NamedTuple):
    """What was measured of one stage."""

    seconds: float  # median of its runs
    compile_seconds: float  # tracing included; less where it was found in jax's cache on the disk
    every: int = 1  # updates: how often it runs
    flops: int | None = None  # of its matrix products, where these were counted

    @property
    def seconds_per_update(self) -> float:
        """Seconds that the stage takes of an update, on average."""
        return self.seconds / self.every


@final
@dataclass(frozen=True)
class Profile:
    """Where an update's time goes, each stage measured as a compiled program of its own.

    Attributes:
        stages: The `PARTS` by their names; ``shuffle``, a part of ``actor`` and ``critic``;
            ``update``, the whole of it; and, where they are configured, what follows on a block
            of updates: ``evaluation``, and ``callbacks``, which is handing an evaluation to the
            host.
        n_envs: Environments side by side.
        rollout_length: Steps of each in an update.
        actor_epochs: That were timed: all, as if none stopped early.
        critic_epochs: Likewise.
        product_size: Rows and columns of the matrices whose product was timed.
        product_flops_per_second: The rate of that product, which no stage can exceed by much.
        device: What all this ran on.
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
        """Seconds that the whole update takes beyond its parts.

        Below 0 where compiling the update as a whole saves something: stages that do not wait for
        each other may run side by side.
        """
        return self.stages["update"].seconds - sum(self.stages[part].seconds for part in PARTS)

    @property
    def steps_per_second(self) -> float:
        """Environment steps per second while updating."""
        return self.n_envs * self.rollout_length / self.stages["update"].seconds

    @property
    def steps_per_second_of_training(self) -> float:
        """Environment steps per second, evaluations and their hand-over included."""
        outside = ("update", "evaluation", "callbacks")
        stages = [self.stages[name] for name in outside if name in self.stages]
        return self.n_envs * self.rollout_length / sum(each.seconds_per_update for each in stages)

    def share(self, name: str) -> float:
        """Give a stage's share of the time of the whole update."""
        return self.stages[name].seconds_per_update / self.stages["update"].seconds

    def share_of_limit(self, name: str) -> float | None:
        """Tell how close a stage comes to doing nothing but matrix products, as a share of 1.

        None: its products were not counted.
        """
        stage = self.stages[name]
        if stage.flops is None:
            return None
        return stage.flops / stage.seconds / self.product_flops_per_second


def profile(agent: IPPOBase, hyperparams: HyperParameters, n_rounds: int = 20) -> Profile:
    """Measure where the time of an agent's update goes.

    The stages run in turn, so that whatever else the machine does meets them all alike. No callback
    is called and nothing is written.

    Args:
        agent: The agent.
        hyperparams: As for ``agent.train``, but for ``kl_threshold``: epochs never end early.
        n_rounds: How often each stage is timed.

    Raises:
        ValueError: a hyperparameter is out of range, or nothing would be timed.
    """
    if n_rounds < 1:
        raise ValueError(f"n_rounds={n_rounds} is too small; time each stage at least once.")
    config = agent.config
    runner = agent.init(jax.random.key(0), hyperparams.replace(kl_threshold=math.inf))
    runner, metrics, update = _begun_training(agent, runner)
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


def _begun_training(agent: IPPOBase, runner: Runner) -> tuple[Runner, Metrics, Program]:
    """Train a little; return also the metrics, and a program that goes on by an update a call."""
    started = time.perf_counter()
    update_repeatedly = agent._updates_compiled_for(runner)
    n_updates = jnp.asarray(_N_UPDATES_BEFORE, jnp.int32)
    updates = update_repeatedly(agent, agent._open_block(agent._first_block(runner), n_updates))
    metrics = jax.block_until_ready(jax.tree.map(lambda leaf: leaf / n_updates, updates.total))
    # The first updates may count to the time.
    seconds = time.perf_counter() - started
    runner = jax.tree.map(jnp.copy, updates.runner)

    def update() -> Updates:
        nonlocal updates
        updates = update_repeatedly(agent, updates._replace(n_left=jnp.ones((), jnp.int32)))
        return updates

    return runner, metrics, Program(update, (), seconds)


def _time_in_turn(programs: Sequence[Program], n_rounds: int) -> list[float]:
    """Time programs, each once a round; return the medians, in seconds."""
    rounds = [[_seconds_of(program) for program in programs] for _ in range(n_rounds)]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def _seconds_of(program: Program) -> float:
    program()  # within an update, too, a stage finds in the caches what it works on
    started = time.perf_counter()
    program()
    return time.perf_counter() - started


def _large_product() -> tuple[Program, int]:
    """Choose a matrix product that keeps the device busy; return its size, too."""
    size, *larger = _PRODUCT_SIZES
    product = _product_of(size)
    while larger and _seconds_of(product) < _LONG:
        size, *larger = larger
        product = _product_of(size)
    return product, size


def _product_of(size: int) -> Program:
    matrix = jax.random.normal(jax.random.key(0), (size, size))
    return compiled(jnp.dot, matrix, matrix)
