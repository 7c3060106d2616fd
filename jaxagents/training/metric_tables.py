"""Tables of metrics, ``[evaluations, ...]`` by name, and their rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxagents.training.named_arrays import Leaves

Row = Mapping[str, np.ndarray]


def stack(rows: Sequence[Row]) -> Leaves:
    """Make a table of rows; what earlier ones lack, because they are older, is NaN there."""
    if not rows:
        return {}
    unknown = _unknown(rows[-1])
    return {name: np.stack([row.get(name, unknown[name]) for row in rows]) for name in unknown}


def unstack(table: Row) -> list[Leaves]:
    """Take a table apart."""
    n_rows = len(next(iter(table.values()), ()))
    return [{name: values[i] for name, values in table.items()} for i in range(n_rows)]


def lengthened(rows: Sequence[Row], n_rows: int) -> list[Row]:
    """Add rows that did not run, of NaN."""
    return [*rows, *[_unknown(rows[-1])] * (n_rows - len(rows))]


def joined(before: Row, after: Mapping[str, Any]) -> Leaves:
    """Put a table behind another."""
    return stack([*unstack(before), *unstack({k: np.asarray(v) for k, v in after.items()})])


def _unknown(row: Row) -> Leaves:
    return {name: np.full_like(values, np.nan) for name, values in row.items()}
