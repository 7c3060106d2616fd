"""Networks over the entities of an observation, whose parameters do not depend on their number.

A network of these plays, untrained, where there are more entities or fewer.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
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


class NetworkContext(NamedTuple):
    """What an agent's network is for.

    Attributes:
        observation_shape: Shape of what it observes.
        entities: The entities of the observation; None: the environment names none, or the network
            observes something else.
        layers: The configured ``actor_layers`` or ``critic_layers``.
        recurrent: The configured cell; None: without memory.
        dtype: Of the hidden layers' computation.
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
) -> tuple[Float[Array, "*batch entities features"], Bool[Array, "*batch entities"]]:
    """Take the entities of a kind from ``[*batch, obs]``; the mask says which are there."""
    each = features[..., kind.positions]
    absent = jnp.asarray(kind.absent or (0.0,) * kind.width, each.dtype)
    return each, jnp.any(each != absent, axis=-1)


class DeepSets(nn.Module):
    """Mean and maximum over the entities of each kind, each embedded by the same layer.

    Attributes:
        entities: What of an observation are entities.
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
    def __call__(self, features: Array) -> Float[Array, "*batch hidden"]:
        """Map ``[*batch, obs]`` to the actor's own embedding and those of the kinds."""
        layer = partial(dense, self.size, HIDDEN_SCALE, self.dtype)
        hidden = []
        if self.entities.own.size:
            own = features[..., self.entities.own].astype(self.dtype)
            hidden.append(self.activation(layer()(own)))
        for _, kind in self.entities.kinds:
            each, is_there = entities_in(kind, features)
            embedded = self.activation(layer()(each.astype(self.dtype)))
            weight = is_there[..., None].astype(self.dtype)
            n_there = jnp.sum(weight, axis=-2)
            hidden.append(jnp.sum(weight * embedded, axis=-2) / jnp.maximum(n_there, 1))
            largest = jnp.max(
                jnp.where(is_there[..., None], embedded, -jnp.inf), axis=-2, initial=-jnp.inf
            )
            hidden.append(jnp.where(n_there > 0, largest, 0))
        return jnp.concatenate(hidden, axis=-1)


class EntityAttention(nn.Module):
    """Attention of the actor to the entities that it observes.

    In each block the actor and the entities attend to each other; in the last one only the actor
    does. An actor without features of its own begins as a learnt vector.

    Attributes:
        entities: What of an observation are entities.
        size: Units of each embedding.
        activation: Applied to the embeddings.
        heads: Number of attention heads.
        blocks: Number of blocks.
        dtype: Dtype of the computation; parameters are float32.

    Source: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, normalised before each layer:
    Xiong et al. 2020, https://arxiv.org/abs/2002.04745.
    """

    entities: Entities
    size: int
    activation: Activation
    heads: int = 4
    blocks: int = 1
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, features: Array) -> Float[Array, "*batch hidden"]:
        """Map ``[*batch, obs]`` to the actor's own embedding after the last block."""
        layer = partial(dense, self.size, HIDDEN_SCALE, self.dtype)
        norm = partial(nn.LayerNorm, dtype=self.dtype)
        if self.entities.own.size:
            own = self.activation(layer()(features[..., self.entities.own].astype(self.dtype)))
        else:
            learnt = self.param("own", nn.initializers.normal(1.0), (self.size,))
            own = jnp.broadcast_to(learnt, (*features.shape[:-1], self.size)).astype(self.dtype)
        tokens, there = [own[..., None, :]], [jnp.ones((*features.shape[:-1], 1), bool)]
        for _, kind in self.entities.kinds:
            each, is_there = entities_in(kind, features)
            tokens.append(self.activation(layer()(each.astype(self.dtype))))
            there.append(is_there)
        hidden = jnp.concatenate(tokens, axis=-2)
        mask = jnp.concatenate(there, axis=-1)[..., None, None, :]
        for block in range(self.blocks):
            queries = hidden[..., :1, :] if block == self.blocks - 1 else hidden
            attend = nn.MultiHeadDotProductAttention(self.heads, dtype=self.dtype)
            normed = norm()(hidden)
            queries += attend(normed[..., : queries.shape[-2], :], normed, mask=mask)
            hidden = queries + self.activation(layer()(norm()(queries)))
        return hidden[..., 0, :]


class EntityTorso(nn.Module):
    """An encoder of entities, and hidden layers."""

    encoder: nn.Module
    layers: nn.Module

    @nn.compact
    def __call__(self, features: Array) -> Float[Array, "*batch hidden"]:
        """Map ``[*batch, obs]`` to ``[*batch, hidden]``."""
        return self.layers(self.encoder(features))


class EntityPolicy(nn.Module):
    """Logits or means, those of actions directed at an entity by what is seen of it.

    Attributes:
        n_outputs: Number of logits or means.
        torso: Hidden layers.
        entities: What of an observation are entities.
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
        """Map the torso's inputs, and the features if these are others, to ``[*batch, outputs]``.

        Args:
            inputs: The torso's, ``[*batch, ...]``.
            features: ``[*batch, obs]``; None: the inputs.
        """
        hidden, features = self.torso(inputs), inputs if features is None else features
        n_own = self.n_outputs - self.entities.n_directed_actions
        outputs = jnp.zeros((*hidden.shape[:-1], 0))
        if n_own:
            outputs = dense(n_own, POLICY_SCALE)(hidden)
        for first_action, kind in self.entities.by_first_action:
            each, _ = entities_in(kind, features.astype(jnp.float32))
            keys = self.activation(dense(self.size, HIDDEN_SCALE)(each))
            query = dense(self.size, POLICY_SCALE)(hidden)
            logits = jnp.einsum("...i,...ji->...j", query, keys)
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


def deep_sets(n_outputs: int | None, context: NetworkContext, size: int = 64) -> nn.Module:
    """Build the network "deep_sets": see `DeepSets`."""

    def encoder(entities: Entities, activation: Activation, dtype: DTypeLike) -> nn.Module:
        return DeepSets(entities, size, activation, dtype)

    return _entity_network(encoder, size, n_outputs, context)


def attention(
    n_outputs: int | None,
    context: NetworkContext,
    size: int = 64,
    heads: int = 4,
    blocks: int = 1,
) -> nn.Module:
    """Build the network "attention": see `EntityAttention`."""

    def encoder(entities: Entities, activation: Activation, dtype: DTypeLike) -> nn.Module:
        return EntityAttention(entities, size, activation, heads, blocks, dtype)

    return _entity_network(encoder, size, n_outputs, context)
