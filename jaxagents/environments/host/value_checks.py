"""Whether what environments returned is finite. Numpy only."""

import functools
from collections.abc import Mapping

import numpy as np

from jaxagents.environments.host.errors import WrongValueError

_NAMES = {"features": "an observation", "reward": "a reward", "global_state": "a state"}


def check_dtype(values: np.ndarray, dtype: np.dtype, what: str, wanted: str) -> None:
    """Check that a dtype holds numbers, to the precision of float32.

    Args:
        values: The numbers.
        dtype: The dtype.
        what: What they are, for the error.
        wanted: Whose dtype it is, for the error.

    Raises:
        WrongValueError: the numbers are of another kind, or an integer is out of range.
    """
    if values.dtype is dtype:
        return
    can_become, can_wrap = _conversion(values.dtype, dtype)
    if not can_become:
        raise WrongValueError(f"returned {what} of {values.dtype}{wanted} {dtype}")
    if can_wrap:
        wrong = values.astype(dtype) != values
        if wrong.any():
            raise WrongValueError(
                f"returned {what} that holds {values[wrong][0]}{wanted} {dtype}, which cannot "
                "hold it"
            )


@functools.cache
def _conversion(given: np.dtype, wanted: np.dtype) -> tuple[bool, bool]:
    """Return whether one dtype can become the other, and whether integers can wrap then."""
    can_wrap = wanted.kind in "iu" and not np.can_cast(given, wanted)
    return np.can_cast(given, wanted, "same_kind"), can_wrap


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
