"""Training of a population: the same agent from many random keys or hyperparameters.

On a CPU the members train in threads, one per core, each with the programs of a single run: a
member is bit-identical to that run. On another device they train as one batch, or in several that
fit the memory; several devices divide them. All members wait for each other at every evaluation,
where one checkpoint holds them all, and a rule may select among them.
"""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, final, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxagents.compiler.devices import WHOLE, Devices, of_members
from jaxagents.compiler.processes import check_agreement
from jaxagents.compiler.random_keys import as_key
from jaxagents.compiler.threads import is_on_cpu, map_in_threads
from jaxagents.compiler.tuned_forms import is_plain
from jaxagents.compiler.waiting import wait_for
from jaxagents.hyperparameters import HyperParameters, flat_items
from jaxagents.ippo.driver import Learners, drive, local
from jaxagents.ippo.frozen import Frozen
from jaxagents.ippo.population.members import (
    member_of,
    members_at,
    members_first,
    split_hyperparams,
    stack,
    with_members,
)
from jaxagents.ippo.population.memory import batch_size, check_fits, members_at_once
from jaxagents.ippo.population.selection import (
    Generation,
    Selection,
    applied,
    hyperparams_of,
    row_of,
)
from jaxagents.ippo.runners import specs_of_training
from jaxagents.ippo.training_run import Trainee, TrainingRun, check_division
from jaxagents.ppo.finiteness import describe_nonfinite, raise_nonfinite
from jaxagents.training.best_members import scores_of
from jaxagents.training.named_arrays import Leaves
from jaxagents.types import Metrics, Runner, Training

_logger = logging.getLogger(__name__)


class Members(NamedTuple):
    """The carry of the loop over blocks."""

    training: Training  # [members, ...]
    stop: np.bool_  # all members have stopped
    are_compiled: np.bool_  # programs of members that train in threads
    returns: Float[np.ndarray, "evaluations members"]  # means of the evaluations so far


@runtime_checkable
class PopulationTrainee(Trainee, Protocol):
    """The parts of an agent that a population's training uses, besides those of a single run."""

    member_run: TrainingRun

    def checked(self, hyperparams: HyperParameters) -> HyperParameters:
        """Check hyperparameters."""
        ...


def train_population(
    agent: PopulationTrainee,
    n_members: int,
    rng: Any,
    hyperparams: HyperParameters,
    runner: Runner | None,
    selection: Selection | None,
) -> tuple[Runner, Metrics]:
    """Train from the beginning, or from a population's runner; see `IPPOBase.train`."""
    population = Population(agent, n_members, selection)
    of_members = _checked_of_members(agent, hyperparams, n_members)
    if runner is None:
        runner = population.begin(rng, of_members)
        return population.train(runner, 0, agent.config.initial_evaluation)
    if np.shape(runner.n_updates_done) != (n_members,):
        raise ValueError(
            f"the runner is of {np.size(runner.n_updates_done)} member(s), and hyperparams are for "
            f"{n_members}; give hyperparams for the runner's members."
        )
    _refuse_to_level(selection, hyperparams, runner.hyperparams, "the runner's hyperparams")
    n_updates_done = int(np.max(runner.n_updates_done))
    runner = runner.replace(hyperparams=stack(of_members))
    with agent.runners.explaining(runner, n_members):
        return population.train(runner, n_updates_done, agent.config.initial_evaluation)


def resume_population(
    agent: PopulationTrainee,
    n_members: int,
    hyperparams: HyperParameters | None,
    selection: Selection | None,
) -> tuple[Runner, Metrics]:
    """Continue the population in the agent's directory; see `IPPOBase.resume`."""
    population = Population(agent, n_members, selection)
    recorder = population.recorder
    runner, history = recorder.saved.read_to_resume(agent.runners.shapes(n_members))
    if hyperparams is not None:
        own = "agent.restore('last')[0].hyperparams"
        _refuse_to_level(selection, hyperparams, runner.hyperparams, own)
        of_members = _checked_of_members(agent, hyperparams, n_members)
        runner = runner.replace(hyperparams=stack(of_members))
    return population.train(
        runner,
        int(np.max(runner.n_updates_done)),
        initial=False,
        history=history,
        best=recorder.saved.read_best_members(),
    )


def _refuse_to_level(
    selection: Selection | None, hyperparams: HyperParameters, before: HyperParameters, name: str
) -> None:
    """Raise ValueError if members would lose their own values of what a rule varies.

    Args:
        selection: The rule, if there is one.
        hyperparams: Those that are given.
        before: The members' own, ``[members, ...]``.
        name: Where the user finds these.
    """
    given, owned = flat_items(hyperparams), flat_items(before)
    for varied in selection.varied if selection is not None else ():
        own = np.asarray(owned[varied])
        if np.shape(given[varied]) != own.shape and (own != own[0]).any():
            raise ValueError(
                f"{varied} is varied by the selection, so each member has its own; give those, of "
                f"shape {own.shape}: change {name}."
            )


def _checked_of_members(
    agent: PopulationTrainee, hyperparams: HyperParameters, n_members: int
) -> list[HyperParameters]:
    each = split_hyperparams(hyperparams, n_members, agent.policies.n_policies)
    return [agent.checked(of_member) for of_member in each]


