"""From configured layers, or a user's own module, to a network that an agent applies."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast, final

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, PRNGKeyArray, PyTree

from jaxagents.config import Layers
from jaxagents.networks.feed_forward import MLP, Torso, activation_of, make_torso
from jaxagents.networks.recurrent import CellName, RecurrentNetwork


@final
@dataclass(frozen=True)
class Network:
    """A flax module, applied to sequences and to single steps, with or without a memory.

    The memory of a feed-forward module is empty.
    """

    module: nn.Module
    observation: jax.ShapeDtypeStruct  # of one actor
    recurrent: bool

    def init(self, rng: PRNGKeyArray) -> PyTree:
        """Draw parameters."""
        return self.module.init(rng, *self._example())

    def empty_memory(self, *batch_shape: int) -> PyTree:
        """Give what is remembered when an episode begins, ``[*batch, ...]``."""
        return cast(Any, self.module).empty_memory(batch_shape) if self.recurrent else ()

    def reset_memory(self, memory: PyTree, begins: Bool[Array, "*batch"]) -> PyTree:
        """Empty the memory ``[*batch, ...]`` of those whose episode begins."""

        def empty(leaf: Array, its_empty: Array) -> Array:
            wide = begins.reshape(*begins.shape, *[1] * (leaf.ndim - begins.ndim))
            # Selected, not multiplied by 0: what the dead remember may be NaN.
            return jnp.where(wide, its_empty, leaf)

        return jax.tree.map(empty, memory, self.empty_memory(*begins.shape))

    def __call__(
        self, params: PyTree, features: Array, memory: PyTree, begins: Bool[Array, "time *batch"]
    ) -> tuple[Array, PyTree]:
        """Apply to sequences.

        Args:
            params: As `init` draws them.
            features: ``[time, *batch, *obs]``.
            memory: Before the first step, ``[*batch, ...]``.
            begins: Steps before which the memory is emptied.

        Returns:
            What the module makes of each step, and the memories after it: ``[time, *batch, ...]``.
        """
        if not self.recurrent:
            return cast(Array, self.module.apply(params, features)), ()
        return cast(Any, self.module.apply(params, features, memory, begins))

    def step(self, params: PyTree, features: Array, memory: PyTree) -> tuple[Array, PyTree]:
        """Apply to a single step, ``[*batch, *obs]``; the memory is the one after it."""
        if not self.recurrent:
            return cast(Array, self.module.apply(params, features)), ()
        batch_shape = features.shape[: features.ndim - len(self.observation.shape)]
        results = self(params, features[None], memory, jnp.zeros((1, *batch_shape), bool))
        return jax.tree.map(lambda leaf: leaf[0], results)

    def _example(self) -> tuple[Any, ...]:
        features = jnp.zeros((1, 1, *self.observation.shape), self.observation.dtype)
        if not self.recurrent:
            return (features[0],)
        return features, self.empty_memory(1), jnp.zeros((1, 1), bool)

    def check(self, name: str, output: tuple[int, ...]) -> None:
        """Check what the module makes of observations, without running it.

        Args:
            name: What the module is called in errors.
            output: The shape of what it should make of one observation.

        Raises:
            TypeError: it is no flax module, or has no memory though it should.
            ValueError: it does not map ``[*batch, *obs]`` to ``[*batch, *output]``.
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
            params = jax.eval_shape(self.init, jax.random.key(0))
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
                f"{name} returns other memories than one after each step, "
                f"{[batch[0], '*memory']}, of the shapes and types of its empty_memory."
            )


@final
@dataclass(frozen=True)
class Stack:
    """A network without memory upon another one, the memory being that one's.

    Its parameters are the pair of theirs.
    """

    lower: Network
    upper: Network

    @property
    def recurrent(self) -> bool:
        """Whether it has a memory."""
        return self.lower.recurrent

    def empty_memory(self, *batch_shape: int) -> PyTree:
        """As `Network.empty_memory`."""
        return self.lower.empty_memory(*batch_shape)

    def reset_memory(self, memory: PyTree, begins: Bool[Array, "*batch"]) -> PyTree:
        """As `Network.emptied`."""
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
    """Take an actor's layers up to its memory, if it has one, and else up to its last layer.

    Returns:
        What applies them to the actor's own parameters, and what they make of one observation.
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
    """Build a network of the configured layers.

    Args:
        observation_shape: Of one actor's observation.
        layers: The layers.
        recurrent: The recurrent cell behind them, if any.
        make_head: Puts the last layer behind a torso.
        dtype: What hidden layers compute in.
    """
    torso = make_torso(observation_shape, layers, dtype)
    if recurrent is None:
        return make_head(torso)
    activation = activation_of(layers, observation_shape)
    after = MLP(1, layers.sizes_after_memory, activation, layers.layer_norm, dtype)
    return RecurrentNetwork(
        cell=recurrent, size=layers.memory_size, torso=torso, after=make_head(after)
    )
