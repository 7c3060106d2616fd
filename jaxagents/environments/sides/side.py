"""Some actors of an environment, as an agent learns to play them."""

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

from jaxagents.config import check_integer
from jaxagents.environments.sides.opponents import Opponent, Scripted
from jaxagents.types import PyTree


class PastSelves(NamedTuple):
    """Past versions of the learner as its opponents, as in fictitious self-play.

    Both sides must have the same number of actors, of the same kind. Where a newer past self
    replaces an older one, running episodes continue against the newer one. Rollouts by hand add no
    past selves.
    """

    every: int  # updates between additions; the untrained policy is the first
    n_members: int = 8  # at most; then the newest replaces the oldest


@final
class Side:
    """Some actors of an environment; opponents play the others.

    An agent of a side plays only the side's actors. In each episode, one member of the pool of
    opponents plays all other actors.

    Args:
        env: The environment, with all actors.
        actors: Those that the agent plays.
        opponents: Players of the other actors: `Opponent` objects, such as `FrozenPolicies` and
            `RandomOpponent`, or functions (see `Scripted`). Evaluations are played against these
            alone, equally often, so that they stay comparable. None: agents that `train_together`
            trains on the other sides.
        past_selves: Also train against past versions of the agent.
        prioritized: Play more often against opponents that win more often; otherwise equally often.

    Raises:
        ValueError: ``actors`` are not some of the environment's, or no opponent plays evaluations.
        TypeError: an opponent is neither an `Opponent` nor a function, or a number is no integer.
    """

    def __init__(
        self,
        env: Any,
        actors: Sequence[int],
        opponents: Opponent | Sequence[Opponent | Callable[..., Any]] | None = None,
        past_selves: PastSelves | None = None,
        prioritized: bool = False,
    ):
        n_actors = env.n_actors
        try:
            self.actors = tuple(operator.index(actor) for actor in actors)
        except TypeError as error:
            message = f"actors={actors!r} is no list of whole numbers, such as [0]."
            raise TypeError(message) from error
        self.others = tuple(actor for actor in range(n_actors) if actor not in self.actors)
        if not self.actors or not self.others or not set(self.actors) < set(range(n_actors)):
            raise ValueError(
                f"actors={list(actors)} is no side of an environment with {n_actors} actors; name "
                f"some of 0 to {n_actors - 1}, but not all."
            )
        if len(set(self.actors)) < len(self.actors):
            raise ValueError(f"actors={list(actors)} names an actor twice.")
        if past_selves is not None:
            self._check(past_selves, opponents)
        self.env = env
        self.opponents = None if opponents is None else as_opponents(opponents)
        if self.opponents == ():
            raise ValueError("opponents is empty; name at least one, such as RandomOpponent().")
        self.past_selves = past_selves
        self.prioritized = prioritized
        self.n_actors = len(self.actors)
        teams = getattr(env, "teams", None)
        self.teams = None if teams is None else _renumbered([teams[i] for i in self.actors])
        self.time_limits = getattr(env, "time_limits", "bootstrap")

    def _check(self, past_selves: PastSelves, opponents: Any) -> None:
        if not isinstance(past_selves, PastSelves):
            raise TypeError(
                f"past_selves={past_selves!r} is no jaxagents.PastSelves, such as PastSelves(10)."
            )
        for name in PastSelves._fields:
            check_integer(f"past_selves.{name}", getattr(past_selves, name), minimum=1)
        if not opponents:
            raise ValueError(
                "past_selves needs opponents as well, against which evaluations are played; give "
                "at least one, such as RandomOpponent()."
            )
        if len(self.actors) != len(self.others):
            raise ValueError(
                f"past_selves cannot play {len(self.others)} actors, because the agent learns to "
                f"play {len(self.actors)}."
            )

    def action_space(self, params: PyTree) -> Any:
        """Return ONE actor's action space."""
        return self.env.action_space(params)

    def max_episode_steps(self, params: PyTree) -> int | None:
        """Return the time limit in steps, or None if it is unknown."""
        own: Any = getattr(self.env, "max_episode_steps", None)
        limit: Any = own(params) if callable(own) else own
        return limit


def as_opponents(
    given: Opponent | Callable[..., Any] | Sequence[Opponent | Callable[..., Any]],
) -> tuple[Opponent, ...]:
    """Read one or several opponents.

    Raises:
        TypeError: one is neither an `Opponent` nor a function.
    """
    several = given if isinstance(given, Sequence) else [given]
    return tuple(_as_opponent(each) for each in several)


def _as_opponent(given: Opponent | Callable[..., Any]) -> Opponent:
    if isinstance(given, Opponent):
        return given
    if callable(given) and not isinstance(given, type):
        return Scripted(given)
    raise TypeError(
        f"opponents holds {given!r}, which is neither an Opponent, such as FrozenPolicies, nor a "
        "function of a random key and an observation."
    )


def _renumbered(teams: Sequence[int]) -> list[int]:
    numbers = {team: i for i, team in enumerate(dict.fromkeys(teams))}
    return [numbers[team] for team in teams]
