"""Pictures of what training returned, drawn without a display and without global state."""

import textwrap
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxagents.errors import ExperimentError
from jaxagents.evaluation.learning_curves import Panel, make_panels
from jaxagents.evaluation.runs import Run
from jaxagents.visual.style import (
    INK,
    colour_of,
    draw_line,
    draw_spread,
    new_figure,
    set_title,
    style_axes,
    write_caption,
)

_MOST_WITH_EXTREMES = 4  # curves whose lowest and highest episodes can be told apart
_MOST_IN_A_COLUMN = 18  # of the legend
_SUFFIXES = (".png", ".svg", ".pdf")
# Of pictures of runs: they say by whom they were made, so that these alone are replaced.
_METADATA = {
    ".png": {"Software": "jaxagents"},
    ".svg": {"Creator": "jaxagents", "Date": None},  # no date: equal pictures are equal files
}
_QUANTITIES = {
    "return": "Return of an episode",
    "kl": "KL divergence, nats",
    "entropy": "Entropy, nats",
    "episode_length": "Length of an episode, steps",
}
_SIZE_ALONE, _SIZE_AMONG_OTHERS = (8.0, 4.2), (4.3, 3.0)  # of a panel, inches
_LETTERS_PER_INCH = 10  # of a legend


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
    figure = new_figure(8.0, 4.5)
    axes = figure.add_subplot()
    lines = [_draw_curve(axes, curve, i, len(curves)) for i, curve in enumerate(curves)]
    style_axes(axes)
    axes.set_xlabel("environment steps", color=INK)
    axes.set_ylabel("return of an episode", color=INK)
    if title is not None:
        set_title(axes, title)
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
    x, colour = curve.n_environment_steps, colour_of(curve_index)
    few = n_curves <= _MOST_WITH_EXTREMES
    if few:
        draw_spread(axes, x, curve.extremes, color=colour, alpha=0.09)
    draw_spread(axes, x, curve.quartiles, color=colour, alpha=0.22 if few else 0.1)
    return draw_line(axes, x, curve.mean, curve.label, curve_index, n_curves)


def _explain_the_spread(figure: Any, n_episodes: int, n_curves: int) -> None:
    text = f"Line: mean of {n_episodes} episodes. Band: their middle half."
    if n_curves <= _MOST_WITH_EXTREMES:
        text += " Pale band: from the lowest to the highest."
    write_caption(figure, [text])


# Pictures of runs, by what their directories hold.


def plot_runs(
    groups: Mapping[str, Sequence[Run]],
    path: str | PathLike[str],
    *,
    metrics: Sequence[str] = ("return",),
) -> None:
    """Draw how metrics of runs went over training, the groups of runs under one legend.

    Of a group of several runs, lines are interquartile means over the runs, bands their 95 %
    bootstrap intervals; of a single run, lines are what it recorded, bands the spread of its
    returns over episodes. See `jaxagents.curves.make_panels` for what shares a panel, and for runs
    that were evaluated at different points.

    Args:
        groups: By label; see `jaxagents.runs.read_groups`.
        path: Where to write; its suffix, .png or .svg, decides the format.
        metrics: Names as in ``metrics.jsonl``, where ``_mean`` may be left out; "return" is
            ``return_mean`` and its spread.

    Raises:
        ExperimentError: The suffix is another one, or a run has not recorded a metric.
    """
    path = Path(path)
    check_suffix(path)
    panels = [make_panels(groups, metric) for metric in metrics]
    figure = _draw_panels(panels, groups)
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(figure, path)


def check_suffix(path: Path) -> None:
    """Refuse what `plot_runs` cannot write.

    Raises:
        ExperimentError: The suffix is neither .png nor .svg.
    """
    if path.suffix.lower() not in _METADATA:
        raise ExperimentError(f"{path} does not end in .png or .svg, which decides the format.")


def check_replaceable(path: Path) -> None:
    """Refuse to write over what is no picture by `plot_runs`.

    Raises:
        ExperimentError: There is such a file.
    """
    if not path.exists():
        return
    mark = next(iter(_METADATA[path.suffix.lower()].values()))
    with path.open("rb") as file:
        is_ours = mark.encode() in file.read(2_000)
    if not is_ours:
        raise ExperimentError(
            f"{path} exists, and is no picture that jaxagents plot made; give another with --to."
        )


