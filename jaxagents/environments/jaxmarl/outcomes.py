"""What JaxMARL's episodes are judged by: infos of each family's steps, and its success."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxagents.environments.quiet_import import load
from jaxagents.environments.success import Success

_OVERCOOKED_V2 = "jaxmarl.environments.overcooked_v2.common"


class Step(NamedTuple):
    """One step of the library's environment, for the rules of a family."""

    previous_state: Any
    actions: Mapping[Any, Array]  # by the actors' names in the library
    state: Any
    reward: Any  # by the actors' names, or in their order


BATTLES_WON = Success("won", "battles won")
BATTLES_WON_BY_ALLIES = Success("won", "battles won by the allies")
ORDERS_DELIVERED = Success("delivered", "orders delivered", "count", "sum")
RIGHT_ORDERS_DELIVERED = ORDERS_DELIVERED._replace(others=("wrong_orders",))
POINTS = Success("score", "points", "count")
TOLD_RIGHT = Success("told_right", "told right", others=("told_wrong",))
OWN_COINS = Success("own_coins", "own coins of those collected")
COOPERATION = Success("cooperated", "cooperation", of_episode="mean")
GOALS_REACHED = Success(
    "reached_goal", "goals reached", of_episode="sum", others=("collided", "timed_out")
)


def smax_battle(state: Any) -> Any:
    """Return the state of the battle, without the state of a built-in enemy policy."""
    return getattr(state, "state", state)


def smax_sides(env: Any, state: Any) -> tuple[Array, Array]:
    """Return which allies and which enemies are alive."""
    alive = smax_battle(state).unit_alive
    return alive[: env.num_allies], alive[env.num_allies :]


def smax_infos(env: Any, step: Step) -> dict[str, Array]:
    """Return whether all enemies are dead, and an ally lives."""
    allies, enemies = smax_sides(env, step.state)
    return {"won": (jnp.any(allies) & ~jnp.any(enemies)).astype(jnp.float32)}


def overcooked_infos(env: Any, step: Step) -> dict[str, Array]:
    """Return the number of soups that this step delivered; each earns the same for all actors."""
    earned = load("jaxmarl.environments.overcooked.overcooked.DELIVERY_REWARD")
    return {"delivered": jnp.asarray(step.reward[env.agents[0]], jnp.float32) / earned}


def overcooked_v2_infos(env: Any, step: Step) -> dict[str, Float[Array, ""]]:
    """Return how many dishes of the recipe this step delivered, and of others.

    Rewards do not show it: a wrong dish costs as much as a right one earns, or nothing. An actor
    delivers if it interacts with a goal while holding a cooked dish.
    """
    things, tiles, moves = (
        load(f"{_OVERCOOKED_V2}.{name}")
        for name in ("DynamicObject", "StaticObject", "OvercookedActionsEnum")
    )
    before = step.previous_state
    actions = jnp.stack([step.actions[name] for name in env.agents])
    facing = jax.vmap(lambda agent: agent.get_fwd_pos())(before.agents)
    held = before.agents.inventory
    is_delivered = (
        (actions == moves.interact)
        & (before.grid[facing.y, facing.x, 0] == tiles.GOAL)
        & (held & things.COOKED != 0)
    )
    is_right = held == (before.recipe | things.PLATE | things.COOKED)
    return {
        "delivered": jnp.sum(is_delivered & is_right).astype(jnp.float32),
        "wrong_orders": jnp.sum(is_delivered & ~is_right).astype(jnp.float32),
    }


def hanabi_infos(env: Any, step: Step) -> dict[str, Float[Array, ""]]:
    """Return the library's score: cards on the fireworks, or 0 once all lives are lost."""
    del env
    return {"score": step.state.score.astype(jnp.float32)}


def riddle_told(env: Any, step: Step) -> Bool[Array, ""]:
    """Return whether the actor in the room has told that all have been there."""
    in_room = step.previous_state.agent_in_room
    actions = jnp.stack([step.actions[name] for name in env.agents])
    return actions[in_room] == env.game_actions["TELL"]


def riddle_infos(env: Any, step: Step) -> dict[str, Float[Array, ""]]:
    """Return whether an actor has told in this step, and was right or wrong."""
    told, is_right = riddle_told(env, step), jnp.all(step.state.has_been == 1)
    return {
        "told_right": (told & is_right).astype(jnp.float32),
        "told_wrong": (told & ~is_right).astype(jnp.float32),
    }


def coin_game_infos(env: Any, step: Step) -> dict[str, Float[Array, " actors"]]:
    """Return each actor's share of coins of its own colour among those that it has collected."""
    del env
    state = step.state
    own = jnp.stack([jnp.sum(each) for each in (state.red_coop, state.blue_coop)])
    others = jnp.stack([jnp.sum(each) for each in (state.red_defect, state.blue_defect)])
    return {"own_coins": own / (own + others)}  # NaN without any


def storm_infos(env: Any, step: Step) -> dict[str, Float[Array, " actors"]]:
    """Return whether the actors that interact hold mostly cooperation; NaN for all others.

    The library keeps no record of interactions. They freeze both actors, so the actors' counters of
    frozen steps rise; the counters fall in all other steps, and are negative after a reset.
    """
    before, after = (_frozen_steps(env, state) for state in (step.previous_state, step.state))
    interacts = (after > before) & (after > 0)
    cooperation, defection = jnp.moveaxis(_inventories(step.state), -1, 0)
    return {"cooperated": jnp.where(interacts, cooperation > defection, jnp.nan)}


def _frozen_steps(env: Any, state: Any) -> Int[Array, " actors"]:
    if hasattr(state, "agent_freezes"):  # InTheGrid
        return state.agent_freezes
    if hasattr(state, "agent_invs"):  # InTheMatrix, by pairs of actors
        return jnp.max(state.freeze, axis=-1)
    return jnp.broadcast_to(state.freeze, len(env.agents))


def _inventories(state: Any) -> Array:
    """Return how many coins of cooperation and defection each actor holds, ``[actors, 2]``."""
    for name in ("agent_inventories", "agent_invs"):
        if hasattr(state, name):
            return getattr(state, name)
    return jnp.stack([state.red_inventory, state.blue_inventory])


def jaxnav_finished(env: Any, state: Any) -> Bool[Array, " actors"]:
    """Return which robots have reached their goals or collided.

    Robots that evaporate keep only the mark that they are done.
    """
    finished = state.goal_reached | state.move_term
    return finished | state.done if env.evaporating else finished


def jaxnav_infos(env: Any, step: Step) -> dict[str, Float[Array, " actors"]]:
    """Return which robots end in this step, and how; each ends once.

    A robot that has reached its goal moves on until all have ended, and may collide: its first end
    counts. A robot that reaches its goal and collides in the same step counts as having reached it,
    as in the library.
    """
    runs = ~jaxnav_finished(env, step.previous_state)
    reached = runs & step.state.goal_reached
    collided = runs & step.state.move_term & ~reached
    timed_out = runs & ~reached & ~collided & (step.state.step >= env.max_steps)
    ends = {"reached_goal": reached, "collided": collided, "timed_out": timed_out}
    return {name: end.astype(jnp.float32) for name, end in ends.items()}
