"""Arrays by name: trees of them and back, and tables of metrics, ``[evaluations, ...]``."""

import math
from collections.abc import Mapping
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.compiler.random_keys import is_key
from jaxagents.types import PyTree, leaf_name

Leaves = dict[str, np.ndarray]
_FEWEST_ROWS = 16  # of a table


def strip_keys(tree: PyTree) -> PyTree:
    """Replace typed random keys with their uint32 data; traceable."""
    return jax.tree.map(lambda leaf: jax.random.key_data(leaf) if is_key(leaf) else leaf, tree)


def pack(tree: PyTree) -> dict[str, jax.Array]:
    """Concatenate a tree's leaves into one vector per dtype; traceable.

    Each array that a compiled program hands to the host costs time, however small it is.
    """
    vectors: dict[str, list[jax.Array]] = {}
    for leaf in jax.tree.leaves(tree):
        vectors.setdefault(str(leaf.dtype), []).append(jnp.ravel(leaf))
    return {dtype: jnp.concatenate(parts) for dtype, parts in vectors.items()}


def unpack(vectors: Mapping[str, Any], template: PyTree) -> PyTree:
    """Undo `pack` on the host; the leaves are read-only views of one copy per dtype.

    Args:
        vectors: One per dtype.
        template: Shapes and dtypes of the packed tree.
    """
    copies = {dtype: np.array(vector) for dtype, vector in vectors.items()}
    for copy in copies.values():
        copy.flags.writeable = False
    offsets = dict.fromkeys(copies, 0)

    def take(leaf: Any) -> np.ndarray:
        dtype, size = str(leaf.dtype), math.prod(leaf.shape)
        start = offsets[dtype]
        offsets[dtype] = start + size
        return copies[dtype][start : start + size].reshape(leaf.shape)

    return jax.tree.map(take, template)


def to_leaves(tree: PyTree) -> Leaves:
    """Return a tree's non-empty leaves as numpy arrays by name; it must not hold typed keys."""
    leaves = _named_leaves(tree)
    return {name: np.asarray(leaf) for name, leaf in leaves.items() if np.size(leaf) > 0}


def from_leaves(leaves: Leaves, template: PyTree) -> PyTree:
    """Build a tree like ``template`` (arrays or their shapes) from arrays by name.

    Raises:
        ValueError: A leaf is missing, left over, or has another shape or dtype.
    """
    expected = {name: leaf for name, leaf in _named_leaves(template).items() if np.size(leaf) > 0}
    difference = sorted(expected.keys() ^ leaves.keys())
    if difference:
        holder, lacker = (
            ("this agent", "the checkpoint")
            if difference[0] in expected
            else ("the checkpoint", "this agent")
        )
        raise ValueError(f"{holder} has {difference[0]}, which {lacker} lacks")

    def restore(path: Any, leaf: Any) -> jax.Array:
        if np.size(leaf) == 0:
            return jnp.zeros(leaf.shape, leaf.dtype)
        name, typed = leaf_name(path), is_key(leaf)
        expected_leaf = jax.eval_shape(jax.random.key_data, leaf) if typed else leaf
        saved = leaves[name]
        if (saved.shape, saved.dtype) != (expected_leaf.shape, expected_leaf.dtype):
            raise ValueError(
                f"{name} is {saved.dtype}{list(saved.shape)} in the checkpoint, "
                f"{expected_leaf.dtype}{list(expected_leaf.shape)} in this agent"
            )
        array = jax.device_put(saved)  # jnp.asarray would compile a program for each shape
        return jax.random.wrap_key_data(array, impl=_key_impl(leaf)) if typed else array

    return jax.tree_util.tree_map_with_path(restore, template)


def subtree(leaves: Leaves, prefix: str, like: PyTree) -> PyTree:
    """Build a tree structured like ``like`` from the leaves below ``prefix``, of any shape."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaves.get(f"{prefix}.{leaf_name(path)}", leaf), like
    )


def _named_leaves(tree: PyTree) -> dict[str, Any]:
    return {leaf_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _key_impl(shape: jax.ShapeDtypeStruct) -> Any:
    """Return the random number generator of keys, given only their shape."""
    impls = []
    jax.eval_shape(lambda key: impls.append(jax.random.key_impl(key)), shape)
    return impls[0]


@final
class Table:
    """Rows of metrics, as float arrays that grow by doubling.

    An array per row would be scattered over the memory of a long run, which could then release
    little of its temporary memory.

    Args:
        columns: The first rows, ``[rows, ...]`` by name.

    Attributes:
        n_rows: Number of rows.
    """

    def __init__(self, columns: Mapping[str, Any] | None = None):
        self.n_rows = 0
        self._names: tuple[str, ...] = ()
        self._columns: Leaves = {}
        self.extend(columns or {})

    def append(self, row: Mapping[str, Any]) -> None:
        """Append a row; metrics that earlier rows lack are NaN there."""
        self.extend({name: np.asarray(value)[None] for name, value in row.items()})

    def extend(self, columns: Mapping[str, Any]) -> None:
        """Append several rows, ``[rows, ...]`` by name."""
        if not columns:
            return
        new = {name: np.asarray(values) for name, values in columns.items()}
        start = self.n_rows
        stop = start + len(next(iter(new.values())))
        for name, values in new.items():
            self._column(name, values, stop)[start:stop] = values
        self.n_rows, self._names = stop, tuple(new)

    def columns(self, n_rows: int | None = None) -> Leaves:
        """Return copies of the columns of all metrics; NaN in the rows that lack one.

        Args:
            n_rows: Number of rows; missing ones at the end are NaN.
        """
        n_rows = self.n_rows if n_rows is None else n_rows
        return {
            name: self._column(name, self._columns[name], n_rows)[:n_rows].copy()
            for name in self._columns
        }

    def last_row(self) -> Leaves:
        """Return the last row; empty if there is none."""
        return {name: self._columns[name][self.n_rows - 1] for name in self._names}

    def _column(self, name: str, like: np.ndarray, n_rows: int) -> np.ndarray:
        """Return a column with room for ``n_rows`` rows; NaN where nothing was written."""
        column = self._columns.get(name)
        if column is None or len(column) < n_rows:
            shape = (max(2 * n_rows, _FEWEST_ROWS), *like.shape[1:])
            grown = np.full(shape, np.nan, like.dtype)
            if column is not None:
                grown[: len(column)] = column
            self._columns[name] = column = grown
        return column
