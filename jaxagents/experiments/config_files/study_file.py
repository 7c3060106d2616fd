"""Study files: the configurations of all pairs of a method and an environment.

PyYAML is imported where it is used, as in `source`.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxagents.errors import ExperimentError, did_you_mean, explained
from jaxagents.experiments.config_files.file import keys_of_files, load_config
from jaxagents.experiments.config_files.schema import NOT_VARIED, ConfigField
from jaxagents.experiments.config_files.source import Source, entries_in, key_text, read_source

_KEYS = ("base", "methods", "environments", "seeds")
_TEXT, _MAPPING = "tag:yaml.org,2002:str", "tag:yaml.org,2002:map"


def study_sources(file: Source) -> list[Source]:
    """Merge the configuration of each pair of a method and an environment.

    Groups of keys are merged key by key. For other keys, such as ``env_kwargs``, the method's value
    takes precedence over the environment's, and both over the base's.

    Args:
        file: With the key ``study``, which has ``base``, a configuration without name and
            environment, or the path of a complete one, relative to this file; ``methods``, changes
            to it by name; ``environments``, ids, or changes to it with the key ``env``; and the
            number of ``seeds``. Overrides apply to all.

    Returns:
        The configurations, named like their methods, whose keys are located in this file.

    Raises:
        ExperimentError: a key of the study is missing or unknown, a list is empty, or an
            environment is given twice. The configurations' own keys and values are not checked.
    """
    import yaml

    parts = _parts_of(file)
    base, own = parts["base"], [parts["base"]]
    if base.id == "scalar":
        path = Path(file.path).parent / base.value
        load_config(path)  # or an error with a line of that file
        base, own = yaml.compose(read_source(path).text, Loader=yaml.SafeLoader), []
    fields = dict(keys_of_files())
    environments = list(_environments_of(file, parts["environments"]))
    sources = []
    for name, changes in parts["methods"].value:
        method = _method_of(file, name, changes)
        given = _mapping({"name": name, "seeds": parts["seeds"]})
        for environment in environments:
            further = [environment, method, given]
            with explained(f"{file.path}: ", kinds=(yaml.YAMLError,)):
                root, located = (_merged([*each, *further], fields) for each in ([base], own))
            text = yaml.serialize(root, Dumper=yaml.SafeDumper)
            sources.append(Source(file.path, text, dict(entries_in(located)), file.overrides))
    return sources


def _parts_of(file: Source) -> dict[str, Any]:
    """Return PyYAML's nodes of the study's keys."""
    if "study" not in file.entries:
        raise ExperimentError(
            f"{file.path}: this is no study, as it has no key study; jaxagents train takes "
            "configurations."
        )
    for key, entry in file.entries.items():
        top, _, name = key.partition(".")
        if top != "study":
            raise ExperimentError(
                f"{file.path}:{entry.line}: {key} stands beside study; what is common to all runs "
                "belongs in study.base."
            )
        if name and name.partition(".")[0] not in _KEYS:
            raise ExperimentError(
                f"{file.path}:{entry.line}: unknown key {key}.{did_you_mean(name, _KEYS)} A study "
                f"has {', '.join(_KEYS)}."
            )
    missing = [name for name in _KEYS if f"study.{name}" not in file.entries]
    if missing:
        raise ExperimentError(
            f"{file.path}: study.{missing[0]} is missing; a study has {', '.join(_KEYS)}."
        )
    parts = {name: file.entries[f"study.{name}"].node for name in _KEYS}
    shapes = {
        "base": (("mapping", "scalar"), "a configuration, or the path of one"),
        "methods": (("mapping",), "names with changes to the base, at least one"),
        "environments": (("sequence",), "a list of environments, at least one"),
    }
    for name, (kinds, meaning) in shapes.items():
        if parts[name].id not in kinds or not parts[name].value:
            raise _error(file, parts[name], f"study.{name} should be {meaning}.")
    return parts


def _method_of(file: Source, name: Any, changes: Any) -> Any:
    """Return a method's changes, which may be empty."""
    what = f"the method {key_text(name)}"
    if changes.id == "scalar" and changes.value in ("", "null", "~"):
        return _mapping({})
    if changes.id != "mapping":
        raise _error(file, changes, f"{what} should be keys with their values, or empty.")
    _check_varied(file, changes, what, ("env", *NOT_VARIED))
    return changes


def _environments_of(file: Source, listed: Any) -> Iterator[Any]:
    """Return each environment's changes."""
    lines: dict[str, int] = {}
    for each in listed.value:
        changes = _mapping({"env": each}) if each.id == "scalar" else each
        keys = [key_text(key) for key, _ in changes.value] if changes.id == "mapping" else []
        if "env" not in keys:
            raise _error(file, each, "this environment has no env; give its id.")
        _check_varied(file, changes, "an environment", NOT_VARIED)
        env = str(changes.value[keys.index("env")][1].value)
        if env in lines:
            raise _error(
                file,
                each,
                f"{env} is given a second time, after line {lines[env]}; runs on it would count as "
                "runs on one environment: keep one.",
            )
        lines[env] = each.start_mark.line + 1
        yield changes


def _check_varied(file: Source, changes: Any, what: str, fixed: Sequence[str]) -> None:
    for key, _ in changes.value:
        if key_text(key) in fixed:
            raise _error(file, key, f"{what} cannot change {key_text(key)}; leave it out.")


def _error(file: Source, node: Any, problem: str) -> ExperimentError:
    return ExperimentError(f"{file.path}:{node.start_mark.line + 1}: {problem}")


def _mapping(nodes: Mapping[str, Any]) -> Any:
    """Return PyYAML's node of a mapping, whose keys have the locations of their values."""
    import yaml

    pairs = [(yaml.ScalarNode(_TEXT, key, node.start_mark), node) for key, node in nodes.items()]
    return yaml.MappingNode(_MAPPING, pairs)


def _merged(mappings: Sequence[Any], fields: Mapping[str, ConfigField], prefix: str = "") -> Any:
    """Merge mappings; if a key that is not a group has several values, take the last."""
    import yaml

    found: dict[str, tuple[Any, Any]] = {}
    for mapping in mappings:
        yaml.SafeLoader("").flatten_mapping(mapping)  # what << merges
        for name, node in mapping.value:
            key = f"{prefix}{key_text(name)}"
            before = found.get(key, (name, node))[1]
            is_group = key in fields and fields[key].is_group
            if is_group and before is not node and before.id == node.id == "mapping":
                node = _merged([before, node], fields, f"{key}.")
            found[key] = (name, node)
    return yaml.MappingNode(_MAPPING, list(found.values()))
