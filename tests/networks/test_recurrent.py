"""Recurrent cells against flax's cells, and sequences against single steps."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxagents.compiler.tuned_forms import plain_jax
from jaxagents.networks.network import CNN, MLP, PolicyNetwork, ValueNetwork
from jaxagents.networks.recurrent import LSTMMemory, RecurrentNetwork, empty_memory

CELLS = ("gru", "lstm", "mingru")
SIZE = 4
N_FEATURES = 3
N_STEPS = 5
STEPS = jnp.arange(N_STEPS)[:, None]
# Of two rows, one begins an episode with the sequence, one has an episode of a single step.
BEGINS = (STEPS == 3) | (jnp.array([0, 2]) == STEPS)


class Untouched(nn.Module):
    """A torso without layers."""

    def __call__(self, features):
        return features


class MinGRUCell(nn.Module):
    """The minimal GRU's equations: h′ = (1 - z) h + z h̃ with z = σ(iz(x)) and h̃ = in(x)."""

    features: int

    @nn.compact
    def __call__(self, memory, features):
        update = nn.sigmoid(nn.Dense(self.features, name="iz")(features))
        memory = (1 - update) * memory + update * nn.Dense(self.features, name="in")(features)
        return memory, memory


class Reference(nn.Module):
    """A flax cell, applied to one step after the other."""

    cell: nn.Module

    def __call__(self, features, memory, begins):
        hidden, memories = [], []
        for now, begin in zip(features, begins, strict=True):
            memory = jax.tree.map(lambda leaf, b=begin: jnp.where(b[..., None], 0, leaf), memory)
            memory, output = self.cell(memory, now)
            hidden.append(output)
            memories.append(memory)
        return jnp.stack(hidden), jax.tree.map(lambda *leaves: jnp.stack(leaves), *memories)


REFERENCES = {"gru": nn.GRUCell(SIZE), "lstm": nn.LSTMCell(SIZE), "mingru": MinGRUCell(SIZE)}
# Flax's layers that hold a gate's W, U and b.
PLACES_IN_FLAX = {
    "gru": {
        "reset": ("ir", "hr", "ir"),
        "update": ("iz", "hz", "iz"),
        "candidate": ("in", None, "in"),
        "recollection": (None, "hn", "hn"),
    },
    "lstm": {
        "input": ("ii", "hi", "hi"),
        "forget": ("if", "hf", "hf"),
        "candidate": ("ig", "hg", "hg"),
        "output": ("io", "ho", "ho"),
    },
    "mingru": {"update": ("iz", None, "iz"), "candidate": ("in", None, "in")},
}


def pairs(cell):
    """Pair the names of our parameters with their places in flax."""
    for gate, (of_input, of_memory, of_bias) in PLACES_IN_FLAX[cell].items():
        if of_input is not None:
            yield f"{gate}_input_kernel", (of_input, "kernel")
        if of_memory is not None:
            yield f"{gate}_memory_kernel", (of_memory, "kernel")
        yield f"{gate}_bias", (of_bias, "bias")


def to_flax(cell, params):
    copied = {}
    for ours, (layer, kind) in pairs(cell):
        copied.setdefault(layer, {})[kind] = params["params"][ours]
    return {"params": {"cell": copied}}


def from_flax(cell, params):
    layers = params["params"]["cell"]
    return {"params": {ours: layers[layer][kind] for ours, (layer, kind) in pairs(cell)}}


def drawn(tree, seed=0):
    """Replace all leaves by normal random numbers, so that no value is special."""
    leaves, treedef = jax.tree.flatten(tree)
    rngs = jax.random.split(jax.random.key(seed), len(leaves))
    return treedef.unflatten(
        [jax.random.normal(rng, leaf.shape) for rng, leaf in zip(rngs, leaves, strict=True)]
    )


@cache
def example(cell, batch=(2,), after=None):
    """Build a network; draw its parameters, features, and a memory before the sequence."""
    network = RecurrentNetwork(cell, SIZE, Untouched(), after)
    begins = jnp.zeros((N_STEPS, *batch), bool)
    features = drawn(jax.ShapeDtypeStruct((*begins.shape, N_FEATURES), float), 1)
    memory = drawn(network.empty_memory(batch), 2)
    params = jax.eval_shape(network.init, jax.random.key(0), features, memory, begins)
    return network, drawn(params, 3), features, memory


