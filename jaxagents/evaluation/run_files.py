"""Files of a run's directory as plain data, which may have been edited or damaged.

All readers of runs rely on the types that are checked here. Errors name the file and the line.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxagents.errors import ExperimentError
from jaxagents.training.trackers import json_lines

_MOST_YAML_NODES = 100_000
_SPREAD = ("return_std", "return_min", "return_max")  # of every return_mean
RESUMED_AFTER = "resumed_after_update"
"""Key of lines of ``metrics.jsonl`` that end a branch of training, see `read_records`."""
_MISSING = object()
_IN_PLAIN_WORDS = {
    "mapping values are not allowed": "a colon stands where no key can be; quote text that has one",
    "could not find expected ':'": "a key has no colon and space after it",
    "expected ',' or ']'": "a list that begins with [ has no ] or comma there",
    "expected ',' or '}'": "keys that begin with { have no } or comma there",
    "found unexpected end of stream": "a quotation mark is not closed",
    "expected <block end>": "the line does not fit the lines above it; indent it like the others",
    "found character '\\t'": "indent with spaces, not tabs",
}


class _Rule(NamedTuple):
    """The type of a dotted key's value in a file, if the key is there."""

    key: str
    kind: str
    is_met: Callable[[Any], bool]


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < 2**63)


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_sharing(value: Any) -> bool:
    return value is None or _is_text(value) or _are_counts(value)


def _are_counts(value: Any) -> bool:
    return type(value) is list and all(map(_is_count, value))


def _are_texts(value: Any) -> bool:
    return type(value) is list and all(map(_is_text, value))


def _are_numbers_or_null(value: Any) -> bool:
    return (
        type(value) is list
        and bool(value)
        and all(each is None or _is_number(each) for each in value)
    )


def _are_numbers_by_name(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        each is None or _is_number(each) for each in value.values()
    )


