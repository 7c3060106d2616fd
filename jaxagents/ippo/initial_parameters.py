"""Drawing the parameters with which networks begin."""

from typing import final

import jax
from jaxtyping import Array, Key, PyTree

from jaxagents.compiler.jit import compiled_quickly
from jaxagents.ippo.frozen import Frozen, shared
from jaxagents.networks.network import Network


@final
class InitialParameters(Frozen):
    """Draws a network's parameters, by a program of its own.

    Agents that differ in their environments or hyperparameters often have equal networks, and then
    compile it once; see `initial_parameters`.
    """

    def __init__(self, network: Network):
        self._network = network
        self._freeze()

    @compiled_quickly(optimized=False)
    def draw(self, keys: Key[Array, " policies"]) -> PyTree:
        """Draw one policy's parameters for each key, ``[policies, ...]``."""
        # One by one: batched LAPACK calls of a user's initializer can deadlock on a CPU.
        return jax.lax.map(self._network.init, keys)


def initial_parameters(network: Network) -> InitialParameters:
    """Return the object that equal networks in use share."""
    parts = (InitialParameters, network)
    return shared(parts, lambda: InitialParameters(network), can_share=lambda _: True)
