"""The look of all pictures: legible without colour and to colour-blind readers.

Nothing here needs a display or touches matplotlib's global state.
"""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxagents.training.atomic_write import replacing

# Okabe and Ito's colour-blind safe palette, https://jfly.uni-koeln.de/color/, without its yellow,
# which is hard to see on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
INK, FAINT_INK, GRID = "#333333", "#767676", "#E4E4E4"

# Seven colours and eight markers give 56 pairs; in greyscale, markers and dashes still differ.
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
_DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
_N_MARKERS = 8  # per curve
METADATA = {
    ".png": {"Software": "jaxagents"},
    ".svg": {"Creator": "jaxagents", "Date": None},  # without a date, equal plots are equal files
}
"""Marks pictures as made by jaxagents: commands overwrite only those."""


def new_figure(width: float, height: float) -> Any:
    """Make a figure without pyplot, its size in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def write_figure(figure: Any, path: str | PathLike[str]) -> None:
    """Write a figure; the suffix chooses the format."""
    import matplotlib

    # Keep text as text, and make the ids of an SVG's elements reproducible.
    reproducible = matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "jaxagents"})
    with replacing(path) as new, reproducible:
        figure.savefig(new, metadata=METADATA.get(Path(path).suffix.lower()))


def colour_of(curve_index: int) -> str:
    """Return the colour of a curve and its bands."""
    return COLOURS[curve_index % len(COLOURS)]


def fit_to_curves(
    axes: Any, curves: Sequence[Float[np.ndarray, "*rows evaluations"]], random: float | None = None
) -> None:
    """Let the vertical axis follow the curves, so that what comes first does not squeeze the rest.

    The first evaluation, and the return of random actions, leave the axis where they would take
    more than half of it. Draws that return as a level line, or says where it is.

    Args:
        axes: The axes, on which the curves are drawn.
        curves: Lines and the bounds of their bands; NaN where there are none.
        random: Mean return of random actions; None: not drawn.
    """
    later = [curve[..., 1:] if curve.shape[-1] > 2 else curve for curve in curves]
    low, high = _range(later)
    tallest = 2 * (high - low) or np.inf  # a level curve squeezes nothing
    for values in (*curves, *([] if random is None else [np.array(random)])):
        wider = _range([values, np.array([low, high])])
        if wider[1] - wider[0] <= tallest:
            low, high = wider
    margin = 0.05 * (high - low) or 0.05 * max(abs(high), 1.0)
    axes.set_ylim(low - margin, high + margin)
    if random is not None:
        _draw_random(axes, random)


def _range(curves: Sequence[np.ndarray]) -> tuple[float, float]:
    values = np.concatenate([np.ravel(curve) for curve in curves])
    values = values[np.isfinite(values)]
    return (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)


def _draw_random(axes: Any, value: float) -> None:
    low, high = axes.get_ylim()
    is_below, is_above = value < low, value > high
    text = "random actions"
    if is_below or is_above:
        text = f"{text}: {value:.3g}, {'below' if is_below else 'above'}"
    else:
        axes.axhline(value, color=INK, linewidth=1.0, linestyle=":", alpha=0.6, zorder=2)
    axes.annotate(
        text,
        (1.0, min(max(value, low), high)),
        xycoords=("axes fraction", "data"),
        xytext=(-2, -2 if is_above else 2),
        textcoords="offset points",
        ha="right",
        va="top" if is_above else "baseline",
        fontsize=8,
        color=INK,
        alpha=0.8,
    )


def draw_line(
    axes: Any, x: np.ndarray, y: np.ndarray, label: str, curve_index: int, n_curves: int
) -> Any:
    """Draw a line with the colour, markers and dashes of its index."""
    every = max(1, len(y) // _N_MARKERS)
    (line,) = axes.plot(
        x,
        y,
        color=colour_of(curve_index),
        linewidth=1.8 if len(y) < 100 else 1.3,
        linestyle=_DASHES[curve_index % len(_DASHES)],
        marker=_MARKERS[curve_index % len(_MARKERS)],
        markersize=6,
        markeredgecolor="white",
        markeredgewidth=0.7,
        # Staggered, so that markers of overlapping curves do not hide each other.
        markevery=(curve_index * every // n_curves, every),
        label=label,
        zorder=3,
    )
    return line


def draw_spread(
    axes: Any, x: np.ndarray, bounds: Float[np.ndarray, "2 evaluations"], **style: Any
) -> None:
    """Fill the area between two bounds."""
    if len(x) == 1:  # a band of zero width would be invisible
        axes.vlines(x, *bounds, linewidth=8, **style)
    else:
        axes.fill_between(x, *bounds, linewidth=0.5, **style)


def style_axes(axes: Any, max_ticks: int = 7) -> None:
    """Remove frame and ticks, and write environment steps as 200k or 1M."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(
        MaxNLocator(max_ticks, steps=[1, 2, 2.5, 5, 10], integer=True, min_n_ticks=1)
    )
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.015)
    axes.tick_params(colors=INK, length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT_INK)


def set_title(axes: Any, title: str, fontsize: int = 12) -> None:
    """Write a left-aligned title above the axes."""
    axes.set_title(title, loc="left", color=INK, fontsize=fontsize, fontweight="bold", pad=12)


def write_caption(figure: Any, sentences: Sequence[str]) -> None:
    """Explain the lines and bands below the figure, one sentence per line."""
    figure.supxlabel("\n".join(sentences), x=0.01, ha="left", color=FAINT_INK, fontsize=8)
