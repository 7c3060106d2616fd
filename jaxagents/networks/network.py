"""Networks: dense and convolutional layers, and what agents apply.

`Network` wraps a module of these layers, a recurrent one, or a user's own.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast, final

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxagents.compiler.tuned_forms import dot_general
from jaxagents.config import Layers
from jaxagents.types import IMAGE_NDIM, PyTree

# Initial scales of the weights.
HIDDEN_SCALE = 2.0**0.5
POLICY_SCALE = 0.01
VALUE_SCALE = 1.0
KERNEL_SIZE = 3
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": nn.tanh,
    "relu": nn.relu,
    "elu": nn.elu,
    "gelu": nn.gelu,
    "silu": nn.silu,
}


def dense(
    size: int, scale: float, dtype: DTypeLike = jnp.float32, name: str | None = None
) -> nn.Dense:
    """Build a layer with orthogonal weights and zero biases.

    Args:
        size: Number of units.
        scale: Initial scale of the weights.
        dtype: Dtype of the computation; parameters are float32.
        name: Name of its parameters; None: numbered.

    Source: Andrychowicz et al. 2021, https://arxiv.org/abs/2006.05990.
    """
    return nn.Dense(
        size,
        dtype=dtype,
        kernel_init=orthogonal(scale),
        bias_init=jax.nn.initializers.zeros,
        dot_general=dot_general,
        name=name,
    )


def orthogonal(scale: float) -> Callable[..., Array]:
    """Build an initializer of matrices whose rows or columns are orthogonal, of norm ``scale``.

    Orthonormalising Gaussian columns one by one samples such matrices uniformly.
    `jax.nn.initializers.orthogonal` calls LAPACK instead, whose batched calls can deadlock on a
    CPU with two cores: independent policies, or seeds under `jax.vmap`, would never start.

    Source: Saxe et al. 2014, https://arxiv.org/abs/1312.6120.
    """

    def init(rng: PRNGKeyArray, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
        *leading, n_outputs = shape
        n_inputs = math.prod(leading)
        gaussian = jax.random.normal(rng, (max(n_inputs, n_outputs), min(n_inputs, n_outputs)))
        columns = _orthonormal_columns(gaussian)
        matrix = columns if n_inputs >= n_outputs else columns.T
        return (scale * matrix).reshape(shape).astype(dtype)

    return init


def _orthonormal_columns(matrix: Float[Array, "rows columns"]) -> Float[Array, "rows columns"]:
    """Orthonormalise columns by Gram-Schmidt, applied twice against rounding errors."""

    def add_column(i: Array, done: Array) -> Array:
        column = matrix[:, i]
        for _ in range(2):
            column = column - done @ (done.T @ column)
        return done.at[:, i].set(column / jnp.linalg.norm(column))

    return jax.lax.fori_loop(0, matrix.shape[1], add_column, jnp.zeros_like(matrix))


class MLP(nn.Module):
    """Hidden layers over flattened observations.

    Attributes:
        observation_ndim: Number of trailing axes that make up one observation.
        hidden_sizes: Units of each hidden layer.
        activation: Applied after each hidden layer.
        layer_norm: Normalise each layer's outputs over its units, before the activation.
        dtype: Dtype of the computation; parameters are float32.
    """

    observation_ndim: int = 1
    hidden_sizes: Sequence[int] = (64, 64)
    activation: Callable[[Array], Array] = nn.tanh
    layer_norm: bool = False
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, features: Array) -> Float[Array, "*batch hidden"]:
        """Map ``[*batch, *obs]`` of any dtype to ``[*batch, hidden]``."""
        batch_shape = features.shape[: features.ndim - self.observation_ndim]
        dtype = self.dtype if self.hidden_sizes else jnp.float32
        hidden = features.reshape(*batch_shape, -1).astype(dtype)
        for size in self.hidden_sizes:
            hidden = dense(size, HIDDEN_SCALE, self.dtype)(hidden)
            if self.layer_norm:
                hidden = nn.LayerNorm(dtype=self.dtype)(hidden)
            hidden = self.activation(hidden)
        return hidden


class CNN(nn.Module):
    """Convolutions over images ``[height, width, channels]``, flattened into hidden layers.

    Each convolution is a dense layer over patches: jax's own convolution, with one kernel per
    policy, is a hundred times slower on a CPU.

    Attributes:
        channels: Output channels of each 3 by 3 convolution. Only images of at most 3 pixels in
            height or width are padded.
        hidden_sizes: Units of each hidden layer after the convolutions.
        activation: Applied after each layer.
        layer_norm: As in `MLP`; convolutions are normalised over each pixel's channels.
        dtype: As in `MLP`.
        stride: Pixels from one place of a convolution to the next.
    """

    channels: Sequence[int] = (16,)
    hidden_sizes: Sequence[int] = (64, 64)
    activation: Callable[[Array], Array] = nn.relu
    layer_norm: bool = False
    dtype: DTypeLike = jnp.float32
    stride: int = 1

    @nn.compact
    def __call__(self, features: Array) -> Float[Array, "*batch hidden"]:
        """Map ``[*batch, height, width, channels]`` of any dtype to ``[*batch, hidden]``."""
        hidden = features.astype(self.dtype)
        for channels in self.channels:
            hidden = dense(channels, HIDDEN_SCALE, self.dtype)(_patches(hidden, self.stride))
            if self.layer_norm:
                hidden = nn.LayerNorm(dtype=self.dtype)(hidden)
            hidden = self.activation(hidden)
        layers = (self.hidden_sizes, self.activation, self.layer_norm, self.dtype)
        return MLP(IMAGE_NDIM, *layers)(hidden)


def _patches(images: Array, stride: int) -> Array:
    """Concatenate the channels of the 3 by 3 neighbourhood of every ``stride``-th pixel.

    Returns:
        ``[*batch, ceil((height - 2) / stride), ceil((width - 2) / stride), 9 * channels]``; images
        that are too small for it are padded first, by a pixel on each side.
    """
    if min(images.shape[-3:-1]) <= KERNEL_SIZE:
        border = KERNEL_SIZE // 2
        padding = [(0, 0)] * (images.ndim - 3) + [(border, border)] * 2 + [(0, 0)]
        images = jnp.pad(images, padding)
    height, width = (size - KERNEL_SIZE + 1 for size in images.shape[-3:-1])
    return jnp.concatenate(
        [
            images[..., row : row + height : stride, column : column + width : stride, :]
            for row in range(KERNEL_SIZE)
            for column in range(KERNEL_SIZE)
        ],
        axis=-1,
    )


def activation_of(layers: Layers, observation_shape: Sequence[int]) -> Callable[[Array], Array]:
    """Return the configured activation; the default is tanh, or relu for images."""
    default = "relu" if len(observation_shape) == IMAGE_NDIM else "tanh"
    return ACTIVATIONS[layers.activation or default]


def make_torso(
    observation_shape: Sequence[int], layers: Layers, dtype: DTypeLike = jnp.float32
) -> nn.Module:
    """Build the hidden layers: a `CNN` for images (observations of three axes), else an `MLP`."""
    activation = activation_of(layers, observation_shape)
    hidden = (layers.hidden_sizes, activation, layers.layer_norm, dtype)
    if len(observation_shape) == IMAGE_NDIM:
        return CNN(layers.channels, *hidden, layers.stride)
    return MLP(len(observation_shape), *hidden)


class Torso(nn.Module):
    """A network without its head, which reads the network's own parameters."""

    torso: nn.Module

    @nn.compact
    def __call__(self, features: Array) -> Float[Array, "*batch hidden"]:
        """Map ``[*batch, *obs]`` to ``[*batch, hidden]``."""
        return self.torso(features)


