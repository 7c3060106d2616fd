"""Independent PPO: the algorithm, top to bottom.

IPPO is PPO, vmapped over policies. Losses and updates are written for one policy and its samples;
`each_policy` vmaps them over policies. Rollouts and values take all policies at once, through
`PolicyMap`. The methods that users call are in `Agent`. Subclasses may change five methods:
`actor_loss`, `critic_loss`, `advantages`, `scheduled` and `adapted`.

Source: de Witt et al. 2020, https://arxiv.org/abs/2011.09533; Schulman et al. 2017,
https://arxiv.org/abs/1707.06347.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PRNGKeyArray

from jaxagents.compiler.devices import WHOLE
from jaxagents.compiler.jit import compiled_for_speed
from jaxagents.compiler.random_keys import to_draw, to_store
from jaxagents.hyperparameters import HyperParameters, per_policy
from jaxagents.ippo.agent import Agent
from jaxagents.ippo.collector import count_empty_masks
from jaxagents.ippo.freezing import loss_of_trainable, with_frozen
from jaxagents.ippo.runners import specs_of
from jaxagents.ippo.update_order import fit_in_turn
from jaxagents.ppo.batches import Valuation, by_gae, make_batch, normalize_targets, with_estimates
from jaxagents.ppo.finiteness import NonFinite, Residues, residues_of, skip_nonfinite
from jaxagents.ppo.losses import actor_loss, critic_loss, error_cost
from jaxagents.ppo.normalization import RunningStatistics, normalize
from jaxagents.ppo.optimization import Epoch, Objective, empty_stats, run_epoch, unit_of
from jaxagents.ppo.policy_map import POLICIES, each_policy
from jaxagents.ppo.schedules import adapt_learning_rate, scheduled
from jaxagents.ppo.statistics import explained_variance, value_statistics
from jaxagents.types import (
    Batch,
    FitLoop,
    Metrics,
    NetworkState,
    PyTree,
    Runner,
    Trajectory,
    Transition,
    UpdateKeys,
)


class IPPOBase(Agent):
    """A multi-agent IPPO agent; subclasses choose the distribution of actions.

    Subclasses may also override `actor_loss`, `critic_loss`, `advantages`, `scheduled` and
    `adapted`: see the tutorial "Change the algorithm".

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

    # One update.

    def collect_and_learn(self, runner: Runner) -> tuple[Runner, Metrics, Residues]:
        """Do one update: collect a rollout, and learn from it."""
        keys = self.split_key(runner)
        runner, transitions = self.collector.collect(runner, keys.rollout)
        return self.learn(runner, transitions, keys)

    def learn(
        self, runner: Runner, transitions: Transition, keys: UpdateKeys, replays: bool | None = None
    ) -> tuple[Runner, Metrics, Residues]:
        """Estimate advantages, then train the actors, then the critics.

        Args:
            runner: The runner after the rollout, except for its critics' recurrent state.
            transitions: The rollout, ``[time, envs, actors, ...]``.
            keys: This update's random keys.
            replays: Learn from earlier rollouts too; None: if there are enough of them.
        """
        if self.replay is not None and replays is None:
            return self.replay.learn(self.learn, runner, transitions, keys)
        before, hyperparams = runner, self.hyperparams_of(runner)
        estimate = partial(self.estimate_advantages, hyperparams=hyperparams)
        # At a truncation the next value is that of the final observation.
        runner, valuation = self.networks.value_rollout(runner, transitions)
        runner, batch = estimate(runner, transitions, valuation)
        if self.replay is not None and replays:  # earlier rollouts widen the batch
            batch = self.replay.with_earlier(batch, before, runner.normalizers, estimate)
        fit = partial(self.fit_policies, n_rollouts=1 + self.config.replay_updates * bool(replays))

        if self.config.joint_update:
            runner, batch, value_metrics = self.make_targets(runner, batch, hyperparams)
            networks = {"actor": runner.actor, "critic": runner.critic}
            networks, metrics = fit(networks, batch, hyperparams, keys.actor)
        else:
            actor, metrics = fit({"actor": runner.actor}, batch, hyperparams, keys.actor)
            runner, batch, value_metrics = self.make_targets(
                runner.replace(**actor), batch, hyperparams
            )
            networks, critic_metrics = fit(
                {"critic": runner.critic}, batch, hyperparams, keys.critic
            )
            metrics |= critic_metrics

        metrics |= value_metrics
        runner = runner.replace(
            **networks, rng=to_store(keys.next_update), n_updates_done=runner.n_updates_done + 1
        )
        residues = each_policy(residues_of)(
            batch, runner.actor, runner.critic, runner.normalizers, metrics
        )
        metrics |= count_empty_masks(transitions, self.environments.space, self.policies)
        metrics["learning_rate"] = jnp.asarray(hyperparams.actor_optimizer_params.learning_rate)
        return self.adapted(runner, metrics), metrics, residues

    # Its stages, in their order.

    def split_key(self, runner: Runner) -> UpdateKeys:
        """Split a runner's key for the consumers of one update."""
        rng, rng_rollout, *rngs = jax.random.split(to_draw(runner.rng), 4)
        actor, critic = (jax.random.split(each, self.policies.n_policies) for each in rngs)
        return UpdateKeys(rollout=rng_rollout, actor=actor, critic=critic, next_update=rng)

    def hyperparams_of(self, runner: Runner) -> HyperParameters:
        """Return the hyperparameters of the runner's next update, one value per policy."""
        return per_policy(self.scheduled(runner), self.policies.n_policies)

    def scheduled(self, runner: Runner) -> HyperParameters:
        """Return the hyperparameters of the runner's next update.

        They depend on the updates done, not on the optimizer's own count, with which a policy whose
        epochs stop early would anneal more slowly.
        """
        progress = runner.n_updates_done / runner.n_steps
        return scheduled(runner.hyperparams, self.config, progress, runner.learning_rate)

    def estimate_advantages(
        self,
        runner: Runner,
        transitions: Transition,
        valuation: Valuation,
        hyperparams: HyperParameters,
    ) -> tuple[Runner, Batch]:
        """Make each policy's batch, ``[policies, ...]``, from a rollout.

        Value targets are in units of reward. The statistics of observations and rewards are
        updated.
        """
        local = transitions.observation._replace(global_state=None)
        # Final observations have been valued: the policies do not need them.
        transitions = transitions._replace(observation=local, final_observation=None)
        make = partial(
            make_batch,
            config=self.config,
            advantages=self.advantages,
            rewards_after_death=self.environments.rewards_after_death,
            frozen=self.networks.frozen_normalizers,
        )
        batch, normalizers = each_policy(make)(
            self.policies.to_policies(transitions, axis=2),
            valuation,
            runner.normalizers,
            self.policies.membership(),
            hyperparams,
        )
        return runner.replace(normalizers=normalizers), batch

    def advantages(
        self, trajectory: Trajectory, hyperparams: HyperParameters
    ) -> Float[Array, "time *batch"]:
        """Estimate one policy's advantages, in units of reward.

        Value targets are these advantages plus the values. ``advantages="vtrace"`` estimates both
        in its own way.

        Args:
            trajectory: Rewards, values and ends of a rollout, ``[time, envs, actors]``.
            hyperparams: One value each.
        """
        return by_gae(trajectory, hyperparams)

    def fit_policies(
        self,
        networks: dict[str, NetworkState],
        batch: Batch,
        hyperparams: HyperParameters,
        rng: Key[Array, " policies"],
        n_rollouts: int = 1,
    ) -> tuple[dict[str, NetworkState], Metrics]:
        """Train all policies' networks, ``[policies, ...]``: see `fit`."""
        fit = partial(self.fit, n_rollouts=n_rollouts)
        if "actor" in networks and self.config.update_order == "sequential":
            return fit_in_turn(fit, self.networks.log_ratio, networks, batch, hyperparams, rng)
        return each_policy(fit)(networks, batch, hyperparams, rng)

    def fit(
        self,
        networks: dict[str, NetworkState],
        batch: Batch,
        hyperparams: HyperParameters,
        rng: PRNGKeyArray,
        n_rollouts: int = 1,
    ) -> tuple[dict[str, NetworkState], Metrics]:
        """Train one policy's actor, its critic, or both in the same minibatches.

        A critic trains for ``critic_epochs``. An actor, or both together, train until
        ``actor_epochs`` or ``kl_threshold`` is reached.

        Args:
            networks: By name: "actor", "critic" or both.
            batch: The policy's samples, ``[time, sequences, actors, ...]``.
            hyperparams: One value each.
            rng: Random key.
            n_rollouts: Number of rollouts in the batch.
        """
        config, trains_actor, before = self.config, "actor" in networks, networks
        objectives = self._objectives(networks, hyperparams)
        pass_over = self._epoch_of(list(networks), hyperparams, n_rollouts)

        def whole(name: str, network: NetworkState) -> NetworkState:
            return network._replace(params=with_frozen(network.params, before[name].params))

        def train_epoch(_: Any, loop: FitLoop) -> FitLoop:
            rng, rng_epoch = jax.random.split(loop.rng)
            samples = batch
            if trains_actor:
                actor = whole("actor", loop.networks["actor"])
                samples = self._with_current_estimates(actor, batch, hyperparams)
            networks, stats, norm = pass_over(loop.networks, samples, objectives, rng=rng_epoch)
            return FitLoop(networks, stats, gradient_norm=norm, epoch=loop.epoch + 1, rng=rng)

        def unfinished(loop: FitLoop) -> Bool[Array, ""]:
            # Stop on the whole epoch's KL: one minibatch's estimate is too noisy. Each minibatch's
            # is computed before its own step.
            return (loop.epoch < config.actor_epochs) & (
                loop.stats["kl"] <= hyperparams.kl_threshold
            )

        def any_unfinished(loop: FitLoop) -> Bool[Array, ""]:
            # One predicate for all policies: with one for each, jax would select every leaf.
            return jax.lax.pmax(unfinished(loop), POLICIES)

        def train_unfinished(loop: FitLoop) -> FitLoop:
            trained = train_epoch(None, loop)
            if self.policies.n_policies == 1:
                return trained
            kept = jax.tree.map(partial(jnp.where, unfinished(loop)), trained, loop)
            # jax's "rbg" generator draws for all policies from the first one's key.
            return kept._replace(rng=trained.rng)

        networks = {
            name: network._replace(params=self.networks.trainable(name, network.params))
            for name, network in networks.items()
        }
        loop = FitLoop(
            networks=networks,
            stats=empty_stats(networks, objectives, batch),
            gradient_norm=jnp.zeros(()),
            epoch=jnp.zeros((), jnp.int32),
            rng=rng,
        )
        if trains_actor:
            loop = jax.lax.while_loop(any_unfinished, train_unfinished, loop)
        else:
            loop = jax.lax.fori_loop(0, config.critic_epochs, train_epoch, loop)
        norms = {f"{name}_gradient_norm": loop.gradient_norm for name in networks}
        epochs = {"actor_epochs": loop.epoch} if trains_actor else {}
        trained = {name: whole(name, network) for name, network in loop.networks.items()}
        return trained, loop.stats | norms | epochs

    def _epoch_of(
        self, names: list[str], hyperparams: HyperParameters, n_rollouts: int
    ) -> Callable[..., Epoch]:
        """Build the function that runs one epoch of these networks: see `run_epoch`."""
        is_recurrent = getattr(self.networks, names[0]).recurrent
        grad_clip = hyperparams.actor_optimizer_params.grad_clip
        per_minibatch = self.config.normalize_advantages == "minibatch"
        return partial(
            run_epoch,
            n_minibatches=self.n_minibatches * n_rollouts,
            unit=unit_of(self.config, is_recurrent),
            standardizes="actor" in names and per_minibatch,
            grad_clip=grad_clip if len(names) > 1 else None,
        )

    def _objectives(
        self, networks: dict[str, NetworkState], hyperparams: HyperParameters
    ) -> dict[str, Objective]:
        """Build each network's objective, a function of its trainable parameters."""

        def scaled_actor_loss(params: PyTree, minibatch: Batch) -> Any:
            loss, stats = self.actor_loss(params, minibatch, hyperparams)
            return loss * minibatch.loss_scale, stats

        def critic_loss(params: PyTree, minibatch: Batch) -> Any:
            return self.critic_loss(params, minibatch, hyperparams)

        losses = {"actor": scaled_actor_loss, "critic": critic_loss}
        weights = {"actor": "weight", "critic": "value_weight"}
        bounds = {"actor": self.networks.within_bounds, "critic": lambda params: params}
        params = {name: getattr(hyperparams, f"{name}_optimizer_params") for name in networks}
        if len(networks) > 1:  # their gradients are clipped by the common norm
            params = {name: each.replace(grad_clip=jnp.inf) for name, each in params.items()}
        return {
            name: Objective(
                loss_of_trainable(losses[name], network.params),
                weights[name],
                self.optimizer(params[name]),
                bounds[name],
            )
            for name, network in networks.items()
        }

    def actor_loss(
        self, params: PyTree, minibatch: Batch, hyperparams: HyperParameters
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute one policy's loss of its actor, to be minimised.

        Args:
            params: The actor's parameters.
            minibatch: Samples ``[samples, ...]``; for recurrent actors, and where shapes are
                determined, sequences ``[time, sequences, actors, ...]``.
            hyperparams: One value each.

        Returns:
            The loss, and statistics by name, which become metrics of the training. ``actor_loss``
            and ``kl``, which ends epochs early, are among them. The loss and all statistics are
            means over the samples, weighted by their ``weight``, because a minibatch may be
            computed in parts. The caller multiplies the loss by its scale, see
            `AgentConfig.scale_actor_loss`.
        """
        dist_params = self.networks.batch_dist_params(params, minibatch)
        loss, stats = actor_loss(
            log_prob=self.distribution.log_prob(dist_params, minibatch.action),
            old_log_prob=minibatch.log_prob,
            advantage=minibatch.advantage,
            entropy=self.distribution.entropy(dist_params),
            weight=minibatch.weight,
            eps_clip=hyperparams.eps_clip,
            ent_coeff=hyperparams.ent_coeff,
            kl_weight=minibatch.kl_weight,
        )
        return loss, stats._asdict()

    def _with_current_estimates(
        self, actor: NetworkState, batch: Batch, hyperparams: HyperParameters
    ) -> Batch:
        """With V-trace, re-estimate advantages and targets for the current policy.

        With GAE, return the batch as it is.
        """
        if self.config.advantages == "gae":
            return batch
        log_ratio = self.networks.log_ratio(actor.params, batch)
        return with_estimates(batch, hyperparams, self.config, self.advantages, log_ratio)

    def make_targets(
        self, runner: Runner, batch: Batch, hyperparams: HyperParameters
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
            batch = self._with_current_estimates(actor, batch, hyperparams)
            trajectory, weight = batch.trajectory, batch.value_weight
            metrics = {
                "explained_variance": explained_variance(
                    trajectory.value, batch.value_target, weight
                ),
                **value_statistics(
                    trajectory.value, batch.value_target, trajectory.reward, weight
                )._asdict(),
            }
            if statistics is not None and "value" in self.networks.frozen_normalizers:
                target = normalize(statistics, batch.value_target)
                batch = batch._replace(value_target=target)
            elif statistics is not None:
                batch, statistics, rescale = normalize_targets(batch, statistics)
                if self.networks.critic.can_rescale_values:
                    params = self.networks.critic.with_rescaled_values(critic.params, *rescale)
                    critic = critic._replace(params=params)
                    batch = batch._replace(value=rescale(batch.value))
            batch = self.networks.with_torso_features(actor.params, batch)
            return critic, batch, statistics, metrics

        normalizers = runner.normalizers
        critic, batch, value, metrics = each_policy(make)(
            runner.actor, runner.critic, batch, normalizers.value, hyperparams
        )
        normalizers = normalizers._replace(value=value)
        return runner.replace(critic=critic, normalizers=normalizers), batch, metrics

    def critic_loss(
        self, params: PyTree, minibatch: Batch, hyperparams: HyperParameters
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute one policy's loss of its critic, to be minimised.

        Args:
            params: The critic's parameters.
            minibatch: As for `actor_loss`; its ``critic_features`` are what the critic observes.
            hyperparams: One value each.

        Returns:
            The loss, and statistics by name, which become metrics; ``critic_loss`` is among them.
            The loss and all statistics are means over the samples, weighted by their
            ``value_weight``.
        """
        loss = critic_loss(
            value=self.networks.batch_value(params, minibatch),
            value_target=minibatch.value_target,
            weight=minibatch.value_weight,
            vf_coeff=hyperparams.vf_coeff,
            error_cost=error_cost(self.config.critic_error, hyperparams.huber_delta),
            old_value=minibatch.value if self.config.clip_values else None,
            eps_clip=hyperparams.eps_clip,
        )
        return loss, {"critic_loss": loss}

    def adapted(self, runner: Runner, metrics: Metrics) -> Runner:
        """Change a runner after its update, based on the update's metrics ``[policies]``.

        With the schedule "kl" the actor's learning rate adapts to the KL divergence.
        """
        target = per_policy(runner.hyperparams, self.policies.n_policies).kl_target
        rate = adapt_learning_rate(runner.learning_rate, metrics["kl"], target)
        return runner.replace(learning_rate=rate)

    # Compiled by itself so that it is traced once, for its result shapes and for the loop.
    @compiled_for_speed()
    def step_and_check(self, runner: Runner) -> tuple[Runner, Metrics, NonFinite]:
        """Do one update, compiled; also return which quantities are NaN or infinite."""
        specs = specs_of(runner)
        update = self.devices.split(
            skip_nonfinite(self.collect_and_learn),
            in_specs=(specs,),
            out_specs=(specs, WHOLE, WHOLE),
        )
        runner, metrics, nonfinite = update(runner)
        return self.runners.with_current_opponents(runner), metrics, nonfinite
