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
_BEYOND = 2.0  # times the largest return that rewards allow
_COLLAPSED = 0.02  # of the entropy of uniformly random actions
_TOO_FAR = 0.1  # nats between the policies before and after an update
_STANDARD_ERRORS = 3.0  # by which returns must differ
_LOST = 0.3  # of the gain in return since before training


class Task(NamedTuple):
    """What a diagnosis needs besides the metrics."""

    discount: Sequence[float]  # one per policy, per step
    max_episode_steps: int | None  # None: no known limit
    n_actions: int | None  # None: continuous


def diagnose(metrics: Mapping[str, Any], task: Task) -> list[str]:
    """Return a sentence for each problem of a training run; none if it is healthy.

    Args:
        metrics: As `train` returns them.
        task: The agent's task.
    """
    rows = {name: np.asarray(values, np.float64) for name, values in metrics.items()}
    return [sentence for illness in _ILLNESSES for sentence in illness(rows, task)]


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
        max_episode_steps: Steps of the longest episode; None if no limit is known.
    """
    seen = np.fmax.accumulate(largest_reward, axis=0)
    return seen * [_geometric_sum(each, max_episode_steps) for each in discount]


def _geometric_sum(discount: float, n_terms: int | None) -> float:
    if n_terms is None:
        return 1 / (1 - discount) if discount < 1 else math.inf
    return float(np.sum(discount ** np.arange(n_terms)))


def _unexplained(rows: Mapping[str, np.ndarray], task: Task) -> Iterator[str]:
    del task
    explained, mean, values, targets = (
        _late(rows, name)
        for name in ("explained_variance", "value_mean", "value_std", "target_std")
    )
    is_flat = (values < _FLAT * targets) & (targets > _EQUAL * np.abs(mean))
    for policy in np.flatnonzero((explained < _UNEXPLAINED) & is_flat):
        yield (
            f"The critic{_of(policy, explained)} explains nothing: its values deviate by "
            f"{values[policy]:.2g} and their targets by {targets[policy]:.2g}, so that the actor "
            "learns from bare returns."
        )


def _beyond(rows: Mapping[str, np.ndarray], task: Task) -> Iterator[str]:
    if "largest_value" not in rows:
        return
    possible = largest_return(rows["largest_reward"], task.discount, task.max_episode_steps)
    excess = np.nan_to_num(rows["largest_value"] / np.where(possible > 0, possible, np.nan))
    worst = excess.max(axis=0, initial=0.0)
    for policy in np.flatnonzero(worst > _BEYOND):
        row = int(excess[:, policy].argmax())
        yield (
            f"The values of the critic{_of(policy, worst)} lie beyond what rewards allow: up to "
            f"{rows['largest_value'][row, policy]:.3g} where no discounted return exceeds "
            f"{possible[row, policy]:.3g}. They have diverged, or are about to."
        )


def _collapsed(rows: Mapping[str, np.ndarray], task: Task) -> Iterator[str]:
    if task.n_actions is None or task.n_actions < 2 or _is_better_than_at_first(rows):
        return
    entropy = _late(rows, "entropy")
    for policy in np.flatnonzero(entropy < _COLLAPSED * math.log(task.n_actions)):
        yield (
            f"The policy{_of(policy, entropy)} has collapsed to one action: its entropy is "
            f"{entropy[policy]:.2g} nats, and it earns no more than at first."
        )


def _too_far(rows: Mapping[str, np.ndarray], task: Task) -> Iterator[str]:
    del task
    divergence = _late(rows, "kl")
    for policy in np.flatnonzero(divergence > _TOO_FAR):
        yield (
            f"Updates move the policy{_of(policy, divergence)} too far: its KL divergence over an "
            f"update is {divergence[policy]:.2g} nats, and should be about 0.01."
        )


def _nothing_learnt(rows: Mapping[str, np.ndarray], task: Task) -> Iterator[str]:
    del task
    if _mean_returns(rows) is not None and not _is_better_than_at_first(rows):
        mean = _mean_returns(rows)
        yield (
            f"Nothing was learnt: the return is {_text(mean[-1])}, and was {_text(mean[0])} before "
            "training."
        )


def _lost_again(rows: Mapping[str, np.ndarray], task: Task) -> Iterator[str]:
    del task
    mean = _mean_returns(rows)
    if mean is None:
        return
    best = int(mean.mean(axis=1).argmax())
    gained, lost = mean[best] - mean[0], mean[best] - mean[-1]
    # One actor's loss may be another's gain: all actors must have lost.
    if np.all(lost > _STANDARD_ERRORS * _errors(rows, best, -1)) and np.all(lost > _LOST * gained):
        yield (
            f"It was learnt and lost again: the return was {_text(mean[best])} after "
            f"{rows['n_updates_done'][best]:,.0f} updates, and is {_text(mean[-1])} at the end."
        )


_ILLNESSES = (_unexplained, _beyond, _collapsed, _too_far, _nothing_learnt, _lost_again)


def _late(rows: Mapping[str, np.ndarray], name: str) -> Float[np.ndarray, " policies"]:
    """Average a training metric over the last evaluations; empty without any."""
    values = rows.get(name, np.zeros((0, 0)))
    values = values[~np.isnan(values).any(axis=1)]
    if not len(values):
        return np.zeros(0)
    return values[-max(1, len(values) // _LATE) :].mean(axis=0)


def _mean_returns(rows: Mapping[str, np.ndarray]) -> Any:
    """Average returns over episodes, ``[evaluations, actors]``.

    None unless there are two evaluations and the first is from before training.
    """
    returns = rows.get("returns")
    if returns is None:
        return None
    returns = returns[~np.isnan(returns).any(axis=(1, 2))]
    has_both = len(returns) > 1 and rows["n_updates_done"][0] == 0
    return returns.mean(axis=1) if has_both else None


def _errors(rows: Mapping[str, np.ndarray], *evaluations: int) -> Float[np.ndarray, " actors"]:
    """Return the standard errors of differences between evaluations' mean returns."""
    returns = rows["returns"][~np.isnan(rows["returns"]).any(axis=(1, 2))]
    variances = [returns[each].var(axis=0) / len(returns[each]) for each in evaluations]
    return np.sqrt(sum(variances))


def _is_better_than_at_first(rows: Mapping[str, np.ndarray]) -> bool:
    """True if any actor earns significantly more at the end, or if that is unknown."""
    mean = _mean_returns(rows)
    if mean is None:
        return True
    return bool(np.any(mean[-1] - mean[0] > _STANDARD_ERRORS * _errors(rows, 0, -1)))


def _of(policy: Any, policies: np.ndarray) -> str:
    return f" of policy {policy}" if len(policies) > 1 else ""


def _text(returns: np.ndarray) -> str:
    numbers = [f"{value:.4g}" for value in returns]
    return numbers[0] if len(set(numbers)) == 1 else f"[{', '.join(numbers)}]"
