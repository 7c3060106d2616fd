"""Training of a population: the same agent from many random keys or hyperparameters.

On a CPU the members train in threads, one per core, each by the programs of a run of its own: a
member is bit-identical to its run alone. On other devices they train as one batch. All members
wait for each other at every evaluation, where one checkpoint holds them all.
"""

import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, Protocol, final, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxagents.compiler.random_keys import as_key
from jaxagents.compiler.switch import is_plain
from jaxagents.compiler.threads import is_on_cpu
from jaxagents.hyperparameters import HyperParameters
from jaxagents.ippo.frozen import Frozen
from jaxagents.ippo.members import member_of, members_first, split_hyperparams, stack
from jaxagents.ippo.training_run import Trainee, TrainingRun
from jaxagents.ppo.finiteness import describe_nonfinite, raise_nonfinite
from jaxagents.training.blocks import block_sizes, run_blocks
from jaxagents.training.metric_tables import joined
from jaxagents.training.named_arrays import Leaves, strip_keys
from jaxagents.types import Metrics, Runner, Training

_logger = logging.getLogger(__name__)


class Members(NamedTuple):
    """The carry of the loop over blocks."""

    trainings: tuple[Training, ...]
    stop: np.bool_  # all members have stopped, or the host requests it


@runtime_checkable
class PopulationTrainee(Trainee, Protocol):
    """What the training of a population uses of an agent beside that of a single run."""

    _member_run: TrainingRun

    def _checked(self, hyperparams: HyperParameters) -> HyperParameters: ...
    def _runner_shapes(self, n_members: int | None = None) -> Runner: ...


def train_population(
    agent: PopulationTrainee,
    n_members: int,
    rng: Any,
    hyperparams: HyperParameters,
    runner: Runner | None,
) -> tuple[Runner, Metrics]:
    """Train from the beginning, or from a population's runner; see `IPPOBase.train`."""
    population = Population(agent, n_members)
    of_members = _checked_of_members(agent, hyperparams, n_members)
    if runner is None:
        runner = population.begin(rng, of_members)
        return population.train(runner, 0, agent.config.initial_evaluation)
    if np.shape(runner.n_updates_done) != (n_members,):
        raise ValueError(
            f"the runner is of {np.size(runner.n_updates_done)} member(s), and hyperparams are for "
            f"{n_members}; give hyperparams for the runner's members."
        )
    n_updates_done = int(np.max(runner.n_updates_done))
    runner = runner.replace(hyperparams=stack(of_members))
    return population.train(runner, n_updates_done, agent.config.initial_evaluation)


def resume_population(
    agent: PopulationTrainee, n_members: int, hyperparams: HyperParameters | None
) -> tuple[Runner, Metrics]:
    """Continue the population in the agent's directory; see `IPPOBase.resume`."""
    population = Population(agent, n_members)
    recorder = agent._recorder.of_population(n_members)
    runner, history = recorder.restore_to_resume(agent._runner_shapes(n_members))
    if hyperparams is not None:
        of_members = _checked_of_members(agent, hyperparams, n_members)
        runner = runner.replace(hyperparams=stack(of_members))
    return population.train(
        runner,
        int(np.max(runner.n_updates_done)),
        initial=False,
        history=history,
        best=recorder.restore_best_members(),
    )


def _checked_of_members(
    agent: PopulationTrainee, hyperparams: HyperParameters, n_members: int
) -> list[HyperParameters]:
    each = split_hyperparams(hyperparams, n_members, agent.policies.n_policies)
    return [agent._checked(of_member) for of_member in each]


def check_can_be_population(agent: Trainee) -> None:
    """Raise ValueError if an agent cannot train several members together."""
    if not agent.environments.can_be_vmapped:
        raise ValueError(
            "environments outside of JAX are played by one member at a time; call agent.train "
            "once per key."
        )
    if agent.config.prng_impl is not None and jax.default_backend() != "cpu":
        raise ValueError(
            f"prng_impl={agent.config.prng_impl!r} would draw for all members of a population by "
            "the first one's key; use an agent with prng_impl=None."
        )