def _write(figure: Any, path: Path) -> None:
    import matplotlib

    # Text stays text, and the names of a picture's parts are the same every time.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "jaxagents"}):
        figure.savefig(path, metadata=_METADATA[path.suffix.lower()])


def _draw_panels(metrics: Sequence[Sequence[Panel]], groups: Mapping[str, Sequence[Run]]) -> Any:
    panels = [panel for of_metric in metrics for panel in of_metric]
    n_columns = _n_columns([len(of_metric) for of_metric in metrics])
    n_rows = -(-len(panels) // n_columns)
    width, height = _SIZE_ALONE if len(panels) == 1 else _SIZE_AMONG_OTHERS
    figure = new_figure(width * n_columns, height * n_rows + 0.6)
    figure.get_layout_engine().set(h_pad=0.09)
    shared = None  # the first axes: all show the same part of training
    for i, panel in enumerate(panels):
        axes = figure.add_subplot(n_rows, n_columns, i + 1, sharex=shared)
        shared = shared or axes
        _draw_panel(axes, panel, groups)
        style_axes(axes, most_ticks=7 if len(panels) == 1 else 5)
        set_title(axes, _title(panel), fontsize=10)
        axes.tick_params(labelsize=9)
        if i + n_columns >= len(panels):
            axes.set_xlabel("environment steps", color=INK)
    _draw_legend(figure, groups)
    write_caption(figure, _explanations(panels, groups))
    return figure


def _n_columns(n_panels: Sequence[int]) -> int:
    """Choose the columns of a grid: a row per metric where all have equally many panels."""
    if set(n_panels) <= {2, 3}:
        return max(n_panels) if len(set(n_panels)) == 1 else 3
    total = sum(n_panels)
    return {1: 1, 2: 2, 4: 2}.get(total, 3)


def _draw_panel(axes: Any, panel: Panel, groups: Mapping[str, Sequence[Run]]) -> None:
    labels = list(groups)
    for label, curve in panel.curves.items():
        i, x = labels.index(label), curve.n_environment_steps
        if curve.extremes is not None and len(labels) == 1:
            draw_spread(axes, x, curve.extremes, color=colour_of(i), alpha=0.09)
        if curve.band is not None and (len(groups[label]) > 1 or not _any_has_several(groups)):
            draw_spread(axes, x, curve.band, color=colour_of(i), alpha=0.2)
        draw_line(axes, x, curve.line, label, i, len(labels))


def _any_has_several(groups: Mapping[str, Sequence[Run]]) -> bool:
    """Tell whether bands are intervals over runs: the spread of one's episodes is no such thing."""
    return any(len(group) > 1 for group in groups.values())


def _title(panel: Panel) -> str:
    quantity = _QUANTITIES.get(panel.metric, panel.metric.replace("_", " ").capitalize())
    return f"{quantity}: {panel.subject}" if panel.subject else quantity


def _draw_legend(figure: Any, groups: Mapping[str, Sequence[Run]]) -> None:
    handles = {line.get_label(): line for axes in figure.axes for line in axes.lines}
    present = {label: handles[label] for label in groups if label in handles}
    labels = [
        f"{label} ({len(groups[label])} {'run' if len(groups[label]) == 1 else 'runs'})"
        for label in present
    ]
    letters = 6 + max(map(len, labels))
    n_fitting = max(1, int(figure.get_figwidth() * _LETTERS_PER_INCH / letters))
    n_rows = -(-len(labels) // n_fitting)
    figure.legend(
        handles=list(present.values()),
        labels=labels,
        loc="outside upper left",
        ncols=-(-len(labels) // n_rows),
        frameon=False,
        labelcolor=INK,
    )


def _explanations(panels: Sequence[Panel], groups: Mapping[str, Sequence[Run]]) -> list[str]:
    """Say what the lines and bands of the picture are."""
    if _any_has_several(groups):
        interval = "Interquartile mean over runs; band: its 95 % bootstrap interval."
        alone = any(len(group) == 1 for group in groups.values())
        return [f"{interval} Of one run: what it recorded." if alone else interval]
    text = "Of one run: other seeds may differ."
    curves = [curve for panel in panels for curve in panel.curves.values()]
    if all(curve.band is None for curve in curves):
        return [text]
    extremes = "; pale band: from the lowest to the highest" if len(groups) == 1 else ""
    return [f"{text} Mean over episodes; band: their standard deviation{extremes}."]
