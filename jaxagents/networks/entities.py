"""Networks over the entities of an observation, whose parameters do not depend on their number.

Such a network also plays, without further training, where there are more or fewer entities.
"""

import functools
import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from jaxagents.config import Layers
from jaxagents.entities import Entities, EntityKind
from jaxagents.networks.network import (
    HIDDEN_SCALE,
    MLP,
    POLICY_SCALE,
    ValueNetwork,
    activation_of,
    dense,
)
from jaxagents.networks.recurrent import CellName, RecurrentNetwork

Activation = Callable[[Array], Array]
_LOWEST_SCORE = -1e9  # of absent entities


class NetworkContext(NamedTuple):
    """What an agent's network is for.

    Attributes:
        observation_shape: Shape of what it observes.
        entities: The entities of the observation; None: the environment names none, or the network
            observes something else.
        layers: The configured ``actor_layers`` or ``critic_layers``.
        recurrent: The configured cell; None: no memory.
        dtype: Dtype of the hidden layers' computation.
        is_normalized: Observations are shifted and scaled by running statistics.
    """

    observation_shape: tuple[int, ...]
    entities: Entities | None
    layers: Layers
    recurrent: CellName | None
    dtype: DTypeLike
    is_normalized: bool


def entities_in(
    kind: EntityKind, features: Array
) -> tuple[Float[Array, "entities *batch features"], Bool[Array, "entities *batch"]]:
    """Take the entities of a kind from ``[*batch, obs]``; the mask says which are there."""
    each = [
        [features[..., start + i * width :][..., :width] for start, width in kind.parts]
        for i in range(kind.count)
    ]
    stacked = jnp.stack([jnp.concatenate(parts, axis=-1) for parts in each])
    absent = jnp.asarray(kind.absent or (0.0,) * kind.width, stacked.dtype)
    return stacked, jnp.any(stacked != absent, axis=-1)


def _own_in(entities: Entities, features: Array) -> Float[Array, "*batch own"]:
    """Take the actor's own features from ``[*batch, obs]``."""
    runs = np.split(entities.own, np.flatnonzero(np.diff(entities.own) > 1) + 1)
    return jnp.concatenate([features[..., run[0] : run[-1] + 1] for run in runs], axis=-1)


def _apply_to_each(
    layer: Callable[[Array], Array], each: Float[Array, "entities *batch features"]
) -> Float[Array, "entities *batch size"]:
    """Apply a layer to all entities of all samples along one axis, which makes gradients faster."""
    return layer(each.reshape(-1, each.shape[-1])).reshape(*each.shape[:-1], -1)


def _one_by_one(
    each: Float[Array, "entities *batch size"],
) -> list[Float[Array, "*batch size"]]:
    """List the entities. Gradients of `jax.numpy.split` are faster than those of indexing."""
    return [part.reshape(part.shape[1:]) for part in jnp.split(each, len(each))]


def _over_entities(
    combine: Callable[[Array, Array], Array], each: Float[Array, "entities *batch size"]
) -> Float[Array, "*batch size"]:
    """Combine entities one after the other, which is faster on a CPU than one reduction."""
    return functools.reduce(combine, _one_by_one(each))


class DeepSets(nn.Module):
    """Mean and maximum over the entities of each kind, each embedded by the same layer.

    Attributes:
        entities: The parts of an observation that describe entities.
        size: Units of each embedding.
        activation: Applied to the embeddings.
        dtype: Dtype of the computation; parameters are float32.

    Source: Zaheer et al. 2017, https://arxiv.org/abs/1703.06114.
    """

    entities: Entities
    size: int
    activation: Activation
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, features: Float[Array, "samples obs"]) -> Float[Array, "samples hidden"]:
        """Embed the actor itself, and the entities of each kind."""
        layer = partial(dense, self.size, HIDDEN_SCALE, self.dtype)
        hidden = []
        if self.entities.own.size:
            own = _own_in(self.entities, features).astype(self.dtype)
            hidden.append(self.activation(layer(name="own")(own)))
        for name, kind in self.entities.kinds:
            each, is_there = entities_in(kind, features)
            embedded = _apply_to_each(layer(name=f"of_{name}"), each.astype(self.dtype))
            embedded, is_there = self.activation(embedded), is_there[..., None]
            n_there = _over_entities(jnp.add, is_there.astype(self.dtype))
            total = _over_entities(jnp.add, jnp.where(is_there, embedded, 0))
            largest = _over_entities(jnp.maximum, jnp.where(is_there, embedded, -jnp.inf))
            hidden += [total / jnp.maximum(n_there, 1), jnp.where(n_there > 0, largest, 0)]
        return jnp.concatenate(hidden, axis=-1)


