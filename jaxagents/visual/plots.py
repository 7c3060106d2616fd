"""Plots of learning curves, from the metrics that `train` returns or from run directories.

Draws without a display or pyplot.
"""

import textwrap
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxagents.errors import ExperimentError
from jaxagents.evaluation.comparison import PerformanceProfile
from jaxagents.evaluation.learning_curves import Panel, make_panels
from jaxagents.evaluation.runs import Run
from jaxagents.training.atomic_write import replacing
from jaxagents.visual.style import (
    INK,
    METADATA,
    colour_of,
    draw_line,
    draw_spread,
    fit_to_curves,
    new_figure,
    set_title,
    style_axes,
    write_caption,
    write_figure,
)

_MAX_WITH_EXTREMES = 4  # with more curves, their minima and maxima overlap too much
_MAX_LEGEND_ROWS = 18
_SUFFIXES = (".png", ".svg", ".pdf")
_QUANTITIES = {
    "return": "Episode return",
    "kl": "KL divergence (nats)",
    "entropy": "Entropy (nats)",
    "episode_length": "Episode length (steps)",
}
_SINGLE_PANEL_SIZE, _PANEL_SIZE = (8.0, 4.2), (4.3, 3.0)  # inches
_LEGEND_CHARACTERS_PER_INCH = 10


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
    actor_names: Sequence[str] | None = None,
    random_returns: Sequence[float] | None = None,
) -> None:
    """Plot each actor's learning curve, with the spread over episodes.

    Lines are means over the episodes of an evaluation, bands one standard deviation to either side,
    within minimum and maximum, as `plot_runs` draws a single run. With up to four curves, paler
    bands span minimum to maximum. Actors with equal returns share a curve. Evaluations after an
    early stop are left out.

    Args:
        metrics: ``returns`` ``[evaluations, episodes, actors]`` as `train` returns them, and
            ``n_environment_steps`` ``[evaluations]``: updates done times ``steps_per_update``.
        path: File to write; its suffix, .png, .svg or .pdf, selects the format.
        title: Written above the plot.
        actor_names: One per actor; by default "actor 0", "actor 1", ...
        random_returns: Mean returns of random actions, one per actor, whose mean is a dotted line.

    Raises:
        ValueError: The suffix or a shape is unsupported, or no evaluation ran.
    """
    path = Path(path)
    if path.suffix.lower() not in _SUFFIXES:
        raise ValueError(f"path={str(path)!r} does not end in one of {', '.join(_SUFFIXES)}.")
    returns = np.asarray(metrics["returns"], dtype=np.float64)
    curves = _curves(returns, np.asarray(metrics["n_environment_steps"]), actor_names)
    named = returns.shape[2] > 1 or actor_names is not None
    figure = _draw(curves, title, legend=named)
    random = None if random_returns is None else float(np.mean(random_returns))
    fit_to_curves(
        figure.axes[0], [part for each in curves for part in (each.mean, each.band)], random
    )
    _explain_spread(figure, n_episodes=returns.shape[1], n_curves=len(curves))
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as new:
        figure.savefig(new)


def _curves(
    returns: np.ndarray,
    n_environment_steps: np.ndarray,
    actor_names: Sequence[str] | None,
) -> list[Curve]:
    """Summarize the returns over episodes; actors with equal returns share a curve."""
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
        is_everyone = len(actor_indices) == n_actors > 1
        label = "all actors" if is_everyone else _wrapped([names[i] for i in actor_indices])
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
    text = _explain_episodes(f"{n_episodes} episodes", n_curves <= _MAX_WITH_EXTREMES)
    write_caption(figure, [text])


def _explain_episodes(episodes: str, with_extremes: bool) -> str:
    """Say what the line and the bands of a single run are."""
    text = f"Line: mean over {episodes}. Band: one standard deviation."
    return f"{text} Pale band: minimum to maximum." if with_extremes else text


def plot_runs(
    groups: Mapping[str, Sequence[Run]],
    path: str | PathLike[str],
    *,
    metrics: Sequence[str] = ("return",),
) -> None:
    """Plot metrics of runs over training, one curve per group of runs.

    For a group of several runs, lines are interquartile means over the runs and bands their 95 %
    bootstrap intervals. For a single run, lines are its recorded values and bands the spread of
    its returns over episodes. `evaluation.learning_curves.make_panels` documents which actors
    share a panel, and how runs that were evaluated at different points are combined.

    Args:
        groups: Runs by label, see `evaluation.runs.read_groups`.
        path: File to write; its suffix, .png or .svg, selects the format.
        metrics: Names as in ``metrics.jsonl``, with or without ``_mean``; "return" is
            ``return_mean`` and its spread.

    Raises:
        ExperimentError: The suffix is unsupported, or a run has not recorded a metric.
    """
    path = Path(path)
    check_suffix(path)
    panels = [make_panels(groups, metric) for metric in metrics]
    figure = _draw_panels(panels, groups)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_figure(figure, path)


