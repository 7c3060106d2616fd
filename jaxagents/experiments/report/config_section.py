"""The sections of a report on configuration and reproduction."""

import json
from collections.abc import Mapping
from typing import Any

from jaxagents.experiments.report.formatting import Groups, all_runs, name_of
from jaxagents.experiments.report.markup import Markup, element, table
from jaxagents.experiments.resumption import recipe

_BREAK = element("wbr")
_REQUIRED = ("name", "env", "agent.n_steps")
_PER_RUN = ("name", "seed", "runs_dir")


def non_defaults(groups: Groups) -> list[Markup]:
    """Tabulate the settings of each group that differ from their defaults."""
    defaults = _defaults()
    configs = {label: _flat(runs[0].config) for label, runs in groups.items()}
    keys = dict.fromkeys(key for config in configs.values() for key in config)
    rows = []
    for key in keys:
        values = [_shown(config, key) for config in configs.values()]
        default = _shown(defaults, key)
        if key not in _PER_RUN and any(value != default for value in values):
            rows.append([_key(key), *values, default])
    titles = ["key", *(configs if len(configs) > 1 else ["value"]), "default"]
    caption = "Settings that differ from their defaults, apart from name, seed and folder."
    return [table(titles, rows, caption, kind="words")]


def _defaults() -> dict[str, Any]:
    """Return the defaults of all optional keys."""
    from jaxagents.config import AgentConfig
    from jaxagents.experiments.config_files.schema import ExperimentConfig, to_plain

    config = ExperimentConfig(name="any", env="any", agent=AgentConfig(n_steps=1))
    defaults = _flat(to_plain(config))
    return {key: value for key, value in defaults.items() if key not in _REQUIRED}


def _key(key: str) -> Markup:
    """Write a key that narrow pages can break at its dots."""
    first, *others = key.split(".")
    return element("code", first, *(text for each in others for text in (_BREAK, f".{each}")))


def complete_configurations(groups: Groups) -> list[Markup]:
    """Write the complete configuration of each group, collapsed."""
    return [
        element(
            "details",
            element("summary", f"Complete configuration of {name_of(runs[0])}"),
            element("pre", _yaml(runs[0].config), tabindex=0),
        )
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


def reproduction(groups: Groups) -> list[Markup]:
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
    return [
        element("p", said),
        element("pre", commands, tabindex=0),
        *([table(["package", "version"], rows, "Versions", kind="words")] if rows else []),
    ]
