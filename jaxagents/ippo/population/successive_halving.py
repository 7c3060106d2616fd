"""Successive halving: members with the lowest returns so far end early.

Source: Jamieson and Talwalkar 2016, https://arxiv.org/abs/1502.07943.
"""

from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np

from jaxagents.ippo.population.selection import ENDED, Decision, Generation


@final
@dataclass(frozen=True)
class SuccessiveHalving:
    """Ends all but the best ``1 / factor`` of a population, several times.

    With ``n_blocks`` blocks of updates, this last happens after ``n_blocks / factor`` of them,
    before that after ``n_blocks / factor**2``, and so on. The best have the highest mean return
    over all evaluations so far.

    Args:
        n_blocks: Blocks of updates of a member that trains to the end, one per evaluation.
        factor: By which the number of members falls each time.
        group_size: Members that end together, as seeds of the same hyperparameters: the first
            ``group_size``, the next, .... Their mean counts.

    Raises:
        ValueError: a value is out of range.
    """

    n_blocks: int
    factor: int = 3
    group_size: int = 1

    def __post_init__(self) -> None:
        for name, least in (("n_blocks", 1), ("factor", 2), ("group_size", 1)):
            value = getattr(self, name)
            if value < least:
                raise ValueError(f"{name}={value} is too small; give at least {least}.")

    @property
    def varied(self) -> tuple[str, ...]:
        """Dotted names of the hyperparameters that it changes: none."""
        return ()

    @property
    def settings(self) -> dict[str, Any]:
        """The rule's parameters, as plain data."""
        return {"rule": type(self).__name__, **asdict(self)}

    def rungs(self, n_groups: int) -> dict[int, int]:
        """Return how many groups continue after which blocks."""
        rungs, block, n_left = {}, self.n_blocks, n_groups
        blocks = []
        while (block := block // self.factor) >= 1:
            blocks.append(block)
        for block in reversed(blocks):
            n_left = max(1, n_left // self.factor)
            rungs[block] = n_left
        return rungs

    def check(self, n_members: int) -> None:
        """Raise ValueError if members do not divide into groups."""
        if n_members % self.group_size:
            raise ValueError(
                f"{n_members} members do not divide into groups of group_size={self.group_size}."
            )

    def select(self, generation: Generation) -> Decision | None:
        """End the groups that are not among the best, if a rung is reached."""
        n_members = generation.returns.shape[1]
        n_groups = n_members // self.group_size
        n_kept = self.rungs(n_groups).get(generation.n_blocks_done)
        if n_kept is None:
            return None
        of_members = generation.returns.mean(axis=0).reshape(n_groups, self.group_size)
        so_far = of_members.mean(axis=1)
        score = np.where(np.isfinite(so_far), so_far, -np.inf)
        # Of groups that have diverged, the ones with members that still train come first.
        n_training = np.isfinite(generation.returns[-1]).reshape(of_members.shape).sum(axis=1)
        best_first = np.lexsort((-n_training, -score))
        groups = np.full((n_groups, self.group_size), ENDED)
        kept = best_first[:n_kept]
        groups[kept] = np.arange(n_members).reshape(groups.shape)[kept]
        return Decision(groups.reshape(-1), {})
