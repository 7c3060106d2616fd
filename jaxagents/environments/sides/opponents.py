"""Opponents, which choose the actions of actors that do not learn, and pools of them."""

import abc
from collections.abc import Callable, Sequence
from typing import NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxagents.environments.spaces import ActionSpace, Box, Discrete, action_shape
from jaxagents.types import Observation, PyTree

_FORGET = 0.99  # share of earlier games that still counts after each game against a member
_LEAST = 0.02  # weight of a member that always loses, so that it is not forgotten


class Seats(NamedTuple):
    """The actors of an environment that an opponent plays."""

    actors: tuple[int, ...]
    n_actors: int  # in the environment
    space: ActionSpace  # one actor's


class Opponent(abc.ABC):
    """One or several players of the actors that do not learn.

    Several members share one `act` and differ in their parameters.

    Attributes:
        names: The members' names.
    """

    names: tuple[str, ...]

    def check(self, seats: Seats) -> None:
        """Raise ValueError if the members cannot play these actors."""
        del seats

    def params(self) -> PyTree:
        """Return the members' parameters, ``[members, ...]``."""
        return ()

    def initial_memory(self, seats: Seats, n_envs: int) -> PyTree:
        """Return the recurrent state at an episode's start, ``[envs, ...]``."""
        del seats, n_envs
        return ()

    def begin_lives(
        self, seats: Seats, memory: PyTree, begins: Bool[Array, "envs actors"]
    ) -> PyTree:
        """Reset the recurrent state of actors that come back within an episode.

        Args:
            seats: The actors to play.
            memory: The recurrent state.
            begins: True where a life begins, for all actors of the environment.
        """
        del seats, begins
        return memory

    @abc.abstractmethod
    def act(
        self,
        seats: Seats,
        params: PyTree,
        member: Int[Array, " envs"],
        rng: PRNGKeyArray,
        observation: Observation,
        memory: PyTree,
    ) -> tuple[Array, PyTree]:
        """Choose the actions of the seats' actors.

        Args:
            seats: The actors to play.
            params: As `params` returned them.
            member: Index of the member that plays in each environment.
            rng: Random key.
            observation: The observation of all actors, ``[envs, actors, ...]``, as the environment
                returned it, with the steps since the reset.
            memory: The recurrent state.

        Returns:
            Actions as the environment takes them, ``[envs, seats, ...]``; the next recurrent state.
        """


@final
class Scripted(Opponent):
    """A function of observations.

    Args:
        function: Maps a random key and the `Observation` of the actors that it plays in one
            environment, ``[seats, ...]``, to their actions, ``[seats, ...]``; traceable by jax.
        name: Name in tables and pictures; None: the function's own.
    """

    def __init__(
        self, function: Callable[[PRNGKeyArray, Observation], Array], name: str | None = None
    ):
        self._function = function
        self.names = (name or getattr(function, "__name__", type(function).__name__),)

    def act(
        self,
        seats: Seats,
        params: PyTree,
        member: Int[Array, " envs"],
        rng: PRNGKeyArray,
        observation: Observation,
        memory: PyTree,
    ) -> tuple[Array, PyTree]:
        """Call the function for each environment."""
        del params
        rngs = jax.random.split(rng, len(member))
        action = jax.vmap(self._function)(rngs, of_actors(observation, seats.actors))
        wanted = (len(seats.actors), *action_shape(seats.space))
        shape = getattr(action, "shape", (type(action).__name__,))[1:]
        if shape != wanted:
            raise ValueError(
                f"{self.names[0]} returns actions of shape {shape}; it must be {wanted}, an action "
                f"for each of the actors {list(seats.actors)}."
            )
        return action, memory


@final
class RandomOpponent(Opponent):
    """Chooses uniformly among the actions that the environment allows."""

    names = ("random",)

    def act(
        self,
        seats: Seats,
        params: PyTree,
        member: Int[Array, " envs"],
        rng: PRNGKeyArray,
        observation: Observation,
        memory: PyTree,
    ) -> tuple[Array, PyTree]:
        """Draw the actions."""
        del params, member
        if isinstance(space := seats.space, Box) and not np.isfinite([space.low, space.high]).all():
            raise ValueError(
                f"RandomOpponent draws between the bounds of actions, but here they are {space}; "
                "give another opponent."
            )
        return random_actions(rng, seats.space, of_actors(observation, seats.actors)), memory


def unique(names: Sequence[str]) -> list[str]:
    """Number repeated names: "late", "late (2)"."""
    seen: dict[str, int] = {}
    numbered = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        numbered.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return numbered


def of_actors(observation: Observation, actors: Sequence[int]) -> Observation:
    """Take some actors' part of an observation ``[*batch, actors, ...]``, after one batch axis."""
    index = np.asarray(actors)
    return observation._replace(
        features=observation.features[:, index],
        action_mask=(
            None if observation.action_mask is None else observation.action_mask[:, index]
        ),
        age=None if observation.age is None else observation.age[:, index],
        has_turn=None if observation.has_turn is None else observation.has_turn[:, index],
    )


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
    """Add empty places for past selves with parameters of these shapes."""
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
    """Add the learner to the pool every ``every`` updates, for the oldest past self if it is full.

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


def as_actions(action: Array, space: ActionSpace) -> Array:
    """Return what a player does as actions of the environment: within a Box's bounds, or integers.

    Args:
        action: What the player returned, ``[envs, actors, ...]``.
        space: The space of an actor's actions.
    """
    if isinstance(space, Box):
        return jnp.clip(action.astype(jnp.float32), space.low, space.high)
    return action.astype(jnp.int32)


def random_actions(rng: PRNGKeyArray, space: ActionSpace, observation: Observation) -> Array:
    """Draw each actor's action ``[envs, actors, ...]`` uniformly among those available.

    Dimensions of a `Box` without a lower or upper bound are drawn from the standard normal
    distribution, and clipped to any bound they have.

    Args:
        rng: Random key.
        space: One actor's action space.
        observation: ``[envs, actors, ...]``; its mask says which actions are available.
    """
    batch = observation.features.shape[:2]
    if isinstance(space, Box):
        shape = (*batch, *space.shape)
        rng_uniform, rng_normal = jax.random.split(rng)
        low, high = (jnp.broadcast_to(jnp.asarray(x), space.shape) for x in (space.low, space.high))
        is_bounded = jnp.isfinite(low) & jnp.isfinite(high)
        share = jax.random.uniform(rng_uniform, shape)
        between = jnp.where(is_bounded, low, 0.0), jnp.where(is_bounded, high, 0.0)
        uniform = between[0] * (1 - share) + between[1] * share
        normal = jax.random.normal(rng_normal, shape)
        return jnp.clip(jnp.where(is_bounded, uniform, normal), low, high)
    noise = jax.random.uniform(rng, (*batch, sum(space.n_choices)))
    if observation.action_mask is not None:
        noise = jnp.where(observation.action_mask, noise, -1.0)
    ends = np.cumsum(space.n_choices)[:-1]
    choices = [
        jnp.argmax(part, axis=-1).astype(jnp.int32) for part in jnp.split(noise, ends, axis=-1)
    ]
    return choices[0] if isinstance(space, Discrete) else jnp.stack(choices, axis=-1)
