"""Diagnosis of a training run: problems that its metrics show, in words.

One function detects each problem; `docs/diagnosing.md` says what to do about it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

_LATE = 4  # late metrics are those of the last quarter of the evaluations
_FLAT = 0.1  # of the targets' standard deviation: values below it are nearly constant
_EQUAL = 0.05  # of the values' mean: targets that deviate less leave nothing to explain
_UNEXPLAINED = 0.05  # explained share of the targets' variance
_LARGE = 10.0  # standard deviation of targets that a critic reaches slowly if not normalised
_BEYOND = 2.0  # times the largest return that rewards allow
_COLLAPSED = 0.02  # of the entropy of uniformly random actions
_TOO_FAR = 0.1  # nats between the policies before and after an update
_PROBABLE = 2.0  # standard errors of a difference between mean returns
_CERTAIN = 3.0  # standard errors of a loss between mean returns
_LOST = 0.3  # of the gain in return since before training


class Task(NamedTuple):
    """What a diagnosis needs besides the metrics."""

    discount: Sequence[float]  # one per policy, per step
    max_episode_steps: int | None  # None: unknown, or returns are bootstrapped beyond it
    n_actions: int | None  # None: continuous
    has_rivals: bool = False  # one team's gain may be another's loss
    normalizes_values: bool = True


class _Run(NamedTuple):
    """A task and the metrics of the evaluations that took place."""

    task: Task
    training: Mapping[str, Float[np.ndarray, "blocks policies"]]  # by name
    returns: Float[np.ndarray, "evaluations episodes actors"]  # empty unless known from the start
    n_updates_done: Float[np.ndarray, " evaluations"]
    random_returns: Float[np.ndarray, "episodes actors"] | None = None

    def late(self, name: str) -> Float[np.ndarray, " policies"]:
        """Average a metric over the last quarter of training."""
        values = self.training[name]
        return values[-max(1, len(values) // _LATE) :].mean(axis=0)

    def gain(
        self, evaluation: int, since: int
    ) -> tuple[Float[np.ndarray, " actors"], Float[np.ndarray, " actors"]]:
        """Return the difference of two evaluations' mean returns, and its standard error."""
        return _difference(self.returns[evaluation], self.returns[since])

    @property
    def unlearnt(self) -> Float[np.ndarray, "episodes actors"]:
        """Returns of random actions or, if unknown, of the untrained policies."""
        return self.returns[0] if self.random_returns is None else self.random_returns

    @property
    def has_learnt(self) -> bool:
        """True if any actor probably earns more at the end than without learning."""
        gained, error = _difference(self.returns[-1], self.unlearnt)
        return bool(np.any(gained > _PROBABLE * error))


def diagnose(metrics: Mapping[str, Any], task: Task, random_returns: Any = None) -> list[str]:
    """Return a sentence for each problem of a training run; none if it is healthy.

    Problems of the returns are only found with an evaluation before training.

    Args:
        metrics: As `train` returns them; a metric that is missing is not diagnosed.
        task: The agent's task.
        random_returns: Returns of random actions, ``[episodes, actors]``; None: unknown.
    """
    run = _read(metrics, task)
    if random_returns is not None:
        run = run._replace(random_returns=np.asarray(random_returns, np.float64))
    return [
        sentence
        for needed, find in _ILLNESSES
        if all(len(run.training.get(name, ())) for name in needed)
        for sentence in find(run)
    ]


def largest_return(
    largest_reward: Float[np.ndarray, "evaluations policies"],
    discount: Sequence[float],
    max_episode_steps: int | None,
) -> Float[np.ndarray, "evaluations policies"]:
    """Return the largest discounted return that the rewards seen so far allow.

    An episode of n steps, each with the largest reward r, earns r (1 - γⁿ) / (1 - γ).

    Args:
        largest_reward: Largest absolute reward since the previous evaluation; NaN before training.
        discount: γ of each policy, per step.
        max_episode_steps: Steps of the longest episode; None if returns have no last step.
    """
    seen = np.fmax.accumulate(largest_reward, axis=0)
    sums = np.array([_geometric_sum(each, max_episode_steps) for each in discount])
    return np.where(seen == 0, 0.0, seen) * np.where(seen == 0, 1.0, sums)


def _geometric_sum(discount: float, n_terms: int | None) -> float:
    if discount >= 1:
        return math.inf if n_terms is None else float(n_terms)
    if discount <= 0:
        return 1.0
    last = 0.0 if n_terms is None else math.exp(n_terms * math.log(discount))
    return (1 - last) / (1 - discount)


def _read(metrics: Mapping[str, Any], task: Task) -> _Run:
    """Drop the rows of blocks that did not run, which are NaN."""
    rows = {name: np.asarray(values, np.float64) for name, values in metrics.items()}
    returns = rows.pop("returns", np.zeros((0, 0, 0)))
    n_updates_done = rows.pop("n_updates_done", np.zeros(0))
    took_place = np.array(~np.isnan(returns).any(axis=(1, 2)))
    if not (took_place.any() and took_place[0] and n_updates_done[0] == 0):
        took_place = np.zeros(len(returns), bool)
    return _Run(
        task=task,
        training={
            name: values[~np.isnan(values).any(axis=1)]
            for name, values in rows.items()
            if values.ndim == 2
        },
        returns=returns[took_place],
        n_updates_done=n_updates_done[: len(returns)][took_place],
    )


