"""Memory: recurrent cells, and the network that runs one over whole sequences.

A cell is some gates and a step. The pre-activation of a gate is W x + U h + b, of the features x
and the hidden part h of the memory before the step; some gates have no W, others no U. The step
makes the memory after it of them, unit by unit.

What does not wait for the step before is done for all steps at once, outside of the scan over
time: W x, and in the backward pass the gradients of W and U.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from jaxagents.compiler.matrix_products import product
from jaxagents.networks.layers import orthogonal

CellName = Literal["gru", "lstm", "mingru"]


class LSTMMemory(NamedTuple):
    """What an LSTM passes on from step to step."""

    cell: Float[Array, "*batch size"]
    hidden: Float[Array, "*batch size"]  # what the gates and the layers behind see of it


Memory = Float[Array, "*batch size"] | LSTMMemory
Memories = Float[Array, "time *batch size"] | LSTMMemory
# A gate's pre-activations, an array for each: cut out of a wider array at each step of a scan,
# they would not be vectorised on a CPU.
Gates = dict[str, Float[Array, "*batch size"]]
GateSequences = dict[str, Float[Array, "time *batch size"]]
Kernels = dict[str, Float[Array, "size size"]]  # U by gate
Step = Callable[[Gates, Any], Any]


class Cell(NamedTuple):
    """What sets one kind of cell apart."""

    step: Step
    input_gates: tuple[str, ...]  # those that see the features
    memory_gates: tuple[str, ...]  # those that see the memory
    first_biases: dict[str, float]  # of the gate that keeps or replaces it; others begin at 0


def gru_step(gates: Gates, memory: Float[Array, "*batch size"]) -> Float[Array, "*batch size"]:
    """Move the memory towards a candidate, which sees of it what another gate lets through.

    n = tanh(candidate + σ(reset) recollection) and h′ = (1 - σ(update)) n + σ(update) h.

    Source: Cho et al. 2014, https://arxiv.org/abs/1406.1078; resetting behind U, as in
    `flax.linen.GRUCell`.
    """
    recollection = nn.sigmoid(gates["reset"]) * gates["recollection"]
    candidate = nn.tanh(gates["candidate"] + recollection)
    update = nn.sigmoid(gates["update"])
    return (1 - update) * candidate + update * memory


def lstm_step(gates: Gates, memory: LSTMMemory) -> LSTMMemory:
    """Forget some of the cell, add to it, and show some of it.

    c′ = σ(forget) c + σ(input) tanh(candidate) and h′ = σ(output) tanh(c′).

    Source: Hochreiter & Schmidhuber 1997, https://doi.org/10.1162/neco.1997.9.8.1735; with a
    forget gate, as in `flax.linen.LSTMCell`.
    """
    kept = nn.sigmoid(gates["forget"]) * memory.cell
    cell = kept + nn.sigmoid(gates["input"]) * nn.tanh(gates["candidate"])
    return LSTMMemory(cell=cell, hidden=nn.sigmoid(gates["output"]) * nn.tanh(cell))


def mingru_step(gates: Gates, memory: Float[Array, "*batch size"]) -> Float[Array, "*batch size"]:
    """Move the memory towards a candidate that sees nothing of it.

    h′ = (1 - σ(update)) h + σ(update) candidate. The candidate is linear: the weights already
    bound the memory by the candidates.

    Source: Feng et al. 2024, https://arxiv.org/abs/2410.01201, section 3.1.
    """
    update = nn.sigmoid(gates["update"])
    return (1 - update) * memory + update * gates["candidate"]


_LSTM_GATES = ("input", "forget", "candidate", "output")
# At first a memory keeps σ(2) = 0.88 of itself from step to step. Without that, what was seen 20
# steps ago is hardly ever learnt to be kept: Gers et al. 2000, above; Jozefowicz et al. 2015, "An
# empirical exploration of recurrent network architectures".
_KEEPING = 2.0

_CELLS: dict[str, Cell] = {
    "gru": Cell(
        step=gru_step,
        input_gates=("reset", "update", "candidate"),
        memory_gates=("reset", "update", "recollection"),
        first_biases={"update": _KEEPING},
    ),
    "lstm": Cell(
        step=lstm_step,
        input_gates=_LSTM_GATES,
        memory_gates=_LSTM_GATES,
        first_biases={"forget": _KEEPING},
    ),
    "mingru": Cell(
        step=mingru_step,
        input_gates=("update", "candidate"),
        memory_gates=(),
        first_biases={"update": -_KEEPING},
    ),
}


def empty_memory(cell: CellName, size: int, batch_shape: tuple[int, ...]) -> Memory:
    """Give the memory ``[*batch, size]`` that an episode begins with: zeros."""
    zeros = jnp.zeros((*batch_shape, size))
    return LSTMMemory(cell=zeros, hidden=zeros) if cell == "lstm" else zeros


def _emptied(memory: Memory, begins: Bool[Array, "*batch"]) -> Memory:
    """Empty the memory of the rows whose episode begins.

    Selected, not multiplied by 0: what an episode leaves behind may be NaN.
    """
    return jax.tree.map(lambda leaf: jnp.where(begins[..., None], 0, leaf), memory)


def _hidden(memory: Memory) -> Float[Array, "*batch size"]:
    """Give the part of the memory that the gates and the layers behind see."""
    return memory.hidden if isinstance(memory, LSTMMemory) else memory


def _recall(kernels: Kernels, memory: Memory) -> Gates:
    """Compute U h of the gates that see the memory."""
    return {gate: _hidden(memory) @ kernel for gate, kernel in kernels.items()}


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _run(
    step: Step,
    kernels: Kernels,
    inputs: GateSequences,
    memory: Memory,
    begins: Bool[Array, "time *batch"],
) -> Memories:
    """Run a cell over sequences.

    Differentiated as it stands, the scan would add to the gradients of U at every step: half as
    slow again with a policy for each actor, whose rows are few.

    Args:
        step: The cell's.
        kernels: U of the gates that see the memory.
        inputs: W x + b of all gates, ``[time, *batch, size]``.
        memory: Before the first step.
        begins: The steps before which the memory is emptied.

    Returns:
        The memories after each step, ``[time, *batch, size]``.
    """
    return _scan(step, kernels, inputs, memory, begins)[0]


def _scan(
    step: Step,
    kernels: Kernels,
    inputs: GateSequences,
    memory: Memory,
    begins: Bool[Array, "time *batch"],
) -> tuple[Memories, GateSequences]:
    """Return the memories after each step, and the gates that have seen the one before it.

    Not unrolled, nor an associative scan for the cell whose gates see no memory: on a CPU both
    are slower.
    """

    def advance(memory: Memory, now: Any) -> tuple[Memory, tuple[Memory, Gates]]:
        inputs, begins = now
        before = _emptied(memory, begins)
        seeing = {gate: inputs[gate] + seen for gate, seen in _recall(kernels, before).items()}
        after = step(inputs | seeing, before)
        return after, (after, seeing)

    return jax.lax.scan(advance, memory, (inputs, begins))[1]


# Gates, memories before them, and which of those are empty.
_Steps = tuple[GateSequences, Memories, Bool[Array, "time *batch"]]


def _run_forward(
    step: Step,
    kernels: Kernels,
    inputs: GateSequences,
    memory: Memory,
    begins: Bool[Array, "time *batch"],
) -> tuple[Memories, tuple[Kernels, _Steps]]:
    memories, seeing = _scan(step, kernels, inputs, memory, begins)
    before = jax.tree.map(
        lambda first, after: jnp.concatenate([first[None], after[:-1]]), memory, memories
    )
    return memories, (kernels, (inputs | seeing, _emptied(before, begins), begins))


def _run_backward(
    step: Step, saved: tuple[Kernels, _Steps], d_memories: Memories
) -> tuple[Kernels, GateSequences, Memory, None]:
    """Return the gradients of `_run`'s arguments; d_x is the gradient with respect to x."""
    kernels, steps = saved

    def retreat(d_memory: Memory, now: tuple[Any, Memory]) -> tuple[Memory, Gates]:
        (gates, before, begins), d_after = now
        _, pull_back = jax.vjp(step, gates, before)
        d_gates, d_before = pull_back(jax.tree.map(jnp.add, d_memory, d_after))
        unrecall = jax.linear_transpose(partial(_recall, kernels), before)
        (d_recalled,) = unrecall({gate: d_gates[gate] for gate in kernels})
        return _emptied(jax.tree.map(jnp.add, d_before, d_recalled), begins), d_gates

    nothing = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), d_memories)
    d_memory, d_gates = jax.lax.scan(retreat, nothing, (steps, d_memories), reverse=True)
    hidden = _rows(_hidden(steps[1]))
    d_kernels = {gate: hidden.T @ _rows(d_gates[gate]) for gate in kernels}
    return d_kernels, d_gates, d_memory, None