def _optional(is_met: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or is_met(value)


_OF_CONFIG = (
    _Rule("name", "text", _is_text),
    _Rule("env", "text", _is_text),
    _Rule("agent", "keys and their values", _is_mapping),
    _Rule("agent.n_steps", "an integer", _is_count),
    _Rule("agent.parameter_sharing", "text or a list of integers", _is_sharing),
    _Rule("seed", "an integer", _optional(_is_count)),
    _Rule("seeds", "an integer", _optional(_is_count)),
    _Rule("population_based_training", "keys and their values", _optional(_is_mapping)),
    _Rule("population_based_training.vary", "keys and their values", _optional(_is_mapping)),
)
_OF_RECORDS = (
    _Rule("n_updates_done", "an integer", _is_count),
    _Rule("n_environment_steps", "an integer", _is_count),
    _Rule("seconds", "a number", _is_number),
)
_STATISTICS = ("mean", "ci_low", "ci_high", "iqm", "std", "min", "median", "max")
_OF_SUMMARY = (
    _Rule("returns", "statistics by name", _is_mapping),
    *(_Rule(f"returns.{each}", "a list of numbers", _are_numbers_or_null) for each in _STATISTICS),
    _Rule("means", "numbers by name", _is_mapping),
    _Rule("means.episode_lengths", "a number", _optional(_is_number)),
    _Rule("evaluation", "keys and their values", _is_mapping),
    _Rule("evaluation.mode", "text", _is_text),
    _Rule("evaluation.n_evals", "an integer", _is_count),
    _Rule("evaluation.greedy", "true or false", lambda value: type(value) is bool),
    _Rule("checkpoint", "keys and their values", _is_mapping),
    _Rule("checkpoint.n_environment_steps", "an integer", _is_count),
    _Rule("training", "keys and their values", _is_mapping),
    _Rule("training.n_updates_done", "an integer", _is_count),
    _Rule("training.n_environment_steps", "an integer", _is_count),
    _Rule("training.seconds", "a number", _is_number),
    _Rule("training.environment_steps_per_second", "a number", _is_number),
    _Rule("versions", "versions by name", _is_mapping),
)
"""A complete summary has all of these keys."""
_OF_SUCCESS = (
    _Rule("success", "keys and their values", _is_mapping),
    _Rule("success.info", "text", _is_text),
    _Rule("success.title", "text", _is_text),
    _Rule("success.kind", "share or count", lambda value: value in ("share", "count")),
    *(
        _Rule(f"success.{each}", "a number", _optional(_is_number))
        for each in ("mean", "low", "high")
    ),
    _Rule("success.n_episodes", "an integer", _is_count),
    _Rule("success.others", "numbers by name", _are_numbers_by_name),
)
"""A summary has all of these keys, or none."""


def read_run_config(path: Path) -> dict[str, Any]:
    """Read a run's configuration, even one that is no longer valid.

    Raises:
        ExperimentError: it cannot be read, or is not the configuration of a run.
    """
    config = read_yaml(path)
    if not {"name", "env", "agent"} <= config.keys():
        raise ExperimentError(f"{path} is not the configuration of a run.")
    _check(path, config, _OF_CONFIG)
    return config


def read_records(path: Path) -> list[dict[str, Any]]:
    """Read the lines of ``metrics.jsonl`` in the order of training, and check them.

    Lines that are not valid JSON are skipped, and the later of two lines of one update counts.
    Training that was resumed after update N does not continue from evaluations of later updates:
    none above a line ``{"resumed_after_update": N}`` counts.

    Raises:
        ExperimentError: the file cannot be read, or a line is wrong.
    """
    records: dict[int, dict[str, Any]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    try:
        lines = list(json_lines(path))
        if not lines and path.stat().st_size > 1 and path.read_bytes().count(b"\n") > 0:
            raise ExperimentError(f"{path}: none of its lines is an evaluation")
    except (OSError, RecursionError) as error:
        raise _unreadable(path, error) from error
    for number, record in lines:
        place = f"{path}:{number}"
        if not isinstance(record, dict):
            raise ExperimentError(f"{place}: this is no evaluation; correct or delete the line")
        if (after := record.get(RESUMED_AFTER)) is not None:
            if not _is_count(after):
                raise _wrong(place, RESUMED_AFTER, "an integer", after)
            records = {done: each for done, each in records.items() if done <= after}
            continue
        for key, kind, is_met in _OF_RECORDS:
            if not is_met(record.get(key)):
                raise _wrong(place, key, kind, record.get(key, _MISSING))
        for key, value in record.items():
            shape = _shape_of(value)
            if shape is None or shape != shapes.setdefault(key, shape):
                kind = "numbers, as many as in the other lines"
                raise _wrong(place, key, kind, value)
        if "return_mean" in record:
            for key in _SPREAD:
                if _shape_of(record.get(key)) != shapes["return_mean"]:
                    kind = "numbers, as many as return_mean"
                    raise _wrong(place, key, kind, record.get(key, _MISSING))
        records[record["n_updates_done"]] = record
    return [records[n_updates_done] for n_updates_done in sorted(records)]


def read_summary(path: Path) -> dict[str, Any]:
    """Read a run's ``summary.json``.

    Raises:
        ExperimentError: it cannot be read, or a value in it is wrong.
    """
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ExperimentError(
            f"{path}:{error.lineno}: this is not valid JSON: {error.msg}"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, error) from error
    if not isinstance(summary, dict):
        raise ExperimentError(f"{path}: this is not a summary of keys and values")
    _check(path, summary, (*_OF_SUMMARY, *_OF_SUCCESS))
    if "success" in summary:
        _check_keys(path, summary, _OF_SUCCESS)
    if _value(summary, "returns.mean") is _MISSING:
        raise _incomplete(path, "returns.mean")
    lengths = {len(value) for value in summary["returns"].values() if type(value) is list}
    if len(lengths) > 1:
        raise ExperimentError(f"{path}: its returns have different numbers of actors")
    measured = _value(summary, "random_returns.mean")
    n_actors = len(summary["returns"]["mean"])
    is_list = type(measured) is list and all(map(_is_number, measured))
    if measured is not _MISSING and not (is_list and len(measured) == n_actors):
        place = _place(path, "random_returns.mean")
        raise _wrong(place, "random_returns.mean", f"a list of {n_actors} numbers", measured)
    teams = summary.get("teams")
    if teams is not None and not (_are_counts(teams) and len(teams) == n_actors):
        raise _wrong(_place(path, "teams"), "teams", f"a list of {n_actors} integers", teams)
    members = summary.get("diagnosis", [])
    if not _are_texts(members):
        raise _wrong(_place(path, "diagnosis"), "diagnosis", "a list of texts", members)
    return summary


def check_is_complete(summary: Mapping[str, Any], path: Path) -> None:
    """Raise ExperimentError if a summary lacks what the package writes to it."""
    _check_keys(path, summary, _OF_SUMMARY)


def _check_keys(path: Path, summary: Mapping[str, Any], rules: Sequence[_Rule]) -> None:
    for key, _, _ in rules:
        if _value(summary, key) is _MISSING:
            raise _incomplete(path, key)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file of keys and values, of the types that JSON has.

    Raises:
        ExperimentError: it is no such file, or cannot be read.
    """
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        check_expanded_size(yaml.compose(text, Loader=yaml.SafeLoader))
        values = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        raise ExperimentError(f"{path}{line_of(error)}: {in_plain_words(error)}") from error
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise _unreadable(path, error) from error
    if not isinstance(values, Mapping):
        raise ExperimentError(f"{path}: this is not a YAML file of keys and values")
    for key, value in _leaves(values):
        if not isinstance(value, str | int | float | None):
            raise _wrong(_place(path, key), key, "text, a number, true, false or null", value)
    return dict(values)


def line_of(error: Any) -> str:
    """Return the line of a syntax error of PyYAML, as in ":3"; nothing if it names none."""
    return f":{error.problem_mark.line + 1}" if error.problem_mark else ""


def in_plain_words(error: Any) -> str:
    """Describe a syntax error of PyYAML in one line."""
    problem = " ".join(str(error.problem).split())
    said = [text for words, text in _IN_PLAIN_WORDS.items() if problem.startswith(words)]
    return f"this is not valid YAML: {f'{said[0]} ({problem})' if said else problem}"


def check_expanded_size(root: Any) -> None:
    """Check that aliases (*) do not multiply the nodes of a YAML document.

    Args:
        root: PyYAML's node of the document; None if it is empty.

    Raises:
        ValueError: they do.
        RecursionError: an anchor contains an alias of itself.
    """
    sizes: dict[int, int] = {}

    def size_of(node: Any) -> int:
        if id(node) not in sizes:
            children = node.value if isinstance(node.value, list) else []
            nodes = [
                each for pair in children for each in (pair if type(pair) is tuple else [pair])
            ]
            sizes[id(node)] = 1 + sum(map(size_of, nodes))
        return sizes[id(node)]

    if root is not None and (size := size_of(root)) > _MOST_YAML_NODES:
        raise ValueError(
            f"with its aliases (*) in full it has {size:,} values, more than {_MOST_YAML_NODES:,}"
        )


def _check(path: Path, values: Mapping[str, Any], rules: Sequence[_Rule]) -> None:
    """Raise ExperimentError if a key has a value of the wrong type."""
    for key, kind, is_met in rules:
        value = _value(values, key)
        if value is not _MISSING and not is_met(value):
            raise _wrong(_place(path, key), key, kind, value)


def _value(values: Any, key: str) -> Any:
    for part in key.split("."):
        if not isinstance(values, Mapping) or part not in values:
            return _MISSING
        values = values[part]
    return values


def _shape_of(value: Any) -> tuple[int, ...] | None:
    """Return the shape of nested lists of numbers and null; None if they are something else."""
    if type(value) is not list:
        return () if value is None or type(value) is bool or _is_number(value) else None
    shapes = {_shape_of(each) for each in value}
    if len(shapes) > 1 or None in shapes:
        return None
    return (len(value), *(shapes.pop() if shapes else ()))  # type: ignore[misc]


def _leaves(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values in nested mappings and lists; keys that are not strings count as values."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            name = f"{prefix}.{key}".removeprefix(".")
            if not isinstance(key, str):
                yield name, {key}
            yield from _leaves(value, name)
    elif isinstance(values, list):
        for value in values:
            yield from _leaves(value, prefix)
    else:
        yield prefix, values


def _place(path: Path, key: str) -> str:
    """Name the file and, if it can be found, the line of a dotted key."""
    import yaml

    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (OSError, ValueError, yaml.YAMLError):
        return str(path)
    line = ""
    for part in key.split("."):
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        found = [(name, value) for name, value in pairs if name.value == part]
        if not found:
            break
        line, node = f":{found[-1][0].start_mark.line + 1}", found[-1][1]
    return f"{path}{line}"


def _wrong(place: str, key: str, kind: str, value: Any) -> ExperimentError:
    if value is _MISSING:
        return ExperimentError(f"{place}: {key} is missing; it should be {kind}")
    text = json.dumps(value, default=str, skipkeys=True)
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    return ExperimentError(f"{place}: {key} should be {kind}, but is {shown}")


def _incomplete(path: Path, key: str) -> ExperimentError:
    return ExperimentError(
        f"{path}: {key} is missing; write the summary again by: jaxagents resume {path.parent}"
    )


def _unreadable(path: Path, error: Exception) -> ExperimentError:
    if isinstance(error, RecursionError):
        return ExperimentError(f"{path}: this is too deeply nested")
    if isinstance(error, UnicodeDecodeError):
        return ExperimentError(f"{path}: this is not UTF-8 text")
    return ExperimentError(f"{path}: it cannot be read: {' '.join(str(error).split())}")
