"""The look of all pictures: legible without colour and to colour-blind readers.

Nothing here needs a display or touches matplotlib's global state.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

# Okabe and Ito's colour-blind safe palette, https://jfly.uni-koeln.de/color/, without its yellow,
# which is hard to see on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
INK, FAINT_INK, GRID = "#333333", "#767676", "#E4E4E4"

# Seven colours and eight markers give 56 pairs; in greyscale, markers and dashes still differ.
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
_DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
_N_MARKERS = 8  # per curve


def new_figure(width: float, height: float, dpi: int = 150) -> Any:
    """Make a figure without pyplot, its size in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def colour_of(curve_index: int) -> str:
    """Return the colour of a curve and its bands."""
    return COLOURS[curve_index % len(COLOURS)]


def limits_of(
    curves: Sequence[Float[np.ndarray, "... evaluations"]], random: float | None = None
) -> tuple[float, float]:
    """Return limits of the vertical axis, in which the first values do not squeeze the rest.

    The first evaluation, and the return of random actions, are left out where they would take more
    than half of the axis.

    Args:
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
    return low - margin, high + margin


def _range(curves: Sequence[np.ndarray]) -> tuple[float, float]:
    values = np.concatenate([np.ravel(curve) for curve in curves])
    values = values[np.isfinite(values)]
    return (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)


def draw_random(axes: Any, value: float, scale: float = 1.0) -> None:
    """Draw the mean return of random actions as a level line, or say where it is off the axis."""
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
        fontsize=8 * scale,
        color=INK,
        alpha=0.8,
    )


def draw_line(
    axes: Any,
    x: np.ndarray,
    y: np.ndarray,
    label: str,
    curve_index: int,
    n_curves: int,
    scale: float = 1.0,
) -> None:
    """Draw a line with the colour, markers and dashes of its index."""
    every = max(1, len(y) // _N_MARKERS)
    axes.plot(
        x,
        y,
        color=colour_of(curve_index),
        linewidth=scale * (1.8 if len(y) < 100 else 1.3),
        linestyle=_DASHES[curve_index % len(_DASHES)],
        marker=_MARKERS[curve_index % len(_MARKERS)],
        markersize=6 * scale,
        markeredgecolor="white",
        markeredgewidth=0.7 * scale,
        # Staggered, so that markers of overlapping curves do not hide each other.
        markevery=(curve_index * every // n_curves, every),
        label=label,
        zorder=3,
    )


def draw_spread(
    axes: Any, x: np.ndarray, bounds: Float[np.ndarray, "2 evaluations"], **style: Any
) -> None:
    """Fill the area between two bounds."""
    if len(x) == 1:  # a band of zero width would be invisible
        axes.vlines(x, *bounds, linewidth=8, **style)
    else:
        axes.fill_between(x, *bounds, linewidth=0.5, **style)


def style_axes(axes: Any, max_ticks: int = 7, of_counts: bool = True) -> None:
    """Remove frame and ticks, and write counts on the horizontal axis as 200k or 1M."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    if of_counts:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(
        MaxNLocator(max_ticks, steps=[1, 2, 2.5, 5, 10], integer=of_counts, min_n_ticks=1)
    )
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.015)
    axes.tick_params(colors=INK, length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT_INK)


def set_title(axes: Any, title: str, fontsize: float = 12) -> None:
    """Write a left-aligned title above the axes."""
    axes.set_title(title, loc="left", color=INK, fontsize=fontsize, fontweight="bold", pad=fontsize)


def write_caption(figure: Any, sentences: Sequence[str]) -> None:
    """Explain the lines and bands below the figure, one sentence per line."""
    figure.supxlabel("\n".join(sentences), x=0.01, ha="left", color=FAINT_INK, fontsize=8)