class PolicyNetwork(nn.Module):
    """Logits or means: a torso and a last layer of small weights, for initial logits near 0."""

    n_outputs: int
    torso: nn.Module

    @nn.compact
    def __call__(self, features: Array) -> Float[Array, "*batch outputs"]:
        """Map ``[*batch, *obs]`` to ``[*batch, n_outputs]``."""
        return dense(self.n_outputs, POLICY_SCALE)(self.torso(features))


class ValueNetwork(nn.Module):
    """State values: a torso and a linear layer."""

    LAST_LAYER = "Dense_0"  # its name among the parameters
    torso: nn.Module

    @nn.compact
    def __call__(self, features: Array) -> Float[Array, "*batch"]:
        """Map ``[*batch, *obs]`` to ``[*batch]``."""
        return dense(1, VALUE_SCALE)(self.torso(features))[..., 0]


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
        head = functools.reduce(getattr, self._folders(), self.module)
        return isinstance(head, ValueNetwork)

    def with_rescaled_values(
        self, params: PyTree, scale: Float[Array, ""], shift: Float[Array, ""]
    ) -> PyTree:
        """Turn the values V into ``scale * V + shift`` by changing the last layer's parameters."""
        path = ["params", *self.last_layer]

        def change(name_path: Any, leaf: Array) -> Array:
            names = [entry.key for entry in name_path]
            if names[:-1] != path:
                return leaf
            return scale * leaf + (shift if names[-1] == "bias" else 0.0)

        return jax.tree_util.tree_map_with_path(change, params)

    @property
    def last_layer(self) -> tuple[str, ...]:
        """The names that lead to the parameters of a default critic's last layer."""
        return (*self._folders(), ValueNetwork.LAST_LAYER)

    def _folders(self) -> tuple[str, ...]:
        """Return the names that lead from the module to the submodule with the last layer."""
        return getattr(self.module, "LAST_MODULE", ())

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
            TypeError: the module is not a flax module, or has no memory in a recurrent agent.
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
        batch, own = (2, 3), self.observation
        features = jax.ShapeDtypeStruct((*batch, *own.shape), own.dtype)
        begins = jax.ShapeDtypeStruct(batch, bool)
        try:
            memory = jax.eval_shape(lambda: self.empty_memory(*batch[1:]))
            returned, memories = jax.eval_shape(self, self.parameters(), features, memory, begins)
        except Exception as error:
            reason = str(error).strip().partition("\n")[0]
            raise ValueError(
                f"{name} fails on observations of shape {features.shape}: {reason}"
            ) from error
        shape, expected = getattr(returned, "shape", None), (*batch, *output)
        if shape != expected:
            raise ValueError(
                f"{name} maps observations {list(features.shape)} to {shape and list(shape)}; "
                f"the environment needs {list(expected)}."
            )
        if memories != jax.eval_shape(lambda: self.empty_memory(*batch)):
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