def _unexplained(run: _Run) -> Iterator[str]:
    names = ("explained_variance", "value_mean", "value_std", "target_std")
    explained, mean, values, targets = map(run.late, names)
    is_flat = (values < _FLAT * targets) & (targets > _EQUAL * np.abs(mean))
    for policy in np.flatnonzero((explained < _UNEXPLAINED) & is_flat):
        yield (
            f"The critic{_of(policy, explained)} explains nothing: its values deviate by "
            f"{values[policy]:.2g} and their targets by {targets[policy]:.2g}, so that the actor "
            "learns from bare returns."
        )


def _unnormalized(run: _Run) -> Iterator[str]:
    largest = run.training["target_std"].max(axis=0)
    if run.task.normalizes_values:
        return
    for policy in np.flatnonzero(largest > _LARGE):
        yield (
            f"The value targets of the critic{_of(policy, largest)} deviate by up to "
            f"{largest[policy]:.3g} and are not normalised, so that it learns slowly; set "
            "normalize_values=True."
        )


def _beyond(run: _Run) -> Iterator[str]:
    task, value = run.task, run.training["largest_value"]
    possible = largest_return(run.training["largest_reward"], task.discount, task.max_episode_steps)
    # An untrained critic may start beyond the bound.
    value, possible = (each[1:] if len(each) > 1 else each for each in (value, possible))
    excess = value / np.where(possible > 0, possible, np.inf)
    worst = excess.max(axis=0)
    for policy in np.flatnonzero(worst > _BEYOND):
        row = int(excess[:, policy].argmax())
        yield (
            f"The values of the critic{_of(policy, worst)} lie beyond what rewards allow: up to "
            f"{value[row, policy]:.3g} where no discounted return exceeds "
            f"{possible[row, policy]:.3g}. They have diverged, or are about to."
        )


def _collapsed(run: _Run) -> Iterator[str]:
    n_actions = run.task.n_actions
    if n_actions is None or n_actions < 2 or len(run.returns) < 2 or run.has_learnt:
        return
    entropy = run.late("entropy")
    start = "at first" if run.random_returns is None else "random actions"
    for policy in np.flatnonzero(entropy < _COLLAPSED * math.log(n_actions)):
        yield (
            f"The policy{_of(policy, entropy)} has collapsed to one action: its entropy is "
            f"{entropy[policy]:.2g} nats, and it earns no more than {start}."
        )


def _too_far(run: _Run) -> Iterator[str]:
    divergence = run.late("kl")
    for policy in np.flatnonzero(divergence > _TOO_FAR):
        yield (
            f"Updates move the policy{_of(policy, divergence)} too far: its KL divergence over an "
            f"update is {divergence[policy]:.2g} nats, and should be about 0.01."
        )


def _without_actions(run: _Run) -> Iterator[str]:
    counts = run.training["empty_masks"].max(axis=0)
    for policy in np.flatnonzero(counts):
        yield (
            f"The environment masked all actions of living actors of the policy"
            f"{_of(policy, counts)}, in up to {counts[policy]:,.4g} samples of an update (a mean "
            "over updates): they took the first action; leave living actors an action, "
            "such as to do nothing, or end their episodes."
        )


def _nothing_learnt(run: _Run) -> Iterator[str]:
    # Rivals that learn equally fast earn as much as before.
    if len(run.returns) < 2 or run.task.has_rivals or run.has_learnt:
        return
    mean = run.returns.mean(axis=1)
    if run.random_returns is not None:
        yield (
            f"Nothing was learnt: the return is {_text(mean[-1])}, and random actions earn "
            f"{_text(run.random_returns.mean(axis=0))}."
        )
        return
    yield (
        f"Nothing was learnt: the return is {_text(mean[-1])}, and was {_text(mean[0])} before "
        "training."
    )


def _lost_again(run: _Run) -> Iterator[str]:
    if len(run.returns) < 2:
        return
    mean = run.returns.mean(axis=1)
    best = int(mean.mean(axis=1).argmax())
    gained, error_of_gain = run.gain(best, since=0)
    lost, error_of_loss = run.gain(best, since=-1)
    was_learnt = np.any(gained > _CERTAIN * error_of_gain)
    # One actor's loss may be another's gain: all actors must have lost.
    is_lost = np.all(lost > np.maximum(_CERTAIN * error_of_loss, _LOST * gained))
    if was_learnt and is_lost:
        yield (
            f"It was learnt and lost again: the return was {_text(mean[best])} after "
            f"{run.n_updates_done[best]:,.0f} updates, and is {_text(mean[-1])} at the end."
        )


_ILLNESSES = (
    (("explained_variance", "value_mean", "value_std", "target_std"), _unexplained),
    (("target_std",), _unnormalized),
    (("largest_value", "largest_reward"), _beyond),
    (("entropy",), _collapsed),
    (("kl",), _too_far),
    (("empty_masks",), _without_actions),
    ((), _nothing_learnt),
    ((), _lost_again),
)


def _difference(
    first: Float[np.ndarray, "episodes actors"], second: Float[np.ndarray, "others actors"]
) -> tuple[Float[np.ndarray, " actors"], Float[np.ndarray, " actors"]]:
    """Return the difference of mean returns, and its standard error."""
    difference = first.mean(axis=0) - second.mean(axis=0)
    if min(len(first), len(second)) < 2:
        return difference, np.full(len(difference), np.inf)
    variances = [each.var(axis=0, ddof=1) / len(each) for each in (first, second)]
    return difference, np.sqrt(np.sum(variances, axis=0))


def _of(policy: Any, policies: np.ndarray) -> str:
    return f" {policy}" if len(policies) > 1 else ""


def _text(returns: np.ndarray) -> str:
    numbers = [f"{value:.4g}" for value in returns]
    return numbers[0] if len(set(numbers)) == 1 else f"[{', '.join(numbers)}]"