def assert_close(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for leaf, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(leaf, other, rtol=1e-5, atol=1e-5)


@partial(jax.jit, static_argnums=0)
def apply(network, params, features, memory, begins):
    return network.apply(params, features, memory, begins)


def score(network, params, features, memory, begins):
    """Weight outputs and memories at random and add them up; also return them."""
    results = network.apply(params, features, memory, begins)
    leaves = jax.tree.leaves(results)
    return sum(map(jnp.vdot, leaves, drawn(leaves, 4))), results


@partial(jax.jit, static_argnums=0)
def results_and_gradients(network, params, features, memory, begins):
    """Apply a network, and differentiate by the parameters, the features and the memory."""
    differentiate = jax.grad(partial(score, network), argnums=(0, 1, 2), has_aux=True)
    gradients, results = differentiate(params, features, memory, begins)
    return results, gradients


@pytest.mark.parametrize("cell", CELLS)
def test_cells_and_their_gradients_equal_those_of_flax(cell):
    network, params, features, memory = example(cell)
    ours, (d_params, *d_ours) = results_and_gradients(network, params, features, memory, BEGINS)
    pair = tuple(memory) if cell == "lstm" else memory  # as in flax
    theirs, (d_layers, *d_theirs) = results_and_gradients(
        Reference(REFERENCES[cell]), to_flax(cell, params), features, pair, BEGINS
    )
    assert_close(jax.tree.leaves((ours, d_ours)), jax.tree.leaves((theirs, d_theirs)))
    assert_close(to_flax(cell, d_params), d_layers)
    assert_close(d_params, from_flax(cell, d_layers))


def test_the_minimal_gru_moves_its_memory_towards_a_linear_candidate():
    network, params, *_ = example("mingru")
    params = jax.tree.map(jnp.zeros_like, params)
    params["params"]["candidate_bias"] = jnp.full(SIZE, 8.0)
    params["params"]["update_bias"] = jnp.full(SIZE, -jnp.log(3.0))  # a weight of 1/4
    begins = jnp.array([False, False, True])
    features, memory = jnp.ones((3, N_FEATURES)), jnp.full(SIZE, 16.0)
    _, memories = apply(network, params, features, memory, begins)
    np.testing.assert_allclose(memories[:, 0], [14.0, 12.5, 2.0], rtol=1e-6)


@pytest.mark.parametrize("cell", CELLS)
def test_a_sequence_equals_its_steps_one_by_one(cell):
    network, params, features, memory = example(cell, after=MLP(1, (5,)))
    outputs, memories = apply(network, params, features, memory, BEGINS)
    for t in range(N_STEPS):
        now = slice(t, t + 1)
        step = apply(network, params, features[now], memory, BEGINS[now])
        assert_close(step, (outputs[now], jax.tree.map(lambda leaf, n=now: leaf[n], memories)))
        memory = jax.tree.map(lambda leaf: leaf[0], step[1])


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("cut", [1, 3])
def test_a_sequence_equals_its_chunks_with_stored_memories(cell, cut):
    network, params, features, memory = example(cell)
    whole = apply(network, params, features, memory, BEGINS)
    stored = jax.tree.map(lambda leaf: leaf[cut - 1], whole[1])
    first = apply(network, params, features[:cut], memory, BEGINS[:cut])
    second = apply(network, params, features[cut:], stored, BEGINS[cut:])
    assert_close(jax.tree.map(lambda *parts: jnp.concatenate(parts), first, second), whole)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("begin", [0, 3])
def test_an_episode_begins_with_an_empty_memory(cell, begin):
    network, params, features, memory = example(cell)
    begins = jnp.zeros((N_STEPS, 2), bool).at[begin].set(True)
    outputs, _ = apply(network, params, features, memory, begins)
    empty, continued = network.empty_memory((2,)), jnp.zeros_like(begins[begin:])
    restarted, _ = apply(network, params, features[begin:], empty, continued)
    assert_close(outputs[begin:], restarted)


@pytest.mark.parametrize("cell", CELLS)
def test_gradients_flow_back_to_the_beginning_of_the_episode_and_no_further(cell):
    network, params, features, memory = example(cell)

    @jax.jit
    def last_gradients(features, memory, begins):
        def last_output(features, memory):
            return network.apply(params, features, memory, begins)[0][-1].sum()

        return jax.grad(last_output, argnums=(0, 1))(features, memory)

    begins = jnp.zeros((N_STEPS, 2), bool)
    flowing, into_memory = last_gradients(features, memory, begins)
    assert all(np.all(leaf != 0) for leaf in (flowing, *jax.tree.leaves(into_memory)))
    stopped, into_memory = last_gradients(features, memory, begins.at[3].set(True))
    assert np.all(stopped[3:] != 0)
    assert all(np.all(leaf == 0) for leaf in (stopped[:3], *jax.tree.leaves(into_memory)))


@pytest.mark.parametrize("cell", CELLS)
def test_nan_before_an_episode_affects_neither_values_nor_gradients(cell):
    network, params, features, memory = example(cell)
    begins = BEGINS.at[0].set(True)
    nan = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), memory)
    after_nan = results_and_gradients(network, params, features, nan, begins)
    assert_close(after_nan, results_and_gradients(network, params, features, memory, begins))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(after_nan))


