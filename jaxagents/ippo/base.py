"""Independent PPO: the algorithm, top to bottom.

IPPO is PPO, vmapped over policies: losses and updates are written for one policy and its
samples, and the policies axis appears in a `jax.vmap` around them.

Source: de Witt et al. 2020, https://arxiv.org/abs/2011.09533; Schulman et al. 2017,
https://arxiv.org/abs/1707.06347.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from jaxagents.architecture import Network
from jaxagents.batches import Valuation, make_batch, normalize_targets, with_estimates
from jaxagents.finiteness import find_nonfinite
from jaxagents.hyperparameters import HyperParameters, OptimizerParams, per_policy
from jaxagents.ippo.actor_critic import actor_of
from jaxagents.ippo.player import Metrics
from jaxagents.ippo.trainer import Trainer
from jaxagents.losses import ActorStats
from jaxagents.normalization import RunningStatistics
from jaxagents.optimization import init_network, run_epoch
from jaxagents.schedules import adapt_learning_rate, scheduled
from jaxagents.statistics import explained_variance
from jaxagents.tracing import key_of
from jaxagents.types import (
    ActorLoop,
    Batch,
    CriticLoop,
    Move,
    NetworkState,
    Rollout,
    Runner,
    TimeStep,
    Transition,
)
from jaxagents.unrolling import rolled, unrolled

_POLICIES = "policies"  # the axis over which policies are vmapped


def each_policy(stage: Callable[..., Any]) -> Callable[..., Any]:
    """Make a stage of an update that is written for one policy one of all, ``[policies, ...]``."""
    return jax.vmap(stage, axis_name=_POLICIES)


class IPPOBase(Trainer):
    """A multi-agent IPPO agent; subclasses bring the distribution of actions.

    An agent is static under `jax.jit`: what its compiled methods read is fixed at construction,
    and assigning it raises. Trained states travel as `Runner` arguments; the agent merely keeps
    the one that it was given by `collect_training` or `restore`.

    Args:
        env: An environment of `jaxagents.make`, or any with the interface of
            `jaxagents.Environment`.
        env_params: Its parameters.
        config: Sizes and choices.
        callbacks: Called on the host with each `Evaluation` of a training, between two compiled
            programs, so that they may act, play or compute by its ``policy``, ``agent`` and
            ``runner``; one that returns True ends the training there.

    Raises:
        TypeError: the environment's actions are not this agent's kind, or it breaks the protocol.
        ValueError: the configuration does not fit the environment; jax computes in 64 bits.
    """

    def _init(self, rng: PRNGKeyArray, hyperparams: HyperParameters) -> Runner:
        rng = key_of(rng, self.config.prng_impl)
        rng, rng_actor, rng_critic, rng_env = jax.random.split(rng, 4)
        observation, env_state = self.environments.reset(rng_env, self.config.batch_size)

        def init_actor(args: tuple[PRNGKeyArray, OptimizerParams]) -> NetworkState:
            rng, params = args
            return init_network(self._init_actor_params(rng), self.config.optimizer(params))

        def init_critic(args: tuple[PRNGKeyArray, OptimizerParams]) -> NetworkState:
            rng, params = args
            return init_network(self.critic_network.init(rng), self.config.optimizer(params))

        n_policies = self.policies.n_policies
        optimizers = per_policy(hyperparams, n_policies)
        rngs_actor = jax.random.split(rng_actor, n_policies)
        rngs_critic = jax.random.split(rng_critic, n_policies)
        # One after the other: a user's initializer may call LAPACK, whose batched calls can wait
        # for each other for ever (see networks.orthogonal).
        return Runner(
            actor=jax.lax.map(init_actor, (rngs_actor, optimizers.actor_optimizer_params)),
            critic=jax.lax.map(init_critic, (rngs_critic, optimizers.critic_optimizer_params)),
            env_state=env_state,
            observation=observation,
            memory=self._empty_memory(self.config.batch_size, self.policies.n_actors),
            normalizers=self._no_normalizers(),
            learning_rate=(
                optimizers.actor_optimizer_params.learning_rate
                if self.config.learning_rate_schedule == "kl"
                else None
            ),
            rng=rng,
            hyperparams=hyperparams,
            n_updates_done=jnp.zeros((), jnp.int32),
            n_updates_skipped=jnp.zeros(n_policies, jnp.int32),
        )

    # The stages of one update.

    def _update(self, runner: Runner) -> tuple[Runner, Metrics, Bool[Array, "policies quantities"]]:
        before, n_policies = runner, self.policies.n_policies
        rng, rng_rollout, rng_actor, rng_critic = jax.random.split(unrolled(runner.rng), 4)
        hyperparams = per_policy(self._scheduled(runner), n_policies)
        runner, transitions = self._collect_rollout(runner, rng_rollout)
        runner, batch = self._make_batch(runner, transitions, hyperparams)
        actor, actor_metrics = each_policy(self._update_actor)(
            runner.actor, batch, hyperparams, jax.random.split(rng_actor, n_policies)
        )
        batch, value_statistics, value_metrics = each_policy(self._make_targets)(
            actor, batch, runner.normalizers.value, hyperparams
        )
        critic, critic_metrics = each_policy(self._update_critic)(
            runner.critic, batch, hyperparams, jax.random.split(rng_critic, n_policies)
        )
        runner = runner.replace(
            actor=actor,
            critic=critic,
            normalizers=runner.normalizers._replace(value=value_statistics),
            learning_rate=adapt_learning_rate(
                runner.learning_rate, actor_metrics["kl"], hyperparams.kl_target
            ),
            rng=rolled(rng),
            n_updates_done=runner.n_updates_done + 1,
        )
        metrics = actor_metrics | critic_metrics | value_metrics
        nonfinite = each_policy(find_nonfinite)(batch, actor, critic, runner.normalizers, metrics)
        learning_rate = jnp.asarray(hyperparams.actor_optimizer_params.learning_rate)
        metrics["learning_rate"] = learning_rate
        return _with_finite_policies(runner, before, nonfinite), metrics, nonfinite

    def _collect_rollout(self, runner: Runner, rng: PRNGKeyArray) -> tuple[Runner, Transition]:
        """Act for ``rollout_length`` steps; transitions are ``[time, envs, actors, ...]``."""

        def act(rollout: Rollout, now: tuple[PRNGKeyArray, Array]) -> tuple[Rollout, Move]:
            rng, noise = now
            head, memory = self._heads(actor_of(runner), rollout.observation, rollout.memory)
            action = self._sample_actions(noise, head)
            step, env_state = self.environments.step(
                rng, rollout.env_state, self._environment_action(action)
            )
            memory = self.actor_network.emptied(memory, _over_for_actors(step))
            step = step._replace(info={}, final_state=None)
            move = Move(rollout.observation, rollout.memory, head, action, step)
            return Rollout(env_state, step.observation, memory), move

        rng_noise, rng_env = jax.random.split(rng)
        n_steps, shape = self.config.rollout_length, runner.observation.features.shape[:2]
        rollout, moves = jax.lax.scan(
            act,
            Rollout(runner.env_state, runner.observation, runner.memory.actor),
            (jax.random.split(rng_env, n_steps), self._draw_noise(rng_noise, n_steps, *shape)),
        )
        step = moves.step
        transitions = Transition(
            observation=moves.observation,
            memory=moves.memory,
            action=moves.action,
            log_prob=self._log_prob(moves.head, moves.action),
            reward=self._reward(step, runner.n_updates_done),
            terminated=step.terminated,
            truncated=step.truncated,
            active=step.active,
            episode_over=_over_for_actors(step),
            final_observation=step.final_observation._replace(action_mask=None),
        )
        runner = runner.replace(
            env_state=rollout.env_state,
            observation=rollout.observation,
            memory=runner.memory._replace(actor=rollout.memory),
        )
        return runner, transitions

    def _reward(
        self, step: TimeStep, n_updates_done: Int[Array, ""]
    ) -> Float[Array, "*time envs actors"]:
        """Give the reward to learn from: the environment's, and early on its shaped one too."""
        if step.shaped_reward is None or self.config.shaped_reward_steps is None:
            return step.reward
        # By updates, not by environment steps: these can be too many for an int32.
        n_updates = self.config.shaped_reward_steps / self.config.steps_per_update
        factor = jnp.maximum(0.0, 1.0 - n_updates_done / n_updates)
        return step.reward + factor * step.shaped_reward

    def _make_batch(
        self, runner: Runner, transitions: Transition, hyperparams: HyperParameters
    ) -> tuple[Runner, Batch]:
        """Value the rollout and make of it each policy's batch, ``[policies, ...]``."""
        valuation, memory = self._value_rollout(runner, transitions)
        runner = runner.replace(memory=runner.memory._replace(critic=memory))
        return self._make_valued_batch(runner, transitions, valuation, hyperparams)

    def _make_valued_batch(
        self,
        runner: Runner,
        transitions: Transition,
        valuation: Valuation,
        hyperparams: HyperParameters,
    ) -> tuple[Runner, Batch]:
        local = transitions.observation._replace(global_state=None)
        # Final observations have served, in the valuation: they need not go to the policies.
        transitions = transitions._replace(observation=local, final_observation=local)
        make = partial(
            make_batch,
            chunk_length=self.config.chunk_length,
            rewards_after_death=self.environments.rewards_after_death,
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
        loss = partial(self._actor_loss, hyperparams=hyperparams)

        def unfinished(loop: ActorLoop) -> Bool[Array, ""]:
            # Stop on the whole epoch's KL: one minibatch's estimate is too noisy.
            return (loop.epoch < self.config.actor_epochs) & (
                loop.stats.kl <= hyperparams.kl_threshold
            )

        def any_unfinished(loop: ActorLoop) -> Bool[Array, ""]:
            # The same for all policies, so that jax has nothing to select for a single one.
            return jax.lax.pmax(unfinished(loop), _POLICIES)

        def train_epoch(loop: ActorLoop) -> ActorLoop:
            rng, rng_epoch = jax.random.split(loop.rng)
            samples = self._reestimated(loop.actor, batch, hyperparams)
            is_single = self.policies.n_policies == 1
            goes_on = unfinished(loop)
            if not is_single:
                # From samples without weight a policy that has stopped learns nothing.
                samples = samples._replace(weight=jnp.where(goes_on, samples.weight, 0.0))
            actor, stats, norm = self._run_epoch(
                self.actor_network, loop.actor, samples, loss, optimizer, rng_epoch
            )
            trained = ActorLoop(
                actor=actor, stats=stats, gradient_norm=norm, epoch=loop.epoch + 1, rng=rng
            )
            if is_single:
                return trained
            chosen = jax.tree.map(partial(jnp.where, goes_on), trained, loop)
            # Some generators draw for all policies by the first one's key: it must go on.
            return chosen._replace(actor=actor, rng=rng)

        zero = jnp.zeros(())
        loop = ActorLoop(
            actor=actor,
            stats=ActorStats(loss=zero, entropy=zero, kl=zero, clip_fraction=zero),
            gradient_norm=zero,
            epoch=jnp.zeros((), jnp.int32),
            rng=rng,
        )
        loop = jax.lax.while_loop(any_unfinished, train_epoch, loop)
        return loop.actor, {
            "actor_loss": loop.stats.loss,
            "entropy": loop.stats.entropy,
            "kl": loop.stats.kl,
            "clip_fraction": loop.stats.clip_fraction,
            "actor_gradient_norm": loop.gradient_norm,
            "actor_epochs": loop.epoch,
        }

    def _make_targets(
        self,
        actor: NetworkState,
        batch: Batch,
        statistics: RunningStatistics | None,
        hyperparams: HyperParameters,
    ) -> tuple[Batch, RunningStatistics | None, Metrics]:
        """Make what one policy's critic should learn, and tell how much of it the values explain.

        Returns:
            The batch; the statistics of the targets, where these are normalised; a metric.
        """
        batch = self._reestimated(actor, batch, hyperparams)
        explained = explained_variance(batch.path.value, batch.value_target, batch.value_weight)
        batch, statistics = normalize_targets(batch, statistics)
        batch = self._with_critic_features(actor.params, batch)
        return batch, statistics, {"explained_variance": explained}

    def _reestimated(
        self, actor: NetworkState, batch: Batch, hyperparams: HyperParameters
    ) -> Batch:
        """Estimate advantages and targets for a policy that has moved, if they depend on that."""
        if self.config.advantages == "gae":
            return batch
        log_ratio = self._log_ratio(actor.params, batch)
        return with_estimates(batch, hyperparams, self.config.n_chunks, log_ratio)

    def _update_critic(
        self, critic: NetworkState, batch: Batch, hyperparams: HyperParameters, rng: PRNGKeyArray
    ) -> tuple[NetworkState, Metrics]:
        """Train one policy's critic for ``critic_epochs``."""
        optimizer = self.config.optimizer(hyperparams.critic_optimizer_params)
        loss = partial(self._critic_loss, hyperparams=hyperparams)

        def train_epoch(_: Array, loop: CriticLoop) -> CriticLoop:
            rng, rng_epoch = jax.random.split(loop.rng)
            critic, mean, norm = self._run_epoch(
                self.critic_network, loop.critic, batch, loss, optimizer, rng_epoch
            )
            return CriticLoop(critic=critic, loss=mean, gradient_norm=norm, rng=rng)

        zero = jnp.zeros(())
        loop = CriticLoop(critic=critic, loss=zero, gradient_norm=zero, rng=rng)
        loop = jax.lax.fori_loop(0, self.config.critic_epochs, train_epoch, loop)
        return loop.critic, {"critic_loss": loop.loss, "critic_gradient_norm": loop.gradient_norm}

    def _run_epoch(
        self, network: Network, *arguments: Any
    ) -> tuple[NetworkState, Any, Float[Array, ""]]:
        """Call `run_epoch` with the minibatches that suit a network."""
        return run_epoch(
            *arguments,
            n_minibatches=self.config.n_minibatches,
            unit=self._minibatch_unit(network),
        )

    def _minibatch_unit(self, network: Network) -> str:
        return "sequence" if network.recurrent else self.config.minibatch_unit

    def _scheduled(self, runner: Runner) -> HyperParameters:
        """Give the hyperparameters of this update.

        By the updates done, never by an optimizer's own count: a policy that stops its epochs
        early would anneal more slowly.
        """
        progress = runner.n_updates_done / self.config.n_steps
        return scheduled(runner.hyperparams, self.config, progress, runner.learning_rate)


def _over_for_actors(step: TimeStep) -> Bool[Array, "*time envs actors"]:
    return jnp.broadcast_to(step.episode_over[..., None], step.active.shape)


def _with_finite_policies(
    runner: Runner, before: Runner, nonfinite: Bool[Array, "policies quantities"]
) -> Runner:
    """Leave policies of which something is not finite as they were before the update."""
    finite = ~jnp.any(nonfinite, axis=1)

    def choose(new: Array, old: Array) -> Array:
        return jnp.where(finite.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    def of_policies(runner: Runner) -> PyTree:
        return runner.actor, runner.critic, runner.normalizers, runner.learning_rate

    actor, critic, normalizers, learning_rate = jax.tree.map(
        choose, of_policies(runner), of_policies(before)
    )
    return runner.replace(
        actor=actor,
        critic=critic,
        normalizers=normalizers,
        learning_rate=learning_rate,
        n_updates_skipped=before.n_updates_skipped + ~finite,
    )
