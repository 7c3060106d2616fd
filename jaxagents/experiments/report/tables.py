"""The tables and listings of a report: returns, settings and how to reproduce runs."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jaxagents.evaluation.runs import Run
from jaxagents.experiments.report.parts import CaptionedTable, Code, Datum, Listing, Part
from jaxagents.experiments.report.sentences import (
    Groups,
    all_runs,
    counted,
    estimates,
    n_evaluated,
    name_of,
    number,
    rows_of_actors,
)
from jaxagents.experiments.resumption import recipe

_STATISTICS = ("mean", "ci_low", "ci_high", "iqm", "std", "min", "median", "max")
_TITLES = ("mean", "CI low", "CI high", "IQM", "std", "min", "median", "max")
_LATEST = ("return_mean", "return_std", "return_min", "return_max")
_REQUIRED = ("name", "env", "agent.n_steps")
_PER_RUN = ("name", "seed", "runs_dir")


def evaluation_tables(groups: Groups) -> list[Part]:
    """Tabulate the returns after training per run and, if there are several runs, per group.

    If no run has been evaluated after training, tabulate the latest evaluation during training.
    """
    runs = all_runs(groups)
    if not any(run.summary for run in runs):
        return [_table_of_latest(runs)]
    if len(runs) == 1:
        return [_table_of_runs(runs, named=False)]
    return [*_table_of_groups(groups), _table_of_runs(runs, named=True)]


def _table_of_runs(runs: Sequence[Run], named: bool) -> Part:
    rows = []
    for run in runs:
        if run.summary:
            names = [name_of(run)] if named else []
            steps = f"{run.summary['checkpoint']['n_environment_steps']:,}"
            for subject, values in rows_of_actors(run.summary["returns"], _STATISTICS):
                rows.append([*names, subject, *map(_datum, values), steps])
    titles = [*(["run"] if named else []), "return of", *_TITLES, "steps"]
    kinds = dict.fromkeys(_kind_of_evaluation(run.summary) for run in runs if run.summary)
    caption = (
        f"{' '.join(kinds)} Steps: environment steps up to the checkpoint. CI: 95 % interval of "
        "the mean, by bootstrap over episodes."
    )
    return CaptionedTable(titles, rows, caption, n_headers=1 + named)


def _table_of_groups(groups: Groups) -> list[Part]:
    rows = [
        [label, subject, str(n_evaluated(runs)), *map(_datum, estimate)]
        for label, runs in groups.items()
        for subject, estimate in estimates(runs)
    ]
    titles = ["group", "return of", "runs", "IQM", "CI low", "CI high"]
    caption = (
        "Groups of runs that differ only in their seed. IQM: interquartile mean of the runs' mean "
        "returns. CI: its 95 % interval, by bootstrap over runs."
    )
    return [CaptionedTable(titles, rows, caption, n_headers=2)] if rows else []


def _table_of_latest(runs: Sequence[Run]) -> Part:
    latest = [(run, run.records[-1]) for run in runs if run.records]
    rows = []
    for run, record in latest:
        if "return_mean" in record:
            name, steps = name_of(run), f"{record['n_environment_steps']:,}"
            for subject, values in rows_of_actors(record, _LATEST):
                rows.append([name, subject, steps, *map(_datum, values)])
    if not rows:
        return "Nothing has been evaluated yet."
    titles = ["run", "return of", "environment steps", "mean", "std", "min", "max"]
    return CaptionedTable(titles, rows, "Latest evaluation during training.", n_headers=2)


def _kind_of_evaluation(summary: Any) -> str:
    evaluation = summary["evaluation"]
    kind = "greedy" if evaluation["greedy"] else "sampled"
    episodes = counted(evaluation["n_evals"], f"{kind} episode")
    return f"{episodes} of the {evaluation['mode']} checkpoint."


def _datum(value: float | None) -> Datum:
    """Write a rounded number, with its full precision as value and tooltip."""
    return Datum(number(value), None if value is None else repr(value))


def non_defaults(groups: Groups) -> list[Part]:
    """Tabulate the settings of each group that differ from their defaults."""
    defaults = _defaults()
    configs = {label: _flat(runs[0].config) for label, runs in groups.items()}
    keys = dict.fromkeys(key for config in configs.values() for key in config)
    rows = []
    for key in keys:
        values = [_shown(config, key) for config in configs.values()]
        default = _shown(defaults, key)
        if key not in _PER_RUN and any(value != default for value in values):
            rows.append([Code(key.split(".")), *values, default])
    titles = ["key", *(configs if len(configs) > 1 else ["value"]), "default"]
    caption = "Settings that differ from their defaults, apart from name, seed and folder."
    return [CaptionedTable(titles, rows, caption, kind="words")]


def _defaults() -> dict[str, Any]:
    """Return the defaults of all optional keys."""
    from jaxagents.config import AgentConfig
    from jaxagents.experiments.config_files.schema import ExperimentConfig, to_plain

    config = ExperimentConfig(name="any", env="any", agent=AgentConfig(n_steps=1))
    defaults = _flat(to_plain(config))
    return {key: value for key, value in defaults.items() if key not in _REQUIRED}


def complete_configurations(groups: Groups) -> list[Part]:
    """Write the complete configuration of each group, collapsed."""
    return [
        Listing(_yaml(runs[0].config), f"Complete configuration of {name_of(runs[0])}")
        for runs in groups.values()
    ]


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _shown(config: Mapping[str, Any], key: str) -> str:
    """Write a value as YAML on one line, or nothing if the key is absent."""
    return _text(config[key]) if key in config else ""


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    return repr(value) if isinstance(value, float) else json.dumps(value)


def _yaml(config: Mapping[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True).rstrip()


def reproduction(groups: Groups) -> list[Part]:
    """Write the commands and software versions that reproduce the runs."""
    runs = all_runs(groups)
    recipes = [recipe(run.directory) for run in runs]
    commands = "\n".join(command for each in recipes for command in each)
    versions = [run.summary["versions"] for run in runs if run.summary]
    names = list(dict.fromkeys(name for each in versions for name in each))
    of_name = {name: {str(each.get(name, "?")) for each in versions} for name in names}
    rows = [[name, ", ".join(sorted(values))] for name, values in of_name.items()]
    said = "With the same software versions, each command reproduces its run exactly:"
    if len(runs) < sum(map(len, recipes)):
        said = (
            "With the same software versions, these commands reproduce the runs exactly. Some were "
            "resumed with another configuration; NEW_RUN is the directory that their first command "
            "writes:"
        )
    versions_table = [CaptionedTable(["package", "version"], rows, "Versions", kind="words")]
    return [said, Listing(commands), *(versions_table if rows else [])]