@pytest.mark.parametrize("cell", CELLS)
def test_nan_in_an_episode_does_not_affect_the_next_one(cell):
    network, params, features, memory = example(cell)
    begins = jnp.zeros((N_STEPS, 2), bool).at[3].set(True)

    @jax.jit
    @jax.value_and_grad
    def later_outputs(features):
        return jnp.sum(network.apply(params, features, memory, begins)[0][3:] ** 2)

    after_nan = later_outputs(features.at[1].set(jnp.nan))
    value, gradient = later_outputs(features)
    assert_close((after_nan[0], after_nan[1][3:]), (value, gradient[3:]))


@pytest.mark.parametrize("cell", CELLS)
def test_independent_policies_compute_and_learn_as_each_alone(cell):
    network, params, features, memory = example(cell)
    stacked = drawn(jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), params))
    together = jax.vmap(results_and_gradients, in_axes=(None, 0, None, None, None))(
        network, stacked, features, memory, BEGINS
    )
    for policy in range(3):
        own, params = jax.tree.map(lambda leaf, p=policy: leaf[p], (together, stacked))
        assert_close(own, results_and_gradients(network, params, features, memory, BEGINS))


def scan_loop(body, params, n_steps):
    return jax.lax.scan(lambda params, i: (body(i, params), None), params, jnp.arange(n_steps))[0]


def while_loop(body, params, n_steps):
    return jax.lax.fori_loop(0, n_steps, body, params)


@pytest.mark.parametrize(
    ("cell", "loop"), [("gru", while_loop), ("lstm", scan_loop), ("mingru", while_loop)]
)
def test_networks_learn_inside_of_compiled_loops(cell, loop):
    network, params, features, memory = example(cell)

    def descend(_, params):
        _, (gradient, *_) = results_and_gradients(network, params, features, memory, BEGINS)
        return jax.tree.map(lambda leaf, slope: leaf - 1e-3 * slope, params, gradient)

    if loop is while_loop:  # with a traced number of steps
        learnt = jax.jit(partial(loop, descend))(params, 2)
    else:
        learnt = jax.jit(partial(loop, descend), static_argnums=1)(params, 2)
    assert_close(learnt, descend(1, descend(0, params)))


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("batch", [(), (3, 2)])
def test_batch_axes_are_kept_and_their_rows_independent(cell, batch):
    begins = jax.random.bernoulli(jax.random.key(5), 0.3, (N_STEPS, *batch))
    network, params, features, memory = example(cell, batch, after=MLP(1, (5,)))
    outputs, memories = apply(network, params, features, memory, begins)
    assert outputs.shape == (N_STEPS, *batch, 5)
    for row in np.ndindex(batch):
        mine = (slice(None), *row)
        alone = apply(
            network,
            params,
            features[mine],
            jax.tree.map(lambda leaf, r=row: leaf[r], memory),
            begins[mine],
        )
        assert_close((outputs[mine], jax.tree.map(lambda leaf, m=mine: leaf[m], memories)), alone)


@pytest.mark.parametrize("shape", [(), (3,), (5, 4, 3)])
def test_torsos_process_observations_of_any_shape(shape):
    torso = CNN((2,), (6,)) if len(shape) == 3 else MLP(len(shape), (6,))
    network, begins = RecurrentNetwork("gru", SIZE, torso), jnp.zeros((2, 3, 2), bool)
    features = jnp.ones((2, 3, 2, *shape), jnp.int32)
    memory = network.empty_memory((3, 2))
    (outputs, _), _ = jax.eval_shape(
        network.init_with_output, jax.random.key(0), features, memory, begins
    )
    assert (outputs.shape, outputs.dtype) == ((2, 3, 2, SIZE), jnp.float32)


