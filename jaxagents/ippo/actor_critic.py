"""What an agent's policies and critics compute, whatever trains them."""

import abc
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from jaxagents.architecture import Network, Stack, make_module, torso_of
from jaxagents.batches import Valuation
from jaxagents.config import AgentConfig
from jaxagents.environments.batch import JaxEnvironmentBatch
from jaxagents.environments.spaces import Box, Discrete
from jaxagents.hyperparameters import HyperParameters
from jaxagents.losses import ActorStats, actor_loss, critic_loss, huber_error, squared_error
from jaxagents.networks import PolicyNetwork, ValueNetwork
from jaxagents.normalization import Normalizers, RewardScale, no_statistics, normalize_features
from jaxagents.policies import make_policy_map
from jaxagents.selection import apply_where
from jaxagents.types import Batch, Inference, Memory, Observation, Runner, Transition

_FEW_VALUES = 2_048  # time steps of environments; see benchmarks/RESULTS.md

Head = Any
"""The parameters of a distribution over actions, a pytree of arrays ``[*batch, ...]``."""


class ActorCritic(abc.ABC):
    """The networks of all policies, bound to an environment; frozen once it is built.

    Subclasses bring a distribution of actions: networks yield its parameters, the head, and the
    hooks at the end of this class draw from it and weigh it.
    """

    _frozen = False
    _mutable = ""

    def __init__(self, env: Any, env_params: PyTree, config: AgentConfig):
        if jnp.zeros(()).dtype != jnp.float32:
            raise ValueError(
                "jax_enable_x64 is on, and agents learn in float32; switch it off, by "
                'jax.config.update("jax_enable_x64", False) or without JAX_ENABLE_X64.'
            )
        self.env = env
        self.env_params = env_params
        self.config = config
        self.environments = JaxEnvironmentBatch(
            env,
            env_params,
            max_episode_steps=config.max_episode_steps,
            agent_id=config.agent_id,
            global_state=config.centralized_critic,
        )
        self._check_space(self.environments.space)
        self.policies = make_policy_map(
            config.parameter_sharing, self.environments.n_actors, self.environments.teams
        )
        if config.shaped_reward_steps is not None and not self.environments.has_shaped_reward:
            raise ValueError(
                f"shaped_reward_steps={config.shaped_reward_steps}, but {type(env).__name__} "
                "shapes no rewards; leave it None."
            )
        observation = self.environments.observation
        features, critic_features = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype),
            (observation.features, jax.eval_shape(self._critic_features, observation)),
        )
        self.actor_network = self._make_actor_network(features)
        self.torso: Network | None = None
        if config.shared_torso:
            self.torso, critic_features = torso_of(self.actor_network)
        # What is trained, and what is applied to observations.
        self.critic_network = self._make_critic_network(critic_features)
        self.critic = Stack(self.torso, self.critic_network) if self.torso else self.critic_network

    def _make_actor_network(self, features: jax.ShapeDtypeStruct) -> Network:
        config, cell = self.config, self.config.recurrent
        make_policy = partial(PolicyNetwork, self._n_outputs)
        module = config.actor_network or make_module(
            features.shape, config.actor_layers, cell, make_policy, self._compute_dtype()
        )
        network = Network(module, features, recurrent=cell is not None)
        network.check("actor_network", (self._n_outputs,))
        return network

    def _make_critic_network(self, features: jax.ShapeDtypeStruct) -> Network:
        config = self.config
        has_memory = config.recurrent_critic and not config.shared_torso
        cell = config.recurrent if has_memory else None
        module = config.critic_network or make_module(
            features.shape, config.critic_layers, cell, ValueNetwork, self._compute_dtype()
        )
        network = Network(module, features, recurrent=cell is not None)
        network.check("critic_network", ())
        return network

    def _compute_dtype(self) -> str:
        return self.config.compute_dtype or "float32"

    def _freeze(self, except_for: str) -> None:
        """Refuse every later assignment but to one attribute, which no traced code may read."""
        self._mutable = except_for
        self._frozen = True

    def __setattr__(self, name: str, value: Any) -> None:
        if self._frozen and name != self._mutable:
            raise AttributeError(
                f"{type(self).__name__}.{name} is fixed at construction, because compiled code "
                "would go on with the old value; build a new agent."
            )
        super().__setattr__(name, value)

    # All actors' policies at once.

    def _act(
        self,
        actor: Inference,
        observation: Observation,
        memory: PyTree,
        rng: PRNGKeyArray | None,
    ) -> tuple[Array, PyTree]:
        """Choose the environments' actions ``[envs, actors, ...]``: the likeliest without a key."""
        head, memory = self._heads(actor, observation, memory)
        if rng is None:
            action = self._likeliest_actions(head)
        else:
            action = self._sample_actions(
                self._draw_noise(rng, *observation.features.shape[:2]), head
            )
        return self._environment_action(action), memory

    def _heads(
        self, actor: Inference, observation: Observation, memory: PyTree
    ) -> tuple[Head, PyTree]:
        """Apply every actor's policy to what it sees, ``[envs, actors, ...]``."""
        local = observation._replace(global_state=None)
        return self.policies.apply(self._step_actor, actor, local, memory, axis=1)

    def _draw_noise(self, rng: PRNGKeyArray, *batch_shape: int) -> Float[Array, "*batch outputs"]:
        """Draw what actions are sampled with, which needs no head and so may be done ahead."""
        shape = (*batch_shape, self._n_outputs)
        # Drawn in the shape of actions, with short axes at the end, this would not be vectorised
        # on a CPU.
        return jax.lax.optimization_barrier(self._noise(rng, math.prod(shape))).reshape(shape)

    def _critic_features(self, observation: Observation) -> Array:
        """Choose what every actor's critic sees, ``[*batch, actors, ...]``."""
        if self.config.centralized_critic:
            return self.environments.global_features(observation)
        return observation.features

    def _critic_of(self, runner: Runner) -> Inference:
        """Choose what valuing takes."""
        params, normalizers = runner.critic.params, runner.normalizers
        if self.torso is not None:
            params = (self._network_params(runner.actor.params), params)
        return Inference(
            params=params, features=normalizers.critic_features or normalizers.observation
        )

    def _empty_memory(self, *batch_shape: int) -> Memory:
        """Give what actors and critics remember when an episode begins, ``[*batch, ...]``."""
        return Memory(
            actor=self.actor_network.empty_memory(*batch_shape),
            critic=self.critic.empty_memory(*batch_shape),
        )

    def _no_normalizers(self) -> Normalizers:
        """Begin to normalise what is configured, each policy by its own statistics."""
        config, none = self.config, Normalizers()
        n_policies, n_members = self.policies.membership().shape
        if config.normalize_observations:
            none = none._replace(observation=no_statistics(self.actor_network.observation.shape))
            if config.centralized_critic:
                seen = self.critic_network.observation.shape
                none = none._replace(critic_features=no_statistics(seen))
        if config.normalize_values:
            none = none._replace(value=no_statistics(()))
        if config.scale_rewards:
            returns = jnp.zeros((config.batch_size, n_members))
            none = none._replace(reward=RewardScale(no_statistics(()), returns))
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (n_policies, *leaf.shape)), none)

    def _value_rollout(self, runner: Runner, transitions: Transition) -> tuple[Valuation, PyTree]:
        """Apply the critics to a rollout ``[time, envs, actors, ...]`` and what comes after it.

        Args:
            runner: Its observation is the one after the rollout, its memory that before it.
            transitions: The rollout.

        Returns:
            The valuation, ``[policies, time, envs, actors, ...]``, and the critics' memory after
            the rollout, ``[envs, actors, ...]``.
        """
        to_policies = partial(self.policies.to_policies, axis=2)
        critic, over = self._critic_of(runner), transitions.episode_over
        observations = jax.tree.map(
            lambda during, after: jnp.concatenate([during, after[None]]),
            transitions.observation,
            runner.observation,
        )
        features = to_policies(self._critic_features(observations))
        begins = to_policies(jnp.concatenate([jnp.zeros_like(over[:1]), over]))
        memory = self.policies.to_policies(runner.memory.critic, axis=1)
        value, memories = jax.vmap(self._apply_critic)(critic, features, memory, begins)

        before_reset = jax.tree.map(lambda leaf: leaf[:, :-1], memories)
        final_value = self._value_where_truncated(critic, transitions, before_reset)
        valuation = Valuation(
            features=features[:, :-1],
            memory=jax.tree.map(
                lambda first, later: jnp.concatenate([first[:, None], later[:, :-2]], axis=1),
                memory,
                memories,
            ),
            value=value[:, :-1],
            next_value=jnp.where(to_policies(transitions.truncated), final_value, value[:, 1:]),
        )
        last = jax.tree.map(lambda leaf: leaf[:, -2], memories)
        last = self.policies.to_actors(last, axis=1)
        return valuation, self.critic.emptied(last, over[-1])

    def _value_where_truncated(
        self, critic: Inference, transitions: Transition, memory: PyTree
    ) -> Float[Array, "policies time envs actors"]:
        """Value final observations, ``memory`` being that before each, ``[policies, time, ...]``.

        Only a truncated step bootstraps from an observation that nobody acts on.
        """

        def values(final: tuple[Observation, PyTree]) -> Float[Array, "samples policies actors"]:
            observation, memory = final
            features = self.policies.to_policies(self._critic_features(observation), axis=1)
            step = jax.vmap(self._step_critic, in_axes=(0, 0, 1), out_axes=1)
            return step(critic, features, memory)[0]

        memory = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 2), memory)
        unread = self.policies.to_policies(jnp.zeros(transitions.truncated.shape), axis=2)
        final_value = apply_where(
            jnp.any(transitions.truncated, axis=-1),
            values,
            (transitions.final_observation, memory),
            jnp.moveaxis(unread, 0, 2),
            smallest_part=_FEW_VALUES,
        )
        return jnp.moveaxis(final_value, 2, 0)

    # One policy.

    def _step_actor(
        self, actor: Inference, observation: Observation, memory: PyTree
    ) -> tuple[Head, PyTree]:
        """Apply one policy to single steps ``[*batch, *obs]``."""
        features = normalize_features(actor.features, observation.features)
        params = self._network_params(actor.params)
        outputs, memory = self.actor_network.step(params, features, memory)
        return self._head(actor.params, outputs, observation.action_mask), memory

    def _apply_critic(
        self, critic: Inference, features: Array, memory: PyTree, begins: Bool[Array, "time *batch"]
    ) -> tuple[Float[Array, "time *batch"], PyTree]:
        """Apply one policy's critic to sequences ``[time, *batch, *obs]``."""
        features = normalize_features(critic.features, features)
        return self.critic(critic.params, features, memory, begins)

    def _step_critic(
        self, critic: Inference, features: Array, memory: PyTree
    ) -> tuple[Float[Array, "*batch"], PyTree]:
        """Apply one policy's critic to single steps ``[*batch, *obs]``."""
        features = normalize_features(critic.features, features)
        return self.critic.step(critic.params, features, memory)

    def _with_critic_features(self, actor: PyTree, batch: Batch) -> Batch:
        """Give the critic's own layers what they learn from, behind the torso of an actor."""
        if self.torso is None:
            return batch
        hidden, _ = self.torso(
            self._network_params(actor),
            batch.critic_features,
            _first(batch.memory.critic),
            batch.begins,
        )
        return batch._replace(critic_features=hidden)

    def _actor_loss(
        self, params: PyTree, minibatch: Batch, hyperparams: HyperParameters
    ) -> tuple[Float[Array, ""], tuple[ActorStats, Float[Array, ""]]]:
        head = self._batch_head(params, minibatch)
        loss, stats = actor_loss(
            log_prob=self._log_prob(head, minibatch.action),
            old_log_prob=minibatch.log_prob,
            advantage=minibatch.advantage,
            entropy=self._entropy(head),
            weight=minibatch.weight,
            eps_clip=hyperparams.eps_clip,
            ent_coeff=hyperparams.ent_coeff,
        )
        return loss, (stats, jnp.sum(minibatch.weight))

    def _log_ratio(self, params: PyTree, batch: Batch) -> Float[Array, "*batch"]:
        """Tell how much likelier what was done has become since the rollout."""
        return self._log_prob(self._batch_head(params, batch), batch.action) - batch.log_prob

    def _batch_head(self, params: PyTree, batch: Batch) -> Head:
        outputs, _ = self.actor_network(
            self._network_params(params),
            batch.observation.features,
            _first(batch.memory.actor),
            batch.begins,
        )
        return self._head(params, outputs, batch.observation.action_mask)

    def _critic_loss(
        self, params: PyTree, minibatch: Batch, hyperparams: HyperParameters
    ) -> tuple[Float[Array, ""], tuple[Float[Array, ""], Float[Array, ""]]]:
        value, _ = self.critic_network(
            params, minibatch.critic_features, _first(minibatch.memory.critic), minibatch.begins
        )
        huber = partial(huber_error, delta=hyperparams.huber_delta)
        loss = critic_loss(
            value=value,
            value_target=minibatch.value_target,
            weight=minibatch.value_weight,
            vf_coeff=hyperparams.vf_coeff,
            error_cost=huber if self.config.critic_error == "huber" else squared_error,
            old_value=minibatch.value if self.config.clip_values else None,
            eps_clip=hyperparams.eps_clip,
        )
        return loss, (loss, jnp.sum(minibatch.value_weight))

    # What a distribution of actions brings.

    @property
    @abc.abstractmethod
    def _n_outputs(self) -> int:
        """Units of the actor network's last layer."""

    @abc.abstractmethod
    def _check_space(self, space: Discrete | Box) -> None:
        """Raise TypeError, naming the right agent, if the actions are not this agent's kind."""

    @abc.abstractmethod
    def _init_actor_params(self, rng: PRNGKeyArray) -> PyTree:
        """Draw one policy's actor parameters."""

    @abc.abstractmethod
    def _network_params(self, params: PyTree) -> PyTree:
        """Choose the network's parameters among an actor's."""

    @abc.abstractmethod
    def _head(
        self, params: PyTree, outputs: Array, action_mask: Bool[Array, "*batch n"] | None
    ) -> Head:
        """Make a distribution of what one policy's network put out, ``[*batch, n_outputs]``."""

    @abc.abstractmethod
    def _noise(self, rng: PRNGKeyArray, size: int) -> Float[Array, " size"]:
        """Draw noise for as many of the network's outputs."""

    @abc.abstractmethod
    def _sample_actions(self, noise: Float[Array, "*batch outputs"], head: Head) -> Array:
        """Sample actions ``[*batch, ...]`` with noise of their own."""

    @abc.abstractmethod
    def _likeliest_actions(self, head: Head) -> Array:
        """Choose the actions of highest probability, before any squashing."""

    @abc.abstractmethod
    def _log_prob(self, head: Head, action: Array) -> Float[Array, "*batch"]:
        """Give the log probability (density) of drawn actions."""

    @abc.abstractmethod
    def _entropy(self, head: Head) -> Float[Array, "*batch"]:
        """Give the distribution's entropy, in nats."""

    @abc.abstractmethod
    def _environment_action(self, action: Array) -> Array:
        """Turn drawn actions into what the environment takes."""


def _first(memory: PyTree) -> PyTree:
    """Take the memories that a minibatch's sequences begin with."""
    return jax.tree.map(lambda leaf: leaf[0], memory)


def actor_of(runner: Runner) -> Inference:
    """Choose what acting takes."""
    return Inference(params=runner.actor.params, features=runner.normalizers.observation)
