"""A training run of one agent: the programs of a block of updates, its evaluation and report."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, final, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from jaxagents.compiler.devices import WHOLE, Devices, concatenated_over_devices, n_devices
from jaxagents.compiler.jit import (
    Workload,
    compiled_for_speed,
    compiled_quickly,
    overlapping_pays,
    with_overlapping_loops,
)
from jaxagents.compiler.processes import largest
from jaxagents.compiler.waiting import wait_for
from jaxagents.config import AgentConfig
from jaxagents.environments.batch import EnvironmentBatch
from jaxagents.ippo.actor_critic import ActorCritic
from jaxagents.ippo.driver import Learners, drive
from jaxagents.ippo.frozen import Frozen
from jaxagents.ippo.player import Player
from jaxagents.ippo.population.memory import check_fits
from jaxagents.ippo.runners import Runners, specs_of
from jaxagents.ppo.finiteness import QUANTITIES, NonFinite, raise_nonfinite
from jaxagents.ppo.policy_map import PolicyMap
from jaxagents.training.blocks import metrics_of_block, open_block, update_repeatedly
from jaxagents.training.named_arrays import Leaves, pack, strip_keys, unpack
from jaxagents.training.recorder import Recorder
from jaxagents.types import Metrics, NetworkParams, PyTree, Runner, Training, Updates


@runtime_checkable
class Trainee(Protocol):
    """The parts of an agent that its training uses; see `Agent` and `IPPOBase`."""

    config: AgentConfig
    environments: EnvironmentBatch
    networks: ActorCritic
    policies: PolicyMap
    devices: Devices
    player: Player
    recorder: Recorder
    runners: Runners

    def step_and_check(self, runner: Runner) -> tuple[Runner, Metrics, NonFinite]:
        """Do one update."""
        ...


def check_division(agent: Trainee, n_members: int = 1) -> None:
    """Raise ValueError if an agent's devices cannot divide what it trains.

    Args:
        agent: The agent.
        n_members: Number of members of a population; 1 for a single run.
    """
    config, devices = agent.config, Devices(agent.config.devices, n_members)
    n = devices.n_per_member
    if n == 1:
        return
    given = f"devices={devices.n}"
    if n_members > 1:
        given += f", of which {n} train each of {n_members} members"
    config.check_division(n, given)
    if not agent.environments.can_be_divided:
        raise ValueError(
            f"{given}, but these environments cannot be divided: they have opponents; use "
            "devices=1, or for each device a member."
        )


@final
class TrainingRun(Frozen):
    """Trains an agent.

    A block is several programs, compiled separately: `open_block`, `update_repeatedly`, an
    evaluation and `close_block`. On a single device the last program itself reports to the host;
    several devices cannot, so the host reads what they have done.

    Args:
        agent: The agent.
        silent: The run that equal agents share, which reports nothing to the host. This run uses
            its programs, and adds its own reports. None: this one is the shared run.
    """

    def __init__(self, agent: Trainee, silent: "TrainingRun | None" = None):
        self.agent = agent
        self._program_owner = silent
        self._is_divided = agent.devices.n > 1
        self.reports_itself = silent is not None and not self._is_divided
        self._freeze()

    def train(
        self, runner: Runner, n_updates_done: int, initial: bool, history: Leaves | None = None
    ) -> tuple[Runner, Metrics]:
        """Run the remaining blocks, and record them if there are checkpoints or callbacks."""
        agent = self.agent
        self.check()
        with agent.runners.explaining(runner), agent.environments.raising_faults():
            runner = self.with_environments(runner)
            start = self.first_block(agent.devices.put(runner, specs_of(runner)))
            training, (metrics,) = drive(self.learners(), start, n_updates_done, initial, [history])
        return self.finished(training), metrics

    def learners(self, **choices: Any) -> Learners:
        """Return what the driver needs; ``choices`` are those of `run_block`."""
        return Learners(
            agents=[self.agent],
            recorders=[self.agent.recorder],
            report_themselves=[self.reports_itself],
            run_block=partial(self.run_block, **choices),
            runners=lambda training: [training.runner],
        )

    def with_environments(self, runner: Runner) -> Runner:
        """Reset the environments if their state was lost or no longer matches the runner.

        Raises:
            ValueError: their state is there, but of another number of environments.
        """
        agent = self.agent
        is_lost = not agent.environments.can_continue(runner.env_state)
        if self._is_divided:  # all processes reset, or none
            is_lost = largest(is_lost)
        if is_lost:
            return self.shared(self.begin_episodes(runner))
        n_envs, batch_size = len(runner.observation.features), agent.config.batch_size
        if n_envs != batch_size:
            raise ValueError(
                f"the runner plays {n_envs} environments, and batch_size={batch_size}; configure "
                f"{n_envs}, or begin a new training from it by agent.init(rng, hyperparams, "
                "start=runner)."
            )
        return runner

    def shared(self, runner: Runner) -> Runner:
        """Return a runner whose episodes have begun; raise what went wrong in any process."""
        if self._is_divided:
            self.agent.environments.share_faults(runner)
        return runner

    def check(self) -> None:
        """Raise ValueError if devices or memory are too few, or devices cannot divide a run."""
        check_division(self.agent)
        self.agent.devices.check()
        check_fits(self.agent)

    def finished(self, training: Training) -> Runner:
        """Return the runner of a run that has ended; raise if NaN or infinity ended it."""
        if self.agent.config.on_nonfinite == "stop":
            raise_nonfinite(np.asarray(training.nonfinite), int(training.runner.n_updates_done))
        return training.runner

    def first_block(self, runner: Runner) -> Training:
        """Return the carry with which the first block begins."""
        nothing = jnp.zeros((self.agent.policies.n_policies, len(QUANTITIES)), bool)
        runner = self.agent.runners.for_this_agent(runner)
        return Training(runner=runner, stop=jnp.zeros((), bool), nonfinite=nothing)

    def run_block(
        self, training: Training, n_updates: Int[Array, ""], overlaps: bool = True
    ) -> tuple[Training, list[Metrics]]:
        """Do some updates, evaluate, and report to the host; no updates after a stop.

        Args:
            training: State of the run.
            n_updates: Number of updates.
            overlaps: The updates' loops may run at the same time; False: as for a member.
        """
        runner = training.runner
        update = self.updates_compiled_for(runner) if overlaps else self.update_repeatedly
        updates = update(self.open_block(training, n_updates))
        evaluation = self._evaluate(updates)
        if self._is_divided:
            self.agent.environments.share_faults((updates, evaluation))
            evaluation = evaluation | self.agent.player.infos(evaluation, is_divided=True)
        training, row = self.close_block(training, updates, evaluation)
        return training, [row]

    def _evaluate(self, updates: Updates) -> Metrics:
        config = self.agent.config
        if not config.n_evals:
            return {}
        actor = self.agent.networks.actor_of(updates.runner)
        rng = jax.random.key(config.eval_seed)
        n_updates_done = updates.runner.n_updates_done
        if self._is_divided:
            play = partial(self._evaluate_divided, rng, actor)
            return self.agent.player.awaited(play, actor, config.n_evals, n_updates_done)
        return self.agent.player.evaluate(rng, actor, config.n_evals, True, n_updates_done)

    @compiled_quickly()
    def _evaluate_divided(self, rng: PRNGKeyArray, actor: NetworkParams) -> Metrics:
        """Evaluate a part of the episodes on each device."""
        agent, config = self.agent, self.agent.config

        def play_all(rng: PRNGKeyArray, actor: NetworkParams) -> Metrics:
            n_evals = config.n_evals // n_devices()
            return concatenated_over_devices(agent.player.evaluate(rng, actor, n_evals, True))

        return agent.devices.split(play_all, in_specs=(WHOLE, WHOLE), out_specs=WHOLE)(rng, actor)

    def updates_compiled_for(self, runner: Runner) -> Callable[..., Updates]:
        """Choose how `update_repeatedly` is compiled."""
        config = self.agent.config
        n_samples = config.steps_per_update * self.agent.environments.n_actors
        workload = Workload(
            n_samples=config.n_steps * n_samples,
            n_samples_at_once=n_samples,
            # Otherwise actor and critic need each other, or share a loop.
            has_independent_loops=(
                config.advantages == "gae"
                and not (config.shared_torso or config.joint_update or self._is_divided)
            ),
        )
        if overlapping_pays(workload, runner.n_updates_done):
            return self.update_repeatedly_overlapping
        return self.update_repeatedly

    @compiled_quickly(optimized=False)
    def open_block(self, training: Training, n_updates: Int[Array, ""]) -> Updates:
        """Return the carry of the updates, before the first."""
        shapes = jax.eval_shape(self.agent.step_and_check, training.runner)
        return open_block(training, n_updates, shapes)

    @compiled_for_speed()
    def update_repeatedly(self, updates: Updates) -> Updates:
        """Do the remaining updates."""
        return update_repeatedly(self.agent.step_and_check, updates, self.has_failed)

    # No caller keeps the input of the updates, so it may be donated. Only here: without overlapping
    # loops, donation makes CartPole's updates a third slower.
    update_repeatedly_overlapping = with_overlapping_loops(
        update_repeatedly, donate_argnames=("updates",)
    )

    def close_block(
        self,
        training: Training,
        updates: Updates,
        evaluation: Metrics,
        another_failed: Bool[Array, ""] | bool = False,
    ) -> tuple[Training, Metrics]:
        """Make the block's row of metrics, and report it to the host."""
        if not (self.reports_itself and self.agent.recorder.has_work):
            return self._close(training, updates, evaluation, another_failed)
        wait_for(updates)  # here signals arrive; the program that reports would wait in C++
        return self._close_and_report(training, updates, evaluation, another_failed)

    @compiled_quickly(optimized=False)
    def _close(
        self,
        training: Training,
        updates: Updates,
        evaluation: Metrics,
        another_failed: Bool[Array, ""],
    ) -> tuple[Training, Metrics]:
        lost = training.stop | self.has_failed(updates.nonfinite) | another_failed
        metrics = metrics_of_block(updates, evaluation, lost)
        nonfinite = training.nonfinite | updates.nonfinite
        return Training(updates.runner, lost, nonfinite), metrics

    @compiled_quickly(optimized=False, shared=False)
    def _close_and_report(
        self,
        training: Training,
        updates: Updates,
        evaluation: Metrics,
        another_failed: Bool[Array, ""],
    ) -> tuple[Training, Metrics]:
        failed = self.has_failed(updates.nonfinite) | another_failed
        training, metrics = self._close(training, updates, evaluation, another_failed)
        stop = training.stop | self._report(updates.runner, metrics, failed)
        return training._replace(stop=stop), metrics

    @compiled_quickly(optimized=False)
    def begin_episodes(self, runner: Runner) -> Runner:
        """Reset all environments; what persists across episodes stays."""
        agent, batch_size = self.agent, self.agent.config.batch_size
        rng, rng_env = jax.random.split(runner.rng)
        observation, env_state = agent.environments.reset_part(rng_env, batch_size, agent.devices.n)
        return runner.replace(
            env_state=agent.environments.begin_anew(env_state, runner.env_state),
            observation=observation,
            memory=agent.networks.initial_memory(batch_size, agent.policies.n_actors),
            rng=rng,
        )

    def _report(self, runner: Runner, metrics: Metrics, failed: Bool[Array, ""]) -> Bool[Array, ""]:
        """Hand an evaluation to the host, which answers whether to stop."""
        report = (strip_keys(runner), metrics, failed)
        shapes = jax.eval_shape(lambda: report)
        stop = jax.ShapeDtypeStruct((), bool)
        return io_callback(partial(self._on_evaluation, shapes), stop, pack(report), ordered=True)

    def _on_evaluation(self, shapes: PyTree, report: dict[str, Any]) -> np.bool_:
        runner, metrics, failed = unpack(report, shapes)
        # No checkpoint of a failed block: a run resumed from it would fail again.
        return np.bool_(True) if failed else self.agent.recorder.on_evaluation(runner, metrics)

    def has_failed(self, nonfinite: NonFinite) -> Bool[Array, ""]:
        """Return True if NaN or infinite quantities end the training."""
        return jnp.any(nonfinite) & (self.agent.config.on_nonfinite == "stop")