class EntityAttention(nn.Module):
    """Attention of the actor to the entities that it observes.

    One layer per kind embeds the entities. A head uses its own units of an embedding both as key
    and as value. An actor without features of its own begins as a learnt vector.

    Attributes:
        entities: The parts of an observation that describe entities.
        size: Units of each embedding.
        activation: Applied to the embeddings.
        heads: Number of attention heads, a divisor of the size.
        dtype: Dtype of the computation; parameters are float32.

    Source: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, section 3.2, without the layers
    that turn embeddings into keys and values.
    """

    entities: Entities
    size: int
    activation: Activation
    heads: int = 2
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, features: Float[Array, "samples obs"]) -> Float[Array, "samples hidden"]:
        """Return the actor's own embedding, and what it sees."""
        layer = partial(dense, self.size, HIDDEN_SCALE, self.dtype)
        if self.entities.own.size:
            own = _own_in(self.entities, features).astype(self.dtype)
            own = self.activation(layer(name="own")(own))
        else:
            learnt = self.param("own", nn.initializers.normal(1.0), (self.size,))
            own = jnp.broadcast_to(learnt, (len(features), self.size)).astype(self.dtype)
        embedded, there = [], []
        for name, kind in self.entities.kinds:
            each, is_there = entities_in(kind, features)
            each = _apply_to_each(layer(name=f"of_{name}"), each.astype(self.dtype))
            embedded += _one_by_one(self.activation(each))
            there += list(is_there)
        query = dense(self.size, 1.0, self.dtype, name="query")(own)
        seen = self._attend(query, embedded, there)
        return jnp.concatenate([own, seen], axis=-1)

    def _attend(
        self,
        query: Float[Array, "samples size"],
        embedded: list[Float[Array, "samples size"]],
        there: list[Bool[Array, " samples"]],
    ) -> Float[Array, "samples size"]:
        """Average the embeddings, weighted per head by the softmax of their scores; 0 without any.

        A product with one constant matrix sums a head's units, and gives them its weight. Flax's
        attention has a small matrix product for each sample instead, which takes ten times as long
        on a CPU.
        """
        head_size = self.size // self.heads
        of_head = jnp.repeat(jnp.eye(self.heads, dtype=self.dtype), head_size, axis=0)
        products = jnp.stack([query * each for each in embedded])
        scores = _apply_to_each(lambda each: each @ of_head, products) / math.sqrt(head_size)
        scores = [
            jnp.where(is_there[:, None], score, _LOWEST_SCORE)
            for is_there, score in zip(there, _one_by_one(scores), strict=True)
        ]
        largest = jax.lax.stop_gradient(functools.reduce(jnp.maximum, scores))
        weights = [
            jnp.where(is_there[:, None], jnp.exp(score - largest), 0)
            for is_there, score in zip(there, scores, strict=True)
        ]
        of_units = _apply_to_each(lambda each: each @ of_head.T, jnp.stack(weights))
        weighted = map(jnp.multiply, _one_by_one(of_units), embedded)
        total = functools.reduce(jnp.add, weights)
        # The largest weight is 1: the sum is 1 if others vanish, and 0 only without entities. By
        # selection, because jnp.maximum halves its gradient where both arguments are equal.
        total = jnp.where(total > 0, total, 1) @ of_head.T
        return functools.reduce(jnp.add, weighted) / total


class EntityTorso(nn.Module):
    """An encoder of entities, and hidden layers."""

    encoder: nn.Module
    layers: nn.Module

    @nn.compact
    def __call__(self, features: Array) -> Float[Array, "*batch hidden"]:
        """Map ``[*batch, obs]`` to ``[*batch, hidden]``."""
        samples = features.reshape(-1, features.shape[-1])
        hidden = self.layers(self.encoder(samples))
        return hidden.reshape(*features.shape[:-1], -1)


