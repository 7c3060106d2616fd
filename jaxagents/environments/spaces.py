"""Action spaces, and the conversion of other libraries' spaces."""

from typing import Any, NamedTuple

import numpy as np


class Discrete(NamedTuple):
    """One of ``n`` actions."""

    n: int


class Box(NamedTuple):
    """Real vectors of ``shape`` between ``low`` and ``high`` (scalars or arrays)."""

    low: Any
    high: Any
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of dimensions."""
        return int(np.prod(self.shape))


def as_space(space: Any) -> Discrete | Box:
    """Convert an action space of gymnax, JaxMARL, Gymnasium or this package.

    Raises:
        TypeError: the space is neither Discrete nor Box.
    """
    # Gymnasium's MultiBinary also has an n, and its Discrete may start at another number than 0.
    if hasattr(space, "n") and not getattr(space, "shape", ()) and not getattr(space, "start", 0):
        return Discrete(int(space.n))
    if hasattr(space, "low") and hasattr(space, "high"):
        shape = tuple(int(size) for size in space.shape)
        low, high = (
            np.broadcast_to(np.asarray(bound, np.float32), shape)
            for bound in (space.low, space.high)
        )
        return Box(low, high, shape)
    raise TypeError(
        f"action space {space!r} is neither Discrete (an attribute n, actions 0 to n - 1) nor Box "
        "(low, high, shape); only these two are supported."
    )
