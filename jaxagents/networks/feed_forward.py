"""Feed-forward networks: dense layers, torsos of them, and policy and value heads."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

from jaxagents.compiler.tuned_forms import dot_general
from jaxagents.config import Layers
from jaxagents.types import IMAGE_NDIM

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


def dense(size: int, scale: float, dtype: DTypeLike = jnp.float32) -> nn.Dense:
    """Build a layer with orthogonal weights and zero biases.

    Args:
        size: Number of units.
        scale: Initial scale of the weights.
        dtype: Dtype of the computation; parameters are float32.

    Source: Andrychowicz et al. 2021, https://arxiv.org/abs/2006.05990.
    """
    return nn.Dense(
        size,
        dtype=dtype,
        kernel_init=orthogonal(scale),
        bias_init=jax.nn.initializers.zeros,
        dot_general=dot_general,
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
