"""Selection among a population's members, between blocks of updates.

A rule sees the evaluations and the hyperparameters so far, and decides from whose runner each
member continues. It sees nothing else, so a resumed run decides as the uninterrupted one would.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol, final, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from jaxagents.config import check_integer, check_seed
from jaxagents.hyperparameters import (
    HyperParameters,
    check_hyperparams,
    flat_items,
    with_both_rates,
    with_items,
)
from jaxagents.ippo.population.members import members_at
from jaxagents.types import Training

# For these, the factor multiplies 1 - value: a discount of 0.99 looks 100 steps ahead, one of 0.98
# half as far.
_NEAR_ONE = ("gamma", "gae_lambda")
ENDED = -1
"""Stands for a parent where the member has stopped training."""
PARENTS = "parents"
"""Name of the metric that holds the parents of each block's members, or `ENDED`."""
VARIED = "hyperparams."
"""Prefix of the names of the metrics that hold each block's hyperparameters."""


class Generation(NamedTuple):
    """A population between two blocks of updates."""

    n_updates_done: int
    n_blocks_done: int  # of updates; the evaluation before training ends none
    returns: Float[np.ndarray, "evaluations members"]  # mean of episodes, actors; NaN: had stopped
    hyperparams: dict[str, Float[np.ndarray, "members *policies"]]  # the varied ones


class Decision(NamedTuple):
    """From whose runner each member continues."""

    parents: Int[np.ndarray, "members"]  # the member itself, another one, or `ENDED`
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
        """The rule's parameters, as plain data; a run is resumed with the same rule."""
        ...

    def check(self, n_members: int) -> None:
        """Raise ValueError if it does not fit a population of this size."""
        ...

    def select(self, generation: Generation) -> Decision | None:
        """Decide from whose runner each member continues; None: each from its own."""
        ...


def applied(decision: Decision, training: Training) -> Training:
    """Return the members' trainings after a decision; each keeps its own random key."""
    own = np.arange(len(decision.parents))
    has_ended = decision.parents == ENDED
    parents = np.where(has_ended, own, decision.parents)
    continued = members_at(training, parents)
    items = flat_items(continued.runner.hyperparams)
    others = np.flatnonzero(parents != own)
    changes = {
        name: items[name].at[others].set(values[others])
        for name, values in decision.hyperparams.items()
    }
    runner = continued.runner.replace(
        rng=training.runner.rng, hyperparams=with_items(continued.runner.hyperparams, changes)
    )
    return continued._replace(runner=runner, stop=continued.stop | has_ended)


def row_of(
    selection: Selection, decision: Decision | None, training: Training
) -> dict[str, np.ndarray]:
    """Return the metrics that record a block's members, float32, ``[members, ...]``."""
    has_ended = np.asarray(training.stop)
    own = np.arange(len(has_ended)) if decision is None else decision.parents
    values = hyperparams_of(selection, training)
    return {
        PARENTS: np.where(has_ended, ENDED, own).astype(np.float32),
        **{VARIED + name: value for name, value in values.items()},
    }


def hyperparams_of(
    selection: Selection, training: Training
) -> dict[str, Float[np.ndarray, "members *policies"]]:
    """Return the members' varied hyperparameters by dotted name."""
    items = flat_items(training.runner.hyperparams)
    return {name: np.asarray(items[name]) for name in selection.varied}


