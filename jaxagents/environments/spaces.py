"""Action spaces: conversion of other libraries', and one space for actors that differ.

Does not import jax.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class Discrete(NamedTuple):
    """One of ``n`` actions."""

    n: int

    @property
    def n_choices(self) -> tuple[int, ...]:
        """The number of actions of each choice: there is one."""
        return (self.n,)

    def __str__(self) -> str:
        return f"Discrete({self.n})"


class MultiDiscrete(NamedTuple):
    """A vector of choices: component i is one of ``n_choices[i]`` actions."""

    n_choices: tuple[int, ...]

    @property
    def n(self) -> int:
        """The number of different vectors."""
        return int(np.prod(self.n_choices))

    def __str__(self) -> str:
        return f"MultiDiscrete({', '.join(map(str, self.n_choices))})"


class Box(NamedTuple):
    """Real vectors of ``shape`` between ``low`` and ``high`` (scalars or arrays).

    Agents act in float32: see `float32_bounds`.
    """

    low: Any
    high: Any
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of dimensions."""
        return int(np.prod(self.shape))

    def __str__(self) -> str:
        return f"Box{self.shape} from {_bound_text(self.low)} to {_bound_text(self.high)}"


ActionSpace = Discrete | MultiDiscrete | Box
"""One actor's action space."""


def action_shape(space: ActionSpace) -> tuple[int, ...]:
    """Return the shape of one actor's action."""
    if isinstance(space, Discrete):
        return ()
    return (len(space.n_choices),) if isinstance(space, MultiDiscrete) else space.shape


def action_dtype(space: ActionSpace) -> Any:
    """Return the dtype of actions."""
    return np.float32 if isinstance(space, Box) else np.int32


def whole_numbers(space: Any) -> np.dtype | None:
    """Return the dtype in which an environment with a Box of integers takes actions.

    None for all other spaces.
    """
    dtype = getattr(space, "dtype", None)
    is_box = hasattr(space, "low") and hasattr(space, "high")
    if not is_box or dtype is None or np.dtype(dtype).kind not in "iu":
        return None
    return np.dtype(dtype)


def mask_size(space: ActionSpace) -> int:
    """Return the length of one actor's action mask: an entry per action, or per dimension."""
    return space.size if isinstance(space, Box) else sum(space.n_choices)


def as_space(space: Any) -> ActionSpace:
    """Convert an action space of gymnax, JaxMARL, Gymnasium or this package.

    Raises:
        TypeError: the space is of a kind that agents cannot play.
        ValueError: the space holds no action.
    """
    converted = _converted(space)
    sizes = converted.shape if isinstance(converted, Box) else converted.n_choices
    if not all(size > 0 for size in sizes) or (not sizes and not isinstance(converted, Box)):
        raise ValueError(
            f"action space {_one_line(space)} has no action to choose; give it a size of at least "
            "1."
        )
    if isinstance(converted, Box) and not np.all(converted.low <= converted.high):
        raise ValueError(f"action space {_one_line(space)} has a low that is not at most its high.")
    return converted


def _converted(space: Any) -> ActionSpace:
    start = getattr(space, "start", 0)
    choices = getattr(space, "n_choices", None)
    for name in ("nvec", "num_categories"):  # of Gymnasium and JaxMARL
        choices = getattr(space, name, choices)
    if isinstance(space, Discrete):
        return space
    if choices is not None and np.ndim(choices) == 1 and not np.any(start):
        return MultiDiscrete(tuple(int(n) for n in choices))
    n, shape = getattr(space, "n", None), getattr(space, "shape", ())
    if n is not None and np.ndim(n) == 0:
        if type(space).__name__ == "MultiBinary":
            return MultiDiscrete((2,) * int(n))
        # Other libraries' Discrete spaces may start at a number other than 0.
        if not shape and not start:
            return Discrete(int(n))
    if hasattr(space, "low") and hasattr(space, "high"):
        if np.ndim(space.shape) != 1:
            raise TypeError(
                f"action space {_one_line(space)} has shape={space.shape!r}; give a tuple."
            )
        shape = tuple(int(size) for size in space.shape)
        return Box(*float32_bounds(space.low, space.high, shape), shape)
    raise TypeError(
        f"action space {_one_line(space)} is neither Discrete (an attribute n, actions 0 to n - 1) "
        "nor Box (low, high, shape) nor MultiDiscrete (n_choices, num_categories or nvec, a vector "
        "of numbers of actions); only these are supported. Wrap the environment in one that takes "
        "all choices as one vector."
    )


