"""Cross-play: how well trained agents cooperate with partners that they have never met.

Source: Hu et al. 2020, https://arxiv.org/abs/2003.02979.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, PRNGKeyArray

from jaxagents.environments.sides.opponents import Opponent
from jaxagents.environments.sides.side import Side
from jaxagents.evaluation.bootstrap import percentile_interval, resampled_counts
from jaxagents.evaluation.comparison import Interval
from jaxagents.evaluation.payoffs import payoffs
from jaxagents.types import PyTree


class CrossPlay(NamedTuple):
    """The outcomes of all pairs of players.

    Attributes:
        names: The players' names.
        returns: Mean return of every episode and all actors. Rows play some actors, and columns
            the others.
    """

    names: tuple[str, ...]
    returns: Float[np.ndarray, "players players episodes"]

    @property
    def mean(self) -> Float[np.ndarray, "players players"]:
        """The mean return of each pair."""
        return self.returns.mean(axis=-1)

    @property
    def self_play(self) -> float:
        """Mean return of players with themselves."""
        return float(self.mean.diagonal().mean())

    @property
    def cross_play(self) -> float:
        """Mean return of players with others."""
        return float(self._with_others().mean())

    @property
    def gap(self) -> float:
        """How much more players earn with themselves than with others, by mere convention."""
        return self.self_play - self.cross_play

    @property
    def gap_interval(self) -> Interval:
        """The 95 % bootstrap interval of the gap, over players."""
        gaps = self.mean.diagonal() - self._with_others()
        counts = np.concatenate(list(resampled_counts(len(gaps), np.random.default_rng(0))))
        low, high = percentile_interval(counts @ gaps / len(gaps))
        return Interval(float(low), float(high))

    def _with_others(self) -> Float[np.ndarray, "players"]:
        """Return each player's mean with the others, in either part."""
        mean, n_players = self.mean, len(self.names)
        total = mean.sum(axis=0) + mean.sum(axis=1) - 2 * mean.diagonal()
        return total / (2 * (n_players - 1))


def cross_play(
    env: Any,
    env_params: PyTree,
    players: Opponent,
    rng: PRNGKeyArray,
    n_episodes: int = 100,
    parts: Sequence[Sequence[int]] | None = None,
    max_episode_steps: int | None = None,
) -> CrossPlay:
    """Let every player play with every other, as partners.

    Args:
        env: The environment, whose actors cooperate.
        env_params: Its parameters.
        players: Their members are the players; each plays any of the actors.
        rng: Random key; every pair plays with the same.
        n_episodes: Number of episodes per pair and part.
        parts: The actors that the row plays, once for each part; None: each actor alone.
        max_episode_steps: Truncate episodes at this length.

    Raises:
        ValueError: there are fewer than two players or actors; or as `payoffs`.
    """
    if len(players.names) < 2:
        raise ValueError(f"{len(players.names)} player(s) have no others to play with; give 2.")
    if env.n_actors < 2:
        raise ValueError("an environment of one actor has no partners.")
    if parts is None:
        # With two actors, either part has all pairs.
        parts = [[actor] for actor in range(env.n_actors if env.n_actors > 2 else 1)]
    returns = []
    for part in parts:
        side = Side(env, part)
        table = payoffs(side, env_params, players, players, rng, n_episodes, max_episode_steps)
        n_actors = np.array([len(side.actors), len(side.others)])
        returns.append((table.returns * n_actors).sum(axis=-1) / n_actors.sum())
    return CrossPlay(tuple(players.names), np.concatenate(returns, axis=-1))
