"""Whether what environments returned is finite. Numpy only."""

from collections.abc import Mapping

import numpy as np

_NAMES = {"features": "an observation", "reward": "a reward", "global_state": "a state"}


def not_finite(
    arrays: Mapping[str, np.ndarray], rows: slice, *names: str, where: np.ndarray | None = None
) -> tuple[int, str] | None:
    """Find an environment that returned NaN or infinity, and say what it returned.

    Args:
        arrays: ``[envs, ...]`` by name.
        rows: The environments to look at.
        names: The arrays to look at; those that are not there are skipped.
        where: Look only where it is True, of the rows' length; None: everywhere.
    """
    for name in names:
        if name not in arrays:
            continue
        values = arrays[name][rows]
        if values.dtype.kind != "f" or np.isfinite(values).all():
            continue
        bad = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
        if where is not None:
            bad &= where
        if bad.any():
            what = _NAMES[name.removeprefix("final_")]
            return rows.start + int(np.argmax(bad)), f"returned {what} that is NaN or infinite"
    return None
