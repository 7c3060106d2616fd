"""Pictures of populations: lineages, payoffs and cross-play."""

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from jaxagents.evaluation.payoffs import CrossPlay, Payoffs
from jaxagents.evaluation.runs import Lineages
from jaxagents.visual.picture_files import write_figure
from jaxagents.visual.style import (
    FAINT_INK,
    INK,
    colour_of,
    new_figure,
    set_title,
    style_axes,
    write_caption,
)

_WIDTH, _HEIGHT_OF_RETURNS, _HEIGHT_OF_PANEL = 8.0, 3.6, 1.9  # inches
_DECADE = 10.0  # values that span more are drawn on a logarithmic scale


def draw_lineages(lineages: Lineages, path: str | PathLike[str]) -> None:
    """Draw each member's return and varied hyperparameters; the suffix chooses the format.

    A line has the colour of the first member from which it descends. Where a member continued from
    another, a thin line connects them.

    Args:
        lineages: From `read_lineages`.
        path: File to write, in an existing folder.
    """
    panels = {"Episode return": lineages.returns, **lineages.hyperparams}
    heights = [_HEIGHT_OF_RETURNS, *[_HEIGHT_OF_PANEL] * len(lineages.hyperparams)]
    figure = new_figure(_WIDTH, sum(heights))
    every_axes = figure.subplots(len(panels), sharex=True, squeeze=False, height_ratios=heights)
    for axes, (name, values) in zip(every_axes[:, 0], panels.items(), strict=True):
        _draw_quantity(axes, lineages, values)
        set_title(axes, name, fontsize=12 if values is lineages.returns else 9)
        low, high = np.nanmin(values), np.nanmax(values)
        if values is not lineages.returns and low > 0 and high / low > _DECADE:
            axes.set_yscale("log")
    every_axes[-1, 0].set_xlabel("Environment steps")
    n_founders = len(np.unique(lineages.founders[-1][np.isfinite(lineages.founders[-1])]))
    n_members = lineages.parents.shape[1]
    write_caption(
        figure,
        [
            "Lines of one colour descend from the same first member; dotted: continued from there.",
            f"At the end the {n_members} members descend from {n_founders} of the first.",
        ],
    )
    write_figure(figure, Path(path))


def _draw_quantity(axes: Any, lineages: Lineages, values: np.ndarray) -> None:
    """Draw one quantity: a segment of each member per block, from its parent's last value."""
    steps, parents, founders = lineages.n_environment_steps, lineages.parents, lineages.founders
    for row in range(1, len(steps)):
        for member in np.flatnonzero(np.isfinite(parents[row])):
            parent = int(parents[row, member])
            goes_on = parent == member
            axes.plot(
                steps[row - 1 : row + 1],
                [values[row - 1, parent], values[row, member]],
                color=colour_of(int(founders[row, member])),
                linewidth=1.3 if goes_on else 0.8,
                linestyle="-" if goes_on else ":",
                solid_capstyle="round",
            )
    if len(steps) == 1:
        axes.scatter(np.repeat(steps, values.shape[1]), values[0], color=FAINT_INK)
    style_axes(axes)


_CELL, _MARGIN = 0.75, 2.2  # inches
_HIGH_CONTRAST = 0.2  # rates this close to 0 or 1 have dark cells, and white numbers


def draw_payoffs(payoffs: Payoffs, path: str | PathLike[str], title: str = "") -> None:
    """Draw how often each row wins against each column; the suffix chooses the format.

    Args:
        payoffs: From `payoffs`.
        path: File to write, in an existing folder.
        title: Written above the picture.
    """
    # Purple wins and orange losses differ for colour-blind readers too; cells show the numbers.
    figure = _draw_matrix(
        payoffs.win_rate,
        payoffs.rows,
        payoffs.columns,
        title or "Share of episodes that the row wins",
        is_dark=lambda rate: min(rate, 1 - rate) < _HIGH_CONTRAST,
        vmin=0,
        vmax=1,
        cmap="PuOr",
    )
    figure.axes[0].set_xlabel("against")
    write_figure(figure, path)


def draw_cross_play(cross_play: CrossPlay, path: str | PathLike[str], title: str = "") -> None:
    """Draw the mean return of each pair of players; the suffix chooses the format.

    Args:
        cross_play: From `cross_play`.
        path: File to write, in an existing folder.
        title: Written above the picture.
    """
    mean = cross_play.mean
    low, high = float(mean.min()), float(mean.max())
    low = low if low < high else high - 1.0
    interval = cross_play.gap_interval
    text = (
        f"with itself {cross_play.self_play:,.1f}, with others {cross_play.cross_play:,.1f}\n"
        f"gap {cross_play.gap:,.1f} (95 % interval {interval.low:,.1f} to {interval.high:,.1f})"
    )
    figure = _draw_matrix(
        mean,
        cross_play.names,
        cross_play.names,
        f"{title or 'Mean return of each pair'}\n{text}",
        is_dark=lambda value: (value - low) / (high - low) > 1 - 2 * _HIGH_CONTRAST,
        vmin=low,
        vmax=high,
        cmap="Purples",
    )
    figure.axes[0].set_xlabel("with")
    write_figure(figure, path)


def _draw_matrix(
    values: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    is_dark: Callable[[float], bool],
    **colours: Any,
) -> Any:
    n_rows, n_columns = values.shape
    figure = new_figure(_MARGIN + _CELL * n_columns, _MARGIN + _CELL * n_rows)
    axes = figure.subplots()
    axes.imshow(values, aspect="equal", **colours)
    n_digits = 2 if np.abs(values).max() < 100 else 0
    for (row, column), value in np.ndenumerate(values):
        colour = "white" if is_dark(value) else INK
        axes.text(
            column, row, f"{value:.{n_digits}f}", ha="center", va="center", color=colour, size=9
        )
    axes.set_xticks(range(n_columns), columns, rotation=30, ha="right")
    axes.set_yticks(range(n_rows), rows)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    set_title(axes, title)
    return figure
