"""Evaluate entries of the zoo again, and load their policies."""

import math
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jaxagents.errors import ExperimentError
from jaxagents.experiments.experiment import Experiment
from jaxagents.experiments.zoo.cards import Card
from jaxagents.experiments.zoo.places import PREFIX, entry_directory

if TYPE_CHECKING:
    from jaxagents.ippo.base import IPPOBase

_QUANTILE = 3.2905  # of the normal distribution: 99.9 % lie within +- this
_ROUNDING = 1e-4  # relative; a card has 6 digits


class Recheck(NamedTuple):
    """An actor's return on the card and when its entry was evaluated again."""

    before: float
    now: float
    bound: float  # of the difference: the half-width of its 99.9 % interval

    @property
    def agrees(self) -> bool:
        """True if the difference lies within its interval."""
        return abs(self.now - self.before) <= self.bound


def recheck_entry(directory: str | PathLike[str], card: Card) -> list[Recheck]:
    """Evaluate an entry with another key than its card's, in as many episodes.

    The interval is that of the difference of two means of n episodes, whose standard error is
    sqrt(s1**2 / n + s2**2 / n): for equal deviations, sqrt(2) standard errors of either mean.

    Args:
        directory: The entry's directory.
        card: Its card.

    Returns:
        The comparison, for each actor.

    Raises:
        ExperimentError: the policy cannot be restored.
    """
    experiment = Experiment.of_run(directory, progress_bar=False)
    settings = card.content["evaluation"]
    how = replace(
        experiment.config.evaluation,
        mode="last",
        n_evals=settings["n_evals"],
        greedy=settings["greedy"],
        seed=settings["seed"] + 1,
    )
    returns = experiment.evaluate(how)["returns"]
    pairs = (card.returns["mean"], card.returns["std"], returns["mean"], returns["std"])
    return [compared_returns(*each, n_episodes=how.n_evals) for each in zip(*pairs, strict=True)]


def compared_returns(
    before: float, std_before: float, now: float, std_now: float, n_episodes: int
) -> Recheck:
    """Compare the means of two times ``n_episodes`` returns, given their standard deviations."""
    error = math.sqrt((std_before**2 + std_now**2) / n_episodes)
    return Recheck(before, now, _QUANTILE * error + _ROUNDING * max(abs(before), 1.0))


def load_policy(name: str | PathLike[str]) -> "IPPOBase":
    """Load a trained policy.

    Args:
        name: A run's directory, or the id of an entry of the zoo, such as "gymnax/CartPole-v1".

    Returns:
        The agent, ready for `eval`, `policy` and `value`; as `Experiment.restore` returns it. An
        entry's agent can play but not go on with its training.

    Raises:
        ExperimentError: it is neither, there is no zoo, or no checkpoint.
    """
    path = Path(name)
    if (path / "config.yaml").is_file():
        return Experiment.of_run(path, progress_bar=False).restore()
    if isinstance(name, PathLike) or path.is_absolute():
        raise ExperimentError(f"{path} is not a run: it has no config.yaml.")
    directory = entry_directory(name.removeprefix(PREFIX))
    return Experiment.of_run(directory, progress_bar=False).restore()
