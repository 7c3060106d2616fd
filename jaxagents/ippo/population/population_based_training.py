"""Population-based training: weak members continue from strong ones, with new hyperparameters.

Source: Jaderberg et al. 2017, https://arxiv.org/abs/1711.09846.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, final

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jaxagents.config import check_seed
from jaxagents.hyperparameters import HyperParameters, check_hyperparams, flat_items, with_items
from jaxagents.ippo.population.selection import Decision, Generation

# For these, the factor multiplies 1 - value: a discount of 0.99 looks 100 steps ahead, one of 0.98
# half as far.
_NEAR_ONE = ("gamma", "gae_lambda")


@final
@dataclass(frozen=True)
class PopulationBasedTraining:
    """Truncation selection: exploit and explore, between blocks of updates.

    After every ``every`` evaluations, each member with one of the lowest returns continues from a
    member drawn among those with the highest. It takes over networks, optimizers, statistics and
    environments, but keeps its own random key. Each of its varied hyperparameters is then
    multiplied by one of the factors, per policy.

    Args:
        vary: The lowest and highest value of each hyperparameter that is varied, by dotted name,
            as in ``{"ent_coeff": (1e-3, 0.1), "actor_optimizer_params.learning_rate": (1e-4,
            1e-2)}``.
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
            for name, each in dict(self.vary).items()
        }
        object.__setattr__(self, "vary", bounds)
        object.__setattr__(self, "factors", tuple(self.factors))
        if not self.vary:
            raise ValueError("vary={} varies nothing; name at least one hyperparameter.")
        for name, bounds in self.vary.items():
            _check_bounds(name, bounds)
        if self.every < 1:
            raise ValueError(f"every={self.every} is too small; give at least 1.")
        if not 0 < self.share <= 0.5:
            raise ValueError(f"share={self.share} is out of range; give above 0, at most 0.5.")
        if not self.factors or not all(0 < each < math.inf for each in self.factors):
            raise ValueError(f"factors={self.factors} are not positive; give some, as 0.8, 1.25.")
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
            hyperparams: Those of the first member, and of all members where not varied; each leaf
                a scalar or one value per policy.
            n_members: Number of members.
            n_policies: Number of policies, which begin with the same values.

        Returns:
            The varied ones ``[members, policies]``, the others as given. They are drawn uniformly,
            in their logarithm if the lower bound is positive.
        """
        generator = np.random.default_rng(self.seed)
        items, drawn = flat_items(hyperparams), {}
        for name, (low, high) in self.vary.items():
            scale, back = _drawn_on(name, low)
            ends = scale(np.array([low, high]))
            values = np.empty((n_members, n_policies), np.float32)
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
        explored = 1 - (1 - value) * factor if _is_near_one(name) else value * factor
        return np.clip(explored, *self.vary[name]).astype(np.float32)


def _is_near_one(name: str) -> bool:
    return name in _NEAR_ONE


def _drawn_on(name: str, low: float) -> tuple[Any, Any]:
    """Return the scale on which values are drawn uniformly, and its inverse."""
    if _is_near_one(name):
        return (lambda x: np.log(1 - x)), (lambda y: 1 - np.exp(y))
    return (np.log, np.exp) if low > 0 else (np.asarray, np.asarray)


def _check_bounds(name: str, bounds: Any) -> None:
    known = flat_items(HyperParameters())
    if name not in known:
        raise ValueError(
            f"vary names {name!r}, which is no hyperparameter; known are {', '.join(known)}."
        )
    numbers = [isinstance(each, int | float) and math.isfinite(each) for each in bounds]
    if len(numbers) != 2 or not all(numbers) or not bounds[0] < bounds[1]:
        raise ValueError(
            f"vary gives {name} the bounds {bounds!r}; give a lowest and a higher highest value, "
            "as in (1e-4, 1e-2)."
        )
    for value in bounds:
        check_hyperparams(with_items(HyperParameters(), {name: value}), 1)
    if _is_near_one(name) and bounds[1] >= 1:
        raise ValueError(f"vary gives {name} a highest value of {bounds[1]}; stay below 1.")
