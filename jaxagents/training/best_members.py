"""The best runner of each member of a population, kept in its checkpoints."""

from collections.abc import Mapping
from typing import Any, final

import numpy as np

from jaxagents.training.named_arrays import Leaves

_PREFIX = "best."


@final
class BestMembers:
    """Each member's runner at its evaluation with the highest mean return.

    Members are best at different times, so a population's checkpoint holds two runners of each: the
    current one, and the best one under names that begin with ``best.``.

    Args:
        n_members: Number of members.
        history: Metrics of earlier evaluations, ``[evaluations, members, ...]``.
        leaves: The best runners so far, ``[members, ...]`` by name.
    """

    def __init__(
        self,
        n_members: int,
        history: Mapping[str, Any] | None = None,
        leaves: Leaves | None = None,
    ):
        self._scores = np.full(n_members, -np.inf)
        self._leaves: Leaves = {name: leaf.copy() for name, leaf in (leaves or {}).items()}
        for returns in (history or {}).get("returns", ()):
            self._scores = np.fmax(self._scores, scores_of(returns))

    def joined(self, leaves: Leaves, returns: np.ndarray | None) -> Leaves:
        """Return the current runners together with the best ones.

        Args:
            leaves: The current runners, ``[members, ...]`` by name.
            returns: Their returns, ``[members, episodes, actors]``; None: they were not evaluated.
        """
        if returns is None:
            return leaves
        scores = scores_of(returns)
        is_better = scores >= self._scores
        self._scores = np.where(is_better, scores, self._scores)
        if not self._leaves:
            self._leaves = {name: leaf.copy() for name, leaf in leaves.items()}
        for name, leaf in leaves.items():
            self._leaves[name][is_better] = leaf[is_better]
        return {**leaves, **{_PREFIX + name: leaf.copy() for name, leaf in self._leaves.items()}}


def scores_of(returns: np.ndarray) -> np.ndarray:
    """Return the means over episodes and actors; NaN for members that have stopped.

    In double precision, so that rounding does not decide between equal returns in another order.

    Args:
        returns: ``[members, episodes, actors]``, or evaluations in place of members.
    """
    return returns.mean(axis=tuple(range(1, returns.ndim)), dtype=np.float64)


def current(leaves: Leaves) -> Leaves:
    """Return the current runners of a checkpoint."""
    return {name: leaf for name, leaf in leaves.items() if not name.startswith(_PREFIX)}


def best(leaves: Leaves) -> Leaves:
    """Return the best runners of a checkpoint; empty if there were no evaluations."""
    return {
        name.removeprefix(_PREFIX): leaf
        for name, leaf in leaves.items()
        if name.startswith(_PREFIX)
    }
