"""Comparisons of runs as rows of a table file, and in LaTeX."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, TypeVar

from jaxagents.evaluation.aggregates import (
    Aggregate,
    aggregate,
    describe_improvement,
    improvements,
)
from jaxagents.evaluation.comparison import (
    Group,
    Interval,
    compare,
    compare_groups,
    describe_comparison,
    final_return,
    make_group,
)
from jaxagents.evaluation.runs import Run, environments_and_names, read_groups, renamed
from jaxagents.evaluation.success_rates import comparable, success_number

Row = dict[str, Any]
_Compared = TypeVar("_Compared", Group, Aggregate)

_COLUMNS = (
    *("kind", "env", "group", "other", "seed", "n_runs", "mean", "iqm", "score", "difference"),
    *("probability", "low", "high", "lowest", "highest", "best", "success", "success_title"),
    *("success_kind", "sentence"),
)
_DIGITS = {"iqm": 2, "score": 3}  # as printed; numbers that print equally are ties
_ESCAPED = {
    **{each: f"\\{each}" for each in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def compare_runs(
    runs: Sequence[str | PathLike[str]], labels: Mapping[str, str] | None = None
) -> list[Row]:
    """Compare the final returns of runs, as rows such as `pandas.DataFrame` takes.

    Runs that differ only in their seed form a group. On one environment groups are compared by
    their returns; over several, runs of the same name are one method, compared by scores from 0,
    the mean return of random actions, to 1, the best method's interquartile mean.

    Args:
        runs: Directories of runs or populations.
        labels: What to call groups, by the names of their configurations.

    Returns:
        Rows with equal columns, None where a column does not apply. The ``kind`` of a row says what
        it describes:

        - ``group``: the runs of a group on one environment: ``n_runs``; ``mean``, ``iqm``
          (interquartile mean), ``lowest`` and ``highest`` of their returns; ``success``;
        - ``seed``: a run, whose return is ``mean``, with its ``success``;
        - ``method``: the runs of a name on all environments: ``score``;
        - ``pair``: ``group`` compared with ``other``: ``difference`` of their interquartile means,
          ``probability`` that a run of the first earns more, and both in a ``sentence``.

        ``low`` and ``high`` are the 95 % bootstrap interval over seeds of ``iqm``, ``score`` or
        ``difference``, or of ``probability`` where there is no difference. ``best`` is "best" for
        the highest ``iqm`` or ``score``, "tie" where several are highest as printed, and "close"
        for those whose difference from the highest may be chance.

    Raises:
        ExperimentError: There is one group only; a run is unfinished, or has NaN or infinite
            returns; methods were not trained on the same environments; or a label names no run.

    Source: Agarwal et al. 2021, https://arxiv.org/abs/2108.13264.
    """
    return table_of(renamed(read_groups(runs), labels or {}))


def table_of(groups: Mapping[str, Sequence[Run]]) -> list[Row]:
    """Compare groups of runs, see `compare_runs`."""
    named = environments_and_names(groups)
    several = len({env for env, _, _ in named}) > 1
    # First, because they check that the runs can be compared.
    results = [*(_of_several(groups) if several else _of_one(groups))]
    return [*_of_groups(named), *results]


def _of_groups(named: Sequence[tuple[str, str, Sequence[Run]]]) -> Iterator[Row]:
    successes = comparable([run.success for _, _, runs in named for run in runs])
    groups = [(env, make_group(name, runs)) for env, name, runs in named]
    for (env, _, runs), (_, group) in zip(named, groups, strict=True):
        rivals = [other for where, other in groups if where == env]
        about = {"env": env, "group": group.label}
        yield _row(
            "group",
            **about,
            n_runs=len(runs),
            mean=float(group.returns.mean()),
            iqm=group.iqm,
            lowest=float(group.returns.min()),
            highest=float(group.returns.max()),
            best=_rank(group, rivals, "iqm", lambda one, other: compare(one, other).may_be_chance),
            **_ends(group.interval),
            **_success(group.success if successes else None),
        )
        for run in runs:
            yield _row(
                "seed",
                **about,
                seed=run.config.get("seed"),
                mean=final_return(run),
                **_success(run.success if successes else None),
            )


def _of_one(groups: Mapping[str, Sequence[Run]]) -> Iterator[Row]:
    for each in compare_groups(groups):
        yield _row(
            "pair",
            env=groups[each.first.label][0].config["env"],
            group=each.first.label,
            other=each.second.label,
            difference=each.difference,
            probability=each.probability,
            sentence=describe_comparison(each),
            **_ends(each.interval),
        )


def _of_several(groups: Mapping[str, Sequence[Run]]) -> Iterator[Row]:
    methods = aggregate(groups)
    for each in methods:
        yield _row(
            "method",
            group=each.label,
            n_runs=sum(map(len, each.returns.values())),
            score=each.iqm,
            best=_rank(each, methods, "score", lambda *pair: improvements(pair)[0].may_be_chance),
            **_ends(each.interval),
        )
    for pair in improvements(methods):
        yield _row(
            "pair",
            group=pair.first,
            other=pair.second,
            probability=pair.probability,
            sentence=describe_improvement(pair),
            **_ends(pair.interval),
        )


def _row(kind: str, **values: Any) -> Row:
    return {**dict.fromkeys(_COLUMNS), "kind": kind, **values}


def _ends(interval: Interval | None) -> Row:
    return {} if interval is None else interval._asdict()


def _success(success: Mapping[str, Any] | None) -> Row:
    if success is None:
        return {}
    return {
        "success": success["mean"],
        "success_title": success["title"],
        "success_kind": success["kind"],
    }


def _rank(
    own: _Compared,
    rivals: Sequence[_Compared],
    quantity: str,
    may_be_chance: Callable[[_Compared, _Compared], bool],
) -> str | None:
    """Say how a group or method stands among all: "best", "tie", "close" or None."""
    printed = {each.label: round(each.iqm, _DIGITS[quantity]) for each in rivals}
    highest = [each for each in rivals if printed[each.label] == max(printed.values())]
    if own.label in (each.label for each in highest):
        return "best" if len(highest) == 1 else "tie"
    return "close" if any(may_be_chance(own, each) for each in highest) else None


def sentences_of(rows: Iterable[Row]) -> list[str]:
    """Say where the highest is a tie, and then how each pair compares."""
    rows = list(rows)
    tied = [row for row in rows if row["best"] == "tie"]
    ties = []
    for kind, env in dict.fromkeys((row["kind"], row["env"]) for row in tied):
        of_all = [row for row in rows if (row["kind"], row["env"]) == (kind, env)]
        labels = [row["group"] for row in of_all if row["best"] == "tie"]
        name = "iqm" if kind == "group" else "score"
        highest = number_text(max(row[name] for row in of_all), _DIGITS[name])
        quantity = f"interquartile mean on {env}" if kind == "group" else "score"
        ties.append(
            f"Tie: {len(labels)} of {len(of_all)} have the highest {quantity}, {highest}: "
            f"{', '.join(labels)}."
        )
    return [*ties, *(row["sentence"] for row in rows if row["sentence"])]


def cells_of(rows: Sequence[Row]) -> list[list[str]]:
    """Write groups, or methods over several environments, as cells; the first row is the titles."""
    groups = [row for row in rows if row["kind"] == "group"]
    methods = [row for row in rows if row["kind"] == "method"]
    if methods:
        envs = sorted({row["env"] for row in groups})
        iqms = {(row["group"], row["env"]): number_text(row["iqm"]) for row in groups}
        titles = ["", *envs, "score", "95 % from", "to"]
        return [titles] + [
            [
                row["group"],
                *(iqms[row["group"], env] for env in envs),
                *(number_text(row[name], 3) for name in ("score", "low", "high")),
            ]
            for row in methods
        ]
    titles = ["", "runs", "mean", "iqm", "95 % from", "to", "lowest", "highest"]
    names = ("mean", "iqm", "low", "high", "lowest", "highest")
    cells = [
        [row["group"], str(row["n_runs"]), *(number_text(row[name]) for name in names)]
        for row in groups
    ]
    if groups[0]["success_title"]:
        titles.append(groups[0]["success_title"])
        for own, row in zip(cells, groups, strict=True):
            own.append(success_number({"kind": row["success_kind"]}, row["success"]))
    return [titles, *cells]


def csv_text(rows: Sequence[Row]) -> str:
    """Write rows as CSV; None is empty."""
    file = io.StringIO()
    writer = csv.DictWriter(file, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def latex_of(rows: Sequence[Row]) -> str:
    """Write a comparison as LaTeX, in the style of booktabs.

    The first table has a row per group, or per method over several environments, the second a row
    per seed. The highest interquartile mean or score is bold, and so is each one whose difference
    from it may be chance; if those are all, none is bold. Sentences are comments.
    """
    titles, *cells = cells_of(rows)
    of_kind = [row for row in rows if row["kind"] in ("group", "method")]
    lower = {row["env"] for row in of_kind if row["best"] is None}
    bold = {(row["group"], row["env"]) for row in of_kind if row["best"] and row["env"] in lower}
    envs = {row["env"] for row in rows if row["kind"] == "group"}
    several = len(envs) > 1
    # The columns that have a highest number, and the environment of each.
    columns = {**{env: env for env in envs}, "score": None} if several else {"iqm": envs.pop()}
    body = [
        [
            _tex(cell, is_bold=title in columns and (row[0], columns[title]) in bold)
            for title, cell in zip(titles, row, strict=True)
        ]
        for row in cells
    ]
    return "\n".join(
        [
            r"% Needs \usepackage{booktabs}. Bold: the highest, and what may be as high by chance.",
            *(f"% {sentence}" for sentence in sentences_of(rows)),
            _tabular([[_tex(title) for title in titles], *body]),
            "",
            "% Returns by seed.",
            _tabular(_cells_of_seeds(rows, with_env=several)),
        ]
    )


def _cells_of_seeds(rows: Sequence[Row], with_env: bool) -> list[list[str]]:
    """Write a row per seed, and environment if there are several, with a column per group."""
    seeds = [row for row in rows if row["kind"] == "seed"]
    found = {(row["env"], row["seed"], row["group"]): number_text(row["mean"]) for row in seeds}
    groups = list(dict.fromkeys(row["group"] for row in seeds))
    titles = [*(["env"] if with_env else []), "seed", *groups]
    body = [
        [
            *([env] if with_env else []),
            str(seed),
            *(found.get((env, seed, group), "") for group in groups),
        ]
        for env, seed in dict.fromkeys((row["env"], row["seed"]) for row in seeds)
    ]
    return [[_tex(cell) for cell in line] for line in [titles, *body]]


def _tabular(lines: Sequence[Sequence[str]]) -> str:
    title, *body = (" & ".join(line) + r" \\" for line in lines)
    columns = "l" + "r" * (len(lines[0]) - 1)
    parts = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", title, r"\midrule", *body]
    return "\n".join([*parts, r"\bottomrule", r"\end{tabular}"])


def _tex(text: str, is_bold: bool = False) -> str:
    """Escape text, and typeset the sign of a negative number as a minus."""
    is_negative = text.startswith("-") and text[1:2].isdecimal()
    escaped = "".join(_ESCAPED.get(each, each) for each in text.removeprefix("-" * is_negative))
    escaped = f"$-${escaped}" if is_negative else escaped
    return rf"\textbf{{{escaped}}}" if is_bold else escaped


def number_text(value: float | None, n_digits: int = 2) -> str:
    """Write a number, or a dash for None."""
    return "-" if value is None else f"{value:,.{n_digits}f}"