@final
@dataclass(frozen=True)
class SuccessiveHalving:
    """Ends all but the best ``1 / factor`` of a population, several times.

    With ``n_blocks`` blocks of updates, this last happens after ``n_blocks / factor`` of them,
    before that after ``n_blocks / factor**2``, and so on. The best have the highest mean return
    over all evaluations so far.

    Source: Jamieson and Talwalkar 2016, https://arxiv.org/abs/1502.07943.

    Args:
        n_blocks: Blocks of updates of a member that trains to the end, one per evaluation.
        factor: Factor by which the number of members falls each time.
        group_size: Members that end together, such as seeds of the same hyperparameters: the first
            ``group_size``, the next, .... Their mean counts.

    Raises:
        ValueError: a value is out of range.
    """

    n_blocks: int
    factor: int = 3
    group_size: int = 1

    def __post_init__(self) -> None:
        for name, least in (("n_blocks", 1), ("factor", 2), ("group_size", 1)):
            check_integer(name, getattr(self, name), least)

    @property
    def varied(self) -> tuple[str, ...]:
        """Dotted names of the hyperparameters that it changes: none."""
        return ()

    @property
    def settings(self) -> dict[str, Any]:
        """The rule's parameters, as plain data."""
        return {"rule": type(self).__name__, **asdict(self)}

    def rungs(self, n_groups: int) -> dict[int, int]:
        """Return how many groups continue after which blocks."""
        rungs, block, n_left = {}, self.n_blocks, n_groups
        blocks = []
        while (block := block // self.factor) >= 1:
            blocks.append(block)
        for block in reversed(blocks):
            n_left = max(1, n_left // self.factor)
            rungs[block] = n_left
        return rungs

    def check(self, n_members: int) -> None:
        """Raise ValueError if members do not divide into groups."""
        if n_members % self.group_size:
            raise ValueError(
                f"{n_members} members do not divide into groups of group_size={self.group_size}."
            )

    def select(self, generation: Generation) -> Decision | None:
        """End the groups that are not among the best, if a rung is reached."""
        n_members = generation.returns.shape[1]
        n_groups = n_members // self.group_size
        n_kept = self.rungs(n_groups).get(generation.n_blocks_done)
        if n_kept is None:
            return None
        of_members = generation.returns.mean(axis=0).reshape(n_groups, self.group_size)
        so_far = of_members.mean(axis=1)
        score = np.where(np.isfinite(so_far), so_far, -np.inf)
        # Of groups that have diverged, the ones with members that still train come first.
        n_training = np.isfinite(generation.returns[-1]).reshape(of_members.shape).sum(axis=1)
        best_first = np.lexsort((-n_training, -score))
        groups = np.full((n_groups, self.group_size), ENDED)
        kept = best_first[:n_kept]
        groups[kept] = np.arange(n_members).reshape(groups.shape)[kept]
        return Decision(groups.reshape(-1), {})


@final
@dataclass(frozen=True)
class PopulationBasedTraining:
    """Truncation selection: exploit and explore, between blocks of updates.

    After every ``every`` evaluations, each member with one of the lowest returns continues from a
    member drawn among those with the highest. It takes over networks, optimizers, statistics and
    environments, but keeps its own random key. Each of its varied hyperparameters is then
    multiplied by one of the factors: for each policy by its own if policies have values of their
    own, as `spread` gives them.

    Source: Jaderberg et al. 2017, https://arxiv.org/abs/1711.09846.

    Args:
        vary: The lowest and highest value of each hyperparameter that is varied, by dotted name,
            as in ``{"ent_coeff": (1e-3, 0.1), "actor_optimizer_params.learning_rate": (1e-4,
            1e-2)}``. "learning_rate" stands for the rates of both optimizers, each varied by
            itself.
        every: Number of evaluations between selections.
        share: Share of the members that is replaced at a time; parents are drawn from an equal
            share. At most a half.
        factors: One is drawn for each explored hyperparameter. For gamma and gae_lambda, it
            multiplies 1 - value.
        seed: Seed of these draws.

    Raises:
        ValueError: a value is out of range, or a name is unknown.
    """

    vary: Mapping[str, tuple[float, float]]
    every: int = 1
    share: float = 0.25
    factors: tuple[float, ...] = (0.8, 1.25)
    seed: int = 0

    def __post_init__(self) -> None:
        bounds = {
            name: tuple(each) if isinstance(each, list | tuple) else (each,)
            for name, each in with_both_rates(self.vary).items()
        }
        object.__setattr__(self, "vary", bounds)
        if isinstance(self.factors, list):
            object.__setattr__(self, "factors", tuple(self.factors))
        if not self.vary:
            raise ValueError("vary={} varies nothing; name at least one hyperparameter.")
        for name, bounds in self.vary.items():
            _check_bounds(name, bounds)
        check_integer("every", self.every, 1)
        if not _is_number(self.share) or not 0 < self.share <= 0.5:
            raise ValueError(f"share={self.share!r} is out of range; give above 0, at most 0.5.")
        are_numbers = isinstance(self.factors, tuple) and all(map(_is_number, self.factors))
        if not self.factors or not are_numbers or min(self.factors) <= 0:
            raise ValueError(
                f"factors={self.factors!r} are not positive numbers; give some, as (0.8, 1.25)."
            )
        check_seed("seed", self.seed)

    @property
    def varied(self) -> tuple[str, ...]:
        """Dotted names of the hyperparameters that it changes."""
        return tuple(self.vary)

    @property
    def settings(self) -> dict[str, Any]:
        """The rule's parameters, as plain data."""
        return {"rule": type(self).__name__, **asdict(self)}

    def check(self, n_members: int) -> None:
        """Raise ValueError if a population has too few members."""
        if n_members < 2:
            raise ValueError(
                f"population-based training of {n_members} member selects nothing; train at "
                "least 2, better 8."
            )

    def spread(
        self, hyperparams: HyperParameters, n_members: int, n_policies: int = 1
    ) -> HyperParameters:
        """Draw the hyperparameters that members begin with, between the bounds.

        Args:
            hyperparams: Hyperparameters of the first member and, unless varied, of all others; each
                leaf a scalar or one value per policy.
            n_members: Number of members.
            n_policies: Number of policies, which begin with the same values.

        Returns:
            The varied ones ``[members, policies]``, the others as given. They are drawn uniformly,
            or log-uniformly if the lower bound is positive.

        Raises:
            ValueError: a hyperparameter has values for another number of policies.
        """
        generator = np.random.default_rng(self.seed)
        items, drawn = flat_items(hyperparams), {}
        for name, (low, high) in self.vary.items():
            scale, back = _drawn_on(name, low)
            ends = scale(np.array([low, high]))
            values = np.empty((n_members, n_policies), np.float32)
            own = np.shape(items[name])
            if own not in ((), (n_policies,)):
                raise ValueError(
                    f"{name} has the shape {own}; give one value, or one per policy, and "
                    f"n_policies, which is {n_policies}, as their number."
                )
            values[0] = items[name]
            values[1:, :] = back(generator.uniform(ends.min(), ends.max(), (n_members - 1, 1)))
            drawn[name] = jnp.asarray(values)
        return with_items(hyperparams, drawn)

    def select(self, generation: Generation) -> Decision | None:
        """Replace the members with the lowest returns, and those that have stopped."""
        if generation.n_blocks_done == 0 or generation.n_blocks_done % self.every:
            return None
        latest = generation.returns[-1]
        n_members, n_living = len(latest), int(np.isfinite(latest).sum())
        # Stopped members rank last, in their order.
        best_first = np.argsort(-np.where(np.isfinite(latest), latest, -np.inf), kind="stable")
        n_replaced = max(1, int(self.share * n_members), n_members - n_living)
        n_parents = max(1, min(int(self.share * n_members), n_living))
        n_replaced = min(n_replaced, n_members - n_parents)
        generator = np.random.default_rng([self.seed, generation.n_updates_done])

        parents = np.arange(n_members)
        hyperparams = {name: values.copy() for name, values in generation.hyperparams.items()}
        for member in best_first[n_members - n_replaced :]:
            parents[member] = parent = generator.choice(best_first[:n_parents])
            for name, values in generation.hyperparams.items():
                hyperparams[name][member] = self._explored(name, values[parent], generator)
        return Decision(parents, hyperparams)

    def _explored(
        self, name: str, value: Float[np.ndarray, "*policies"], generator: np.random.Generator
    ) -> Float[np.ndarray, "*policies"]:
        factor = generator.choice(self.factors, size=np.shape(value))
        explored = 1 - (1 - value) * factor if name in _NEAR_ONE else value * factor
        return np.clip(explored, *self.vary[name]).astype(np.float32)


def _drawn_on(name: str, low: float) -> tuple[Any, Any]:
    """Return the scale on which values are drawn uniformly, and its inverse."""
    if name in _NEAR_ONE:
        return (lambda x: np.log(1 - x)), (lambda y: 1 - np.exp(y))
    return (np.log, np.exp) if low > 0 else (np.asarray, np.asarray)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _check_bounds(name: str, bounds: Any) -> None:
    known = flat_items(HyperParameters())
    if name not in known:
        raise ValueError(
            f"vary names {name!r}, which is no hyperparameter; known are {', '.join(known)}."
        )
    numbers = [_is_number(each) for each in bounds]
    if len(numbers) != 2 or not all(numbers) or not bounds[0] < bounds[1]:
        raise ValueError(
            f"vary gives {name} the bounds {bounds!r}; give two numbers, the lower one "
            "first, as in (1e-4, 1e-2)."
        )
    for value in bounds:
        check_hyperparams(with_items(HyperParameters(), {name: value}), 1)
    if name in _NEAR_ONE and bounds[1] >= 1:
        raise ValueError(f"vary gives {name} a highest value of {bounds[1]}; stay below 1.")
