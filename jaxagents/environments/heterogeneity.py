"""Actors that differ from each other, in one shape and one space. Does not import jax."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxagents.environments.spaces import ActionSpace, Box, Discrete, mask_size


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