def check_can_be_population(agent: Trainee, n_members: int) -> None:
    """Raise ValueError if an agent cannot train this many members together."""
    if not agent.environments.can_be_vmapped:
        raise ValueError(
            "environments outside of JAX are played by one member at a time; call agent.train "
            "once per key."
        )
    check_division(agent, n_members)
    is_in_threads = jax.default_backend() == "cpu" and agent.config.devices == 1
    if agent.config.prng_impl is not None and not is_in_threads:
        raise ValueError(
            f"prng_impl={agent.config.prng_impl!r} would draw for all members of a population by "
            "the first one's key; use an agent with prng_impl=None."
        )


def check_can_be_selected(agent: Trainee, n_members: int, selection: Selection) -> None:
    """Raise an error if a rule cannot select among the members of a population.

    Raises:
        TypeError: it is not a rule.
        ValueError: it does not fit.
    """
    if not isinstance(selection, Selection):
        raise TypeError(
            f"selection={selection!r} is no rule; pass PopulationBasedTraining or "
            "SuccessiveHalving."
        )
    if not agent.config.n_evals:
        raise ValueError("n_evals=0 leaves selection without returns; evaluate in training.")
    selection.check(n_members)
    rate = "actor_optimizer_params.learning_rate"
    if rate in selection.varied and agent.config.learning_rate_schedule == "kl":
        raise ValueError(
            f"learning_rate_schedule='kl' adapts the actor's rate, so varying {rate} changes "
            "nothing; vary kl_target, or choose another schedule."
        )


