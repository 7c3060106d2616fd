"""Actors and critics: the networks, applied to one policy's samples or to all actors at once."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import final

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxagents.compiler.batch_parts import apply_where
from jaxagents.config import AgentConfig
from jaxagents.entities import Entities
from jaxagents.environments.batch import EnvironmentBatch
from jaxagents.errors import stacklevel_of_caller
from jaxagents.hyperparameters import HyperParameters, OptimizerParams
from jaxagents.ippo.distributions import DistParams, Distribution
from jaxagents.ippo.freezing import frozen_normalizers, without_frozen
from jaxagents.ippo.frozen import Frozen
from jaxagents.networks.entities import NetworkContext
from jaxagents.networks.network import Network, PolicyNetwork, Stack, ValueNetwork, torso_of
from jaxagents.networks.recurrent import CellName, make_module
from jaxagents.networks.registry import chosen_module
from jaxagents.ppo.batches import Valuation
from jaxagents.ppo.normalization import normalize_features
from jaxagents.ppo.optimization import init_network
from jaxagents.ppo.policy_map import PolicyMap
from jaxagents.types import (
    IMAGE_NDIM,
    Batch,
    Memory,
    NetworkParams,
    NetworkState,
    Observation,
    PyTree,
    Runner,
    Transition,
)

_MANY_PARAMETERS = 10_000_000  # of one network
# Time steps of environments whose bootstrap values are computed at a time: at least this many, and
# at least this share of all; see benchmarks/RESULTS.md.
_FEW_VALUES, _SHARE_OF_VALUES = 2_048, 8


@final
class ActorCritic(Frozen):
    """The actor and critic networks of an agent's policies; holds no parameters.

    Attributes:
        actor: Maps an actor's observation to the outputs that parametrise its distribution.
        torso: The actor's layers that the critic shares; None if it shares none.
        critic: The critic's trained layers.
        value: The whole value function: any shared torso, then the critic.
        frozen_normalizers: Names of the normalizers that no update changes.
    """

    def __init__(
        self,
        environments: EnvironmentBatch,
        policies: PolicyMap,
        distribution: Distribution,
        config: AgentConfig,
    ):
        self._environments = environments
        self._policies = policies
        self._distribution = distribution
        self._centralized = config.centralized_critic
        observation = environments.observation
        features, critic_features = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype),
            (observation.features, jax.eval_shape(self.critic_features, observation)),
        )
        names_networks = config.actor_network is not None or config.critic_network is not None
        entities = environments.entities if names_networks else None
        self.actor: Network = _make_network(
            config, "actor", features, distribution.n_outputs, config.recurrent, entities
        )
        self.torso: Network | None = None
        if config.shared_torso:
            self.torso, critic_features = torso_of(self.actor)
        of_critic = None if config.centralized_critic or config.shared_torso else entities
        has_memory = config.recurrent_critic and not config.shared_torso
        cell = config.recurrent if has_memory else None
        self.critic: Network = _make_network(
            config, "critic", critic_features, None, cell, of_critic
        )
        self.value: Network | Stack = Stack(self.torso, self.critic) if self.torso else self.critic
        self._frozen_paths = config.freeze
        self.frozen_normalizers: frozenset[str] = frozen_normalizers(config.freeze, self.critic)
        self._freeze()

    def init(
        self,
        rng_actor: PRNGKeyArray,
        rng_critic: PRNGKeyArray,
        hyperparams: HyperParameters,
        optimizer: Callable[[OptimizerParams], optax.GradientTransformation],
        actor: PyTree | None = None,
        critic: PyTree | None = None,
    ) -> tuple[NetworkState, NetworkState]:
        """Initialise all policies' actors and critics, ``[policies, ...]``.

        Args:
            rng_actor: Random key.
            rng_critic: Random key.
            hyperparams: One value per policy.
            optimizer: Builds the optimizer of a network.
            actor: Parameters of all policies' actors; None draws them.
            critic: Parameters of all policies' critics; None draws them.
        """
        n_policies = self._policies.n_policies
        # Policy by policy: batched LAPACK calls of a user's initializer can deadlock on a CPU.
        if actor is None:
            actor = jax.lax.map(self.init_actor, jax.random.split(rng_actor, n_policies))
        if critic is None:
            critic = jax.lax.map(self.init_critic, jax.random.split(rng_critic, n_policies))

        def begin(name: str, params: PyTree, of_optimizer: OptimizerParams) -> NetworkState:
            network = init_network(self.trainable(name, params), optimizer(of_optimizer))
            return network._replace(params=params)

        return (
            jax.vmap(partial(begin, "actor"))(actor, hyperparams.actor_optimizer_params),
            jax.vmap(partial(begin, "critic"))(critic, hyperparams.critic_optimizer_params),
        )

    def trainable(self, name: str, params: PyTree) -> PyTree:
        """Return the parameters of the "actor" or the "critic", with None for frozen ones."""
        return without_frozen(params, name, self._frozen_paths)

    def within_bounds(self, params: PyTree) -> PyTree:
        """Return an actor's trainable parameters after a step: see `Distribution`."""
        return self._distribution.within_bounds(params)

    def init_actor(self, rng: PRNGKeyArray) -> PyTree:
        """Draw one policy's actor parameters."""
        return self._distribution.with_own_params(self.actor.init(rng))

    def init_critic(self, rng: PRNGKeyArray) -> PyTree:
        """Draw one policy's critic parameters."""
        return self.critic.init(rng)

    def initial_memory(self, *batch_shape: int) -> Memory:
        """Return the recurrent state of actors and critics at an episode's start."""
        return Memory(
            actor=self.actor.empty_memory(*batch_shape),
            critic=self.value.empty_memory(*batch_shape),
        )

    def actor_of(self, runner: Runner) -> NetworkParams:
        """Return the actors' parameters and observation statistics."""
        return NetworkParams(params=runner.actor.params, features=runner.normalizers.observation)

    def critic_of(self, runner: Runner) -> NetworkParams:
        """Return the critics' parameters and the statistics of their observations.

        The parameters of any shared torso are included.
        """
        params, normalizers = runner.critic.params, runner.normalizers
        if self.torso is not None:
            params = (self._distribution.network_params(runner.actor.params), params)
        return NetworkParams(
            params=params, features=normalizers.of_critic_features(self._centralized)
        )

    # All actors at once, each with its own policy.

    def dist_params(
        self, actor: NetworkParams, observation: Observation, memory: PyTree
    ) -> tuple[DistParams, PyTree]:
        """Apply every actor's policy to its observation, ``[envs, actors, ...]``."""
        local = observation._replace(global_state=None)
        return self._policies.apply(self._own_dist_params, actor, local, memory, axis=1)

    def act(
        self,
        actor: NetworkParams,
        observation: Observation,
        memory: PyTree,
        rng: PRNGKeyArray | None,
    ) -> tuple[Array, PyTree]:
        """Choose the actions ``[envs, actors, ...]``: sampled, or the mode without a key."""
        dist_params, memory = self.dist_params(actor, observation, memory)
        if rng is None:
            action = self._distribution.mode(dist_params)
        else:
            noise = self.draw_noise(rng, *observation.features.shape[:2])
            action = self._distribution.sample(dist_params, noise)
        return self._distribution.to_environment(action), memory

    def outlook(
        self, actor: NetworkParams, observation: Observation, memory: PyTree
    ) -> tuple[dict[str, Array], PyTree]:
        """Return what there is to show of the policies' distributions; see `EpisodeView`."""
        dist_params, memory = self.dist_params(actor, observation, memory)
        return self._distribution.outlook(dist_params), memory

    def draw_noise(self, rng: PRNGKeyArray, *batch_shape: int) -> Float[Array, "*batch outputs"]:
        """Draw the noise that `Distribution.sample` turns into actions.

        It does not depend on the policy.
        """
        shape = (*batch_shape, self._distribution.n_outputs)
        return self._distribution.draw_noise(rng, shape)

    def critic_features(self, observation: Observation) -> Array:
        """Return what every actor's critic observes, ``[*batch, actors, ...]``."""
        if self._centralized:
            return self._environments.global_features(observation)
        return observation.features

    def values_of_actors(
        self, critic: NetworkParams, observation: Observation, memory: PyTree
    ) -> tuple[Float[Array, " actors"], PyTree]:
        """Apply every actor's critic to one environment's observation."""
        features = self.critic_features(observation)
        return self._policies.apply(self.step_value, critic, features, memory, axis=0)

    def value_rollout(self, runner: Runner, transitions: Transition) -> tuple[Runner, Valuation]:
        """Apply the critics to the observations of a rollout and to those that follow each step.

        A truncated step is followed by its final observation, from before the reset; every other
        step by the observation that is acted on next.

        Args:
            runner: The runner after the rollout, except for its critics' recurrent state.
            transitions: ``[time, envs, actors, ...]``.

        Returns:
            The runner with its critics' recurrent state after the rollout; the values,
            ``[policies, time, envs, actors, ...]``.
        """
        to_policies = partial(self._policies.to_policies, axis=2)
        critic, begins = self.critic_of(runner), transitions.begins
        observations = jax.tree.map(
            lambda during, after: jnp.concatenate([during, after[None]]),
            transitions.observation,
            runner.observation,
        )
        features = to_policies(self.critic_features(observations))
        starts = to_policies(jnp.concatenate([jnp.zeros_like(begins[:1]), begins]))
        memory = self._policies.to_policies(runner.memory.critic, axis=1)
        value, memories = jax.vmap(self.sequence_value)(critic, features, memory, starts)

        next_value = value[:, 1:]
        if not self._environments.time_limit.is_terminal:
            before_reset = jax.tree.map(lambda leaf: leaf[:, :-1], memories)
            final_value = self.bootstrap_values(critic, transitions, before_reset)
            next_value = jnp.where(to_policies(transitions.truncated), final_value, next_value)
        valuation = Valuation(
            features=features[:, :-1],
            memory=jax.tree.map(
                lambda first, later: jnp.concatenate([first[:, None], later[:, :-2]], axis=1),
                memory,
                memories,
            ),
            value=value[:, :-1],
            next_value=next_value,
        )
        last = jax.tree.map(lambda leaf: leaf[:, -2], memories)
        last = self.value.reset_memory(self._policies.to_actors(last, axis=1), begins[-1])
        return runner.replace(memory=runner.memory._replace(critic=last)), valuation

    def bootstrap_values(
        self, critic: NetworkParams, transitions: Transition, memory: PyTree
    ) -> Float[Array, "policies time envs actors"]:
        """Apply the critics to final observations where any actor of an environment is truncated.

        Return 0 elsewhere.

        Args:
            critic: The critics.
            transitions: ``[time, envs, actors, ...]``.
            memory: The critics' recurrent state before each final observation,
                ``[policies, time, ...]``.
        """

        def values(final: tuple[Observation, PyTree]) -> Float[Array, "samples policies actors"]:
            observation, memory = final
            features = self._policies.to_policies(self.critic_features(observation), axis=1)
            step = jax.vmap(self.step_value, in_axes=(0, 0, 1), out_axes=1)
            return step(critic, features, memory)[0]

        memory = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 2), memory)
        zeros = self._policies.to_policies(jnp.zeros(transitions.truncated.shape), axis=2)
        is_truncated = jnp.any(transitions.truncated, axis=-1)
        value = apply_where(
            is_truncated,
            values,
            (transitions.final_observation, memory),
            jnp.moveaxis(zeros, 0, 2),
            part_size=max(_FEW_VALUES, -(-is_truncated.size // _SHARE_OF_VALUES)),
        )
        return jnp.moveaxis(value, 2, 0)

    # One policy.

    def _own_dist_params(
        self, actor: NetworkParams, observation: Observation, memory: PyTree
    ) -> tuple[DistParams, PyTree]:
        """Apply one policy to single steps ``[*batch, *obs]``."""
        features = normalize_features(actor.features, observation.features)
        params = self._distribution.network_params(actor.params)
        outputs, memory = self.actor.step(params, features, memory)
        return self._distribution.parametrize(
            actor.params, outputs, observation.action_mask
        ), memory

    def step_value(
        self, critic: NetworkParams, features: Array, memory: PyTree
    ) -> tuple[Float[Array, "*batch"], PyTree]:
        """Apply one policy's critic to single steps ``[*batch, *obs]``."""
        features = normalize_features(critic.features, features)
        return self.value.step(critic.params, features, memory)

    def sequence_value(
        self,
        critic: NetworkParams,
        features: Array,
        memory: PyTree,
        begins: Bool[Array, "time *batch"],
    ) -> tuple[Float[Array, "time *batch"], PyTree]:
        """Apply one policy's critic to sequences ``[time, *batch, *obs]``."""
        features = normalize_features(critic.features, features)
        return self.value(critic.params, features, memory, begins)

    def batch_dist_params(self, params: PyTree, batch: Batch) -> DistParams:
        """Apply one policy to a batch or minibatch of its samples."""
        outputs, _ = self.actor(
            self._distribution.network_params(params),
            batch.observation.features,
            _first(batch.memory.actor),
            batch.begins,
        )
        return self._distribution.parametrize(params, outputs, batch.observation.action_mask)

    def batch_value(self, params: PyTree, batch: Batch) -> Float[Array, "*batch"]:
        """Apply one policy's critic to a batch or minibatch of its samples."""
        value, _ = self.critic(
            params, batch.critic_features, _first(batch.memory.critic), batch.begins
        )
        return value

    def log_ratio(self, params: PyTree, batch: Batch) -> Float[Array, "*batch"]:
        """Return the log ratio of one policy's probabilities to those during the rollout."""
        dist_params = self.batch_dist_params(params, batch)
        return self._distribution.log_prob(dist_params, batch.action) - batch.log_prob

    def with_torso_features(self, actor: PyTree, batch: Batch) -> Batch:
        """Replace the critic's input with the output of the torso that it shares, if any."""
        if self.torso is None:
            return batch
        hidden, _ = self.torso(
            self._distribution.network_params(actor),
            batch.critic_features,
            _first(batch.memory.critic),
            batch.begins,
        )
        return batch._replace(critic_features=hidden)


def _make_network(
    config: AgentConfig,
    name: str,
    features: jax.ShapeDtypeStruct,
    n_outputs: int | None,
    cell: CellName | None,
    entities: Entities | None,
) -> Network:
    """Build the "actor", or the "critic", which has values in place of ``n_outputs``."""
    given, layers = getattr(config, f"{name}_network"), getattr(config, f"{name}_layers")
    shape, dtype = features.shape, config.compute_dtype or "float32"
    context = NetworkContext(shape, entities, layers, cell, dtype, config.normalize_observations)
    module = chosen_module(f"{name}_network", given, n_outputs, context)
    make_head = ValueNetwork if n_outputs is None else partial(PolicyNetwork, n_outputs)
    module = module or make_module(shape, layers, cell, make_head, dtype)
    network = Network(module, features, recurrent=cell is not None)
    network.check(f"{name}_network", () if n_outputs is None else (n_outputs,))
    if given is None:
        _warn_of_large_images(network, f"{name}_layers")
    return network


def _warn_of_large_images(network: Network, layers: str) -> None:
    shape = network.observation.shape
    if len(shape) != IMAGE_NDIM:
        return
    n_parameters = sum(leaf.size for leaf in jax.tree.leaves(network.parameters()))
    if n_parameters > _MANY_PARAMETERS:
        warnings.warn(
            f"images of {' x '.join(map(str, shape))} give the network of {layers} "
            f"{n_parameters / 1e6:.0f} million parameters; make them smaller (image_size of host "
            f"environments), or set a stride and more convolutions (channels) in {layers}.",
            stacklevel=stacklevel_of_caller(),
        )


def _first(memory: PyTree) -> PyTree:
    """Take the recurrent states at the start of a minibatch's sequences."""
    return jax.tree.map(lambda leaf: leaf[0], memory)
