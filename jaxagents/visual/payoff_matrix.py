"""Pictures of payoff matrices."""

from os import PathLike

import numpy as np

from jaxagents.evaluation.payoffs import Payoffs
from jaxagents.visual.style import INK, new_figure, set_title

_CELL, _MARGIN = 0.75, 2.2  # inches
_HIGH_CONTRAST = 0.2  # rates this close to 0 or 1 have dark cells, and white numbers


def draw_payoffs(payoffs: Payoffs, path: str | PathLike[str], title: str = "") -> None:
    """Draw how often each row wins against each column; the suffix chooses the format.

    Args:
        payoffs: Of `payoffs`.
        path: Of the file to write, in an existing folder.
        title: Above the picture.
    """
    rates = payoffs.win_rate
    n_rows, n_columns = rates.shape
    figure = new_figure(_MARGIN + _CELL * n_columns, _MARGIN + _CELL * n_rows)
    axes = figure.subplots()
    # Purple wins and orange losses differ for colour-blind readers too; numbers say the rest.
    axes.imshow(rates, vmin=0, vmax=1, cmap="PuOr", aspect="equal")
    for (row, column), rate in np.ndenumerate(rates):
        is_dark = min(rate, 1 - rate) < _HIGH_CONTRAST
        axes.text(
            column,
            row,
            f"{rate:.2f}",
            ha="center",
            va="center",
            color="white" if is_dark else INK,
        )
    axes.set_xticks(range(n_columns), payoffs.columns, rotation=30, ha="right")
    axes.set_yticks(range(n_rows), payoffs.rows)
    axes.set_xlabel("against")
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    set_title(axes, title or "Share of episodes that the row wins")
    figure.savefig(path)
