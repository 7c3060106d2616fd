"""The time of an update's stages."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, PRNGKeyArray

from jaxagents.compiler.program_costs import count_costs
from jaxagents.hyperparameters import HyperParameters
from jaxagents.ippo.base import IPPOBase
from jaxagents.ippo.runners import specs_of
from jaxagents.ppo.batches import Valuation
from jaxagents.training.named_arrays import strip_keys
from jaxagents.types import Batch, NetworkState, PyTree, Runner, TimeStep, Training, Transition

PARTS = ("rollout", "values", "advantages", "actor", "critic")
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


class Program(NamedTuple):
    """A compiled function and its arguments."""

    function: Callable[..., PyTree]
    arguments: tuple[PyTree, ...]
    compile_seconds: float  # tracing included
    flops: int | None = None  # of its matrix products, if these are most of its work

    def __call__(self) -> PyTree:
        """Run it and wait for its results."""
        return jax.block_until_ready(self.function(*self.arguments))


@final
class TimedTraining:
    """A training whose single updates can be timed, with the programs of a training run.

    Attributes:
        start_seconds: Seconds until the first update was done, mostly tracing and compilation.

    Args:
        agent: The agent; its callbacks are not called.
        hyperparams: As for ``agent.train``.

    Raises:
        ValueError: there are too few devices, or there is too little memory.
    """

    def __init__(self, agent: IPPOBase, hyperparams: HyperParameters):
        agent.run.check()
        self._agent = agent
        started = time.perf_counter()
        runner = agent.init(jax.random.key(0), hyperparams)
        self._update = agent.run.updates_compiled_for(runner)
        first = agent.run.first_block(agent.devices.put(runner, specs_of(runner)))
        self._updates = agent.run.open_block(first, jnp.asarray(1, jnp.int32))
        self.update()
        self.start_seconds = time.perf_counter() - started

    @property
    def runner(self) -> Runner:
        """State after the latest update, which the next one may overwrite."""
        return self._updates.runner

    def update(self, n_updates: int = 1) -> None:
        """Do the given number of further updates.

        Raises:
            NonFiniteError: an update gave NaN or infinity, which ends the training.
        """
        updates = self._updates._replace(n_left=jnp.asarray(n_updates, jnp.int32))
        with self._agent.environments.raising_faults():
            self._updates = updates = jax.block_until_ready(self._update(updates))
        self._agent.run.finished(Training(updates.runner, updates.n_left > 0, updates.nonfinite))


@final
@dataclass(frozen=True)
class Profile:
    """The time of an update's stages, each measured as a compiled program of its own.

    Attributes:
        stages: The `PARTS` by name; ``environment``, a part of ``rollout``; ``update``, the whole
            update; and, if they are configured, the stages after a block of updates:
            ``evaluation``, and ``transfer``, which copies the runner to the host.
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
        names = ("update", "evaluation", "transfer")
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
    """Measure the time of each stage of an agent's update.

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
    training = TimedTraining(agent, hyperparams.replace(kl_threshold=math.inf))
    for _ in range(_N_WARM_UP_UPDATES - 1):
        training.update()
    runner = jax.tree.map(jnp.copy, training.runner)
    of_block = programs_of_block(agent, runner)
    programs = {
        **programs_of_update(agent, runner),
        "update": Program(training.update, (), training.start_seconds),
        **of_block,
    }
    product, size = _large_product()
    *seconds, product_seconds = _time_in_turn([*programs.values(), product], n_rounds)
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
        device=jax.devices()[0].device_kind,
    )


def programs_of_update(agent: IPPOBase, runner: Runner) -> dict[str, Program]:
    """Compile the stages of an agent's next update.

    Args:
        agent: The agent.
        runner: State of its training. The ``kl_threshold`` should be infinite, because the
            matrix products of all actor epochs are counted.
    """
    hyperparams, keys = agent.hyperparams_of(runner), agent.split_key(runner)
    rollout = compile_stage(agent.collector.collect, runner, keys.rollout)
    after, transitions = rollout()
    values = compile_stage(agent.networks.value_rollout, after, transitions)
    _, valuation = values()
    advantages = compile_stage(
        partial(_estimate, agent), after, transitions, valuation, hyperparams
    )
    batch = advantages()
    n_epochs = agent.config.actor_epochs

    def learning(networks: dict[str, NetworkState], rngs: Key[Array, " policies"]) -> Program:
        arguments = (networks, batch, hyperparams, rngs)
        flops = count_costs(agent.fit_policies, *arguments, n_iterations=n_epochs).flops
        return compile_stage(agent.fit_policies, *arguments)._replace(flops=flops)

    return {
        "rollout": rollout,
        "values": values,
        "advantages": advantages,
        "actor": learning({"actor": runner.actor}, keys.actor),
        "critic": learning({"critic": runner.critic}, keys.critic),
        "environment": compile_stage(
            partial(_step_environments, agent), runner, transitions.action, keys.rollout
        ),
    }


def programs_of_block(agent: IPPOBase, runner: Runner) -> dict[str, Program]:
    """Compile the stages that follow a block of updates, if they are configured.

    Args:
        agent: The agent.
        runner: State of its training.
    """
    programs = {}
    if agent.config.n_evals:
        started = time.perf_counter()
        evaluation = Program(
            agent.eval, (jax.random.key(agent.config.eval_seed), None, True, runner), 0.0
        )
        evaluation()
        programs["evaluation"] = evaluation._replace(compile_seconds=time.perf_counter() - started)
    if agent.config.checkpoint_dir is not None:
        # Of a fresh copy: arrays keep what they have copied to the host.
        copy = compile_stage(partial(jax.tree.map, jnp.copy), strip_keys(runner))
        programs["transfer"] = copy._replace(
            function=lambda tree: jax.device_get(copy.function(tree))
        )
    return programs


def compile_stage(function: Callable[..., PyTree], *arguments: PyTree) -> Program:
    """Compile a function for some arguments."""
    started = time.perf_counter()
    executable = jax.jit(function).lower(*arguments).compile()
    return Program(executable, arguments, time.perf_counter() - started)


def _step_environments(
    agent: IPPOBase, runner: Runner, actions: Array, rng: PRNGKeyArray
) -> tuple[PyTree, TimeStep]:
    """Step the environments with a rollout's actions ``[time, envs, actors, ...]``."""

    def step(state: PyTree, now: tuple[PRNGKeyArray, Array]) -> tuple[PyTree, TimeStep]:
        rng, action = now
        step, state = agent.environments.step(rng, state, agent.distribution.to_environment(action))
        return state, step._replace(info={}, final_state=None)

    rngs, _ = agent.collector.draw(rng)
    return jax.lax.scan(step, runner.env_state, (rngs, actions))


def _estimate(
    agent: IPPOBase,
    runner: Runner,
    transitions: Transition,
    valuation: Valuation,
    hyperparams: HyperParameters,
) -> Batch:
    """Estimate advantages and make the value targets."""
    runner, batch = agent.estimate_advantages(runner, transitions, valuation, hyperparams)
    return agent.make_targets(runner, batch, hyperparams)[1]


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
    return compile_stage(jnp.dot, matrix, matrix)
