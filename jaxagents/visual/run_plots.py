"""Plots of runs: metrics over training, and performance profiles."""

import itertools
from collections.abc import Collection, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxagents.errors import ExperimentError
from jaxagents.evaluation.comparison import PerformanceProfile
from jaxagents.evaluation.learning_curves import Actors, GroupCurve, Panel, X, make_panels
from jaxagents.evaluation.runs import Run, labelled, read_groups
from jaxagents.visual.picture_files import check_suffix, write_figure
from jaxagents.visual.style import (
    INK,
    colour_of,
    draw_line,
    draw_random,
    draw_spread,
    limits_of,
    new_figure,
    set_title,
    style_axes,
    write_caption,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Size = Literal["column", "page"]
"""A figure as wide as a column or a page of a paper."""
_WIDTHS = {"column": 3.4, "page": 7.0}  # inches
_SCALE = 0.8  # of fonts and lines in papers: 8 points for labels, 7 for ticks
_DPI = 300  # of PNG files for papers
_ASPECT, _LOWEST, _TALLEST = 0.66, 2.0, 2.4  # of a panel in a paper, and inches
_SINGLE_PANEL_SIZE, _PANEL_SIZE = (8.0, 4.2), (4.3, 3.0)  # inches, on a screen
_LEGEND_CHARACTERS_PER_INCH, _TITLE_CHARACTERS_PER_INCH = 10, 11
_MOST_SQUEEZED = 2.0  # panels share an axis that is this many times as tall as they need
_QUANTITIES = {
    "return": "Episode return",
    "kl": "KL divergence (nats)",
    "entropy": "Entropy (nats)",
    "episode_length": "Episode length (steps)",
}


def plot_runs(
    runs: str | PathLike[str] | Sequence[str | PathLike[str]] | Mapping[str, Sequence[Run]],
    path: str | PathLike[str] | None = None,
    *,
    metrics: Sequence[str] = ("return",),
    labels: Sequence[str] | Mapping[str, str] | None = None,
    x: X = "steps",
    smooth: int = 1,
    actors: Actors | None = None,
    size: Size | None = None,
) -> "Figure":
    """Plot metrics of runs over training, one curve per group of runs.

    Runs that differ only in their seed form a group. Its lines are interquartile means over the
    runs and its bands their 95 % bootstrap intervals. For a single run, lines are its recorded
    values and bands the spread of its returns over episodes. A group that was evaluated at
    different points of training is interpolated, and ends where its shortest run ends.

    Args:
        runs: A directory or directories of runs or populations; or runs by label, from
            `group_runs`.
        path: File to write; its suffix, .png, .svg or .pdf, selects the format. None: no file.
        metrics: Names as in ``metrics.jsonl``, with or without ``_mean``; "return" is
            ``return_mean`` and its spread.
        labels: Names of the groups: in their order, or by the names of their configurations; by
            default these names, with the number of runs.
        x: The horizontal axis: environment "steps", "updates", or "time" of training.
        smooth: Each point of a run is the mean of this many evaluations around it, or fewer at
            either end. Intervals are of the smoothed runs.
        actors: "mean" draws all actors in one panel, "team" each team and "each" those with
            different values. None is "each" for one group; for several, "team" if the runs have
            recorded several teams, and "mean" otherwise.
        size: "column" is 3.4 inches wide and "page" 7, with fonts of 7 and 8 points. The
            explanation of lines and bands is then not written below the panels; it is the figure's
            label, ``figure.get_label()``. None: a size for screens.

    Returns:
        The figure, which pyplot does not manage.

    Raises:
        ExperimentError: An option has no such value, or a run has not recorded a metric.
    """
    if path is not None:
        check_suffix(Path(path))
    if size is not None and size not in _WIDTHS:
        raise ExperimentError(f"size={size!r} is none of {', '.join(_WIDTHS)}.")
    directories = [runs] if isinstance(runs, str | PathLike) else runs
    groups = directories if isinstance(directories, Mapping) else read_groups(directories)
    groups = groups if labels is None else labelled(groups, labels)
    actors = actors or ("each" if len(groups) == 1 else _teams_or_mean(groups))
    panels = [make_panels(groups, each, x=x, smooth=smooth, actors=actors) for each in metrics]
    names = {
        label: label if labels is not None else f"{label} ({_count(group)})"
        for label, group in groups.items()
    }
    figure = _draw_panels(panels, groups, names, _axis(x, panels), size)
    caption = _explanations(panels, groups, smooth)
    figure.set_label(" ".join(caption))
    if size is None:
        write_caption(figure, caption)
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_figure(figure, path)
    return figure


def draw_learning_curve(directory: Path) -> None:
    """Draw a run's or population's mean return, or that of each of several teams, in its folder."""
    groups = read_groups([directory])
    plot_runs(groups, directory / "learning_curve.png", actors=_teams_or_mean(groups))


def _teams_or_mean(groups: Mapping[str, Sequence[Run]]) -> Actors:
    teams = [run.teams for group in groups.values() for run in group]
    is_several = teams[0] is not None and len(set(teams[0])) > 1
    return "team" if is_several and all(each == teams[0] for each in teams) else "mean"


def _count(group: Sequence[Run]) -> str:
    return f"{len(group)} {'run' if len(group) == 1 else 'runs'}"


def plot_profiles(
    profiles: Mapping[str, PerformanceProfile], path: Path, env: str, quantity: str
) -> None:
    """Plot performance profiles to a file.

    Args:
        profiles: By group label, see `performance_profiles` and `aggregate_profiles`.
        path: A .png, .svg or .pdf file.
        env: The environment, or how many there are, for the title.
        quantity: The quantity that is profiled.
    """
    figure = new_figure(7.0, 4.5)
    axes = figure.subplots()
    for i, (label, profile) in enumerate(profiles.items()):
        draw_line(axes, profile.scores, profile.share, label, i, len(profiles))
        axes.fill_between(profile.scores, *profile.band, color=colour_of(i), alpha=0.2, linewidth=0)
    axes.set_xlabel(quantity)
    axes.set_ylabel("share of runs with more")
    axes.set_ylim(-0.02, 1.02)
    set_title(axes, f"Performance profiles on {env}")
    axes.legend()
    write_caption(figure, ["Line: share of runs. Band: its 95 % bootstrap interval over runs."])
    write_figure(figure, path)


class _Axis(NamedTuple):
    """The horizontal axis."""

    title: str
    unit: float = 1.0  # of the curves' x
    of_counts: bool = True


def _axis(x: X, panels: Sequence[Sequence[Panel]]) -> _Axis:
    if x != "time":
        return _Axis({"steps": "environment steps", "updates": "updates"}[x])
    every = itertools.chain.from_iterable(panels)
    longest = max(curve.x[-1] for panel in every for curve in panel.curves.values())
    for name, unit in (("hours", 3600.0), ("minutes", 60.0)):
        if longest >= 2 * unit:
            return _Axis(f"{name} of training", unit, of_counts=False)
    return _Axis("seconds of training", of_counts=False)


def _draw_panels(
    metrics: Sequence[Sequence[Panel]],
    groups: Mapping[str, Sequence[Run]],
    names: Mapping[str, str],
    axis: _Axis,
    size: Size | None,
) -> Any:
    panels = list(itertools.chain.from_iterable(metrics))
    limits = [each for of_metric in metrics for each in _limits(of_metric, groups)]
    n_columns = 1 if size == "column" else _n_columns([len(of_metric) for of_metric in metrics])
    n_rows = -(-len(panels) // n_columns)
    scale = 1.0 if size is None else _SCALE
    figure = _empty_figure(len(panels), n_columns, n_rows, names.values(), size)
    first_axes = None
    for i, (panel, own_limits) in enumerate(zip(panels, limits, strict=True)):
        axes = figure.add_subplot(n_rows, n_columns, i + 1, sharex=first_axes)
        first_axes = first_axes or axes
        _draw_curves(axes, panel, groups, axis.unit, scale)
        axes.set_ylim(*own_limits)
        if panel.random is not None:
            draw_random(axes, panel.random, scale)
        n_ticks = 7 if len(panels) == 1 and size != "column" else 5
        style_axes(axes, max_ticks=n_ticks, of_counts=axis.of_counts)
        most = int(_TITLE_CHARACTERS_PER_INCH / scale * figure.get_figwidth() / n_columns)
        set_title(axes, _title(panel, groups, most), fontsize=10 * scale)
        axes.tick_params(labelsize=9 * scale)
        if i + n_columns >= len(panels):
            axes.set_xlabel(axis.title, color=INK, fontsize=10 * scale)
    _draw_legend(figure, names, scale)
    return figure


def _empty_figure(
    n_panels: int, n_columns: int, n_rows: int, names: Collection[str], size: Size | None
) -> Any:
    if size is None:
        width, height = _SINGLE_PANEL_SIZE if n_panels == 1 else _PANEL_SIZE
        figure = new_figure(width * n_columns, height * n_rows + 0.6)
    else:
        width = _WIDTHS[size]
        height = min(max(_ASPECT * width / n_columns, _LOWEST), _TALLEST)
        n_lines = _legend_shape(names, width, _SCALE)[0]
        figure = new_figure(width, height * n_rows + 0.15 * n_lines, _DPI)
    figure.get_layout_engine().set(h_pad=0.09 if size is None else 0.04)
    return figure


def _n_columns(n_panels: Sequence[int]) -> int:
    """Choose the grid's columns: one row per metric if all metrics have 2 or all have 3 panels."""
    if set(n_panels) <= {2, 3}:
        return max(n_panels) if len(set(n_panels)) == 1 else 3
    total = sum(n_panels)
    return {1: 1, 2: 2, 4: 2}.get(total, 3)


def _limits(
    panels: Sequence[Panel], groups: Mapping[str, Sequence[Run]]
) -> list[tuple[float, float]]:
    """Choose the vertical axes of a metric's panels: one for all, unless it squeezes one."""
    own = []
    for panel in panels:
        bands = [_band(label, curve, groups) for label, curve in panel.curves.items()]
        lines = [curve.line for curve in panel.curves.values()]
        own.append(limits_of([*lines, *(b for b in bands if b is not None)], panel.random))
    low, high = min(low for low, _ in own), max(high for _, high in own)
    is_fair = all(high - low <= _MOST_SQUEEZED * (end - start) for start, end in own)
    return [(low, high)] * len(own) if is_fair else own


def _draw_curves(
    axes: Any, panel: Panel, groups: Mapping[str, Sequence[Run]], unit: float, scale: float
) -> None:
    labels = list(groups)
    for label, curve in panel.curves.items():
        i, x = labels.index(label), curve.x / unit
        if curve.extremes is not None and len(labels) == 1:
            draw_spread(axes, x, curve.extremes, color=colour_of(i), alpha=0.09)
        if (band := _band(label, curve, groups)) is not None:
            draw_spread(axes, x, band, color=colour_of(i), alpha=0.2)
        draw_line(axes, x, curve.line, label, i, len(labels), scale)


def _band(
    label: str, curve: GroupCurve, groups: Mapping[str, Sequence[Run]]
) -> Float[np.ndarray, "2 points"] | None:
    """Return the band to draw: those over episodes and over runs never share a figure."""
    return curve.band if len(groups[label]) > 1 or not _has_several_runs(groups) else None


def _has_several_runs(groups: Mapping[str, Sequence[Run]]) -> bool:
    """Return True if any group has several runs, so that bands are intervals over runs."""
    return any(len(group) > 1 for group in groups.values())


def _title(panel: Panel, groups: Mapping[str, Sequence[Run]], most_characters: int) -> str:
    quantity = _QUANTITIES.get(panel.metric, panel.metric.replace("_", " ").capitalize())
    if panel.metric == "success":
        found = [run.success for group in groups.values() for run in group]
        titles = {each["title"] for each in found if each is not None}
        quantity = titles.pop().capitalize() if len(titles) == 1 else quantity
    title = f"{quantity}: {panel.subject}" if panel.subject else quantity
    return title if len(title) <= most_characters else title.replace(": ", ":\n", 1)


def _draw_legend(figure: Any, names: Mapping[str, str], scale: float) -> None:
    handles = {line.get_label(): line for axes in figure.axes for line in axes.lines}
    present = [label for label in names if label in handles]
    shown = [names[label] for label in present]
    figure.legend(
        handles=[handles[label] for label in present],
        labels=shown,
        loc="outside upper left",
        ncols=_legend_shape(shown, figure.get_figwidth(), scale)[1],
        frameon=False,
        labelcolor=INK,
        fontsize=10 * scale,
    )


def _legend_shape(names: Collection[str], width: float, scale: float) -> tuple[int, int]:
    """Return the numbers of rows and columns in which names fit a figure's width."""
    characters = 6 + max(map(len, names))  # 6 for the line's sample
    n_columns = max(1, int(width * _LEGEND_CHARACTERS_PER_INCH / scale / characters))
    n_rows = -(-len(names) // n_columns)
    return n_rows, -(-len(names) // n_rows)


def _explanations(
    metrics: Sequence[Sequence[Panel]], groups: Mapping[str, Sequence[Run]], smooth: int
) -> list[str]:
    """Write the caption: the meaning of lines and bands."""
    means = [] if smooth == 1 else [f"Smoothed: means of up to {smooth} evaluations."]
    if _has_several_runs(groups):
        interval = "Line: interquartile mean over runs. Band: its 95 % bootstrap interval."
        has_single = any(len(group) == 1 for group in groups.values())
        return [f"{interval} Single runs: recorded values." if has_single else interval, *means]
    text = "One run per curve: other seeds may differ."
    panels = itertools.chain.from_iterable(metrics)
    curves = [curve for panel in panels for curve in panel.curves.values()]
    if any(curve.band is not None for curve in curves):
        text = f"{text} Line: mean over episodes. Band: one standard deviation."
        text = f"{text} Pale band: minimum to maximum." if len(groups) == 1 else text
    return [text, *means]
