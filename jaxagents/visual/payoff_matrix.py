"""Pictures of matrices of players: who wins against whom, who earns what with whom."""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any

import numpy as np

from jaxagents.evaluation.cross_play import CrossPlay
from jaxagents.evaluation.payoffs import Payoffs
from jaxagents.visual.style import INK, new_figure, set_title, write_figure

_CELL, _MARGIN = 0.75, 2.2  # inches
_HIGH_CONTRAST = 0.2  # rates this close to 0 or 1 have dark cells, and white numbers


def draw_payoffs(payoffs: Payoffs, path: str | PathLike[str], title: str = "") -> None:
    """Draw how often each row wins against each column; the suffix chooses the format.

    Args:
        payoffs: Of `payoffs`.
        path: Of the file to write, in an existing folder.
        title: Above the picture.
    """
    # Purple wins and orange losses differ for colour-blind readers too; numbers say the rest.
    figure = _draw(
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
        cross_play: Of `cross_play`.
        path: Of the file to write, in an existing folder.
        title: Above the picture.
    """
    mean = cross_play.mean
    low, high = float(mean.min()), float(mean.max())
    low = low if low < high else high - 1.0
    interval = cross_play.gap_interval
    text = (
        f"with itself {cross_play.self_play:,.1f}, with others {cross_play.cross_play:,.1f}\n"
        f"gap {cross_play.gap:,.1f} (95 % interval {interval.low:,.1f} to {interval.high:,.1f})"
    )
    figure = _draw(
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


def _draw(
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