class EntityPolicy(nn.Module):
    """Logits or means; those of actions directed at an entity depend on what is seen of it.

    Attributes:
        n_outputs: Number of logits or means.
        torso: Hidden layers.
        entities: The parts of an observation that describe entities.
        size: Units of an entity's embedding.
        activation: Applied to the embeddings.
    """

    READS_FEATURES = True
    n_outputs: int
    torso: nn.Module
    entities: Entities
    size: int
    activation: Activation

    @nn.compact
    def __call__(
        self, inputs: Array, features: Array | None = None
    ) -> Float[Array, "*batch outputs"]:
        """Map the torso's inputs, and the features if these differ, to ``[*batch, outputs]``.

        Args:
            inputs: The torso's, ``[*batch, ...]``.
            features: ``[*batch, obs]``; None: the inputs.
        """
        hidden, features = self.torso(inputs), inputs if features is None else features
        n_own = self.n_outputs - self.entities.n_directed_actions
        outputs = jnp.zeros((*hidden.shape[:-1], 0))
        if n_own:
            outputs = dense(n_own, POLICY_SCALE)(hidden)
        keys = {}
        for name, kind in self.entities.kinds:
            if kind.first_actions:
                each, _ = entities_in(kind, features.astype(jnp.float32))
                layer = dense(self.size, HIDDEN_SCALE, name=f"{name}_key")
                keys[name] = self.activation(_apply_to_each(layer, each))
        for first_action, name, i in self.entities.directed_actions:
            suffix = f"_{i}" if i else ""
            query = dense(self.size, POLICY_SCALE, name=f"{name}_query{suffix}")(hidden)
            logits = jnp.moveaxis(query * keys[name] @ jnp.ones(self.size), 0, -1)
            before, after = jnp.split(outputs, [first_action], axis=-1)
            outputs = jnp.concatenate([before, logits, after], axis=-1)
        return outputs


def _entity_network(
    make_encoder: Callable[[Entities, Activation, DTypeLike], nn.Module],
    size: int,
    n_outputs: int | None,
    context: NetworkContext,
) -> nn.Module:
    """Put an encoder before the configured layers and, in recurrent agents, their cell."""
    entities, layers = context.entities, context.layers
    if entities is None:
        raise ValueError(
            "it needs an environment with `entities`, and a critic that observes what actors do"
        )
    if context.is_normalized:
        raise ValueError(
            "entities that are absent are known by their features, which "
            "normalize_observations=True would change; set it to False"
        )
    activation = activation_of(layers, context.observation_shape)
    hidden = (activation, layers.layer_norm, context.dtype)
    torso = EntityTorso(
        make_encoder(entities, activation, context.dtype), MLP(1, layers.hidden_sizes, *hidden)
    )

    def with_head(before: nn.Module) -> nn.Module:
        if n_outputs is None:
            return ValueNetwork(before)
        return EntityPolicy(n_outputs, before, entities, size, activation)

    if context.recurrent is None:
        return with_head(torso)
    after = with_head(MLP(1, layers.sizes_after_memory, *hidden))
    return RecurrentNetwork(context.recurrent, layers.memory_size, torso, after)


def deep_sets(n_outputs: int | None, context: NetworkContext, size: int = 32) -> nn.Module:
    """Build the network "deep_sets": see `DeepSets`."""

    def encoder(entities: Entities, activation: Activation, dtype: DTypeLike) -> nn.Module:
        return DeepSets(entities, size, activation, dtype)

    return _entity_network(encoder, size, n_outputs, context)


def attention(
    n_outputs: int | None, context: NetworkContext, size: int = 32, heads: int = 2
) -> nn.Module:
    """Build the network "attention": see `EntityAttention`."""
    if size % heads:
        raise ValueError(f"size={size} does not divide into heads={heads}")

    def encoder(entities: Entities, activation: Activation, dtype: DTypeLike) -> nn.Module:
        return EntityAttention(entities, size, activation, heads, dtype)

    return _entity_network(encoder, size, n_outputs, context)
