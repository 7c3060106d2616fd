"""A picture of population-based training: returns, lineages and hyperparameters."""

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from jaxagents.evaluation.lineages import Lineages
from jaxagents.visual.style import (
    FAINT_INK,
    colour_of,
    new_figure,
    set_title,
    style_axes,
    write_caption,
    write_figure,
)

_WIDTH, _HEIGHT_OF_RETURNS, _HEIGHT_OF_PANEL = 8.0, 3.6, 1.9  # inches
_DECADE = 10.0  # values that span more are drawn on a logarithmic scale


def draw_lineages(lineages: Lineages, path: str | PathLike[str]) -> None:
    """Draw each member's return and varied hyperparameters; the suffix chooses the format.

    A line has the colour of the first member from which it descends. Where a member went on from
    another, a thin line comes from there.

    Args:
        lineages: Of `read_lineages`.
        path: Of the file to write, in an existing folder.
    """
    panels = {"Episode return": lineages.returns, **lineages.hyperparams}
    heights = [_HEIGHT_OF_RETURNS, *[_HEIGHT_OF_PANEL] * len(lineages.hyperparams)]
    figure = new_figure(_WIDTH, sum(heights))
    every_axes = figure.subplots(len(panels), sharex=True, squeeze=False, height_ratios=heights)
    for axes, (name, values) in zip(every_axes[:, 0], panels.items(), strict=True):
        _draw(axes, lineages, values)
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
            "Lines of one colour descend from the same first member; dotted: went on from there.",
            f"At the end the {n_members} members descend from {n_founders} of the first.",
        ],
    )
    write_figure(figure, Path(path))


def _draw(axes: Any, lineages: Lineages, values: np.ndarray) -> None:
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