def float32_bounds(low: Any, high: Any, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and the highest float32 within bounds of any dtype.

    Every float32 between them is within the bounds as they were given. If there is none, both are
    the nearest float32.
    """
    given = [np.broadcast_to(np.asarray(bound), shape) for bound in (low, high)]
    with np.errstate(over="ignore"):  # numbers beyond float32 become infinite
        nearest = [bound.astype(np.float32) for bound in given]
    # Python's numbers are compared exactly: numpy would round integers of 64 bits.
    own_low, own_high, near_low, near_high = (each.astype(object) for each in (*given, *nearest))
    below, above = np.asarray(near_low < own_low, bool), np.asarray(near_high > own_high, bool)
    inf = np.float32(np.inf)
    inner_low = np.where(below, np.nextafter(nearest[0], inf), nearest[0])
    inner_high = np.where(above, np.nextafter(nearest[1], -inf), nearest[1])
    is_between = inner_low <= inner_high
    return (
        np.where(is_between, inner_low, nearest[0]),
        np.where(is_between, inner_high, nearest[1]),
    )


def _bound_text(bound: Any) -> str:
    values = np.unique(bound)
    if values.size == 1:
        return f"{values[0]:g}"
    return " ".join(np.array2string(np.asarray(bound), threshold=6).split())


def _one_line(space: Any) -> str:
    """Show a space; arrays of several axes would break the line."""
    return " ".join(repr(space).split())


def teams_by_name(names: Sequence[Any]) -> list[int]:
    """Number the teams of actors: names that differ only in a final number are in one team."""
    prefixes = [re.sub(r"_?\d+$", "", str(name)) for name in names]
    indices = {prefix: i for i, prefix in enumerate(dict.fromkeys(prefixes))}
    return [indices[prefix] for prefix in prefixes]


def common_space(owner: str, spaces: Sequence[ActionSpace]) -> ActionSpace:
    """Return the space of the actor with the most actions or dimensions.

    Args:
        owner: The environment, for the error.
        spaces: One per actor.

    Raises:
        ValueError: the largest space does not contain the others.
    """
    largest = max(spaces, key=mask_size)
    if isinstance(largest, Box):
        is_common = all(
            isinstance(space, Box)
            and _is_alike(space.low, largest.low)
            and _is_alike(space.high, largest.high)
            for space in spaces
        )
        if not is_common:
            raise ValueError(f"The actors of {owner} act within different bounds.")
    elif isinstance(largest, Discrete):
        if not all(isinstance(space, Discrete) for space in spaces):
            raise ValueError(f"The actors of {owner} act in spaces of different kinds.")
    elif any(space != largest for space in spaces):
        raise ValueError(f"The actors of {owner} have different choices; they must be equal.")
    return largest


def _is_alike(bound: np.ndarray, of_largest: np.ndarray) -> bool:
    """Compare bounds, up to the rounding of different dtypes to float32."""
    return bool(np.allclose(np.ravel(bound), np.ravel(of_largest)[: bound.size], 1e-6, 0.0))


def common_shape(owner: str, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape to which all observations can be padded.

    Args:
        owner: The environment, for the error.
        shapes: One per actor.

    Raises:
        ValueError: observations of different shapes are not all vectors.
    """
    largest = max(shapes)
    if len(set(shapes)) > 1 and any(len(shape) != 1 for shape in shapes):
        text = ", ".join(map(str, sorted(set(shapes))))
        raise ValueError(f"The actors of {owner} observe {text}; only vectors can be padded.")
    return largest