@final
class Population(Frozen):
    """Trains a number of members together.

    A member with NaN or infinite quantities stops alone, if ``on_nonfinite`` is "stop": its metrics
    are NaN from there on, and the others are what they would be without it.

    Args:
        agent: The agent.
        n_members: The number of members.

    Raises:
        ValueError: the agent cannot train several members together.
    """

    def __init__(self, agent: PopulationTrainee, n_members: int):
        check_can_be_population(agent)
        self._agent = agent
        self._member_run = agent._member_run
        self._n_members = n_members
        self._recorder = agent._recorder.of_population(n_members)
        self._freeze()

    def begin(self, rng: Any, hyperparams: Sequence[HyperParameters]) -> Runner:
        """Build the initial runners, ``[members, ...]``.

        Args:
            rng: A key for all members, or one per member.
            hyperparams: Of each member.
        """
        keys = jnp.broadcast_to(as_key(rng), (self._n_members,))
        return stack([self._agent._begin(*each) for each in zip(keys, hyperparams, strict=True)])

    def train(
        self,
        runner: Runner,
        n_updates_done: int,
        initial: bool,
        history: Leaves | None = None,
        best: Leaves | None = None,
    ) -> tuple[Runner, Metrics]:
        """Run the remaining blocks, and record them if there are checkpoints or callbacks.

        Args:
            runner: ``[members, ...]``.
            n_updates_done: Updates that the members have done.
            initial: Begin with an evaluation.
            history: Metrics of earlier evaluations, ``[evaluations, members, ...]``.
            best: The best runners of these.

        Returns:
            The runners and the metrics, ``[members, ...]``.
        """
        agent, recorder = self._agent, self._recorder
        sizes = block_sizes(n_updates_done, agent.config, initial)
        members = self._first_block(runner, history)

        def train() -> tuple[Members, Metrics]:
            if recorder.has_work and not initial and history is None:
                recorder.save(_on_host(members))
            if self._uses_threads(members):  # which would otherwise all compile the same programs
                _train_in_threads(self._member_run, members.trainings[:1], jnp.zeros((), jnp.int32))
            is_shown = agent.config.progress_bar and not recorder.has_work
            return run_blocks(
                self._run_block,
                members,
                sizes,
                ends=lambda members: (
                    recorder.has_work and recorder.call_back(agent, _runners(members))
                ),
                is_shown=is_shown,
            )

        members, metrics = recorder.record(train, n_updates_done, history, best)
        if history:
            metrics = joined(history, metrics)
        metrics = members_first(jax.tree.map(jnp.asarray, metrics))
        self._warn_of_stopped(members)
        return _runners(members), metrics

    def _first_block(self, runner: Runner, history: Leaves | None) -> Members:
        trainings = []
        for i in range(self._n_members):
            training = self._member_run.first_block(member_of(runner, i))
            if history and np.isnan(history["n_updates_done"][-1, i]):
                training = training._replace(stop=jnp.ones((), bool))
            trainings.append(training)
        return Members(tuple(trainings), np.bool_(False))

    def _run_block(self, members: Members, n_updates: Int[Array, ""]) -> tuple[Members, Leaves]:
        """Do some updates of every member, evaluate it, and report all of them to the host."""
        train = _train_in_threads if self._uses_threads(members) else _train_as_one_batch
        results = train(self._member_run, members.trainings, n_updates)
        members = Members(tuple(training for training, _ in results), np.bool_(False))
        rows = [jax.device_get(row) for _, row in results]
        row = {name: np.stack([each[name] for each in rows]) for name in rows[0]}
        stop = all(bool(training.stop) for training in members.trainings)
        # No checkpoint of a block in which all have failed: a resumed run would fail again.
        if self._recorder.has_work and not stop:
            stop = self._recorder.on_evaluation(_on_host(members), row)
        return members._replace(stop=np.bool_(stop)), row

    def _uses_threads(self, members: Members) -> bool:
        return not is_plain() and is_on_cpu(members.trainings[0].stop)

    def _warn_of_stopped(self, members: Members) -> None:
        """Log which members NaN or infinity has stopped; raise if it has stopped all."""
        found = [np.asarray(training.nonfinite) for training in members.trainings]
        updates = [int(training.runner.n_updates_done) for training in members.trainings]
        if self._agent.config.on_nonfinite != "stop":
            return
        if all(each.any() for each in found):
            raise_nonfinite(np.any(found, axis=0), max(updates))
        for i, (each, n_updates_done) in enumerate(zip(found, updates, strict=True)):
            if each.any():
                text = describe_nonfinite(each, n_updates_done)
                _logger.warning("member %d has stopped, the others went on: %s", i, text)


def _train_in_threads(
    run: TrainingRun, trainings: Sequence[Training], n_updates: Int[Array, ""]
) -> list[tuple[Training, Metrics]]:
    train = partial(run.run_block, n_updates=n_updates, update=TrainingRun.update_repeatedly)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(train, trainings))


def _train_as_one_batch(
    run: TrainingRun, trainings: Sequence[Training], n_updates: Int[Array, ""]
) -> list[tuple[Training, Metrics]]:
    results = _train_batch(run, stack(trainings), n_updates)
    return [member_of(results, i) for i in range(len(trainings))]


@partial(jax.jit, static_argnames=("run",))
def _train_batch(
    run: TrainingRun, trainings: Training, n_updates: Int[Array, ""]
) -> tuple[Training, Metrics]:
    train = partial(run.run_block, n_updates=n_updates, update=TrainingRun.update_repeatedly)
    return jax.vmap(train)(trainings)


def _runners(members: Members) -> Runner:
    return stack([training.runner for training in members.trainings])


def _on_host(members: Members) -> Runner:
    """Return all runners as numpy arrays, their random keys as uint32 data."""
    runners = [jax.device_get(strip_keys(training.runner)) for training in members.trainings]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *runners)
