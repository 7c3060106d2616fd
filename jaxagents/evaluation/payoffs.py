"""Payoff matrices of rivals, and cross-play of partners who never met.

Every player of some actors plays with every player of the others.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxagents.compiler.random_keys import as_key
from jaxagents.environments.factory import batch_of
from jaxagents.environments.sides.batch import SideBatch
from jaxagents.environments.sides.opponents import Opponent, Seats, as_actions
from jaxagents.environments.sides.side import Side, as_opponents
from jaxagents.environments.time_limits import time_limit_of
from jaxagents.evaluation.bootstrap import percentile_interval, resampled_means
from jaxagents.evaluation.comparison import Interval
from jaxagents.evaluation.episodes import play_episodes
from jaxagents.types import Observation, PyTree


class Payoffs(NamedTuple):
    """The outcomes of all games.

    Attributes:
        rows: Names of the players of the first side.
        columns: Names of the players of the other side.
        returns: For every episode, the mean return of the row's side and of the column's.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    returns: Float[np.ndarray, "rows columns episodes sides"]

    @property
    def mean(self) -> Float[np.ndarray, "rows columns"]:
        """The rows' mean return."""
        return self.returns[..., 0].mean(axis=-1)

    @property
    def win_rate(self) -> Float[np.ndarray, "rows columns"]:
        """How often the row's return exceeds the column's; equal returns count half."""
        return self.results.mean(axis=-1)

    @property
    def results(self) -> Float[np.ndarray, "rows columns episodes"]:
        """1 where the row won an episode, 0 where it lost, 1/2 for equal returns."""
        return (1 + np.sign(self.returns[..., 0] - self.returns[..., 1])) / 2


def payoffs(
    side: Side,
    env_params: PyTree,
    rows: Opponent | Callable[..., Any] | Sequence[Opponent | Callable[..., Any]],
    columns: Opponent | Callable[..., Any] | Sequence[Opponent | Callable[..., Any]],
    rng: PRNGKeyArray,
    n_episodes: int = 100,
    max_episode_steps: int | None = None,
) -> Payoffs:
    """Let every player of a side play against every player of the others.

    Args:
        side: The rows play its actors; its own opponents are ignored.
        env_params: The environment's parameters.
        rows: Players of the side's actors, as for `Side`; all members of each.
        columns: Players of all other actors.
        rng: Random key; every pair plays with the same.
        n_episodes: Number of episodes per pair.
        max_episode_steps: Truncate episodes at this length.

    Raises:
        ValueError: ``n_episodes`` is below 1, or a player cannot play these actors.
    """
    if n_episodes < 1:
        raise ValueError(f"n_episodes={n_episodes}; play at least 1.")
    table = _Table(side, env_params, max_episode_steps)
    mine, theirs = as_opponents(rows), as_opponents(columns)
    for players, seats in ((mine, table.rows), (theirs, table.columns)):
        for player in players:
            player.check(seats)
    returns = [
        np.concatenate([table.play(row, i, column, as_key(rng), n_episodes) for column in theirs])
        for row in mine
        for i in range(len(row.names))
    ]
    return Payoffs(
        rows=tuple(name for player in mine for name in player.names),
        columns=tuple(name for player in theirs for name in player.names),
        returns=np.stack(returns),
    )


