"""A pool of opponents: its members, the learner's results, and the draw of the next ones."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxagents.types import PyTree

_FORGET = 0.99  # share of earlier games that still counts after each game against a member
_LEAST = 0.02  # weight of a member that always loses, so that it is not forgotten


class Pool(NamedTuple):
    """The members of a pool, and the learner's games against them."""

    params: tuple[PyTree, ...]  # of each opponent's members, [members, ...]
    exists: Bool[Array, " members"]  # False: an empty place for a past self
    n_games: Float[Array, " members"]  # recent ones
    n_wins: Float[Array, " members"]  # the learner's; a draw is half a win
    n_remembered: Int[Array, ""]  # past selves so far


def new_pool(params: tuple[PyTree, ...], n_members: int) -> Pool:
    """Return a pool before the first game."""
    none = jnp.zeros(n_members)
    return Pool(params, jnp.ones(n_members, bool), none, none, jnp.zeros((), jnp.int32))


def with_places(pool: Pool, params: PyTree, n_places: int) -> Pool:
    """Add empty places for past selves with such parameters."""
    none = jnp.zeros(n_places)
    places = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (n_places, *leaf.shape)), params)
    return pool._replace(
        params=(*pool.params, places),
        exists=jnp.concatenate([pool.exists, none.astype(bool)]),
        n_games=jnp.concatenate([pool.n_games, none]),
        n_wins=jnp.concatenate([pool.n_wins, none]),
    )


def win_rate(pool: Pool) -> Float[Array, " members"]:
    """Estimate the probability that the learner wins; 1/2 before the first game."""
    return (pool.n_wins + 1) / (pool.n_games + 2)


def draw_members(
    rng: PRNGKeyArray, pool: Pool, n_envs: int, prioritized: bool
) -> Int[Array, " envs"]:
    """Draw the members that play the next episodes: uniformly, or by how often they win.

    Prioritised weights are the square of the probability that the learner does not win.

    Source: Vinyals et al. 2019, https://doi.org/10.1038/s41586-019-1724-z, "prioritized fictitious
    self-play".
    """
    if not len(pool.exists):  # agents of other sides play
        return jnp.zeros(n_envs, jnp.int32)
    weight = (1 - win_rate(pool)) ** 2 + _LEAST if prioritized else jnp.ones_like(pool.n_games)
    logits = jnp.where(pool.exists, jnp.log(weight), -jnp.inf)
    return jax.random.categorical(rng, logits, shape=(n_envs,))


def with_results(
    pool: Pool,
    member: Int[Array, " envs"],
    is_over: Bool[Array, " envs"],
    margin: Float[Array, " envs"],
) -> Pool:
    """Count the episodes that are over.

    Args:
        pool: The pool.
        member: Index of the member that played in each environment.
        is_over: The episode has ended.
        margin: The learner's return minus the opponent's; above 0 the learner has won.
    """
    n_members = len(pool.exists)
    games = jnp.zeros(n_members).at[member].add(is_over)
    wins = jnp.zeros(n_members).at[member].add(is_over * (1 + jnp.sign(margin)) / 2)
    kept = _FORGET**games
    return pool._replace(n_games=kept * pool.n_games + games, n_wins=kept * pool.n_wins + wins)


def with_past_self(pool: Pool, params: PyTree, first: int, every: int, n_updates: Array) -> Pool:
    """Add the learner to the pool after every so many updates; the oldest past self makes room.

    Args:
        pool: The pool; the past selves are its last opponent.
        params: The learner's.
        first: Place of the first past self.
        every: Number of updates between additions.
        n_updates: Updates done so far.
    """
    selves = pool.params[-1]
    n_places = len(pool.exists) - first
    place = pool.n_remembered % n_places
    is_due = n_updates % every == 0

    def put(stacked: Array, new: Array, at: Array) -> Array:
        return jnp.where(is_due, stacked.at[at].set(new), stacked)

    return pool._replace(
        params=(*pool.params[:-1], jax.tree.map(lambda s, p: put(s, p, place), selves, params)),
        exists=put(pool.exists, jnp.array(True), first + place),
        n_games=put(pool.n_games, jnp.array(0.0), first + place),
        n_wins=put(pool.n_wins, jnp.array(0.0), first + place),
        n_remembered=pool.n_remembered + is_due,
    )
