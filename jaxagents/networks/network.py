"""The networks that an agent applies, from configured layers or a user's module."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast, final

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxagents.config import Layers
from jaxagents.networks.feed_forward import (
    MLP,
    Torso,
    ValueNetwork,
    activation_of,
    make_torso,
)
from jaxagents.networks.recurrent import CellName, RecurrentNetwork
from jaxagents.types import PyTree


@final
@dataclass(frozen=True)
class Network:
    """A flax module with or without a memory (recurrent state), for sequences and single steps.

    The memory of a feed-forward module is ``()``.
    """

    module: nn.Module
    observation: jax.ShapeDtypeStruct  # of one actor
    recurrent: bool

    def init(self, rng: PRNGKeyArray) -> PyTree:
        """Draw parameters."""
        return self.module.init(rng, *self._example())

    def parameters(self) -> PyTree:
        """Return the parameters' shapes and dtypes."""
        return jax.eval_shape(self.init, jax.random.key(0))

    def empty_memory(self, *batch_shape: int) -> PyTree:
        """Return the memory ``[*batch, ...]`` at the start of an episode."""
        return cast(Any, self.module).empty_memory(batch_shape) if self.recurrent else ()

    def reset_memory(self, memory: PyTree, begins: Bool[Array, "*batch"]) -> PyTree:
        """Reset the memory ``[*batch, ...]`` where an episode begins."""

        def reset(leaf: Array, empty_leaf: Array) -> Array:
            mask = begins.reshape(*begins.shape, *[1] * (leaf.ndim - begins.ndim))
            # By selection: the memory of a dead actor may be NaN, and 0 times NaN is NaN.
            return jnp.where(mask, empty_leaf, leaf)

        return jax.tree.map(reset, memory, self.empty_memory(*begins.shape))

    def __call__(
        self, params: PyTree, features: Array, memory: PyTree, begins: Bool[Array, "time *batch"]
    ) -> tuple[Array, PyTree]:
        """Apply to sequences.

        Args:
            params: Parameters from `init`.
            features: ``[time, *batch, *obs]``.
            memory: Before the first step, ``[*batch, ...]``.
            begins: Steps before which the memory is reset.

        Returns:
            The outputs and the memories after each step, both ``[time, *batch, ...]``.
        """
        if not self.recurrent:
            return cast(Array, self.module.apply(params, features)), ()
        return cast(Any, self.module.apply(params, features, memory, begins))

    def step(self, params: PyTree, features: Array, memory: PyTree) -> tuple[Array, PyTree]:
        """Apply to a single step ``[*batch, *obs]``; return the output and the next memory."""
        if not self.recurrent:
            return cast(Array, self.module.apply(params, features)), ()
        batch_shape = features.shape[: features.ndim - len(self.observation.shape)]
        results = self(params, features[None], memory, jnp.zeros((1, *batch_shape), bool))
        return jax.tree.map(lambda leaf: leaf[0], results)

    @property
    def can_rescale_values(self) -> bool:
        """True for default critics; the last layer of a user's own module is unknown."""
        return isinstance(self._head(), ValueNetwork)

    def with_rescaled_values(
        self, params: PyTree, scale: Float[Array, ""], shift: Float[Array, ""]
    ) -> PyTree:
        """Turn the values V into ``scale * V + shift`` by changing the last layer's parameters."""
        folders = ["after"] if isinstance(self.module, RecurrentNetwork) else []
        path = ["params", *folders, ValueNetwork.LAST_LAYER]

        def change(name_path: Any, leaf: Array) -> Array:
            names = [entry.key for entry in name_path]
            if names[:-1] != path:
                return leaf
            return scale * leaf + (shift if names[-1] == "bias" else 0.0)

        return jax.tree_util.tree_map_with_path(change, params)

    def _head(self) -> nn.Module | None:
        """Return the module that has the last layer."""
        return self.module.after if isinstance(self.module, RecurrentNetwork) else self.module

    def _example(self) -> tuple[Any, ...]:
        features = jnp.zeros((1, 1, *self.observation.shape), self.observation.dtype)
        if not self.recurrent:
            return (features[0],)
        return features, self.empty_memory(1), jnp.zeros((1, 1), bool)

    def check(self, name: str, output: tuple[int, ...]) -> None:
        """Check the module's output and memory by abstract evaluation.

        Args:
            name: The module's name in error messages.
            output: Expected shape of the output for one observation.

        Raises:
            TypeError: the module is no flax module, or has no memory in a recurrent agent.
            ValueError: the module does not map ``[*batch, *obs]`` to ``[*batch, *output]``, or
                returns memories of wrong shapes.
        """
        if not isinstance(self.module, nn.Module):
            raise TypeError(f"{name} is {type(self.module).__name__}; pass a flax.linen module.")
        if self.recurrent and not hasattr(self.module, "empty_memory"):
            raise TypeError(
                f"{name} is a {type(self.module).__name__} without empty_memory(batch_shape); "
                "recurrent agents take modules with the interface of jaxagents.RecurrentNetwork."
            )
        batch = (2, 3)
        features = jax.ShapeDtypeStruct((*batch, *self.observation.shape), self.observation.dtype)
        begins = jax.ShapeDtypeStruct(batch, bool)
        try:
            params = self.parameters()
            memory = jax.eval_shape(lambda: self.empty_memory(*batch[1:]))
            returned, memories = jax.eval_shape(self, params, features, memory, begins)
        except Exception as error:
            reason = str(error).strip().partition("\n")[0]
            raise ValueError(
                f"{name} fails on observations of shape {features.shape}: {reason}"
            ) from error
        shape = getattr(returned, "shape", None)
        if shape != (*batch, *output):
            raise ValueError(
                f"{name} maps observations {list(features.shape)} to "
                f"{shape if shape is None else list(shape)}; the environment needs "
                f"{[*batch, *output]}."
            )
        expected = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((batch[0], *leaf.shape), leaf.dtype), memory
        )
        if memories != expected:
            raise ValueError(
                f"{name} must return one memory per step, {[batch[0], '*memory']}, with the shapes "
                "and dtypes of its empty_memory."
            )


