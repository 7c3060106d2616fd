"""Recurrent cells, and a network that runs one over whole sequences.

The pre-activation of each gate is W x + U h + b, with the features x and the previous hidden state
h; some gates have no W, others no U. The cell's step computes the next memory from the gates and
the previous memory, unit by unit.

Only U h is computed inside the scan over time. W x, and the gradients of W and U in the backward
pass, are computed for all steps at once.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from jaxagents.compiler.tuned_forms import is_plain, product
from jaxagents.config import Layers
from jaxagents.networks.network import MLP, activation_of, make_torso, orthogonal

CellName = Literal["gru", "lstm", "mingru"]


class LSTMMemory(NamedTuple):
    """Recurrent state of an LSTM."""

    cell: Float[Array, "*batch size"]
    hidden: Float[Array, "*batch size"]  # the only part that gates and later layers see


Memory = Float[Array, "*batch size"] | LSTMMemory
Memories = Float[Array, "time *batch size"] | LSTMMemory
# Pre-activations, one array per gate: slices of one wider array would not be vectorised inside a
# scan on a CPU.
Gates = dict[str, Float[Array, "*batch size"]]
GateSequences = dict[str, Float[Array, "time *batch size"]]
Kernels = dict[str, Float[Array, "size size"]]  # U by gate
Step = Callable[[Gates, Any], Any]


class Cell(NamedTuple):
    """Definition of one kind of cell."""

    step: Step
    input_gates: tuple[str, ...]  # gates with a W
    memory_gates: tuple[str, ...]  # gates with a U
    initial_biases: dict[str, float]  # 0 for gates that are not listed


def gru_step(gates: Gates, memory: Float[Array, "*batch size"]) -> Float[Array, "*batch size"]:
    """Step a GRU.

    n = tanh(candidate + σ(reset) recollection) and h′ = (1 - σ(update)) n + σ(update) h.

    Source: Cho et al. 2014, https://arxiv.org/abs/1406.1078; the reset gate is applied after U, as
    in `flax.linen.GRUCell`.
    """
    recollection = nn.sigmoid(gates["reset"]) * gates["recollection"]
    candidate = nn.tanh(gates["candidate"] + recollection)
    update = nn.sigmoid(gates["update"])
    return (1 - update) * candidate + update * memory


def lstm_step(gates: Gates, memory: LSTMMemory) -> LSTMMemory:
    """Step an LSTM.

    c′ = σ(forget) c + σ(input) tanh(candidate) and h′ = σ(output) tanh(c′).

    Source: Hochreiter & Schmidhuber 1997, https://doi.org/10.1162/neco.1997.9.8.1735; with a
    forget gate, as in `flax.linen.LSTMCell`.
    """
    kept = nn.sigmoid(gates["forget"]) * memory.cell
    cell = kept + nn.sigmoid(gates["input"]) * nn.tanh(gates["candidate"])
    return LSTMMemory(cell=cell, hidden=nn.sigmoid(gates["output"]) * nn.tanh(cell))


def mingru_step(gates: Gates, memory: Float[Array, "*batch size"]) -> Float[Array, "*batch size"]:
    """Step a minimal GRU, whose gates and candidate do not depend on the memory.

    h′ = (1 - σ(update)) h + σ(update) candidate. The candidate needs no tanh: h is an average of
    candidates and cannot grow beyond them.

    Source: Feng et al. 2024, https://arxiv.org/abs/2410.01201, section 3.1.
    """
    update = nn.sigmoid(gates["update"])
    return (1 - update) * memory + update * gates["candidate"]


_LSTM_GATES = ("input", "forget", "candidate", "output")
# Initially a memory retains σ(2) = 0.88 of itself per step. Without this bias, cells hardly ever
# learn to remember over 20 steps: Gers et al. 2000, https://doi.org/10.1162/089976600300015015;
# Jozefowicz et al. 2015, "An empirical exploration of recurrent network architectures".
_RETAIN_BIAS = 2.0

_CELLS: dict[str, Cell] = {
    "gru": Cell(
        step=gru_step,
        input_gates=("reset", "update", "candidate"),
        memory_gates=("reset", "update", "recollection"),
        initial_biases={"update": _RETAIN_BIAS},
    ),
    "lstm": Cell(
        step=lstm_step,
        input_gates=_LSTM_GATES,
        memory_gates=_LSTM_GATES,
        initial_biases={"forget": _RETAIN_BIAS},
    ),
    "mingru": Cell(
        step=mingru_step,
        input_gates=("update", "candidate"),
        memory_gates=(),
        initial_biases={"update": -_RETAIN_BIAS},
    ),
}


def empty_memory(cell: CellName, size: int, batch_shape: tuple[int, ...]) -> Memory:
    """Return the memory ``[*batch, size]`` at the start of an episode: zeros."""
    zeros = jnp.zeros((*batch_shape, size))
    return LSTMMemory(cell=zeros, hidden=zeros) if cell == "lstm" else zeros


def _reset(memory: Memory, begins: Bool[Array, "*batch"]) -> Memory:
    """Reset the memory of rows whose episode begins.

    By selection, as 0 times NaN is NaN.
    """
    return jax.tree.map(lambda leaf: jnp.where(begins[..., None], 0, leaf), memory)


def _hidden(memory: Memory) -> Float[Array, "*batch size"]:
    """Return the part of the memory that gates and later layers see."""
    return memory.hidden if isinstance(memory, LSTMMemory) else memory


def _recall(kernels: Kernels, memory: Memory) -> Gates:
    """Compute U h of every gate with a U."""
    return {gate: _hidden(memory) @ kernel for gate, kernel in kernels.items()}


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _run(
    step: Step,
    kernels: Kernels,
    inputs: GateSequences,
    memory: Memory,
    begins: Bool[Array, "time *batch"],
) -> Memories:
    """Return the memories of `_scan`, with a faster gradient than jax's own.

    jax's gradient of the scan adds to the gradients of U at every step. For independent policies
    with few rows each it takes 1.5 times as long.
    """
    return _scan(step, kernels, inputs, memory, begins)[0]


def _scan(
    step: Step,
    kernels: Kernels,
    inputs: GateSequences,
    memory: Memory,
    begins: Bool[Array, "time *batch"],
) -> tuple[Memories, GateSequences]:
    """Run a cell over sequences.

    Unrolling the scan is slower on a CPU, and so is an associative scan for the minimal GRU.

    Args:
        step: The cell's step.
        kernels: U of the gates that have one.
        inputs: W x + b of all gates.
        memory: Before the first step.
        begins: The steps before which the memory is reset.

    Returns:
        The memories after each step, and the pre-activations of the gates with a U.
    """

    def advance(memory: Memory, now: Any) -> tuple[Memory, tuple[Memory, Gates]]:
        inputs, begins = now
        before = _reset(memory, begins)
        recurrent = {gate: inputs[gate] + seen for gate, seen in _recall(kernels, before).items()}
        after = step(inputs | recurrent, before)
        return after, (after, recurrent)

    return jax.lax.scan(advance, memory, (inputs, begins))[1]


# Of every step: gates, memory before it, and whether that was reset.
_Steps = tuple[GateSequences, Memories, Bool[Array, "time *batch"]]


def _run_forward(
    step: Step,
    kernels: Kernels,
    inputs: GateSequences,
    memory: Memory,
    begins: Bool[Array, "time *batch"],
) -> tuple[Memories, tuple[Kernels, _Steps]]:
    memories, recurrent = _scan(step, kernels, inputs, memory, begins)
    before = jax.tree.map(
        lambda first, after: jnp.concatenate([first[None], after[:-1]]), memory, memories
    )
    return memories, (kernels, (inputs | recurrent, _reset(before, begins), begins))


def _run_backward(
    step: Step, saved: tuple[Kernels, _Steps], d_memories: Memories
) -> tuple[Kernels, GateSequences, Memory, None]:
    """Return the gradients of `_run`'s arguments; ``d_x`` is the gradient with respect to x."""
    kernels, steps = saved

    def retreat(d_memory: Memory, now: tuple[Any, Memory]) -> tuple[Memory, Gates]:
        (gates, before, begins), d_after = now
        _, pull_back = jax.vjp(step, gates, before)
        d_gates, d_before = pull_back(jax.tree.map(jnp.add, d_memory, d_after))
        unrecall = jax.linear_transpose(partial(_recall, kernels), before)
        (d_recalled,) = unrecall({gate: d_gates[gate] for gate in kernels})
        return _reset(jax.tree.map(jnp.add, d_before, d_recalled), begins), d_gates

    zeros = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), d_memories)
    d_memory, d_gates = jax.lax.scan(retreat, zeros, (steps, d_memories), reverse=True)
    hidden = _rows(_hidden(steps[1]))
    d_kernels = {gate: hidden.T @ _rows(d_gates[gate]) for gate in kernels}
    return d_kernels, d_gates, d_memory, None