class _Table:
    """The environments of the games."""

    def __init__(self, side: Side, env_params: PyTree, max_episode_steps: int | None):
        env, n_actors = side.env, side.env.n_actors
        limit = time_limit_of(env, env_params, max_episode_steps, None, observe_time=False)
        sided = batch_of(
            Side(env, side.actors),
            env_params,
            max_episode_steps=max_episode_steps,
            time_limit=limit,
        )
        assert isinstance(sided, SideBatch)
        self.environments = sided.whole
        self._programs: dict[tuple[Opponent, Opponent], Callable[..., Array]] = {}
        self.rows = Seats(side.actors, n_actors, sided.space)
        self.columns = Seats(side.others, n_actors, sided.space)

    def play(
        self, row: Opponent, member: int, column: Opponent, rng: PRNGKeyArray, n_episodes: int
    ) -> Float[np.ndarray, "columns episodes sides"]:
        """Play one member against all of another player."""
        if (row, column) not in self._programs:
            program = jax.jit(partial(self._play, row, column, n_episodes=n_episodes))
            self._programs[row, column] = program
        play = self._programs[row, column]
        params = row.params(), column.params()
        with self.environments.raising_faults():
            games = [play(params, jnp.array([member, i]), rng) for i in range(len(column.names))]
        return np.stack([np.asarray(game) for game in games])

    def _play(
        self,
        row: Opponent,
        column: Opponent,
        params: tuple[PyTree, PyTree],
        members: Int[Array, "2"],
        rng: PRNGKeyArray,
        n_episodes: int,
    ) -> Float[Array, "episodes sides"]:
        sides = ((row, self.rows), (column, self.columns))
        order = np.argsort([*self.rows.actors, *self.columns.actors])

        def act(
            rng: PRNGKeyArray, observation: Observation, memory: tuple[PyTree, ...]
        ) -> tuple[Array, tuple[PyTree, ...]]:
            actions, memories = [], []
            for i, (player, seats) in enumerate(sides):
                member = jnp.full(len(observation.features), members[i])
                action, new = player.act(
                    seats, params[i], member, jax.random.fold_in(rng, i), observation, memory[i]
                )
                actions.append(as_actions(action, self.environments.space))
                memories.append(new)
            return jnp.concatenate(actions, axis=1)[:, order], tuple(memories)

        def reset(memory: tuple[PyTree, ...], begins: Array) -> tuple[PyTree, ...]:
            return tuple(
                player.begin_lives(seats, each, begins)
                for (player, seats), each in zip(sides, memory, strict=True)
            )

        def begin(n_envs: int) -> tuple[PyTree, ...]:
            return tuple(player.initial_memory(seats, n_envs) for player, seats in sides)

        episodes = play_episodes(self.environments, act, begin, rng, n_episodes, reset_memory=reset)
        returns = episodes.returns
        return jnp.stack(
            [returns[:, np.asarray(seats.actors)].mean(axis=1) for _, seats in sides], axis=1
        )


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
        """How much more players earn with themselves than with others, through mere convention."""
        return self.self_play - self.cross_play

    @property
    def gap_interval(self) -> Interval:
        """The 95 % bootstrap interval of the gap, over players."""
        gaps = self.mean.diagonal() - self._with_others()
        return Interval(*percentile_interval(resampled_means(gaps)).tolist())

    def _with_others(self) -> Float[np.ndarray, "players"]:
        """Return each player's mean with the others, in either part."""
        mean, n_players = self.mean, len(self.names)
        total = mean.sum(axis=0) + mean.sum(axis=1) - 2 * mean.diagonal()
        return total / (2 * (n_players - 1))


def cross_play(
    env: Any,
    env_params: PyTree,
    players: Opponent | Sequence[Opponent],
    rng: PRNGKeyArray,
    n_episodes: int = 100,
    parts: Sequence[Sequence[int]] | None = None,
    max_episode_steps: int | None = None,
) -> CrossPlay:
    """Let every player play with every other, as partners (Hu et al. 2020, arXiv 2003.02979).

    Args:
        env: The environment, whose actors cooperate.
        env_params: Its parameters.
        players: Their members are the players, whose names are unique; each plays any of the
            actors.
        rng: Random key; every pair plays with the same.
        n_episodes: Number of episodes per pair and part.
        parts: The actors that the row plays, once for each part; None: each actor alone.
        max_episode_steps: Truncate episodes at this length.

    Raises:
        ValueError: there are fewer than two players or actors; or as `payoffs`.
    """
    players = [players] if isinstance(players, Opponent) else list(players)
    names = tuple(name for each in players for name in each.names)
    if len(names) < 2:
        raise ValueError(f"{len(names)} player(s) have no others to play with; give 2.")
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
    return CrossPlay(names, np.concatenate(returns, axis=-1))
