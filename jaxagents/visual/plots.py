"""Plots of the learning curves of a training, from the metrics that `train` returns."""

import textwrap
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxagents.training.atomic_write import replacing
from jaxagents.visual.picture_files import check_suffix
from jaxagents.visual.style import (
    INK,
    colour_of,
    draw_line,
    draw_spread,
    fit_to_curves,
    new_figure,
    set_title,
    style_axes,
    write_caption,
)

_MAX_WITH_EXTREMES = 4  # with more curves, their minima and maxima overlap too much
_MAX_LEGEND_ROWS = 18


class Curve(NamedTuple):
    """Returns of one actor, or of several actors with equal returns, over the evaluations."""

    label: str
    n_environment_steps: Float[np.ndarray, "evaluations"]
    mean: Float[np.ndarray, "evaluations"]
    band: Float[np.ndarray, "2 evaluations"]
    extremes: Float[np.ndarray, "2 evaluations"]


def plot_learning_curve(
    metrics: Mapping[str, Any],
    path: str | PathLike[str],
    *,
    title: str | None = None,
    random_returns: Sequence[float] | None = None,
) -> None:
    """Plot each actor's learning curve, with the spread over episodes.

    Lines are means over the episodes of an evaluation, bands one standard deviation to either side,
    but not beyond minimum and maximum, as `plot_runs` draws a single run. With up to four curves,
    paler bands span minimum to maximum. Actors with equal returns share a curve. Evaluations after
    an early stop are left out.

    Args:
        metrics: ``returns`` ``[evaluations, episodes, actors]`` as `train` returns them, and
            ``n_environment_steps`` ``[evaluations]``: updates done times ``steps_per_update``.
        path: File to write; its suffix, .png, .svg or .pdf, selects the format.
        title: Written above the plot.
        random_returns: Mean returns of random actions, one per actor, whose mean is a dotted line.

    Raises:
        ValueError: The suffix or a shape is unsupported, or no evaluation ran.
    """
    path = Path(path)
    check_suffix(path)
    returns = np.asarray(metrics["returns"], dtype=np.float64)
    curves = _curves(returns, np.asarray(metrics["n_environment_steps"]))
    figure = _draw(curves, title, legend=returns.shape[2] > 1)
    random = None if random_returns is None else float(np.mean(random_returns))
    fit_to_curves(
        figure.axes[0], [part for each in curves for part in (each.mean, each.band)], random
    )
    _explain_spread(figure, n_episodes=returns.shape[1], n_curves=len(curves))
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as new:
        figure.savefig(new)


def _curves(returns: np.ndarray, n_environment_steps: np.ndarray) -> list[Curve]:
    """Summarize the returns over episodes; actors with equal returns share a curve."""
    if returns.ndim != 3 or n_environment_steps.shape != returns.shape[:1]:
        raise ValueError(
            f"returns of shape {returns.shape} and n_environment_steps of shape "
            f"{n_environment_steps.shape} are not [evaluations, episodes, actors] and "
            "[evaluations]; plot the runs of a population one at a time."
        )
    if not np.isfinite(returns).any():
        raise ValueError("no evaluation ran: there are no returns to draw; train with n_evals > 0.")
    curves = []
    for actor_indices in _equal_actors(returns):
        is_everyone = len(actor_indices) == returns.shape[2] > 1
        label = "all actors" if is_everyone else _wrapped([f"actor {i}" for i in actor_indices])
        shared_returns = returns[:, :, actor_indices[0]]
        if np.isfinite(shared_returns).any():
            curves.append(_curve(label, n_environment_steps, shared_returns))
    return curves


def _wrapped(names: Sequence[str]) -> str:
    """List names on short lines, without breaking any name."""
    listed = ", ".join(name.replace(" ", "\N{NO-BREAK SPACE}") for name in names)
    filled = textwrap.fill(listed, 26, break_long_words=False, break_on_hyphens=False)
    return filled.replace("\N{NO-BREAK SPACE}", " ")


def _equal_actors(
    returns: Float[np.ndarray, "evaluations episodes actors"],
) -> list[list[int]]:
    """Group the actors with equal returns, in the order of each group's first actor."""
    groups: list[list[int]] = []
    for actor_index in range(returns.shape[2]):
        for group in groups:
            pair = returns[:, :, group[0]], returns[:, :, actor_index]
            if np.allclose(*pair, equal_nan=True):
                group.append(actor_index)
                break
        else:
            groups.append([actor_index])
    return groups


def _curve(
    label: str, n_environment_steps: np.ndarray, returns: Float[np.ndarray, "evaluations episodes"]
) -> Curve:
    returns = np.where(np.isfinite(returns), returns, np.nan)
    ran = ~np.isnan(returns).all(axis=1)
    mean, deviation = np.nanmean(returns[ran], axis=1), np.nanstd(returns[ran], axis=1)
    low, high = np.nanmin(returns[ran], axis=1), np.nanmax(returns[ran], axis=1)
    return Curve(
        label=label,
        n_environment_steps=n_environment_steps[ran],
        mean=mean,
        band=np.clip([mean - deviation, mean + deviation], low, high),
        extremes=np.stack([low, high]),
    )


def _draw(curves: Sequence[Curve], title: str | None, legend: bool) -> Any:
    figure = new_figure(8.0, 4.5)
    axes = figure.add_subplot()
    lines = [_draw_curve(axes, curve, i, len(curves)) for i, curve in enumerate(curves)]
    style_axes(axes)
    axes.set_xlabel("environment steps", color=INK)
    axes.set_ylabel("episode return", color=INK)
    if title is not None:
        set_title(axes, title)
    if legend:
        # From the highest final return to the lowest, like the curves at their right end.
        in_order = sorted(lines, key=lambda line: -line.get_ydata()[-1])
        figure.legend(
            handles=in_order,
            loc="outside right center",
            ncols=1 + (len(lines) - 1) // _MAX_LEGEND_ROWS,
            frameon=False,
            labelcolor=INK,
        )
    return figure


def _draw_curve(axes: Any, curve: Curve, curve_index: int, n_curves: int) -> Any:
    x, colour = curve.n_environment_steps, colour_of(curve_index)
    few = n_curves <= _MAX_WITH_EXTREMES
    if few:
        draw_spread(axes, x, curve.extremes, color=colour, alpha=0.09)
    draw_spread(axes, x, curve.band, color=colour, alpha=0.22 if few else 0.1)
    return draw_line(axes, x, curve.mean, curve.label, curve_index, n_curves)


def _explain_spread(figure: Any, n_episodes: int, n_curves: int) -> None:
    text = explain_episodes(f"{n_episodes} episodes", n_curves <= _MAX_WITH_EXTREMES)
    write_caption(figure, [text])


def explain_episodes(episodes: str, with_extremes: bool) -> str:
    """Say what the line and the bands of a single run are."""
    text = f"Line: mean over {episodes}. Band: one standard deviation."
    return f"{text} Pale band: minimum to maximum." if with_extremes else text
