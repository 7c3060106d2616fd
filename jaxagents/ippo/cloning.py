"""Behaviour cloning: actors learn to choose the actions of logged rollouts."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxagents.compiler.jit import compiled_for_speed
from jaxagents.compiler.random_keys import to_draw, to_store
from jaxagents.config import AgentConfig
from jaxagents.environments.batch import EnvironmentBatch
from jaxagents.hyperparameters import HyperParameters
from jaxagents.ippo.actor_critic import ActorCritic
from jaxagents.ippo.distributions import Distribution, Logits
from jaxagents.ippo.freezing import loss_of_trainable, with_frozen
from jaxagents.ippo.frozen import Frozen
from jaxagents.ippo.rollout import Rollout, as_transitions, check_shapes, with_structure
from jaxagents.ppo.batches import Valuation, make_batch
from jaxagents.ppo.finiteness import NonFiniteError
from jaxagents.ppo.losses import weighted_mean
from jaxagents.ppo.normalization import Normalizers
from jaxagents.ppo.optimization import Objective, init_network, optimizer_of, run_epoch
from jaxagents.ppo.policy_map import PolicyMap, each_policy
from jaxagents.types import Batch, Metrics, NetworkState, PyTree, Runner, Transition


class CloningLoop(NamedTuple):
    """Carry of the cloning epochs of one policy."""

    actor: NetworkState
    rng: PRNGKeyArray


@final
class Cloning(Frozen):
    """Maximises the log probability of logged actions; the loss is ``-mean(log π(a | s))``.

    Inactive actors have zero weight, and masked actions probability 0. The statistics of
    observations are updated with all rollouts before the first epoch, which already normalises with
    them. Recurrent actors learn from sequences that start with the rollout's stored states, or, if
    it has none, from whole trajectories that start with the initial state.

    Critics are not trained: their targets depend on the policy, and the first updates train them.
    The optimizer's state is reset before cloning and after it.

    Source: Pomerleau 1991, https://doi.org/10.1162/neco.1991.3.1.88.
    """

    def __init__(
        self,
        environments: EnvironmentBatch,
        policies: PolicyMap,
        distribution: Distribution,
        networks: ActorCritic,
        config: AgentConfig,
    ):
        self._environments = environments
        self._policies = policies
        self._distribution = distribution
        self._networks = networks
        self._config = config
        self._freeze()

    def clone(
        self,
        runner: Runner,
        rollouts: Sequence[Rollout],
        hyperparams: HyperParameters,
        n_epochs: int,
    ) -> tuple[Runner, Metrics]:
        """Train the actors; see `IPPOBase.pretrain`.

        Args:
            runner: The initial state.
            rollouts: The experience.
            hyperparams: One value per policy.
            n_epochs: Passes over all of it.
        """
        if n_epochs < 1:
            raise ValueError(f"n_epochs={n_epochs}; pretrain for at least 1.")
        rollout = self._joined([rollouts] if isinstance(rollouts, Rollout) else rollouts)
        runner_after, metrics = self._clone(runner, rollout, hyperparams, n_epochs)
        found = ~np.isfinite(metrics["cloning_loss"])
        if found.any():
            epoch, policy = np.argwhere(found)[0]
            raise NonFiniteError(
                f"epoch {epoch + 1} of pretraining has NaN or infinity in the loss of policy "
                f"{policy}; lower the actor's learning rate, or look for NaN in the rollouts."
            )
        return runner_after, metrics

    def _joined(self, rollouts: Sequence[Rollout]) -> Rollout:
        """Join rollouts along their environments, without the fields that cloning does not use."""
        if not rollouts:
            raise ValueError("pretrain learns from rollouts, and none was given.")
        used = []
        for rollout in rollouts:
            check_shapes(rollout, self._environments, self._config, self._distribution.action_shape)
            zeros = np.zeros(np.shape(rollout.reward), np.float32)
            unused = dict.fromkeys(
                ("last_observation", "last_active", "final_observation", "shaped_reward")
            )
            used.append(rollout._replace(log_prob=zeros, last_memory=(), **unused))
        first, *others = map(jax.tree.structure, used)
        if any(other != first for other in others):
            raise ValueError(
                "the rollouts differ in their parts (active, memory, or those of their "
                "observations); pretrain on rollouts of one kind."
            )
        return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *used)

    @compiled_for_speed(static_argnames=("n_epochs",))
    def _clone(
        self, runner: Runner, rollout: Rollout, hyperparams: HyperParameters, n_epochs: int
    ) -> tuple[Runner, Metrics]:
        actor = self._networks.actor
        has_memory = bool(jax.tree.leaves(rollout.memory))
        initial = actor.empty_memory(*rollout.reward.shape)
        memory = with_structure(rollout.memory, initial) if has_memory else initial
        transitions = as_transitions(
            rollout._replace(memory=memory),
            self._environments,
            self._config,
            runner.n_updates_done,
        )
        config = self._config if has_memory else replace(self._config, recurrent_chunk_length=None)
        batch, normalizers = self._make_batch(runner, transitions, hyperparams, config)
        rng, rng_epochs = jax.random.split(to_draw(runner.rng))
        train = partial(self._train, config=config, n_epochs=n_epochs)
        state, metrics = each_policy(train)(
            runner.actor,
            batch,
            hyperparams,
            jax.random.split(rng_epochs, self._policies.n_policies),
        )
        runner = runner.replace(actor=state, normalizers=normalizers, rng=to_store(rng))
        return runner, {name: each.T for name, each in metrics.items()}

    def _make_batch(
        self,
        runner: Runner,
        transitions: Transition,
        hyperparams: HyperParameters,
        config: AgentConfig,
    ) -> tuple[Batch, Normalizers]:
        """Make each policy's batch, normalised with statistics that include it."""
        observation, to_policies = transitions.observation, self._policies.to_policies
        features = to_policies(self._networks.critic_features(observation), axis=2)
        transitions = transitions._replace(
            observation=observation._replace(global_state=None), final_observation=None
        )

        def make(
            step: Transition,
            features: Array,
            normalizers: Normalizers,
            membership: Float[Array, " actors"],
            hyperparams: HyperParameters,
        ) -> tuple[Batch, Normalizers]:
            unknown = jnp.zeros_like(step.reward)
            valuation = Valuation(features, memory=(), value=unknown, next_value=unknown)
            make_once = partial(
                make_batch,
                step,
                valuation,
                membership=membership,
                hyperparams=hyperparams,
                config=config,
                frozen=self._networks.frozen_normalizers,
            )
            _, updated = make_once(normalizers._replace(reward=None))
            batch, _ = make_once(updated)
            return batch, updated._replace(reward=normalizers.reward)

        return each_policy(make)(
            to_policies(transitions, axis=2),
            features,
            runner.normalizers,
            self._policies.membership(),
            hyperparams,
        )

    def _train(
        self,
        actor: NetworkState,
        batch: Batch,
        hyperparams: HyperParameters,
        rng: PRNGKeyArray,
        config: AgentConfig,
        n_epochs: int,
    ) -> tuple[NetworkState, Metrics]:
        """Train one policy's actor."""
        optimizer = optimizer_of(config)(hyperparams.actor_optimizer_params)
        loss = loss_of_trainable(self._loss, actor.params)
        objective = Objective(loss, "weight", optimizer, self._networks.within_bounds)
        n_rollouts = batch.weight.shape[1] // (config.batch_size * config.n_chunks)
        n_minibatches = n_rollouts * config.minibatches_per_epoch
        unit = "sequence" if self._networks.actor.recurrent else "step"

        def train_epoch(loop: CloningLoop, _: None) -> tuple[CloningLoop, Metrics]:
            rng, rng_epoch = jax.random.split(loop.rng)
            networks, metrics, _norm = run_epoch(
                {"actor": loop.actor}, batch, {"actor": objective}, rng_epoch, n_minibatches, unit
            )
            return CloningLoop(actor=networks["actor"], rng=rng), metrics

        trainable = self._networks.trainable("actor", actor.params)
        loop = CloningLoop(actor=init_network(trainable, optimizer), rng=rng)
        loop, metrics = jax.lax.scan(train_epoch, loop, length=n_epochs)
        trained = init_network(loop.actor.params, optimizer)
        return trained._replace(params=with_frozen(trained.params, actor.params)), metrics

    def _loss(self, params: PyTree, minibatch: Batch) -> tuple[Float[Array, ""], Metrics]:
        dist_params, weight = self._networks.batch_dist_params(params, minibatch), minibatch.weight
        loss = -weighted_mean(self._distribution.log_prob(dist_params, minibatch.action), weight)
        stats = {"cloning_loss": loss}
        if isinstance(self._distribution, Logits):
            is_mode = self._distribution.mode(dist_params) == minibatch.action
            agrees = jnp.all(is_mode.reshape(*weight.shape, -1), axis=-1)
            stats["cloning_accuracy"] = weighted_mean(agrees.astype(jnp.float32), weight)
        return loss, stats