_run.defvjp(_run_forward, _run_backward)


def _rows(values: Float[Array, "*batch size"]) -> Float[Array, "rows size"]:
    return values.reshape(-1, values.shape[-1])


class RecurrentNetwork(nn.Module):
    """Layers, a recurrent cell behind them, and layers behind that.

    Attributes:
        cell: The kind of cell: GRU, LSTM, or the minimal GRU, whose gates see the features alone
            and which therefore trains and acts in half the time.
        size: Units of the memory.
        torso: Maps ``[samples, *obs]`` to ``[samples, hidden]``.
        after: Maps ``[samples, size]`` to ``[samples, *output]``; None hands on what the cell
            shows of its memory.
    """

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
        """Give the memory ``[*batch, size]`` that an episode begins with."""
        return empty_memory(self.cell, self.size, batch_shape)

    @nn.compact
    def __call__(
        self, features: Array, memory: Memory, begins: Bool[Array, "time *batch"]
    ) -> tuple[Array, Memories]:
        """Process sequences.

        Args:
            features: ``[time, *batch, *obs]``.
            memory: Before the first step, ``[*batch, size]``.
            begins: Steps that are the first of an episode: the memory is emptied before them.

        Returns:
            The outputs ``[time, *batch, *output]`` and the memories after each step,
            ``[time, *batch, size]``.
        """
        # One axis of samples, for XLA transposes several when it differentiates a layer.
        samples = features.reshape(-1, *features.shape[begins.ndim :])
        hidden = cast(Array, self.torso(samples)).astype(jnp.float32)
        inputs, kernels = self._inputs_and_kernels(hidden)
        rows = (begins.shape[0], begins[0].size)
        inputs = jax.tree.map(lambda leaf: leaf.reshape(*rows, -1), inputs)
        memory = jax.tree.map(_rows, memory)
        memories = _run(_CELLS[self.cell].step, kernels, inputs, memory, begins.reshape(rows))
        outputs = _rows(_hidden(cast(Memories, memories)))
        if self.after is not None:
            outputs = cast(Array, self.after(outputs))
        memories = jax.tree.map(lambda leaf: leaf.reshape(*begins.shape, -1), memories)
        return outputs.reshape(*begins.shape, *outputs.shape[1:]), memories

    def _inputs_and_kernels(self, hidden: Float[Array, "samples hidden"]) -> tuple[Gates, Kernels]:
        """Give W x + b of all gates, or b of those that see no features, and U."""
        cell = _CELLS[self.cell]
        inputs = dict.fromkeys(cell.memory_gates, jnp.zeros((len(hidden), self.size)))
        for gate in cell.input_gates:
            shape = (hidden.shape[-1], self.size)
            inputs[gate] = product(
                hidden, self.param(f"{gate}_input_kernel", orthogonal(1.0), shape)
            )
        for gate in inputs:
            bias_init = nn.initializers.constant(cell.first_biases.get(gate, 0.0))
            inputs[gate] += self.param(f"{gate}_bias", bias_init, (self.size,))
        kernels = {
            gate: self.param(f"{gate}_memory_kernel", orthogonal(1.0), (self.size, self.size))
            for gate in cell.memory_gates
        }
        return inputs, kernels
