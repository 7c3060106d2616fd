"""Games between a side and its opponents: won, drawn or lost."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxagents.environments.sides.side import Side
from jaxagents.environments.success import Success

GAMES_WON = Success("games_won", "games won", others=("games_drawn", "games_lost"))


def success_of_side(side: Side, success: Success | None) -> Success | None:
    """Return the environment's own success, or that of games if the sides are rivals.

    Sides are rivals unless the environment says that actors of both are in one team.
    """
    teams = getattr(side.env, "teams", None)
    if success is not None or teams is None:
        return success or GAMES_WON
    mine, theirs = ({teams[i] for i in actors} for actors in (side.actors, side.others))
    return GAMES_WON if mine.isdisjoint(theirs) else None


def results_of_games(margin: Float[Array, " envs"]) -> dict[str, Float[Array, " envs"]]:
    """Return which games are won, drawn and lost, as infos.

    Args:
        margin: The side's mean return minus the opponents'.
    """
    names = GAMES_WON.infos
    return {
        name: (jnp.sign(margin) == sign).astype(jnp.float32)
        for name, sign in zip(names, (1, 0, -1), strict=True)
    }