@final
class Population(Frozen):
    """Trains a number of members together.

    A member with NaN or infinite quantities stops alone, if ``on_nonfinite`` is "stop": its metrics
    are NaN from there on. The others continue unaffected, except for rounding where they train as
    one batch, which becomes smaller.

    Args:
        agent: The agent.
        n_members: The number of members.
        selection: Selects among them between blocks.

    Attributes:
        recorder: Writes its checkpoints, and calls callbacks and trackers.

    Raises:
        ValueError: the agent cannot train several members together, or not with this selection.
    """

    def __init__(
        self, agent: PopulationTrainee, n_members: int, selection: Selection | None = None
    ):
        check_can_be_population(agent, n_members)
        if selection is not None:
            check_can_be_selected(agent, n_members, selection)
        self._agent = agent
        self._member_run = agent.member_run
        self._n_members = n_members
        self._devices = Devices(agent.config.devices, n_members)
        self._devices.check()
        check_fits(agent)
        self._selection = selection
        self.recorder = agent.recorder.of_population(
            n_members, None if selection is None else selection.settings
        )
        self._freeze()

    def begin(self, rng: Any, hyperparams: Sequence[HyperParameters]) -> Runner:
        """Build the initial runners, ``[members, ...]``.

        Args:
            rng: A key for all members, or one per member.
            hyperparams: Each member's.
        """
        keys = jnp.broadcast_to(as_key(rng), (self._n_members,))
        return stack(
            [self._agent.runners.begin(*each) for each in zip(keys, hyperparams, strict=True)]
        )

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
        check_agreement({"members": self._n_members})
        members = self._first_block(runner, history)
        learners = Learners(
            agents=[self._agent],
            recorders=[self.recorder],
            report_themselves=[False],
            run_block=self._run_block,
            runners=lambda members: [members.training.runner],
        )
        members, (metrics,) = drive(learners, members, n_updates_done, initial, [history], best)
        self._warn_of_stopped(members)
        return members.training.runner, members_first(metrics)

    def _first_block(self, runner: Runner, history: Leaves | None) -> Members:
        training = jax.vmap(self._member_run.first_block)(runner)
        if history:
            had_stopped = np.isnan(history["n_updates_done"][-1])
            training = training._replace(stop=training.stop | had_stopped)
        returns = np.zeros((0, self._n_members))
        if history and "returns" in history:
            returns = np.stack([scores_of(each) for each in history["returns"]])
        return Members(training, np.bool_(False), np.bool_(False), returns)

    def _run_block(
        self, members: Members, n_updates: Int[Array, ""]
    ) -> tuple[Members, list[Leaves]]:
        """Do some updates of every member, and evaluate it."""
        if not members.are_compiled and self._uses_threads(members):
            # Otherwise all threads would compile the same programs.
            self._train_in_threads(members.training, np.arange(1), jnp.zeros((), jnp.int32))
        members, selected = self._select(members._replace(are_compiled=np.bool_(True)))
        train = self._train_in_threads if self._uses_threads(members) else self._train_in_batches
        living = np.flatnonzero(~np.asarray(members.training.stop))
        if not len(living):  # a rule may end those that remained
            raise ValueError("selection has ended all members; none is left to train.")
        training, of_living = train(members.training, living, n_updates)
        row = {name: _of_all(part, living, self._n_members) for name, part in of_living.items()}
        returns = members.returns
        if "returns" in row:
            returns = np.concatenate([returns, scores_of(row["returns"])[None]])
        stop = np.all(training.stop)
        return Members(training, stop, members.are_compiled, returns), [row | selected]

    def _select(self, members: Members) -> tuple[Members, Leaves]:
        """Select among the members; also return the metrics that record it."""
        rule, training = self._selection, members.training
        if rule is None:
            return members, {}
        decision = None
        if len(members.returns):
            n_updates_done = int(np.max(training.runner.n_updates_done))
            decision = rule.select(
                Generation(
                    n_updates_done=n_updates_done,
                    n_blocks_done=-(-n_updates_done // self._agent.config.eval_frequency),
                    returns=members.returns,
                    hyperparams=hyperparams_of(rule, training),
                )
            )
        if decision is not None:
            training = applied(decision, training)
        return members._replace(training=training), row_of(rule, decision, training)

    def _train_in_threads(
        self, training: Training, living: Int[np.ndarray, " n"], n_updates: Int[Array, ""]
    ) -> tuple[Training, Leaves]:
        """Train members one per core; a member is trained by one thread at a time."""

        def train(member: Training) -> tuple[Training, Metrics]:
            member, (row,) = self._member_run.run_block(member, n_updates, overlaps=False)
            return member, row

        starts = [members_at(training, index) for index in living]
        results = map_in_threads(train, starts, progress_bar=False)
        wait_for(results)
        trained, rows = stack(results)
        return self._with(training, living, trained), jax.device_get(rows)

    def _train_in_batches(
        self, training: Training, living: Int[np.ndarray, " n"], n_updates: Int[Array, ""]
    ) -> tuple[Training, Leaves]:
        """Train members in batches of one size, so that few sizes are compiled."""
        devices = self._devices
        at_once = members_at_once(self._agent, devices.n_per_member)
        size = devices.n_groups * batch_size(
            -(-len(living) // devices.n_groups), self._n_members // devices.n_groups, at_once
        )
        specs = of_members(_specs_of(training, devices))
        rows: list[Leaves] = []
        for start in range(0, len(living), size):
            index = np.full(size, self._n_members)  # no member: a stand-in does no updates
            own = living[start : start + size]
            index[: len(own)] = own
            batch = members_at(training, np.minimum(index, self._n_members - 1))
            batch = batch._replace(stop=batch.stop | (index == self._n_members))
            results = _train_batch(self._member_run, devices, devices.put(batch, specs), n_updates)
            wait_for(results)
            # Between blocks each process has all members.
            trained, of_batch = local(results)
            training = self._with(training, index, trained)
            rows.append({name: each[: len(own)] for name, each in jax.device_get(of_batch).items()})
        return training, {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}

    def _with(self, training: Training, index: Int[np.ndarray, " n"], parts: Training) -> Training:
        """Put trained members in their places."""
        if np.array_equal(index, np.arange(self._n_members)):
            return parts
        return with_members(training, index, parts)

    def _uses_threads(self, members: Members) -> bool:
        is_divided = self._devices.n > 1
        return not is_divided and not is_plain() and is_on_cpu(members.training.stop)

    def _warn_of_stopped(self, members: Members) -> None:
        """Log which members NaN or infinity has stopped; raise if it has stopped all."""
        found = np.asarray(members.training.nonfinite)
        updates = np.asarray(members.training.runner.n_updates_done)
        if self._agent.config.on_nonfinite != "stop":
            return
        if all(each.any() for each in found):
            raise_nonfinite(np.any(found, axis=0), int(updates.max()))
        for i, (each, n_updates_done) in enumerate(zip(found, updates, strict=True)):
            if each.any():
                text = describe_nonfinite(each, int(n_updates_done))
                _logger.warning("member %d has stopped, the others continue: %s", i, text)


def _of_all(part: np.ndarray, living: Int[np.ndarray, " n"], n_members: int) -> np.ndarray:
    """Return a metric of all members from that of the living ones; it is NaN for the others."""
    whole = np.full((n_members, *part.shape[1:]), np.nan, part.dtype)
    whole[living] = part
    return whole


def _specs_of(training: Training, devices: Devices) -> Any:
    """Return the specs of a member; environments of one device need not be divisible."""
    return specs_of_training(training) if devices.n_per_member > 1 else WHOLE


@partial(jax.jit, static_argnames=("run", "devices"))
def _train_batch(
    run: TrainingRun, devices: Devices, members: Training, n_updates: Int[Array, ""]
) -> tuple[Training, Metrics]:
    """Train members together, ``[members, ...]``; they divide among the groups of devices."""

    def train(training: Training, n_updates: Int[Array, ""]) -> tuple[Training, Metrics]:
        training, (row,) = run.run_block(training, n_updates, overlaps=False)
        return training, row

    def train_own(members: Training, n_updates: Int[Array, ""]) -> tuple[Training, Metrics]:
        if len(members.stop) > 1:
            return jax.vmap(train, in_axes=(0, None))(members, n_updates)
        return stack([train(member_of(members, 0), n_updates)])

    specs, of_metrics = of_members((_specs_of(members, devices), WHOLE))
    divided = devices.split(train_own, in_specs=(specs, WHOLE), out_specs=(specs, of_metrics))
    return divided(members, n_updates)
