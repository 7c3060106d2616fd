"""IPPO for continuous actions."""

from typing import Any, NamedTuple, cast, final

import distrax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from jaxagents.environments.spaces import Box, Discrete
from jaxagents.ippo.base import IPPOBase
from jaxagents.statistics import sum_last_axis

LOG_STD_BOUNDS = (-5.0, 2.0)


class Gaussian(NamedTuple):
    """Parameters of independent normal distributions, one per dimension of the action."""

    mean: Float[Array, "*batch dimensions"]
    log_std: Float[Array, "*batch dimensions"]
    exists: Bool[Array, "*batch dimensions"] | None  # None: all of them do

    def add_up(self, values: Float[Array, "*batch dimensions"]) -> Float[Array, "*batch"]:
        """Add up what each dimension contributes, for those that the actor has."""
        if self.exists is not None:
            values = jnp.where(self.exists, values, 0.0)
        return sum_last_axis(values)


@final
class ContinuousIPPO(IPPOBase):
    """IPPO with a diagonal Gaussian; the logarithm of its deviation is a parameter of its own.

    With ``squash=False`` the environment gets the drawn action clipped to its bounds. With
    ``squash=True`` it gets tanh of the drawn action, scaled to its bounds; log probabilities are
    those of the squashed action, the entropy remains the Gaussian's, as the squashed one has no
    closed form. Dimensions that the observation's ``action_mask`` rules out count in neither.
    """

    @property
    def _n_outputs(self) -> int:
        return self._box.size

    @property
    def _box(self) -> Box:
        return cast(Box, self.environments.space)

    def _check_space(self, space: Discrete | Box) -> None:
        if not isinstance(space, Box):
            raise TypeError(
                f"ContinuousIPPO plays Box actions, but {type(self.env).__name__} has "
                f"{space.n} discrete ones; use jaxagents.DiscreteIPPO."
            )
        if self.config.squash and not np.all(np.isfinite([space.low, space.high])):
            raise ValueError(
                f"squash=True needs finite bounds, but {type(self.env).__name__} has actions from "
                f"{space.low} to {space.high}; use squash=False."
            )

    def _init_actor_params(self, rng: PRNGKeyArray) -> PyTree:
        network = self.actor_network.init(rng)
        return {"network": network, "log_std": jnp.zeros(self._n_outputs)}

    def _network_params(self, params: PyTree) -> PyTree:
        return params["network"]

    def _head(
        self, params: PyTree, outputs: Array, action_mask: Bool[Array, "*batch dimensions"] | None
    ) -> Gaussian:
        log_std = params["log_std"]
        # Outside its bounds the parameter keeps its gradient, so that it can come back.
        bounded = log_std + jax.lax.stop_gradient(jnp.clip(log_std, *LOG_STD_BOUNDS) - log_std)
        return Gaussian(
            mean=outputs,
            log_std=jnp.broadcast_to(bounded, outputs.shape),
            exists=action_mask,
        )

    def _noise(self, rng: PRNGKeyArray, size: int) -> Float[Array, " size"]:
        return jax.random.normal(rng, (size,))

    def _sample_actions(
        self, noise: Float[Array, "*batch dimensions"], head: Gaussian
    ) -> Float[Array, "*batch dimensions"]:
        return head.mean + jnp.exp(head.log_std) * noise

    def _likeliest_actions(self, head: Gaussian) -> Float[Array, "*batch dimensions"]:
        return head.mean

    def _log_prob(
        self, head: Gaussian, action: Float[Array, "*batch dimensions"]
    ) -> Float[Array, "*batch"]:
        log_prob = _distribution(head).log_prob(action)
        if self.config.squash:
            half_range = np.ravel(self._box.high - self._box.low) / 2
            log_prob = log_prob - log_tanh_slope(action) - np.log(half_range)
        return head.add_up(log_prob)

    def _entropy(self, head: Gaussian) -> Float[Array, "*batch"]:
        return head.add_up(_distribution(head).entropy())

    def _environment_action(self, action: Float[Array, "*batch dimensions"]) -> Array:
        space = self._box
        action = action.reshape(*action.shape[:-1], *space.shape)
        if not self.config.squash:
            return jnp.clip(action, space.low, space.high)
        return space.low + (jnp.tanh(action) + 1.0) / 2.0 * (space.high - space.low)


def log_tanh_slope(action: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """Compute log(1 - tanh²(a)), finite where tanh saturates.

    As 2 (log 2 - a - log(1 + exp(-2a))): Haarnoja et al. 2018, https://arxiv.org/abs/1801.01290,
    appendix C, rearranged.
    """
    return 2.0 * (jnp.log(2.0) - action - jax.nn.softplus(-2.0 * action))


def _distribution(head: Gaussian) -> Any:
    return distrax.Normal(head.mean, jnp.exp(head.log_std))
