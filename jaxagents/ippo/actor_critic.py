"""What an agent's policies and critics compute, whatever trains them."""

import abc
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from jaxagents.config import AgentConfig, HyperParameters
from jaxagents.environments.batch import JaxEnvironmentBatch
from jaxagents.environments.spaces import Box, Discrete
from jaxagents.losses import ActorStats, actor_loss, critic_loss
from jaxagents.networks import (
    PolicyNetwork,
    ValueNetwork,
    apply,
    check_network,
    default_torso,
)
from jaxagents.policies import make_policy_map
from jaxagents.types import Batch, Observation

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
        self.env = env
        self.env_params = env_params
        self.config = config
        self.environments = JaxEnvironmentBatch(
            env, env_params, config.max_episode_steps, config.agent_id
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
        features = self.environments.observation.features
        torso = default_torso(features.shape[1:])
        self.actor_network = config.actor_network or PolicyNetwork(self._n_outputs, torso)
        self.critic_network = config.critic_network or ValueNetwork(torso)
        check_network("actor_network", self.actor_network, features, (self._n_outputs,))
        check_network("critic_network", self.critic_network, features, ())

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

    def _act(self, params: PyTree, observation: Observation, rng: PRNGKeyArray | None) -> Array:
        """Choose the environments' actions ``[envs, actors, ...]``: the likeliest without a key."""
        head = self.policies.apply(self._head, params, observation, axis=1)
        action = self._likeliest_actions(head) if rng is None else self._sample(rng, head)
        return self._environment_action(action)

    def _sample(self, rng: PRNGKeyArray, head: Head) -> Array:
        """Draw actions ``[envs, actors, ...]``, from a key per environment."""
        n_envs = len(jax.tree.leaves(head)[0])
        return jax.vmap(self._sample_actions)(jax.random.split(rng, n_envs), head)

    # One policy.

    def _actor_loss(
        self, params: PyTree, minibatch: Batch, hyperparams: HyperParameters
    ) -> tuple[Float[Array, ""], tuple[ActorStats, Float[Array, ""]]]:
        head = self._head(params, minibatch.observation)
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

    def _critic_loss(
        self, params: PyTree, minibatch: Batch, hyperparams: HyperParameters
    ) -> tuple[Float[Array, ""], tuple[Float[Array, ""], Float[Array, ""]]]:
        loss = critic_loss(
            value=self._values(params, minibatch.observation.features),
            value_target=minibatch.value_target,
            weight=minibatch.value_weight,
            vf_coeff=hyperparams.vf_coeff,
        )
        return loss, (loss, jnp.sum(minibatch.value_weight))

    def _values(self, params: PyTree, features: Array) -> Float[Array, "*batch"]:
        """Apply one policy's critic to ``[*batch, *obs]``."""
        return apply(self.critic_network, params, features)

    def _init_params(self, network: nn.Module, rng: PRNGKeyArray) -> PyTree:
        features = self.environments.observation.features
        return network.init(rng, jnp.zeros((1, *features.shape[1:]), features.dtype))

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
    def _head(self, params: PyTree, observation: Observation) -> Head:
        """Apply one policy to observations ``[*batch, *obs]``."""

    @abc.abstractmethod
    def _sample_actions(self, rng: PRNGKeyArray, head: Head) -> Array:
        """Draw actions ``[*batch, ...]``."""

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