@pytest.mark.parametrize(
    ("head", "output"), [(PolicyNetwork(5, MLP(1, (6,))), (5,)), (ValueNetwork(MLP(1, ())), ())]
)
def test_the_layers_after_the_cell_may_end_in_a_head(head, output):
    network, params, features, memory = example("lstm", after=head)
    outputs, memories = apply(network, params, features, memory, BEGINS)
    assert outputs.shape == (N_STEPS, 2, *output)
    own_params = {"params": params["params"]["after"]}
    assert_close(outputs, head.apply(own_params, memories.hidden))


@pytest.mark.parametrize("cell", CELLS)
def test_memories_begin_as_zeros(cell):
    memory = empty_memory(cell, SIZE, (3, 2))
    zeros = np.zeros((3, 2, SIZE), np.float32)
    expected = LSTMMemory(cell=zeros, hidden=zeros) if cell == "lstm" else zeros
    assert_close(memory, expected)
    assert_close(RecurrentNetwork(cell, SIZE, Untouched()).empty_memory((3, 2)), expected)


@pytest.mark.parametrize("cell", CELLS)
def test_every_gate_starts_orthogonal_and_biased_to_retain_the_memory(cell):
    network, _, features, memory = example(cell)
    params = jax.jit(network.init)(jax.random.key(0), features, memory, BEGINS)["params"]
    assert set(params) == {ours for ours, _ in pairs(cell)}
    kernels = {name: np.asarray(leaf) for name, leaf in params.items() if leaf.ndim == 2}
    for name, kernel in kernels.items():
        # With more units than features, the rows are orthogonal.
        assert kernel.shape == (SIZE if "memory" in name else N_FEATURES, SIZE)
        np.testing.assert_allclose(kernel @ kernel.T, np.eye(len(kernel)), atol=1e-5)
    assert len({kernel[0, 0] for kernel in kernels.values()}) == len(kernels)
    keeping = {
        "gru": ("update_bias", 2.0),
        "lstm": ("forget_bias", 2.0),
        "mingru": ("update_bias", -2.0),
    }
    biases = {name: np.zeros(SIZE) for name in params if name not in kernels}
    name, bias = keeping[cell]
    biases[name] += bias
    assert_close({name: params[name] for name in biases}, biases)


def scan_carries(jaxpr):
    """Yield the shapes of the carries of a program's scans."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            n_consts, n_carry = equation.params["num_consts"], equation.params["num_carry"]
            yield from (v.aval.shape for v in equation.invars[n_consts : n_consts + n_carry])
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=is_jaxpr):
            if is_jaxpr(inner):
                yield from scan_carries(getattr(inner, "jaxpr", inner))


def is_jaxpr(value):
    return hasattr(value, "eqns")


@pytest.mark.parametrize("cell", CELLS)
def test_no_step_of_the_backward_pass_adds_to_the_gradients_of_weights(cell):
    network, *args = example(cell)
    gradients = jax.make_jaxpr(results_and_gradients, static_argnums=0)(network, *args, BEGINS)
    assert set(scan_carries(gradients.jaxpr)) == {(2, SIZE)}  # memories and their gradients


def test_a_cell_of_another_name_is_an_error():
    class OfUsers(RecurrentNetwork):
        """A subclass, as the type checks of the annotation tests would refuse the name first."""

    with pytest.raises(ValueError, match=r"^cell='rnn' is unknown; choose gru, lstm, mingru\.$"):
        OfUsers("rnn", SIZE, Untouched())


def results_and_programs():
    """Compute results and gradients of every cell; also return the programs as text."""
    results, programs = [], []
    for cell in CELLS:
        network, *args = example(cell)
        results.append(results_and_gradients(network, *args, BEGINS))
        programs.append(str(jax.make_jaxpr(network.apply)(*args, BEGINS)))
    return results, programs


@pytest.mark.slow
def test_plain_jax_gives_the_same_results_without_gradients_written_by_hand():
    tuned, programs = results_and_programs()
    with plain_jax():
        plain, plain_programs = results_and_programs()
    assert all("custom_vjp" in program for program in programs)
    assert not any("custom_vjp" in program for program in plain_programs)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), plain, tuned)
