"""Tables of metrics by name, ``[evaluations, ...]``, and their rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxagents.training.named_arrays import Leaves

Row = Mapping[str, np.ndarray]


def stack(rows: Sequence[Row]) -> Leaves:
    """Stack rows into a table with the last row's metrics; NaN where an earlier row lacks one."""
    if not rows:
        return {}
    missing = _nan_like(rows[-1])
    return {name: np.stack([row.get(name, missing[name]) for row in rows]) for name in missing}


def unstack(table: Row) -> list[Leaves]:
    """Split a table into its rows."""
    n_rows = len(next(iter(table.values()), ()))
    return [{name: values[i] for name, values in table.items()} for i in range(n_rows)]


def pad_with_nan(rows: Sequence[Row], n_rows: int) -> list[Row]:
    """Append rows of NaN, for blocks that did not run."""
    return [*rows, *[_nan_like(rows[-1])] * (n_rows - len(rows))]


def joined(before: Row, after: Mapping[str, Any]) -> Leaves:
    """Append the rows of one table to another's."""
    return stack([*unstack(before), *unstack({k: np.asarray(v) for k, v in after.items()})])


def _nan_like(row: Row) -> Leaves:
    return {name: np.full_like(values, np.nan) for name, values in row.items()}
