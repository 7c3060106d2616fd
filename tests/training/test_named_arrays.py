"""Trees as vectors, on their way to the host, and as leaves by name."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.training.named_arrays import from_leaves, pack, strip_keys, to_leaves, unpack
from tests.agents import assert_trees_equal

TREE = {
    "weights": (jnp.arange(6.0).reshape(2, 3), jnp.array([0.5, 1.5], jnp.bfloat16)),
    "alive": jnp.array([True, False]),
    "rng": jax.random.key(7),
    "count": jnp.int32(3),
    "nothing": jnp.zeros((0, 4)),
    "more": jnp.array([[9.0]]),
}


def test_a_tree_is_packed_into_one_vector_per_dtype_and_unpacked_unchanged():
    tree = strip_keys(TREE)
    vectors = jax.jit(pack)(tree)
    sizes = {dtype: len(vector) for dtype, vector in vectors.items()}
    assert sizes == {"float32": 7, "bfloat16": 2, "bool": 2, "uint32": 2, "int32": 1}
    unpacked = unpack(vectors, jax.eval_shape(lambda: tree))
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(unpacked))
    assert_trees_equal(unpacked, tree)
    dtypes = jax.tree.map(lambda leaf: leaf.dtype, (unpacked, tree))
    assert dtypes[0] == dtypes[1]


def test_unpacked_arrays_are_read_only_copies():
    buffer = np.arange(3.0, dtype=np.float32)
    unpacked = unpack({"float32": buffer}, jax.ShapeDtypeStruct((3,), np.float32))
    with pytest.raises(ValueError, match="read-only"):
        unpacked[0] = 1.0
    buffer[:] = -1.0
    np.testing.assert_array_equal(unpacked, [0.0, 1.0, 2.0])


def test_leaves_are_named_by_their_path_and_empty_ones_are_left_out():
    names = ["alive", "count", "more", "rng", "weights.0", "weights.1"]
    assert sorted(to_leaves(strip_keys(TREE))) == names


def test_a_tree_is_rebuilt_from_its_leaves():
    rebuilt = from_leaves(to_leaves(strip_keys(TREE)), jax.eval_shape(lambda: TREE))
    assert_trees_equal(rebuilt, TREE)
    types = (jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), each) for each in (rebuilt, TREE))
    assert next(types) == next(types)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rng": None}, "this agent has rng, which the checkpoint lacks"),
        ({"surplus": np.zeros(2)}, "the checkpoint has surplus, which this agent lacks"),
        (
            {"more": np.zeros((1, 2), np.float32)},
            "more is float32[1, 2] in the checkpoint, float32[1, 1] in this agent",
        ),
        (
            {"count": np.zeros((), np.float32)},
            "count is float32[] in the checkpoint, int32[] in this agent",
        ),
        (
            {"rng": np.zeros(4, np.uint32)},
            "rng is uint32[4] in the checkpoint, uint32[2] in this agent",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_leaves_that_do_not_fit_the_tree_are_named(changes, message):
    leaves = {**to_leaves(strip_keys(TREE)), **changes}
    leaves = {name: leaf for name, leaf in leaves.items() if leaf is not None}
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        from_leaves(leaves, TREE)
