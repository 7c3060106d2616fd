"""Success over the episodes of an evaluation: its mean, a 95 % interval, and how it is written.

Works on plain data: does not import jax.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from jaxagents.environments.success import Success
from jaxagents.evaluation.bootstrap import percentile_interval, resampled_means

_QUANTILE = 1.959964  # of the standard normal distribution, for 95 %


def wilson_interval(share: float, n_trials: int) -> tuple[float, float]:
    """Return Wilson's 95 % score interval of a probability.

    If trials are shares between 0 and 1, such as the share of an episode's robots that reached
    their goals, the interval is wider than needed: none of the same mean varies more than outcomes
    of 0 or 1.

    Args:
        share: Observed share of successes.
        n_trials: Number of trials, at least 1.

    Source: Wilson 1927, https://doi.org/10.1080/01621459.1927.10502953.
    """
    spread = _QUANTILE**2 / n_trials
    centre = share + spread / 2
    deviation = math.sqrt(spread * (share * (1 - share) + spread / 4))
    low, high = ((centre + sign * deviation) / (1 + spread) for sign in (-1, 1))
    # Rounding must not exclude a share of 0 or 1.
    return max(0.0, min(low, share)), min(1.0, max(high, share))


def success_of_episodes(success: Success, metrics: Mapping[str, ArrayLike]) -> dict[str, Any]:
    """Return the success of an evaluation, as plain data.

    Args:
        success: The environment's success.
        metrics: The evaluation's, ``[episodes]`` by name.

    Returns:
        ``info``, ``title`` and ``kind`` of the `Success`; ``mean``, over the episodes that have the
        info; its interval, ``low`` and ``high``, which is Wilson's for shares and a bootstrap over
        episodes for counts; their number, ``n_episodes``; and the means of the ``others``, by name.
        If there are no such episodes, numbers are None.
    """
    values = _present(metrics["success"])
    mean, low, high = None, None, None
    if len(values):
        mean = float(values.mean())
        is_share = success.kind == "share" and 0 <= mean <= 1
        low, high = wilson_interval(mean, len(values)) if is_share else bootstrap_interval(values)
    return {
        "info": success.info,
        "title": success.title,
        "kind": success.kind,
        "mean": mean,
        "low": low,
        "high": high,
        "n_episodes": len(values),
        "others": {name: _mean(metrics[f"info_{name}"]) for name in success.others},
    }


def success_of_members(members: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the success of a population from that of its members.

    The mean is over the members' means, and so is the interval, by bootstrap.
    """
    first = members[0]
    means = _present([each["mean"] for each in members])
    low, high = bootstrap_interval(means) if len(means) > 1 else (None, None)
    return {
        **first,
        "mean": float(means.mean()) if len(means) else None,
        "low": low,
        "high": high,
        "n_episodes": sum(each["n_episodes"] for each in members),
        "others": {
            name: _mean([each["others"][name] for each in members]) for name in first["others"]
        },
    }


def comparable(successes: Sequence[dict[str, Any] | None]) -> list[dict[str, Any]]:
    """Return the successes of runs, or none unless every run has one, all with the same title."""
    found = [each for each in successes if each is not None]
    is_of_all = len(found) == len(successes) and len({each["title"] for each in found}) == 1
    return found if is_of_all else []


def bootstrap_interval(values: Float[np.ndarray, " values"]) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of the mean; the bootstrap is seeded."""
    # Subtracting the mean makes the interval of equal values exact.
    mean = values.mean()
    low, high = mean + percentile_interval(resampled_means(values - mean))
    return float(low), float(high)


def untold_infos(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the means of a summary's infos by name, except those that its success reports."""
    success = summary.get("success")
    told = [] if success is None else [success["info"], *success["others"]]
    infos = {
        name.removeprefix("info_"): mean
        for name, mean in summary["means"].items()
        if name.startswith("info_")
    }
    return {name: mean for name, mean in infos.items() if name not in told}


def success_text(success: Mapping[str, Any]) -> str:
    """Write a summary's success, as in "battles won: 87.0 % (95 % interval 79.0 to 92.2)"."""
    mean, low, high = (success[name] for name in ("mean", "low", "high"))
    text = f"{success['title']}: {success_number(success, mean)}"
    if low is not None and high is not None:
        unit = " %" if success["kind"] == "share" else ""
        ends = [success_number(success, end).removesuffix(unit) for end in (low, high)]
        text += f" (95 % interval {ends[0]} to {ends[1]})"
    others = [
        f"{name.replace('_', ' ')} {success_number(success, other)}"
        for name, other in success["others"].items()
    ]
    return "; ".join([text, *others])


def success_number(success: Mapping[str, Any], value: float | None) -> str:
    """Write a share in percent, and a count with two decimals; a dash for None."""
    if value is None:
        return "-"
    return f"{100 * value:.1f} %" if success["kind"] == "share" else f"{value:,.2f}"


def _present(values: Any) -> Float[np.ndarray, " values"]:
    """Return the values that are neither None nor NaN."""
    found = np.array([math.nan if each is None else each for each in np.ravel(values)], np.float64)
    return found[~np.isnan(found)]


def _mean(values: Any) -> float | None:
    found = _present(values)
    return float(found.mean()) if len(found) else None
