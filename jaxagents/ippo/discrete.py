"""IPPO for discrete actions."""

from typing import cast, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from jaxagents.environments.spaces import Box, Discrete
from jaxagents.ippo.base import IPPOBase
from jaxagents.statistics import sum_last_axis

# Not -inf: a row without any available action, of an inactive actor, must stay finite.
UNAVAILABLE = -1e9


@final
class DiscreteIPPO(IPPOBase):
    """IPPO with a categorical distribution; a head is its logits ``[*batch, n_actions]``.

    Actions that the observation's ``action_mask`` rules out have probability 0.
    """

    @property
    def _n_outputs(self) -> int:
        return cast(Discrete, self.environments.space).n

    def _check_space(self, space: Discrete | Box) -> None:
        if not isinstance(space, Discrete):
            raise TypeError(
                f"DiscreteIPPO plays discrete actions, but {type(self.env).__name__} has a Box of "
                f"shape {space.shape}; use jaxagents.ContinuousIPPO."
            )

    def _init_actor_params(self, rng: PRNGKeyArray) -> PyTree:
        return self.actor_network.init(rng)

    def _network_params(self, params: PyTree) -> PyTree:
        return params

    def _head(
        self, params: PyTree, outputs: Array, action_mask: Bool[Array, "*batch actions"] | None
    ) -> Float[Array, "*batch actions"]:
        return outputs if action_mask is None else jnp.where(action_mask, outputs, UNAVAILABLE)

    def _noise(self, rng: PRNGKeyArray, size: int) -> Float[Array, " size"]:
        return jax.random.gumbel(rng, (size,))

    def _sample_actions(
        self, noise: Float[Array, "*batch actions"], head: Float[Array, "*batch actions"]
    ) -> Int[Array, "*batch"]:
        # Gumbel 1954: the largest of logits with such noise is distributed as they say.
        return jnp.argmax(head + noise, axis=-1)

    def _likeliest_actions(self, head: Float[Array, "*batch actions"]) -> Int[Array, "*batch"]:
        return jnp.argmax(head, axis=-1)

    def _log_prob(
        self, head: Float[Array, "*batch actions"], action: Int[Array, "*batch"]
    ) -> Float[Array, "*batch"]:
        chosen = action[..., None] == jnp.arange(head.shape[-1])
        return sum_last_axis(jnp.where(chosen, jax.nn.log_softmax(head), 0.0))

    def _entropy(self, head: Float[Array, "*batch actions"]) -> Float[Array, "*batch"]:
        log_probs = jax.nn.log_softmax(head)
        return -sum_last_axis(jnp.exp(log_probs) * log_probs)

    def _environment_action(self, action: Int[Array, "*batch"]) -> Int[Array, "*batch"]:
        return action
