"""The parts of an observation that describe entities: other actors, landmarks, items."""

import operator
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int


@dataclass(frozen=True)
class EntityKind:
    """The entities of one kind in each actor's observation.

    Attributes:
        count: Number of entities.
        parts: Where their features are. Each part ``(start, width)`` holds ``width`` features of
            each entity, one entity after the other.
        absent: The features of an entity that is absent or not seen; empty: zeros.
        first_action: The action directed at the first entity, followed by those at the others. If
            several things can be done to an entity, a tuple of the first action of each; a policy's
            parameters are named by its order. None: no actions are directed at them.
    """

    count: int
    parts: tuple[tuple[int, int], ...]
    absent: tuple[float, ...] = ()
    first_action: int | tuple[int, ...] | None = None

    @property
    def first_actions(self) -> tuple[int, ...]:
        """The first action of each thing that can be done to an entity."""
        if self.first_action is None:
            return ()
        return self.first_action if isinstance(self.first_action, tuple) else (self.first_action,)

    @property
    def width(self) -> int:
        """Features of each entity."""
        return sum(width for _, width in self.parts)

    @property
    def positions(self) -> Int[np.ndarray, "entities features"]:
        """Positions of the entities' features in an observation."""
        blocks = [
            start + np.arange(self.count * width).reshape(self.count, width)
            for start, width in self.parts
        ]
        return np.concatenate(blocks, axis=1)


@dataclass(frozen=True)
class Entities:
    """The entities in observations that are vectors; all other features are the actor's own.

    Attributes:
        observation_size: Features of an observation.
        kinds: By name, in the order in which networks take them.
    """

    observation_size: int
    kinds: tuple[tuple[str, EntityKind], ...]

    @classmethod
    def of(
        cls, kinds: Mapping[str, EntityKind], observation_size: int, n_actions: int = 0
    ) -> "Entities":
        """Check an environment's kinds of entities.

        Args:
            kinds: By name.
            observation_size: Features of an observation.
            n_actions: Number of discrete actions; 0: actions are not discrete.

        Raises:
            ValueError: there are none; parts lie outside of the observation, or overlap; or
                actions that should be directed at entities do not exist, or are directed twice.
        """
        kinds = {name: kind for name, kind in kinds.items() if kind.count}
        taken, directed = np.zeros(observation_size, int), np.zeros(n_actions, int)
        for name, kind in kinds.items():
            positions = kind.positions.ravel()
            if positions.min() < 0 or positions.max() >= observation_size:
                raise ValueError(
                    f"the entities {name!r} are features {positions.min()} to {positions.max()}, "
                    f"but an observation has {observation_size} features; correct their parts "
                    f"{kind.parts}."
                )
            if len(kind.absent) not in (0, kind.width):
                raise ValueError(
                    f"the entities {name!r} have {kind.width} features, but absent={kind.absent} "
                    f"has {len(kind.absent)}; give one value for each."
                )
            for first_action in _checked_actions(name, kind):
                if not 0 <= first_action <= n_actions - kind.count:
                    raise ValueError(
                        f"{kind.count} actions from {first_action} on should be directed at the "
                        f"entities {name!r}, but there are {n_actions} discrete actions; correct "
                        "their first_action."
                    )
                directed[first_action : first_action + kind.count] += 1
            taken[positions] += 1
        if not kinds:
            raise ValueError("the environment names no entities; name at least one.")
        if (twice := np.flatnonzero(taken > 1)).size:
            raise ValueError(
                f"feature {twice[0]} of an observation belongs to two entities; correct the parts "
                f"of {', '.join(map(repr, kinds))}."
            )
        if (twice := np.flatnonzero(directed > 1)).size:
            names = [name for name, kind in kinds.items() if kind.first_actions]
            raise ValueError(
                f"action {twice[0]} is directed at entities twice; correct the first_action of "
                f"{', '.join(map(repr, names))}."
            )
        return cls(observation_size, tuple(kinds.items()))

    @property
    def own(self) -> Int[np.ndarray, " features"]:
        """Positions of the actor's own features."""
        of_entities = [kind.positions.ravel() for _, kind in self.kinds]
        return np.setdiff1d(np.arange(self.observation_size), np.concatenate(of_entities))

    @property
    def directed_actions(self) -> list[tuple[int, str, int]]:
        """What can be done to entities: first action, name of the kind, and index, by action."""
        return sorted(
            (first_action, name, i)
            for name, kind in self.kinds
            for i, first_action in enumerate(kind.first_actions)
        )

    @property
    def n_directed_actions(self) -> int:
        """Number of actions that are directed at entities."""
        return sum(kind.count * len(kind.first_actions) for _, kind in self.kinds)


def _checked_actions(name: str, kind: EntityKind) -> tuple[int, ...]:
    try:
        return tuple(map(operator.index, kind.first_actions))
    except TypeError:
        raise ValueError(
            f"first_action={kind.first_action!r} of the entities {name!r} is neither an integer "
            "nor a tuple of integers."
        ) from None
