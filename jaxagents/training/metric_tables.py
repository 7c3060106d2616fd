"""Tables of metrics by name, ``[evaluations, ...]``."""

from collections.abc import Mapping
from typing import Any, final

import numpy as np

from jaxagents.training.named_arrays import Leaves

_FEWEST_ROWS = 16


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


def joined(before: Mapping[str, Any], after: Mapping[str, Any]) -> Leaves:
    """Append the rows of one table to another's."""
    table = Table(before)
    table.extend(after)
    return table.columns()