def plot_profiles(
    profiles: Mapping[str, PerformanceProfile], path: Path, env: str, quantity: str
) -> None:
    """Plot performance profiles to a file.

    Args:
        profiles: By group label, see `performance_profiles` and `aggregate_profiles`.
        path: A .png or .svg file.
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


def check_suffix(path: Path) -> None:
    """Check that `plot_runs` can write the format.

    Raises:
        ExperimentError: The suffix is neither .png nor .svg.
    """
    if path.suffix.lower() not in METADATA:
        raise ExperimentError(f"{path} does not end in .png or .svg, which selects the format.")


def check_replaceable(path: Path) -> None:
    """Check that writing to the path overwrites nothing but an earlier plot by `plot_runs`.

    Raises:
        ExperimentError: The path holds another file.
    """
    if not path.exists():
        return
    mark = next(iter(METADATA[path.suffix.lower()].values()))
    with path.open("rb") as file:
        is_ours = mark.encode() in file.read(2_000)
    if not is_ours:
        raise ExperimentError(
            f"{path} exists and was not made by jaxagents plot; choose another file with --to."
        )


def _draw_panels(metrics: Sequence[Sequence[Panel]], groups: Mapping[str, Sequence[Run]]) -> Any:
    panels = [panel for of_metric in metrics for panel in of_metric]
    n_columns = _n_columns([len(of_metric) for of_metric in metrics])
    n_rows = -(-len(panels) // n_columns)
    width, height = _SINGLE_PANEL_SIZE if len(panels) == 1 else _PANEL_SIZE
    figure = new_figure(width * n_columns, height * n_rows + 0.6)
    figure.get_layout_engine().set(h_pad=0.09)
    first_axes = None
    for i, panel in enumerate(panels):
        axes = figure.add_subplot(n_rows, n_columns, i + 1, sharex=first_axes)
        first_axes = first_axes or axes
        _draw_panel(axes, panel, groups)
        style_axes(axes, max_ticks=7 if len(panels) == 1 else 5)
        set_title(axes, _title(panel, groups), fontsize=10)
        axes.tick_params(labelsize=9)
        if i + n_columns >= len(panels):
            axes.set_xlabel("environment steps", color=INK)
    _draw_legend(figure, groups)
    write_caption(figure, _explanations(panels, groups))
    return figure


def _n_columns(n_panels: Sequence[int]) -> int:
    """Choose the grid's columns: one row per metric if all metrics have 2 or all have 3 panels."""
    if set(n_panels) <= {2, 3}:
        return max(n_panels) if len(set(n_panels)) == 1 else 3
    total = sum(n_panels)
    return {1: 1, 2: 2, 4: 2}.get(total, 3)


def _draw_panel(axes: Any, panel: Panel, groups: Mapping[str, Sequence[Run]]) -> None:
    labels, shown = list(groups), []
    for label, curve in panel.curves.items():
        i, x = labels.index(label), curve.n_environment_steps
        if curve.extremes is not None and len(labels) == 1:
            draw_spread(axes, x, curve.extremes, color=colour_of(i), alpha=0.09)
        # Bands over episodes and bands over runs mean different things: never draw both.
        if curve.band is not None and (len(groups[label]) > 1 or not _has_several_runs(groups)):
            draw_spread(axes, x, curve.band, color=colour_of(i), alpha=0.2)
            shown.append(curve.band)
        draw_line(axes, x, curve.line, label, i, len(labels))
        shown.append(curve.line)
    fit_to_curves(axes, shown, panel.random)


def _has_several_runs(groups: Mapping[str, Sequence[Run]]) -> bool:
    """Return True if any group has several runs, so that bands are intervals over runs."""
    return any(len(group) > 1 for group in groups.values())


def _title(panel: Panel, groups: Mapping[str, Sequence[Run]]) -> str:
    quantity = _QUANTITIES.get(panel.metric, panel.metric.replace("_", " ").capitalize())
    if panel.metric == "success":
        found = [run.success for group in groups.values() for run in group]
        titles = {each["title"] for each in found if each is not None}
        quantity = titles.pop().capitalize() if len(titles) == 1 else quantity
    return f"{quantity}: {panel.subject}" if panel.subject else quantity


def _draw_legend(figure: Any, groups: Mapping[str, Sequence[Run]]) -> None:
    handles = {line.get_label(): line for axes in figure.axes for line in axes.lines}
    present = {label: handles[label] for label in groups if label in handles}
    labels = [
        f"{label} ({len(groups[label])} {'run' if len(groups[label]) == 1 else 'runs'})"
        for label in present
    ]
    characters = 6 + max(map(len, labels))  # 6 for the line's sample
    n_columns = max(1, int(figure.get_figwidth() * _LEGEND_CHARACTERS_PER_INCH / characters))
    n_rows = -(-len(labels) // n_columns)
    figure.legend(
        handles=list(present.values()),
        labels=labels,
        loc="outside upper left",
        ncols=-(-len(labels) // n_rows),
        frameon=False,
        labelcolor=INK,
    )


def _explanations(panels: Sequence[Panel], groups: Mapping[str, Sequence[Run]]) -> list[str]:
    """Write the caption: the meaning of lines and bands."""
    if _has_several_runs(groups):
        interval = "Line: interquartile mean over runs. Band: its 95 % bootstrap interval."
        has_single = any(len(group) == 1 for group in groups.values())
        return [f"{interval} Single runs: recorded values." if has_single else interval]
    text = "One run per curve: other seeds may differ."
    curves = [curve for panel in panels for curve in panel.curves.values()]
    if all(curve.band is None for curve in curves):
        return [text]
    return [f"{text} {_explain_episodes('episodes', with_extremes=len(groups) == 1)}"]