@final
@dataclass(frozen=True)
class Stack:
    """A feed-forward head on a torso; its hidden state is the torso's.

    Its parameters are the pair of both networks' parameters.
    """

    lower: Network
    upper: Network

    @property
    def recurrent(self) -> bool:
        """True if the lower network has a memory."""
        return self.lower.recurrent

    def empty_memory(self, *batch_shape: int) -> PyTree:
        """As `Network.empty_memory`."""
        return self.lower.empty_memory(*batch_shape)

    def reset_memory(self, memory: PyTree, begins: Bool[Array, "*batch"]) -> PyTree:
        """As `Network.reset_memory`."""
        return self.lower.reset_memory(memory, begins)

    def __call__(
        self,
        params: tuple[PyTree, PyTree],
        features: Array,
        memory: PyTree,
        begins: Bool[Array, "time *batch"],
    ) -> tuple[Array, PyTree]:
        """As `Network.__call__`."""
        hidden, memories = self.lower(params[0], features, memory, begins)
        return self.upper(params[1], hidden, (), begins)[0], memories

    def step(
        self, params: tuple[PyTree, PyTree], features: Array, memory: PyTree
    ) -> tuple[Array, PyTree]:
        """As `Network.step`."""
        hidden, memory = self.lower.step(params[0], features, memory)
        return self.upper.step(params[1], hidden, ())[0], memory


def torso_of(actor: Network) -> tuple[Network, jax.ShapeDtypeStruct]:
    """Take an actor's layers up to and including its cell or, without one, up to its last layer.

    Returns:
        The network of these layers, which reads the actor's own parameters, and its output for one
        observation.
    """
    module: Any = actor.module
    module = module.clone(after=None) if actor.recurrent else Torso(torso=module.torso)
    torso = Network(module, actor.observation, actor.recurrent)

    def apply(rng: PRNGKeyArray) -> Array:
        features = jnp.zeros((1, *actor.observation.shape), actor.observation.dtype)
        return torso.step(torso.init(rng), features, torso.empty_memory(1))[0][0]

    hidden = jax.eval_shape(apply, jax.random.key(0))
    return torso, jax.ShapeDtypeStruct(hidden.shape, hidden.dtype)


def make_module(
    observation_shape: tuple[int, ...],
    layers: Layers,
    recurrent: CellName | None,
    make_head: Callable[[nn.Module], nn.Module],
    dtype: DTypeLike = jnp.float32,
) -> nn.Module:
    """Build a module of the configured layers.

    Args:
        observation_shape: Shape of one actor's observation.
        layers: The configured layers.
        recurrent: The recurrent cell after the hidden layers, or None.
        make_head: Adds the last layer to a torso.
        dtype: Dtype of the hidden layers' computation.
    """
    torso = make_torso(observation_shape, layers, dtype)
    if recurrent is None:
        return make_head(torso)
    activation = activation_of(layers, observation_shape)
    after = MLP(1, layers.sizes_after_memory, activation, layers.layer_norm, dtype)
    return RecurrentNetwork(
        cell=recurrent, size=layers.memory_size, torso=torso, after=make_head(after)
    )
