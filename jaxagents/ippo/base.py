"""Independent PPO: the algorithm, top to bottom.

IPPO is PPO, vmapped over policies. Losses and updates are written for one policy and its samples;
`each_policy` vmaps them over policies. Rollouts and values take all policies at once, by
`PolicyMap`.

Source: de Witt et al. 2020, https://arxiv.org/abs/2011.09533; Schulman et al. 2017,
https://arxiv.org/abs/1707.06347.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jaxtyping import Array, Bool, Float, Key, PRNGKeyArray, UInt32

from jaxagents.compiler.devices import WHOLE, n_devices, part_of_device
from jaxagents.compiler.jit import compiled_for_speed, compiled_quickly, is_traced
from jaxagents.compiler.processes import largest
from jaxagents.compiler.random_keys import as_key, key_of, to_draw, to_store
from jaxagents.hyperparameters import HyperParameters, per_policy
from jaxagents.ippo.agent import Agent
from jaxagents.ippo.empty_masks import count_empty_masks
from jaxagents.ippo.population.members import count_members
from jaxagents.ippo.population.selection import Selection
from jaxagents.ippo.population.training import resume_population, train_population
from jaxagents.ippo.rollout import (
    Acting,
    Record,
    Rollout,
    as_transitions,
    check_rollout,
    with_structure,
)
from jaxagents.ippo.runner_specs import specs_of
from jaxagents.ippo.training_run import TrainingRun
from jaxagents.ippo.vmapped_training import check_can_be_traced, train_under_vmap
from jaxagents.ppo.batches import Valuation, make_batch, normalize_targets, with_estimates
from jaxagents.ppo.finiteness import NonFinite, find_nonfinite, keep_finite_policies
from jaxagents.ppo.losses import ActorStats, actor_loss, critic_loss, error_cost
from jaxagents.ppo.minibatches import unit_of
from jaxagents.ppo.normalization import RunningStatistics, init_normalizers
from jaxagents.ppo.optimization import run_epoch
from jaxagents.ppo.policy_map import each_policy, while_any_policy
from jaxagents.ppo.schedules import adapt_learning_rate, scheduled, training_reward
from jaxagents.ppo.statistics import explained_variance, value_statistics
from jaxagents.training.named_arrays import pack, strip_keys, unpack
from jaxagents.types import (
    ActorLoop,
    Batch,
    Choice,
    CriticLoop,
    Inference,
    Metrics,
    Move,
    NetworkState,
    Observation,
    PyTree,
    RolloutLoop,
    Runner,
    TimeStep,
    Transition,
    UpdateKeys,
)


class IPPOBase(Agent):
    """A multi-agent IPPO agent; subclasses choose the distribution of actions.

    Args:
        env: An environment of `jaxagents.make`, or any with the interface of
            `jaxagents.Environment`.
        env_params: Its parameters.
        config: Sizes and choices.
        callbacks: Called on the host with each `Evaluation`, between compiled programs. They may
            use jax and the evaluation's ``policy``, ``agent`` and ``runner``. A callback that
            returns True ends the training.

    Raises:
        TypeError: the environment's actions are not this agent's kind, or it breaks the protocol.
        ValueError: the configuration does not fit the environment; jax computes in 64 bits.
    """

    # Public methods: Python that checks and waits, around compiled programs.

    def train(
        self,
        rng: PRNGKeyArray | Key[Array, " members"] | UInt32[Array, "members words"] | None,
        hyperparams: HyperParameters,
        runner: Runner | None = None,
        selection: Selection | None = None,
    ) -> tuple[Runner, Metrics]:
        """Train for ``n_steps`` updates, evaluating every ``eval_frequency`` of them.

        Several keys, or hyperparameters stacked along a first axis, train a population: as many
        members, each as if alone, with one checkpoint for all. The runner and the metrics then have
        the members as their first axis; see `member`. On a CPU members train in threads, one per
        core, elsewhere as one batch, and on several devices divided among them. One with NaN or
        infinite quantities stops alone.

        Without checkpoints and callbacks it may be vmapped, over keys and over hyperparameters. On
        a CPU the members of a `jax.vmap` train in threads, one per core, and are bit-identical to
        single runs; on other devices, under `plain_jax`, or if the `jax.vmap` is itself compiled,
        they train as one batch. With checkpoints or callbacks it runs in another thread, to which
        context managers of jax do not apply.

        Args:
            rng: Random key, or one per member, ``[members]``; unused if a runner is given, which
                has its own.
            hyperparams: Each leaf a scalar or one value per policy; with a key per member also one
                value per member; or ``[members, policies]``.
            runner: Continue from here, up to ``n_steps`` updates in all.
            selection: Selects among a population's members between blocks of updates:
                `PopulationBasedTraining` or `SuccessiveHalving`. The metrics then have ``parents``,
                ``[n_evaluations]`` per member: the index of the member whose runner the block began
                with, or -1 where it did not train; and ``hyperparams.<name>`` of those varied.

        Returns:
            The runner after training, and the metrics: float32, one row per evaluation.

            Of evaluations: ``returns``, ``final_rewards``, ``terminated``, ``truncated``
            ``[n_evaluations, n_evals, n_actors]``; ``episode_lengths``, ``info_<name>``
            ``[n_evaluations, n_evals]``.

            Counts: ``n_updates_done`` ``[n_evaluations]``, ``n_updates_skipped``
            ``[n_evaluations, n_policies]``.

            Means over a block's updates, ``[n_evaluations, n_policies]``: ``actor_loss``,
            ``critic_loss``, ``entropy``, ``kl``, ``clip_fraction``, ``explained_variance``,
            ``actor_epochs``, ``learning_rate``, ``actor_gradient_norm``,
            ``critic_gradient_norm``, ``value_mean``, ``value_std``, ``target_std``; and, if masks
            of actions are observed, ``empty_masks``: samples of an update whose actor, though it
            lived, had a choice without any available action. Maxima of magnitudes, of the same
            shape: ``largest_value``, ``largest_reward``. These values,
            targets and rewards are in units of the reward that the critic learns from.

            Rows of blocks that did not run are NaN.

        Raises:
            TypeError: ``rng`` is not a random key, or ``hyperparams`` not `HyperParameters`.
            ValueError: a hyperparameter is out of range; ``checkpoint_dir`` already holds a run,
                or cannot be written; the key's generator could not be restored from a checkpoint;
                nothing is left to train; a selection does not fit, or there is no population; or,
                under a jax transformation, the agent has checkpoints, callbacks or ``prng_impl``,
                or a runner or a selection is given.
            NonFiniteError: a quantity of an update (a reward, observation, running statistic,
                value, loss, gradient or parameter) is NaN or infinite, and ``on_nonfinite`` is
                "stop". (Under `jax.vmap` the rows from there on are NaN instead.)
            Interrupted: Ctrl-C, SIGTERM or SIGHUP ended the training of an agent with checkpoints
                or callbacks, after the block in flight; a second signal ends it at once.
            HostEnvironmentError: an environment outside of JAX failed.
        """
        initial = self.config.initial_evaluation
        if is_traced((rng, hyperparams, runner)):
            check_can_be_traced(self, runner, selection)
            rng = as_key(rng)
            training, metrics = train_under_vmap(self._run, rng, self._checked(hyperparams))
            return training.runner, metrics
        given = rng if runner is None else runner.rng
        n_members = count_members(given, hyperparams)
        self._recorder.prepare(given)
        if n_members is not None:
            return train_population(self, n_members, rng, hyperparams, runner, selection)
        if selection is not None:
            raise ValueError("selection needs a population to select among; give a key per member.")
        self._run.check()
        if runner is None:
            self.devices.check()
            return self._run.train(self.init(rng, hyperparams), 0, initial)
        rng = key_of(runner.rng, self.config.prng_impl)
        runner = runner.replace(rng=rng, hyperparams=self._checked(hyperparams))
        return self._run.train(runner, int(runner.n_updates_done), initial)

    def resume(
        self,
        hyperparams: HyperParameters | None = None,
        selection: Selection | None = None,
    ) -> tuple[Runner, Metrics]:
        """Continue the run in ``checkpoint_dir`` from its last checkpoint to ``n_steps``.

        Args:
            hyperparams: Replace those of the checkpoint.
            selection: That of the run, if it is of a population.

        Returns:
            As `train`; the metrics begin with those of the run so far.

        Raises:
            ValueError: there is no checkpoint, or it belongs to an agent of another structure;
                nothing is left to train; another process trains there.
            NonFiniteError: as for `train`.
            Interrupted: as for `train`.
        """
        with self._recorder.holding_run():
            n_members = self._recorder.saved.n_members()
            if n_members is not None:
                return resume_population(self, n_members, hyperparams, selection)
            runner, history = self._recorder.restore_to_resume(self._runner_shapes())
            if hyperparams is not None:
                runner = runner.replace(hyperparams=self._checked(hyperparams))
            n_updates_done = int(runner.n_updates_done)
            return self._run.train(runner, n_updates_done, initial=False, history=history)

    def init(self, rng: PRNGKeyArray | None, hyperparams: HyperParameters) -> Runner:
        """Build the initial runner.

        If several processes divide environments outside of JAX, all of them call this, and each
        runner has zeros in place of the other processes' environments.

        Args:
            rng: Random key.
            hyperparams: Each leaf a scalar or one value per policy.

        Raises:
            TypeError: as for `train`.
            ValueError: a hyperparameter is out of range.
            HostEnvironmentError: an environment outside of JAX failed.
        """
        with self.environments.raising_faults():
            return self._begun(self._begin(as_key(rng), self._checked(hyperparams)))

    def step(self, runner: Runner) -> tuple[Runner, Metrics]:
        """Do one update: collect a rollout and learn from it.

        If a policy's update has a NaN or infinite quantity, the policy keeps its actor, critic,
        normalizers and learning rate. ``runner.n_updates_skipped`` counts such updates.

        Args:
            runner: As `init`, `train`, `restore` or this method returned it.

        Returns:
            The runner after the update, and the training metrics, each ``[n_policies]``.

        Raises:
            ValueError: the devices cannot divide the environments.
            HostEnvironmentError: an environment outside of JAX failed.
        """
        self._run.check()
        with self._explaining(runner), self.environments.raising_faults():
            runner, metrics, _ = self._step(self._with_environments(runner))
            return runner, metrics

    def act(
        self, runner: Runner, observation: Observation | Array, carry: Acting | None = None
    ) -> tuple[Array, Record]:
        """Act in all environments for one step of a rollout by hand.

        Args:
            runner: As `init` or `update` returned it.
            observation: Of ``batch_size`` environments, ``[batch_size, n_actors, *obs]``: as the
                environment or as ``agent.environments`` returns it.
            carry: None begins a rollout; then that of the previous step's record. A recurrent
                agent's is reset where an episode ended: see `reset_carry`.

        Returns:
            The actions as the environment takes them, ``[batch_size, n_actors, ...]``, and what
            `Rollout.from_records` collects.

        Raises:
            ValueError: the rollout is complete, or the observation has another shape.
        """
        self.environments.check_mask(observation)
        observation = self.environments.as_prepared(observation)
        acting: Acting = self._begin_rollout(runner) if carry is None else carry
        if acting.n_steps >= self.config.rollout_length:
            raise ValueError(
                f"the rollout has its {self.config.rollout_length} steps (rollout_length); call "
                "update, and begin the next with carry=None."
            )
        with self._explaining(runner):
            return self._act(self.networks.actor_of(runner), observation, acting)

    def update(self, runner: Runner, rollout: Rollout) -> tuple[Runner, Metrics]:
        """Learn from a rollout that was collected by hand or elsewhere, as `step` does.

        Experience of another policy needs ``advantages="vtrace"``.

        Args:
            runner: As `init`, `train`, `restore` or this method returned it; its environments stay
                where they are.
            rollout: The experience.

        Returns:
            As `step`.

        Raises:
            ValueError: a shape is wrong; the rollout has no ``log_prob``; or truncated steps lack
                final observations.
        """
        check_rollout(rollout, self.environments, self.config, self.distribution.action_shape)
        with self._explaining(runner):
            runner, metrics, _ = self._update_from(runner, rollout)
        return runner, metrics

    def pretrain(
        self, runner: Runner, rollouts: Sequence[Rollout], n_epochs: int = 10
    ) -> tuple[Runner, Metrics]:
        """Clone the behaviour of rollouts, as a starting point: see `Cloning`.

        Args:
            runner: As `init`, `train`, `restore` or this method returned it.
            rollouts: The experience; it needs no ``log_prob``.
            n_epochs: Passes over all of it.

        Returns:
            The runner with trained actors and observation statistics, and the metrics, each
            ``[n_epochs, n_policies]``: ``cloning_loss``, the mean negative log probability of the
            actions, in nats, and for discrete actions ``cloning_accuracy``, the share of them that
            are the policy's most probable ones.

        Raises:
            ValueError: there are no rollouts or epochs; a shape is wrong; or rollouts differ in
                their parts.
            NonFiniteError: the loss is NaN or infinite.
        """
        return self._cloning.clone(runner, rollouts, self._scheduled(runner), n_epochs)

    # The algorithm: where it starts, and one update.

    def _init(self, rng: PRNGKeyArray, hyperparams: HyperParameters) -> Runner:
        config, n_policies = self.config, self.policies.n_policies
        rng = key_of(rng, config.prng_impl)
        rng, rng_actor, rng_critic, rng_env = jax.random.split(rng, 4)
        observation, env_state = self.environments.reset_part(
            rng_env, config.batch_size, self.devices.n
        )
        params = per_policy(hyperparams, n_policies)
        actor, critic = self.networks.init(rng_actor, rng_critic, params, config.optimizer)
        runner = Runner(
            actor=actor,
            critic=critic,
            env_state=env_state,
            observation=observation,
            memory=self.networks.initial_memory(config.batch_size, self.policies.n_actors),
            normalizers=init_normalizers(
                config,
                observation_shape=self.networks.actor.observation.shape,
                critic_shape=self.networks.critic.observation.shape,
                policies_shape=(n_policies, self.policies.n_members),
            ),
            learning_rate=(
                params.actor_optimizer_params.learning_rate
                if config.learning_rate_schedule == "kl"
                else None
            ),
            rng=rng,
            hyperparams=hyperparams,
            n_updates_done=jnp.zeros((), jnp.int32),
            n_updates_skipped=jnp.zeros(n_policies, jnp.int32),
        )
        runner = self._shown_to_environments(runner)
        if self.replay is None:
            return runner
        draws = jax.eval_shape(self._draw_rollout, rng_env)
        after, transitions = jax.eval_shape(self._collect_rollout, runner, draws)
        return runner.replace(replay=self.replay.init(transitions, after))

    def _shown_to_environments(self, runner: Runner) -> Runner:
        """Show the environments what the learner has become: opponents may be past selves."""
        actor = self.networks.actor_of(runner)
        env_state = self.environments.after_update(runner.env_state, actor, runner.n_updates_done)
        return runner.replace(env_state=env_state)

    def _update(self, runner: Runner) -> tuple[Runner, Metrics, NonFinite]:
        """Do one update: collect a rollout, and learn from it."""
        specs = specs_of(runner)
        update = self.devices.split(
            self._update_own, in_specs=(specs,), out_specs=(specs, WHOLE, WHOLE)
        )
        return update(runner)

    def _update_own(self, runner: Runner) -> tuple[Runner, Metrics, NonFinite]:
        """Do one update, with a device's own environments."""
        draws = self._draw_rollout(self._split(runner).rollout)
        runner, metrics, nonfinite = self._learn(*self._collect_rollout(runner, draws))
        return self._shown_to_environments(runner), metrics, nonfinite

    def _learn(self, runner: Runner, transitions: Transition) -> tuple[Runner, Metrics, NonFinite]:
        """Learn from a rollout; policies with NaN or infinite quantities learn nothing from it."""
        before, hyperparams, rngs = runner, self._scheduled(runner), self._split(runner)
        runner, valuation = self.networks.value_rollout(runner, transitions)
        runner, batch = self._estimate_advantages(runner, transitions, valuation, hyperparams)
        counts = count_empty_masks(transitions, self.environments.space, self.policies)
        fit = partial(self._fit, before, runner, hyperparams=hyperparams, rngs=rngs, counts=counts)
        replay = self.replay
        if replay is None:
            return fit(batch)
        new = replay.as_experience(runner, before, transitions)
        estimate = partial(self._estimate_advantages, hyperparams=hyperparams)
        runner, metrics, nonfinite = jax.lax.cond(
            replay.has_begun(before),
            lambda: fit(replay.with_earlier(batch, before, runner.normalizers, estimate)),
            lambda: fit(batch),
        )
        return replay.remember(runner, new, nonfinite), metrics, nonfinite

    def _fit(
        self,
        before: Runner,
        runner: Runner,
        batch: Batch,
        hyperparams: HyperParameters,
        rngs: UpdateKeys,
        counts: Metrics,
    ) -> tuple[Runner, Metrics, NonFinite]:
        """Train the networks on a batch.

        Args:
            before: The runner to return to where a quantity is NaN or infinite.
            runner: With the environments and normalizers after the rollout.
            batch: ``[policies, ...]``.
            hyperparams: One value per policy.
            rngs: Random keys.
            counts: Further metrics, of the rollout.
        """
        actor, actor_metrics = each_policy(self._update_actor)(
            runner.actor, batch, hyperparams, rngs.actor
        )
        runner, batch, value_metrics = self._make_targets(runner, actor, batch, hyperparams)
        critic, critic_metrics = each_policy(self._update_critic)(
            runner.critic, batch, hyperparams, rngs.critic
        )
        metrics = actor_metrics | critic_metrics | value_metrics | counts
        runner = runner.replace(
            actor=actor,
            critic=critic,
            learning_rate=adapt_learning_rate(
                runner.learning_rate, metrics["kl"], hyperparams.kl_target
            ),
            rng=to_store(rngs.next_update),
            n_updates_done=runner.n_updates_done + 1,
        )
        nonfinite = each_policy(find_nonfinite)(batch, actor, critic, runner.normalizers, metrics)
        metrics["learning_rate"] = jnp.asarray(hyperparams.actor_optimizer_params.learning_rate)
        return keep_finite_policies(runner, before, nonfinite), metrics, nonfinite

    def _scheduled(self, runner: Runner) -> HyperParameters:
        """Return this update's hyperparameters, one value per policy.

        They depend on the updates done, not on the optimizer's own count: a policy whose epochs
        stop early would anneal more slowly.
        """
        progress = runner.n_updates_done / self.config.n_steps
        hyperparams = scheduled(runner.hyperparams, self.config, progress, runner.learning_rate)
        return per_policy(hyperparams, self.policies.n_policies)

    def _split(self, runner: Runner) -> UpdateKeys:
        """Split a runner's key for the consumers of one update."""
        rng, rng_rollout, *rngs = jax.random.split(to_draw(runner.rng), 4)
        actor, critic = (jax.random.split(each, self.policies.n_policies) for each in rngs)
        return UpdateKeys(rollout=rng_rollout, actor=actor, critic=critic, next_update=rng)

    def _collect_rollout(
        self, runner: Runner, draws: tuple[Key[Array, " time"], Array]
    ) -> tuple[Runner, Transition]:
        """Act for ``rollout_length`` steps; transitions are ``[time, envs, actors, ...]``.

        Networks normalise observations by the statistics from before this update.
        """
        actor = self.networks.actor_of(runner)

        def act(loop: RolloutLoop, now: tuple[PRNGKeyArray, Array]) -> tuple[RolloutLoop, Move]:
            rng, noise = now
            choice = self._choose(actor, loop, noise)
            action = self.distribution.to_environment(choice.action)
            return self._advance(loop, choice, *self.environments.step(rng, loop.env_state, action))

        loop, moves = jax.lax.scan(act, self._before_rollout(runner), draws)
        return self._end_rollout(runner, loop, moves)

    def _before_rollout(self, runner: Runner) -> RolloutLoop:
        return RolloutLoop(runner.env_state, runner.observation, runner.memory.actor)

    def _choose(self, actor: Inference, loop: RolloutLoop, noise: Array) -> Choice:
        """Choose the actions of a rollout's step."""
        head, memory = self.networks.heads(actor, loop.observation, loop.memory)
        return Choice(head, self.distribution.sample(head, noise), memory)

    def _advance(
        self, loop: RolloutLoop, choice: Choice, step: TimeStep, env_state: PyTree
    ) -> tuple[RolloutLoop, Move]:
        """Go on to a rollout's next step, after the environments' step."""
        memory = self.networks.actor.reset_memory(choice.memory, step.begins)
        step = step._replace(info={}, final_state=None)
        if self.environments.time_limit.is_terminal:
            # Nothing bootstraps from it: truncation ends the return.
            step = step._replace(final_observation=None)
        move = Move(loop.observation, loop.memory, choice.head, choice.action, step)
        return RolloutLoop(env_state, step.observation, memory), move

    def _end_rollout(
        self, runner: Runner, loop: RolloutLoop, moves: Move
    ) -> tuple[Runner, Transition]:
        """Return the runner after a rollout, and the rollout's transitions."""
        step = moves.step
        terminated, truncated = self.environments.time_limit.for_learning(
            step.terminated, step.truncated
        )
        final = step.final_observation
        transitions = Transition(
            observation=moves.observation,
            memory=moves.memory,
            action=moves.action,
            log_prob=self.distribution.log_prob(moves.head, moves.action),
            reward=training_reward(
                step.reward, step.shaped_reward, self.config, runner.n_updates_done
            ),
            terminated=terminated,
            truncated=truncated,
            active=step.active,
            begins=step.begins,
            final_observation=None if final is None else final._replace(action_mask=None),
        )
        runner = runner.replace(
            env_state=loop.env_state,
            observation=loop.observation,
            memory=runner.memory._replace(actor=loop.memory),
        )
        return runner, transitions

    def _draw_rollout(self, rng: PRNGKeyArray) -> tuple[Key[Array, " time"], Array]:
        """Draw the environments' keys and the noise of actions ``[time, envs, actors, ...]``.

        An environment's noise does not depend on the devices: each draws that of all.
        """
        rng_noise, rng_env = jax.random.split(rng)
        n_steps = self.config.rollout_length
        shape = (n_steps, self.config.batch_size, self.environments.n_actors)
        noise = part_of_device(self.networks.draw_noise(rng_noise, *shape), axis=1)
        return jax.random.split(rng_env, n_steps), noise

    def _estimate_advantages(
        self,
        runner: Runner,
        transitions: Transition,
        valuation: Valuation,
        hyperparams: HyperParameters,
    ) -> tuple[Runner, Batch]:
        """Make each policy's batch, ``[policies, ...]``, of a rollout.

        It holds standardised GAE advantages, and value targets in units of reward. The statistics
        of observations and rewards are updated.
        """
        local = transitions.observation._replace(global_state=None)
        # Final observations have been valued: the policies do not need them.
        transitions = transitions._replace(observation=local, final_observation=None)
        make = partial(
            make_batch,
            chunk_length=self.config.chunk_length,
            rewards_after_death=self.environments.rewards_after_death,
            is_centralized=self.config.centralized_critic,
        )
        batch, normalizers = each_policy(make)(
            self.policies.to_policies(transitions, axis=2),
            valuation,
            runner.normalizers,
            self.policies.membership(),
            hyperparams,
        )
        return runner.replace(normalizers=normalizers), batch

    def _update_actor(
        self, actor: NetworkState, batch: Batch, hyperparams: HyperParameters, rng: PRNGKeyArray
    ) -> tuple[NetworkState, Metrics]:
        """Train one policy's actor until ``actor_epochs`` or ``kl_threshold`` is reached."""
        optimizer = self.config.optimizer(hyperparams.actor_optimizer_params)

        def unfinished(loop: ActorLoop) -> Bool[Array, ""]:
            # Stop on the whole epoch's KL: one minibatch's estimate is too noisy. Each minibatch's
            # is computed before its own step.
            return (loop.epoch < self.config.actor_epochs) & (
                loop.stats.kl <= hyperparams.kl_threshold
            )

        def train_epoch(loop: ActorLoop) -> ActorLoop:
            rng, rng_epoch = jax.random.split(loop.rng)
            samples = self._reestimated(loop.actor, batch, hyperparams)
            scale = samples.loss_scale[0, 0, 0]
            actor, stats, norm = run_epoch(
                loop.actor,
                samples,
                partial(self._actor_loss, hyperparams=hyperparams, scale=scale),
                optimizer,
                rng_epoch,
                n_minibatches=self._n_minibatches(batch),
                unit=unit_of(self.config, self.networks.actor.recurrent),
            )
            return ActorLoop(
                actor=actor, stats=stats, gradient_norm=norm, epoch=loop.epoch + 1, rng=rng
            )

        zero = jnp.zeros(())
        loop = ActorLoop(
            actor=actor,
            stats=ActorStats(loss=zero, entropy=zero, kl=zero, clip_fraction=zero),
            gradient_norm=zero,
            epoch=jnp.zeros((), jnp.int32),
            rng=rng,
        )
        loop = while_any_policy(unfinished, train_epoch, loop, self.policies.n_policies)
        return loop.actor, {
            "actor_loss": loop.stats.loss,
            "entropy": loop.stats.entropy,
            "kl": loop.stats.kl,
            "clip_fraction": loop.stats.clip_fraction,
            "actor_gradient_norm": loop.gradient_norm,
            "actor_epochs": loop.epoch,
        }

    def _actor_loss(
        self,
        params: PyTree,
        minibatch: Batch,
        hyperparams: HyperParameters,
        scale: Float[Array, ""],
    ) -> tuple[Float[Array, ""], tuple[ActorStats, Float[Array, ""]]]:
        head = self.networks.batch_head(params, minibatch)
        loss, stats = actor_loss(
            log_prob=self.distribution.log_prob(head, minibatch.action),
            old_log_prob=minibatch.log_prob,
            advantage=minibatch.advantage,
            entropy=self.distribution.entropy(head),
            weight=minibatch.weight,
            eps_clip=hyperparams.eps_clip,
            ent_coeff=hyperparams.ent_coeff,
            kl_weight=minibatch.kl_weight,
        )
        return loss * scale, (stats, jnp.sum(minibatch.weight))

    def _reestimated(
        self, actor: NetworkState, batch: Batch, hyperparams: HyperParameters
    ) -> Batch:
        """With V-trace, estimate advantages and targets anew for the current policy.

        With GAE, return the batch as it is.
        """
        if self.config.advantages == "gae":
            return batch
        log_ratio = self.networks.log_ratio(actor.params, batch)
        return with_estimates(batch, hyperparams, self.config.n_chunks, log_ratio)

    def _make_targets(
        self, runner: Runner, actor: NetworkState, batch: Batch, hyperparams: HyperParameters
    ) -> tuple[Runner, Batch, Metrics]:
        """Prepare the critics' batches.

        Re-estimate targets with V-trace, normalise them by their updated statistics, and apply any
        shared torso. The last layers of default critics are rescaled, so that values do not change
        with the statistics.
        """

        def make(
            actor: NetworkState,
            critic: NetworkState,
            batch: Batch,
            statistics: RunningStatistics | None,
            hyperparams: HyperParameters,
        ) -> tuple[NetworkState, Batch, RunningStatistics | None, Metrics]:
            batch = self._reestimated(actor, batch, hyperparams)
            path, weight = batch.path, batch.value_weight
            metrics = {
                "explained_variance": explained_variance(path.value, batch.value_target, weight),
                **value_statistics(path.value, batch.value_target, path.reward, weight)._asdict(),
            }
            if statistics is not None:
                batch, statistics, rescale = normalize_targets(batch, statistics)
                if self.networks.critic.can_rescale_values:
                    params = self.networks.critic.with_rescaled_values(critic.params, *rescale)
                    critic = critic._replace(params=params)
                    batch = batch._replace(value=rescale(batch.value))
            batch = self.networks.with_torso_features(actor.params, batch)
            return critic, batch, statistics, metrics

        normalizers = runner.normalizers
        critic, batch, value, metrics = each_policy(make)(
            actor, runner.critic, batch, normalizers.value, hyperparams
        )
        normalizers = normalizers._replace(value=value)
        return runner.replace(critic=critic, normalizers=normalizers), batch, metrics

    def _update_critic(
        self, critic: NetworkState, batch: Batch, hyperparams: HyperParameters, rng: PRNGKeyArray
    ) -> tuple[NetworkState, Metrics]:
        """Train one policy's critic for ``critic_epochs``."""
        optimizer = self.config.optimizer(hyperparams.critic_optimizer_params)
        loss = partial(self._critic_loss, hyperparams=hyperparams)

        def train_epoch(_: Array, loop: CriticLoop) -> CriticLoop:
            rng, rng_epoch = jax.random.split(loop.rng)
            critic, mean, norm = run_epoch(
                loop.critic,
                batch,
                loss,
                optimizer,
                rng_epoch,
                n_minibatches=self._n_minibatches(batch),
                unit=unit_of(self.config, self.networks.critic.recurrent),
            )
            return CriticLoop(critic=critic, loss=mean, gradient_norm=norm, rng=rng)

        zero = jnp.zeros(())
        loop = CriticLoop(critic=critic, loss=zero, gradient_norm=zero, rng=rng)
        loop = jax.lax.fori_loop(0, self.config.critic_epochs, train_epoch, loop)
        return loop.critic, {"critic_loss": loop.loss, "critic_gradient_norm": loop.gradient_norm}

    def _critic_loss(
        self, params: PyTree, minibatch: Batch, hyperparams: HyperParameters
    ) -> tuple[Float[Array, ""], tuple[Float[Array, ""], Float[Array, ""]]]:
        loss = critic_loss(
            value=self.networks.batch_value(params, minibatch),
            value_target=minibatch.value_target,
            weight=minibatch.value_weight,
            vf_coeff=hyperparams.vf_coeff,
            error_cost=error_cost(self.config.critic_error, hyperparams.huber_delta),
            old_value=minibatch.value if self.config.clip_values else None,
            eps_clip=hyperparams.eps_clip,
        )
        return loss, (loss, jnp.sum(minibatch.value_weight))

    def _n_minibatches(self, batch: Batch) -> int:
        """Return the number of minibatches of one policy's batch, or of a device's part of it."""
        of_device = self.config.minibatch_size // n_devices()
        return batch.weight.shape[1] // (of_device * self.config.n_chunks)

    def _make_run(self, reports: bool = True) -> TrainingRun:
        return TrainingRun(self, reports)

    def _with_environments(self, runner: Runner) -> Runner:
        """Begin the episodes anew if the environments have gone, or gone on without the runner."""
        has_gone = not self.environments.can_continue(runner.env_state)
        if self.devices.n > 1:  # all processes begin anew, or none
            has_gone = largest(has_gone)
        return self._begun(self._begin_episodes(runner)) if has_gone else runner

    def _begun(self, runner: Runner) -> Runner:
        """Return a runner whose episodes have begun, in all processes."""
        if self.devices.n > 1:
            self.environments.share_faults(runner)
        return runner

    # The compiled programs.

    @compiled_quickly(static_argnames=("self",), optimized=False)
    def _begin(self, rng: PRNGKeyArray, hyperparams: HyperParameters) -> Runner:
        return self._init(rng, hyperparams)

    @compiled_quickly(static_argnames=("self",), optimized=False)
    def _begin_episodes(self, runner: Runner) -> Runner:
        rng, rng_env = jax.random.split(runner.rng)
        observation, env_state = self.environments.reset_part(
            rng_env, self.config.batch_size, self.devices.n
        )
        return runner.replace(
            env_state=self.environments.begin_anew(env_state, runner.env_state),
            observation=observation,
            memory=self.networks.initial_memory(self.config.batch_size, self.policies.n_actors),
            rng=rng,
        )

    # Compiled by itself so that it is traced once, for its result shapes and for the loop.
    @compiled_for_speed(static_argnames=("self",))
    def _step(self, runner: Runner) -> tuple[Runner, Metrics, NonFinite]:
        return self._update(runner)

    @compiled_for_speed(static_argnames=("self",))
    def _update_from(self, runner: Runner, rollout: Rollout) -> tuple[Runner, Metrics, NonFinite]:
        own = runner.memory.actor
        rollout = rollout._replace(
            memory=with_structure(rollout.memory, own),
            last_memory=with_structure(rollout.last_memory, own),
        )
        transitions = as_transitions(rollout, self.environments, self.config, runner.n_updates_done)
        runner = runner.replace(
            observation=self.environments.as_prepared(rollout.last_observation),
            memory=runner.memory._replace(actor=rollout.last_memory),
        )
        return self._learn(runner, transitions)

    @compiled_quickly(static_argnames=("self",))
    def _begin_rollout(self, runner: Runner) -> Acting:
        rngs, noise = self._draw_rollout(self._split(runner).rollout)
        return Acting(rngs, noise, runner.memory.actor, n_steps=jnp.zeros((), jnp.int32))

    @compiled_for_speed(static_argnames=("self",))
    def _act(
        self, actor: Inference, observation: Observation, carry: Acting
    ) -> tuple[Array, Record]:
        head, memory = self.networks.heads(actor, observation, carry.memory)
        action = self.distribution.sample(head, carry.noise[carry.n_steps])
        record = Record(
            observation=observation,
            memory=carry.memory,
            action=action,
            log_prob=self.distribution.log_prob(head, action),
            carry=carry._replace(memory=memory, n_steps=carry.n_steps + 1),
            rng=carry.rngs[carry.n_steps],
        )
        return self.distribution.to_environment(action), record

    # The host's side.

    def _report(self, runner: Runner, metrics: Metrics, failed: Bool[Array, ""]) -> Bool[Array, ""]:
        """Hand an evaluation to the host, which answers whether to stop."""
        if not self._recorder.has_work:
            return jnp.zeros((), bool)
        report = (strip_keys(runner), metrics, failed)
        shapes = jax.eval_shape(lambda: report)
        stop = jax.ShapeDtypeStruct((), bool)
        return io_callback(partial(self._on_evaluation, shapes), stop, pack(report), ordered=True)

    def _on_evaluation(self, shapes: PyTree, report: dict[str, Any]) -> np.bool_:
        runner, metrics, failed = unpack(report, shapes)
        # No checkpoint of a failed block: a run resumed from it would fail again.
        return np.bool_(True) if failed else self._recorder.on_evaluation(runner, metrics)
