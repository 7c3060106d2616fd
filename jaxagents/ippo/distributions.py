"""Distributions over actions: one class for each kind of action.

A policy's network outputs ``n_outputs`` numbers. `Distribution.parametrize` turns them into the
distribution's parameters, a pytree of arrays ``[*batch, ...]``, which `sample`, `mode`, `log_prob`
and `entropy` take.
"""

import abc
from functools import partial
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxagents.compiler.tuned_forms import sum_last_axis
from jaxagents.environments.spaces import Box, Discrete, MultiDiscrete
from jaxagents.types import PyTree

UNAVAILABLE = -1e9  # not -inf: the logits of an inactive actor without any action stay finite
LOG_STD_BOUNDS = (-5.0, 2.0)
_LARGEST_SQUASHED = 0.9998  # in the unit interval: tanh(4.6)

DistParams = Any


class Distribution(abc.ABC):
    """A family of distributions over one actor's actions.

    Attributes:
        n_outputs: Units of the actor network's last layer.
        action_shape: Shape of one sampled action.
    """

    n_outputs: int
    action_shape: tuple[int, ...]

    @abc.abstractmethod
    def with_own_params(self, network_params: PyTree) -> PyTree:
        """Add the distribution's own initial parameters, if it has any, to the network's."""

    @abc.abstractmethod
    def network_params(self, params: PyTree) -> PyTree:
        """Undo `with_own_params`."""

    def within_bounds(self, params: PyTree) -> PyTree:
        """Return an actor's parameters after a step, with the distribution's own in bounds."""
        return params

    @abc.abstractmethod
    def parametrize(
        self,
        params: PyTree,
        outputs: Float[Array, "*batch outputs"],
        action_mask: Bool[Array, "*batch mask"] | None,
    ) -> DistParams:
        """Parametrise the distribution by one policy's parameters and network outputs."""

    @abc.abstractmethod
    def draw_noise(self, rng: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Draw the noise ``[*batch, outputs]`` that `sample` takes."""

    @abc.abstractmethod
    def sample(self, dist_params: DistParams, noise: Float[Array, "*batch outputs"]) -> Array:
        """Sample actions ``[*batch, ...]``, each from its own noise."""

    @abc.abstractmethod
    def mode(self, dist_params: DistParams) -> Array:
        """Return the most probable actions, before any squashing."""

    @abc.abstractmethod
    def log_prob(self, dist_params: DistParams, action: Array) -> Float[Array, "*batch"]:
        """Return the log probability (density) of sampled actions."""

    @abc.abstractmethod
    def entropy(self, dist_params: DistParams) -> Float[Array, "*batch"]:
        """Return the entropy, in nats."""

    @abc.abstractmethod
    def to_environment(self, action: Array) -> Array:
        """Convert sampled actions to what the environment takes."""

    @abc.abstractmethod
    def from_environment(self, action: Array) -> Array:
        """Convert what an environment took to actions as sampled: undo `to_environment`."""

    def outlook(self, dist_params: DistParams) -> dict[str, Array]:
        """Return what there is to show of a distribution, as fields of `EpisodeView`."""
        del dist_params
        return {}


class Logits(Distribution):
    """Distributions over finitely many actions; the parameters are the logits ``[*batch, logits]``.

    Actions that the observation's ``action_mask`` excludes have probability 0.
    """

    _ends: tuple[int, ...] = ()  # of each choice's logits but the last choice's

    def with_own_params(self, network_params: PyTree) -> PyTree:
        """Return the network's parameters: there are no others."""
        return network_params

    def network_params(self, params: PyTree) -> PyTree:
        """Return the parameters as they are."""
        return params

    def parametrize(
        self,
        params: PyTree,
        outputs: Float[Array, "*batch logits"],
        action_mask: Bool[Array, "*batch logits"] | None,
    ) -> Float[Array, "*batch logits"]:
        """Return the logits, ``UNAVAILABLE`` for masked actions."""
        return outputs if action_mask is None else jnp.where(action_mask, outputs, UNAVAILABLE)

    def draw_noise(self, rng: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Draw from the standard Gumbel distribution."""
        return jax.random.gumbel(rng, shape)

    def to_environment(self, action: Int[Array, "..."]) -> Int[Array, "..."]:
        """Return the action as it is."""
        return action

    def from_environment(self, action: Int[Array, "..."]) -> Int[Array, "..."]:
        """Return the action as it is."""
        return action

    def outlook(self, dist_params: Float[Array, "*batch logits"]) -> dict[str, Array]:
        """Return the actions' probabilities, ``[*batch, logits]``."""
        probabilities = [jax.nn.softmax(logits) for logits in self._split(dist_params)]
        return {"probabilities": jnp.concatenate(probabilities, axis=-1)}

    def _split(self, values: Float[Array, "*batch logits"]) -> list[Array]:
        """Split logits, or noise, by choice."""
        return jnp.split(values, self._ends, axis=-1)


@final
class Categorical(Logits):
    """A categorical distribution over the actions of a `Discrete` space."""

    def __init__(self, space: Discrete):
        self.n_outputs = space.n
        self.action_shape = ()

    def sample(
        self, dist_params: Float[Array, "*batch actions"], noise: Float[Array, "*batch actions"]
    ) -> Int[Array, "*batch"]:
        """Return the action of the largest logit plus noise: the Gumbel-max trick (Gumbel 1954)."""
        return jnp.argmax(dist_params + noise, axis=-1)

    def mode(self, dist_params: Float[Array, "*batch actions"]) -> Int[Array, "*batch"]:
        """Return the action of the largest logit."""
        return jnp.argmax(dist_params, axis=-1)

    def log_prob(
        self, dist_params: Float[Array, "*batch actions"], action: Int[Array, "*batch"]
    ) -> Float[Array, "*batch"]:
        """Return the log-softmax of the logits at the action."""
        chosen = action[..., None] == jnp.arange(dist_params.shape[-1])
        return sum_last_axis(jnp.where(chosen, jax.nn.log_softmax(dist_params), 0.0))

    def entropy(self, dist_params: Float[Array, "*batch actions"]) -> Float[Array, "*batch"]:
        """Return -Σ p log p, in nats."""
        log_probs = jax.nn.log_softmax(dist_params)
        return -sum_last_axis(jnp.exp(log_probs) * log_probs)


@final
class CategoricalProduct(Logits):
    """Independent categorical distributions over the choices of a `MultiDiscrete` space.

    Logits, noise and action masks hold the entries of the first choice, then those of the second,
    and so on.
    """

    def __init__(self, space: MultiDiscrete):
        self.n_outputs = sum(space.n_choices)
        self.action_shape = (len(space.n_choices),)
        self._ends = tuple(np.cumsum(space.n_choices)[:-1].tolist())
        self._choices = tuple(Categorical(Discrete(n)) for n in space.n_choices)

    def sample(
        self, dist_params: Float[Array, "*batch logits"], noise: Float[Array, "*batch logits"]
    ) -> Int[Array, "*batch choices"]:
        """Sample each choice; see `Categorical.sample`."""
        pairs = zip(self._choices, self._split(dist_params), self._split(noise), strict=True)
        return jnp.stack([choice.sample(*pair) for choice, *pair in pairs], axis=-1)

    def mode(self, dist_params: Float[Array, "*batch logits"]) -> Int[Array, "*batch choices"]:
        """Return each choice's action of the largest logit."""
        pairs = zip(self._choices, self._split(dist_params), strict=True)
        return jnp.stack([choice.mode(logits) for choice, logits in pairs], axis=-1)

    def log_prob(
        self, dist_params: Float[Array, "*batch logits"], action: Int[Array, "*batch choices"]
    ) -> Float[Array, "*batch"]:
        """Return the sum of the choices' log probabilities."""
        pairs = zip(self._choices, self._split(dist_params), strict=True)
        return sum(
            (choice.log_prob(logits, action[..., i]) for i, (choice, logits) in enumerate(pairs)),
            start=jnp.zeros(action.shape[:-1]),
        )

    def entropy(self, dist_params: Float[Array, "*batch logits"]) -> Float[Array, "*batch"]:
        """Return the sum of the choices' entropies, in nats."""
        pairs = zip(self._choices, self._split(dist_params), strict=True)
        return sum(
            (choice.entropy(logits) for choice, logits in pairs),
            start=jnp.zeros(dist_params.shape[:-1]),
        )


class NormalParams(NamedTuple):
    """Parameters of independent normal distributions, one per dimension of the action."""

    mean: Float[Array, "*batch dimensions"]
    log_std: Float[Array, "*batch dimensions"]
    exists: Bool[Array, "*batch dimensions"] | None  # the actor has the dimension; None: all

    def sum(self, values: Float[Array, "*batch dimensions"]) -> Float[Array, "*batch"]:
        """Sum over the dimensions that the actor has."""
        if self.exists is not None:
            values = jnp.where(self.exists, values, 0.0)
        return sum_last_axis(values)


class DiagonalGaussian(Distribution):
    """Independent normal distributions whose log standard deviation is a parameter, not an output.

    Dimensions that the observation's ``action_mask`` excludes are left out of log probability and
    entropy.
    """

    def __init__(self, space: Box):
        self.n_outputs = space.size
        self.action_shape = (space.size,)
        self._space = space

    def with_own_params(self, network_params: PyTree) -> PyTree:
        """Add a log standard deviation of 0 per dimension."""
        return {"network": network_params, "log_std": jnp.zeros(self.n_outputs)}

    def network_params(self, params: PyTree) -> PyTree:
        """Return the network's parameters alone."""
        return params["network"]

    def within_bounds(self, params: PyTree) -> PyTree:
        """Clip the log standard deviation, unless it is frozen and None."""
        clip = partial(jnp.clip, min=LOG_STD_BOUNDS[0], max=LOG_STD_BOUNDS[1])
        return {**params, "log_std": jax.tree.map(clip, params["log_std"])}

    def parametrize(
        self,
        params: PyTree,
        outputs: Float[Array, "*batch dimensions"],
        action_mask: Bool[Array, "*batch dimensions"] | None,
    ) -> NormalParams:
        """Take the outputs as means, and bound the log standard deviation."""
        log_std = params["log_std"]
        # The gradient ignores the bounds: at one of them it can lead back.
        bounded = log_std + jax.lax.stop_gradient(jnp.clip(log_std, *LOG_STD_BOUNDS) - log_std)
        return NormalParams(
            mean=outputs,
            log_std=jnp.broadcast_to(bounded, outputs.shape),
            exists=action_mask,
        )

    def draw_noise(self, rng: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Draw from the standard normal distribution."""
        return jax.random.normal(rng, shape)

    def sample(
        self, dist_params: NormalParams, noise: Float[Array, "*batch dimensions"]
    ) -> Float[Array, "*batch dimensions"]:
        """Scale and shift the noise."""
        return dist_params.mean + jnp.exp(dist_params.log_std) * noise

    def mode(self, dist_params: NormalParams) -> Float[Array, "*batch dimensions"]:
        """Return the mean."""
        return dist_params.mean

    def entropy(self, dist_params: NormalParams) -> Float[Array, "*batch"]:
        """Return the Gaussian's entropy, in nats."""
        return dist_params.sum(self._normal(dist_params).entropy())

    def outlook(self, dist_params: NormalParams) -> dict[str, Array]:
        """Return the actions one standard deviation below the mean, at it, and one above."""
        std = jnp.exp(dist_params.log_std)
        quantiles = [self.to_environment(dist_params.mean + n * std) for n in (-1, 0, 1)]
        actions = jnp.stack([self._flat(each) for each in quantiles], axis=-1)
        if dist_params.exists is not None:
            actions = jnp.where(dist_params.exists[..., None], actions, jnp.nan)
        return {"quantiles": actions}

    def _flat(self, action: Float[Array, "..."]) -> Float[Array, "*batch dimensions"]:
        n_axes = action.ndim - len(self._space.shape)
        return action.reshape(*action.shape[:n_axes], self._space.size)

    def _shaped(self, action: Float[Array, "*batch dimensions"]) -> Array:
        return action.reshape(*action.shape[:-1], *self._space.shape)

    def _normal(self, dist_params: NormalParams) -> Any:
        import distrax  # here: the import takes a second, and discrete agents do not need it

        return distrax.Normal(dist_params.mean, jnp.exp(dist_params.log_std))


@final
class ClippedGaussian(DiagonalGaussian):
    """A diagonal Gaussian whose actions are clipped to the environment's bounds.

    Log probabilities are those of the unclipped action.
    """

    def log_prob(
        self, dist_params: NormalParams, action: Float[Array, "*batch dimensions"]
    ) -> Float[Array, "*batch"]:
        """Return the log density of the unclipped action."""
        return dist_params.sum(self._normal(dist_params).log_prob(action))

    def to_environment(self, action: Float[Array, "*batch dimensions"]) -> Array:
        """Clip to the bounds, in the environment's shape."""
        return jnp.clip(self._shaped(action), self._space.low, self._space.high)

    def from_environment(self, action: Float[Array, "..."]) -> Float[Array, "*batch dimensions"]:
        """Return the action as it is: clipping cannot be undone."""
        return self._flat(action)


@final
class SquashedGaussian(DiagonalGaussian):
    """A diagonal Gaussian squashed by tanh into the environment's bounds, which must be finite.

    Log probabilities are those of the squashed action. The entropy is the Gaussian's: that of the
    squashed distribution has no closed form.
    """

    def log_prob(
        self, dist_params: NormalParams, action: Float[Array, "*batch dimensions"]
    ) -> Float[Array, "*batch"]:
        """Return the log density of the squashed action, by the change of variables."""
        half_range = np.ravel(self._space.high - self._space.low) / 2
        density = self._normal(dist_params).log_prob(action)
        return dist_params.sum(density - log_tanh_slope(action) - np.log(half_range))

    def to_environment(self, action: Float[Array, "*batch dimensions"]) -> Array:
        """Squash into the bounds, in the environment's shape."""
        low, high = self._space.low, self._space.high
        scaled = low + (jnp.tanh(self._shaped(action)) + 1.0) / 2.0 * (high - low)
        return jnp.clip(scaled, low, high)  # rounding may leave the bounds

    def from_environment(self, action: Float[Array, "..."]) -> Float[Array, "*batch dimensions"]:
        """Undo the squashing, with actions clipped to 0.9998 of the way from the middle to a bound.

        Actions at a bound would become infinite.
        """
        low, high = self._space.low, self._space.high
        share = 2.0 * (action - low) / (high - low) - 1.0
        inside = jnp.clip(share, -_LARGEST_SQUASHED, _LARGEST_SQUASHED)
        return self._flat(jnp.arctanh(inside))


def log_tanh_slope(action: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """Compute log(1 - tanh²(a)), finite where tanh saturates.

    It is computed as 2 (log 2 - a - log(1 + exp(-2a))): Haarnoja et al. 2018,
    https://arxiv.org/abs/1801.01290, appendix C, rearranged.
    """
    return 2.0 * (jnp.log(2.0) - action - jax.nn.softplus(-2.0 * action))
