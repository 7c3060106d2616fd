"""Opponents: they choose the actions of actors that do not learn."""

import abc
from collections.abc import Callable, Sequence
from typing import NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from jaxagents.environments.spaces import ActionSpace, Box, Discrete
from jaxagents.types import Observation, PyTree


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
            observation: Of all actors, ``[envs, actors, ...]``, as the environment returned it,
                with the steps since the reset.
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
        name: Shown in tables and pictures; None: the function's own.
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
        return jax.vmap(self._function)(rngs, of_actors(observation, seats.actors)), memory


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
        del params
        space, shape = seats.space, (len(member), len(seats.actors))
        if isinstance(space, Box):
            low, high = np.asarray(space.low), np.asarray(space.high)
            if not np.all(np.isfinite([low, high])):
                raise ValueError(
                    f"RandomOpponent draws between the bounds of actions, but here they are "
                    f"{space}; give another opponent."
                )
            drawn = jax.random.uniform(rng, (*shape, *space.shape), jnp.float32, low, high)
            return jnp.clip(drawn, low, high), memory  # which rounding may leave
        mask = of_actors(observation, seats.actors).action_mask
        ends = np.cumsum(space.n_choices)
        noise = jax.random.gumbel(rng, (*shape, int(ends[-1])))
        if mask is not None:
            noise = jnp.where(mask, noise, -jnp.inf)
        choices = [jnp.argmax(each, axis=-1) for each in jnp.split(noise, ends[:-1], axis=-1)]
        action = choices[0] if isinstance(space, Discrete) else jnp.stack(choices, axis=-1)
        return action.astype(jnp.int32), memory


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
