"""Selection among a population's members, between blocks of updates.

A rule sees the evaluations and the hyperparameters so far, and decides from whose runner each
member continues. It sees nothing else, so a resumed run decides as the uninterrupted one would.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from jaxagents.hyperparameters import flat_items, with_items
from jaxagents.types import Training

ENDED = -1
"""In place of a parent: the member has stopped training."""
PARENTS = "parents"
"""Name of the metric that holds the parents of each block's members, or `ENDED`."""
VARIED = "hyperparams."
"""Begins the names of the metrics that hold each block's hyperparameters."""


class Generation(NamedTuple):
    """A population between two blocks of updates."""

    n_updates_done: int
    n_blocks_done: int  # of updates; the evaluation before training ends none
    returns: Float[np.ndarray, "evaluations members"]  # mean of episodes, actors; NaN: had stopped
    hyperparams: dict[str, Float[np.ndarray, "members *policies"]]  # the varied ones


class Decision(NamedTuple):
    """From whose runner each member continues."""

    parents: Int[np.ndarray, "members"]  # each one's itself, another member, or `ENDED`
    hyperparams: dict[str, Float[np.ndarray, "members *policies"]]  # of those with another parent


@runtime_checkable
class Selection(Protocol):
    """A rule of selection, see `PopulationBasedTraining` and `SuccessiveHalving`."""

    @property
    def varied(self) -> tuple[str, ...]:
        """Dotted names of the hyperparameters that it changes."""
        ...

    @property
    def settings(self) -> dict[str, Any]:
        """The rule's parameters, as plain data; a run is resumed by the same rule."""
        ...

    def check(self, n_members: int) -> None:
        """Raise ValueError if it does not fit a population of this size."""
        ...

    def select(self, generation: Generation) -> Decision | None:
        """Decide from whose runner each member continues; None: each from its own."""
        ...


def applied(decision: Decision, trainings: Sequence[Training]) -> tuple[Training, ...]:
    """Return the members' trainings after a decision; each keeps its own random key."""
    return tuple(_applied_to(i, decision, trainings) for i in range(len(trainings)))


def _applied_to(index: int, decision: Decision, trainings: Sequence[Training]) -> Training:
    own, parent = trainings[index], int(decision.parents[index])
    if parent == ENDED:
        return own._replace(stop=jnp.ones((), bool))
    if parent == index:
        return own
    changes = {
        name: jnp.asarray(values[index], jnp.float32)
        for name, values in decision.hyperparams.items()
    }
    taken_over = trainings[parent]
    runner = taken_over.runner.replace(
        rng=own.runner.rng, hyperparams=with_items(taken_over.runner.hyperparams, changes)
    )
    return taken_over._replace(runner=runner)


def row_of(
    selection: Selection, decision: Decision | None, trainings: Sequence[Training]
) -> dict[str, np.ndarray]:
    """Return the metrics that record a block's members, float32, ``[members, ...]``."""
    own = np.arange(len(trainings)) if decision is None else decision.parents
    has_ended = np.array([bool(training.stop) for training in trainings])
    values = hyperparams_of(selection, trainings)
    return {
        PARENTS: np.where(has_ended, ENDED, own).astype(np.float32),
        **{VARIED + name: value for name, value in values.items()},
    }


def hyperparams_of(
    selection: Selection, trainings: Sequence[Training]
) -> dict[str, Float[np.ndarray, "members *policies"]]:
    """Return the members' varied hyperparameters by dotted name."""
    items = [flat_items(training.runner.hyperparams) for training in trainings]
    return {
        name: np.stack([np.asarray(jax.device_get(each[name])) for each in items])
        for name in selection.varied
    }
