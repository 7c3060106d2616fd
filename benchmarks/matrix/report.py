"""Tables and pictures of the learning matrix.

Source: Agarwal et al. 2021, https://arxiv.org/abs/2108.13264.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxagents.evaluation.bootstrap import (
    interquartile_mean,
    percentile_interval,
    resampled_interquartile_means,
)
from jaxagents.evaluation.comparison import Comparison, Group, compare

Row = Mapping[str, str]


def read_rows(path: Path) -> list[Row]:
    """Read the file of results."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def table(rows: Sequence[Row], tasks: Sequence[str] | None, against: str) -> str:
    """Write a table in Markdown: a line per task and setting."""
    lines = [
        "| Task | Setting | Seeds | Final: IQM [95 %] | Worst | Area under the curve | "
        f"Explained variance, lowest | Largest V of possible | Better than {against} |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for task, setting, own in groups(rows):
        if tasks is None or task in tasks:
            lines.append(_line(task, setting, own, select(rows, task, against)))
    return "\n".join(lines)


def groups(rows: Sequence[Row]) -> Iterator[tuple[str, str, list[Row]]]:
    """Yield the rows of each task and setting, in the order of the file."""
    for task in dict.fromkeys(row["task"] for row in rows):
        for setting in dict.fromkeys(row["setting"] for row in rows if row["task"] == task):
            yield task, setting, select(rows, task, setting)


def select(rows: Sequence[Row], task: str, setting: str) -> list[Row]:
    """Return the rows of a task and setting, one per seed: the latest."""
    chosen = {row["seed"]: row for row in rows if row["task"] == task and row["setting"] == setting}
    return list(chosen.values())


def column(rows: Sequence[Row], name: str) -> np.ndarray:
    """Return a column as numbers."""
    return np.array([float(row[name]) for row in rows])


def _line(task: str, setting: str, own: Sequence[Row], others: Sequence[Row]) -> str:
    final, area = column(own, "final"), column(own, "area")
    better = "" if own == others or not others else _improvement(final, column(others, "final"))
    cells = [
        task,
        setting,
        str(len(own)),
        f"{_number(float(interquartile_mean(final)))} {_interval_text(final)}",
        _number(final.min()),
        _number(float(interquartile_mean(area))),
        f"{column(own, 'explained_variance').min():.2f}",
        f"{column(own, 'largest_value_of_possible').max():.2f}",
        better,
    ]
    return f"| {' | '.join(cells)} |"


def comparison(final: np.ndarray, others: np.ndarray) -> Comparison:
    """Compare the final returns of two settings, over seeds."""
    return compare(Group("", final), Group("", others))


def _improvement(final: np.ndarray, others: np.ndarray) -> str:
    result = comparison(final, others)
    text = f"{100 * result.probability:.0f} %"
    if result.interval is not None:
        low, high = map(_number, result.interval)
        text += f", by {_number(result.difference)} [{low}, {high}]"
    return text


def _interval_text(values: np.ndarray) -> str:
    if len(values) == 1:
        return ""
    resamples = resampled_interquartile_means(values, np.random.default_rng(0))
    low, high = map(_number, percentile_interval(resamples))
    return f"[{low}, {high}]"


def _number(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def draw(rows: Sequence[Row], against: str, path: Path) -> None:
    """Draw the differences of final returns to those of one setting: a column per task."""
    import matplotlib.pyplot as plt

    settings = [name for name in dict.fromkeys(row["setting"] for row in rows) if name != against]
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    tasks = [name for name in tasks if select(rows, name, against)]
    figure, axes = plt.subplots(
        1,
        len(tasks),
        figsize=(2.5 + 2 * len(tasks), 1 + 0.2 * len(settings)),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axis, task in zip(axes[0], tasks, strict=True):
        others = column(select(rows, task, against), "final")
        axis.axvline(0, color="0.6", linewidth=0.8)
        for position, setting in enumerate(settings):
            own = select(rows, task, setting)
            if own:
                result = comparison(column(own, "final"), others)
                low, high = result.interval or (result.difference, result.difference)
                axis.plot([low, high], [position, position], color="C0", linewidth=2)
                axis.plot(result.difference, position, "o", color="C0", markersize=4)
        axis.set_title(task, fontsize=9)
        axis.tick_params(labelsize=8)
    axes[0, 0].set_yticks(range(len(settings)), settings)
    axes[0, 0].invert_yaxis()
    figure.supxlabel(f"final return less that of {against}: IQM, 95 % interval", fontsize=9)
    figure.savefig(path, dpi=130)
    plt.close(figure)