_run.defvjp(_run_forward, _run_backward)


def _rows(values: Float[Array, "*batch size"]) -> Float[Array, "rows size"]:
    return values.reshape(-1, values.shape[-1])


class RecurrentNetwork(nn.Module):
    """A torso, a recurrent cell, and the layers after it.

    Attributes:
        cell: The kind of cell. The minimal GRU takes half the time of the others, because its gates
            do not depend on the memory.
        size: Units of the memory.
        torso: Maps ``[samples, *obs]`` to ``[samples, hidden]``.
        after: Maps ``[samples, size]`` to ``[samples, *output]``; None returns the hidden state. If
            its ``READS_FEATURES`` is True, it is also given the ``features`` of the samples.
    """

    LAST_MODULE = ("after",)  # has the last layer; see `Network.can_rescale_values`
    cell: CellName
    size: int
    torso: nn.Module
    after: nn.Module | None = None

    def __post_init__(self) -> None:
        """Check the cell's name."""
        if self.cell not in _CELLS:
            raise ValueError(f"cell={self.cell!r} is unknown; choose {', '.join(_CELLS)}.")
        super().__post_init__()

    @nn.nowrap
    def empty_memory(self, batch_shape: tuple[int, ...]) -> Memory:
        """Return the memory ``[*batch, size]`` at the start of an episode."""
        return empty_memory(self.cell, self.size, batch_shape)

    @nn.compact
    def __call__(
        self, features: Array, memory: Memory, begins: Bool[Array, "time *batch"]
    ) -> tuple[Array, Memories]:
        """Process sequences.

        Args:
            features: ``[time, *batch, *obs]``.
            memory: Before the first step, ``[*batch, size]``.
            begins: The first steps of episodes; the memory is reset before them.

        Returns:
            The outputs ``[time, *batch, *output]`` and the memories after each step,
            ``[time, *batch, size]``.
        """
        # One axis of samples: with several, the gradient of a layer would transpose them.
        samples = features.reshape(-1, *features.shape[begins.ndim :])
        hidden = cast(Array, self.torso(samples)).astype(jnp.float32)
        inputs, kernels = self._inputs_and_kernels(hidden)
        rows = (begins.shape[0], begins[0].size)
        inputs = jax.tree.map(lambda leaf: leaf.reshape(*rows, -1), inputs)
        memory = jax.tree.map(_rows, memory)
        args = (_CELLS[self.cell].step, kernels, inputs, memory, begins.reshape(rows))
        memories = _scan(*args)[0] if is_plain() else _run(*args)
        outputs = _rows(_hidden(cast(Memories, memories)))
        if self.after is not None:
            reads_features = getattr(self.after, "READS_FEATURES", False)
            after = partial(self.after, features=samples) if reads_features else self.after
            outputs = cast(Array, after(outputs))
        memories = jax.tree.map(lambda leaf: leaf.reshape(*begins.shape, -1), memories)
        return outputs.reshape(*begins.shape, *outputs.shape[1:]), memories

    def _inputs_and_kernels(self, hidden: Float[Array, "samples hidden"]) -> tuple[Gates, Kernels]:
        """Compute W x + b of all gates (b of gates without a W), and return it with U."""
        cell = _CELLS[self.cell]
        inputs = dict.fromkeys(cell.memory_gates, jnp.zeros((len(hidden), self.size)))
        for gate in cell.input_gates:
            shape = (hidden.shape[-1], self.size)
            inputs[gate] = product(
                hidden, self.param(f"{gate}_input_kernel", orthogonal(1.0), shape)
            )
        for gate in inputs:
            bias_init = nn.initializers.constant(cell.initial_biases.get(gate, 0.0))
            inputs[gate] += self.param(f"{gate}_bias", bias_init, (self.size,))
        kernels = {
            gate: self.param(f"{gate}_memory_kernel", orthogonal(1.0), (self.size, self.size))
            for gate in cell.memory_gates
        }
        return inputs, kernels


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
