"""What actors observe of Jumanji's environments, whose observations are classes of their own."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

# The mask and the time have places of their own; positions are the library's "for debug".
_NOT_OBSERVED = ("action_mask", "step_count", "step", "positions")
_NO_GRIDS = ("GraphColoring", "JobShop")  # whose matrices are no pictures
_MOST_CATEGORIES = 64
_SMALLEST_IMAGE = 4  # cells in each direction
_FRIGHTENED = 30  # steps that a power-up of PacMan lasts


class Field(NamedTuple):
    """An array of the library's observations."""

    path: tuple[str, ...]  # attributes that lead to it
    has_actors: bool  # its first axis
    lowest: int = 0  # of its categories
    n_categories: int = 0  # 0: it holds numbers

    def read(self, observation: Any, n_actors: int) -> Array:
        """Return ``[actors, *shape]``, or ``[actors, *shape, categories]``."""
        value = jnp.asarray(functools.reduce(getattr, self.path, observation))
        if not self.has_actors:
            value = jnp.broadcast_to(value, (n_actors, *value.shape))
        if not self.n_categories:
            return value.astype(jnp.float32)
        return jax.nn.one_hot(value.astype(jnp.int32) - self.lowest, self.n_categories)


def observed_fields(spec: Any, n_actors: int | None, path: tuple[str, ...] = ()) -> Iterator[Field]:
    """List the arrays that actors observe.

    Integers of a known range are categories if they are single or form a grid; a vector of integers
    may hold places and amounts.

    Args:
        spec: The library's description of its observations.
        n_actors: Number of actors; None: arrays have no axis of actors.
        path: Attributes that lead to the description.
    """
    for name, own in spec._specs.items():
        if name in _NOT_OBSERVED:
            continue
        if getattr(own, "_specs", None):
            yield from observed_fields(own, n_actors, (*path, name))
            continue
        has_actors = bool(own.shape) and own.shape[0] == n_actors
        field = Field((*path, name), has_actors)
        is_vector = len(own.shape) - has_actors == 1
        if hasattr(own, "minimum") and np.issubdtype(own.dtype, np.integer) and not is_vector:
            lowest, highest = int(np.min(own.minimum)), int(np.max(own.maximum))
            if 2 <= highest - lowest < _MOST_CATEGORIES:
                field = field._replace(lowest=lowest, n_categories=highest - lowest + 1)
        yield field


def features_of(name: str, fields: Sequence[Field], observation: Any, n_actors: int) -> Array:
    """Return the features ``[actors, *obs]``.

    Grids become images, with the kinds of cells as channels. Everything that fits no image becomes
    one vector.
    """
    if name in _OWN:
        return _OWN[name](observation, n_actors)
    arrays = [field.read(observation, n_actors) for field in fields]
    if name not in _NO_GRIDS and _is_image(arrays):
        return _as_image(arrays)
    return jnp.concatenate([each.reshape(n_actors, -1) for each in arrays], axis=-1)


def _is_image(fields: list[Array]) -> bool:
    """True if all grids have the same size; other arrays belong to all cells alike."""
    sizes = {each.shape[1:3] for each in fields if each.ndim >= 3}
    return len(sizes) == 1 and min(next(iter(sizes))) >= _SMALLEST_IMAGE


def _as_image(fields: list[Array]) -> Array:
    height, width = next(each.shape[1:3] for each in fields if each.ndim >= 3)
    planes = []
    for each in fields:
        if each.ndim < 3:
            each = each.reshape(len(each), 1, 1, -1)
        shape = (each.shape[0], height, width)
        planes.append(jnp.broadcast_to(each.reshape(*each.shape[:3], -1), (*shape, _size(each))))
    return jnp.concatenate(planes, axis=-1)


def _size(field: Array) -> int:
    return int(np.prod(field.shape[3:]))


def _marked(shape: tuple[int, ...], rows: Array, columns: Array) -> Array:
    """Return a grid that counts how often each cell is named."""
    return jnp.zeros(shape, jnp.float32).at[rows, columns].add(1.0)


def _connector(observation: Any, n_actors: int) -> Array:
    """Show path, head and target: the actor's own, and those of all others."""
    grid = observation.grid
    kind = jax.nn.one_hot(jnp.where(grid > 0, (grid - 1) % 3, -1), 3)
    is_own = ((grid - 1) // 3 == jnp.arange(n_actors)[:, None, None])[..., None]
    return jnp.concatenate([kind * is_own, kind * ~is_own], axis=-1)


def _cleaner(observation: Any, n_actors: int) -> Array:
    """Show dirt, walls, the actor itself and all actors."""
    grid, places = observation.grid, observation.agents_locations
    all_actors = _marked(grid.shape, *places.T)
    itself = jax.vmap(lambda place: _marked(grid.shape, *place))(places)
    planes = [jnp.broadcast_to(each, itself.shape) for each in (grid == 0, grid == 2, all_actors)]
    return jnp.stack([itself, *planes], axis=-1).astype(jnp.float32)


def _maze(observation: Any, n_actors: int) -> Array:
    """Show walls, the actor and its target."""
    places = (observation.agent_position, observation.target_position)
    shape = observation.walls.shape
    planes = [observation.walls, *(_marked(shape, each.row, each.col) for each in places)]
    return jnp.stack(planes, axis=-1).astype(jnp.float32)[jnp.newaxis]


def _pacman(observation: Any, n_actors: int) -> Array:
    """Show walls, player, ghosts, pellets, power-ups and how long ghosts are frightened."""
    shape = observation.grid.shape
    player = observation.player_locations
    lists = (
        observation.ghost_locations,
        observation.pellet_locations,
        observation.power_up_locations,
    )
    # Ghosts and pellets are named as (column, row); those that are eaten as the corner.
    planes = [_marked(shape, each[:, 1], each[:, 0]).at[0, 0].set(0) for each in lists]
    # The library continues to count below 0.
    frightened = jnp.full(shape, jnp.maximum(observation.frightened_state_time, 0) / _FRIGHTENED)
    planes = [observation.grid, _marked(shape, player.x, player.y), *planes, frightened]
    return jnp.stack(planes, axis=-1).astype(jnp.float32)[jnp.newaxis]


def _mmst(observation: Any, n_actors: int) -> Array:
    """Show each node's owner, counted from the actor, the actors' positions, and the edges."""
    types, n_nodes = observation.node_types, observation.node_types.shape[0]

    def of_actor(actor: Array) -> Array:
        own_first = jnp.where(types < 0, -1, (types - 2 * actor) % (2 * n_actors))
        places = jax.nn.one_hot(jnp.roll(observation.positions, -actor), n_nodes)
        kinds = jax.nn.one_hot(own_first, 2 * n_actors)
        return jnp.concatenate([kinds.ravel(), places.ravel(), observation.adj_matrix.ravel()])

    return jax.vmap(of_actor)(jnp.arange(n_actors))


def _game_2048(observation: Any, n_actors: int) -> Array:
    """Show each tile's exponent one-hot."""
    board = observation.board
    return jax.nn.one_hot(board, board.size + 2)[jnp.newaxis]


_OWN: dict[str, Callable[[Any, int], Array]] = {
    "Cleaner": _cleaner,
    "Connector": _connector,
    "Game2048": _game_2048,
    "MMST": _mmst,
    "Maze": _maze,
    "PacMan": _pacman,
}
