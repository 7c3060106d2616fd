"""Pictures of what training returned, drawn without a display and without global state."""

import textwrap
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxagents.palette import COLOURS, FAINT_INK, GRID, INK

# Seven colours and eight markers give 56 pairs; without colour, markers and dashes remain.
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
_DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
_N_MARKERS = 8  # on a curve: enough to recognise it by
_MOST_WITH_EXTREMES = 4  # curves whose lowest and highest episodes can be told apart
_MOST_IN_A_COLUMN = 18  # of the legend
_SUFFIXES = (".png", ".svg", ".pdf")


class Curve(NamedTuple):
    """Returns of one actor, or of several that share them, in the evaluations that ran."""

    label: str
    n_environment_steps: Float[np.ndarray, "evaluations"]
    mean: Float[np.ndarray, "evaluations"]
    quartiles: Float[np.ndarray, "2 evaluations"]
    extremes: Float[np.ndarray, "2 evaluations"]


def plot_learning_curve(
    metrics: Mapping[str, Any],
    path: str | PathLike[str],
    *,
    title: str | None = None,
    actor_names: Sequence[str] | None = None,
) -> None:
    """Draw each actor's returns over training, and their spread over episodes.

    Lines are means over the episodes of an evaluation, bands their middle half; pale bands, where
    there are few curves, reach from the lowest to the highest. Actors with equal returns share a
    curve. Evaluations after an early stop are left out.

    Args:
        metrics: As `train` returns them: ``returns`` ``[evaluations, episodes, actors]`` and
            ``n_environment_steps`` ``[evaluations]``.
        path: Where to write; its suffix, .png, .svg or .pdf, decides the format.
        title: Above the picture, at its left.
        actor_names: One per actor; by default "actor 0", "actor 1", ...

    Raises:
        ValueError: The suffix or a shape is another one, or no evaluation ran.
    """
    path = Path(path)
    if path.suffix.lower() not in _SUFFIXES:
        raise ValueError(f"path={str(path)!r} does not end in one of {', '.join(_SUFFIXES)}.")
    returns = np.asarray(metrics["returns"], dtype=np.float64)
    curves = _curves(returns, np.asarray(metrics["n_environment_steps"]), actor_names)
    named = returns.shape[2] > 1 or actor_names is not None
    figure = _draw(curves, title, legend=named)
    _explain_the_spread(figure, n_episodes=returns.shape[1], n_curves=len(curves))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _curves(
    returns: np.ndarray,
    n_environment_steps: np.ndarray,
    actor_names: Sequence[str] | None,
) -> list[Curve]:
    """Summarize the returns, one curve for all actors whose returns are equal."""
    if returns.ndim != 3 or n_environment_steps.shape != returns.shape[:1]:
        raise ValueError(
            f"returns of shape {returns.shape} and n_environment_steps of shape "
            f"{n_environment_steps.shape} are not [evaluations, episodes, actors] and "
            "[evaluations]; plot the runs of a population one at a time."
        )
    n_actors = returns.shape[2]
    if actor_names is not None and len(actor_names) != n_actors:
        raise ValueError(f"{len(actor_names)} actor_names do not name {n_actors} actors.")
    if not np.isfinite(returns).any():
        raise ValueError("no evaluation ran: there are no returns to draw; train with n_evals > 0.")
    names = list(actor_names or (f"actor {actor_index}" for actor_index in range(n_actors)))
    curves = []
    for actor_indices in _equal_actors(returns):
        everyone = len(actor_indices) == n_actors > 1
        label = "all actors" if everyone else _listed([names[i] for i in actor_indices])
        shared_returns = returns[:, :, actor_indices[0]]
        if np.isfinite(shared_returns).any():
            curves.append(_curve(label, n_environment_steps, shared_returns))
    return curves


def _listed(names: Sequence[str]) -> str:
    """List names on short lines, none broken over two."""
    listed = ", ".join(name.replace(" ", "\N{NO-BREAK SPACE}") for name in names)
    filled = textwrap.fill(listed, 26, break_long_words=False, break_on_hyphens=False)
    return filled.replace("\N{NO-BREAK SPACE}", " ")


def _equal_actors(
    returns: Float[np.ndarray, "evaluations episodes actors"],
) -> list[list[int]]:
    """Group the actors by their returns, in the order of each group's first."""
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
    low, first_quartile, third_quartile, high = np.nanpercentile(
        returns[ran], [0, 25, 75, 100], axis=1
    )
    return Curve(
        label=label,
        n_environment_steps=n_environment_steps[ran],
        mean=np.nanmean(returns[ran], axis=1),
        quartiles=np.stack([first_quartile, third_quartile]),
        extremes=np.stack([low, high]),
    )


def _draw(curves: Sequence[Curve], title: str | None, legend: bool) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    lines = [_draw_curve(axes, curve, i, len(curves)) for i, curve in enumerate(curves)]
    _style(axes)
    if title is not None:
        axes.set_title(title, loc="left", color=INK, fontsize=12, fontweight="bold", pad=12)
    if legend:
        # In the order in which the curves end, so that the eye needs no search.
        in_order = sorted(lines, key=lambda line: -line.get_ydata()[-1])
        figure.legend(
            handles=in_order,
            loc="outside right center",
            ncols=1 + (len(lines) - 1) // _MOST_IN_A_COLUMN,
            frameon=False,
            labelcolor=INK,
        )
    return figure


def _draw_curve(axes: Any, curve: Curve, curve_index: int, n_curves: int) -> Any:
    colour = COLOURS[curve_index % len(COLOURS)]
    few = n_curves <= _MOST_WITH_EXTREMES
    if few:
        _draw_spread(axes, curve.n_environment_steps, curve.extremes, color=colour, alpha=0.09)
    opacity = 0.22 if few else 0.1
    _draw_spread(axes, curve.n_environment_steps, curve.quartiles, color=colour, alpha=opacity)
    every = max(1, len(curve.mean) // _N_MARKERS)
    (line,) = axes.plot(
        curve.n_environment_steps,
        curve.mean,
        color=colour,
        linewidth=1.8 if len(curve.mean) < 100 else 1.3,
        linestyle=_DASHES[curve_index % len(_DASHES)],
        marker=_MARKERS[curve_index % len(_MARKERS)],
        markersize=6,
        markeredgecolor="white",
        markeredgewidth=0.7,
        markevery=(curve_index * every // n_curves, every),  # staggered: curves may cross
        label=curve.label,
        zorder=3,
    )
    return line


def _draw_spread(
    axes: Any, x: np.ndarray, bounds: Float[np.ndarray, "2 evaluations"], **style: Any
) -> None:
    if len(x) == 1:  # a band of no width would not show
        axes.vlines(x, *bounds, linewidth=8, **style)
    else:
        axes.fill_between(x, *bounds, linewidth=0, **style)


def _style(axes: Any) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axes.set_xlabel("environment steps", color=INK)
    axes.set_ylabel("return of an episode", color=INK)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(
        MaxNLocator(7, steps=[1, 2, 2.5, 5, 10], integer=True, min_n_ticks=1)
    )
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.015)
    axes.tick_params(colors=INK, length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT_INK)


def _explain_the_spread(figure: Any, n_episodes: int, n_curves: int) -> None:
    text = f"Line: mean of {n_episodes} episodes. Band: their middle half."
    if n_curves <= _MOST_WITH_EXTREMES:
        text += " Pale band: from the lowest to the highest."
    figure.supxlabel(text, x=0.01, ha="left", color=FAINT_INK, fontsize=8)
