"""Files of a run's directory as plain data, which people may have edited and disks damaged.

Whatever else reads a run relies on the types that are checked here. Errors name the file and line.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxagents.errors import ExperimentError

_MOST_YAML_NODES = 100_000


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file of keys and values.

    Raises:
        ExperimentError: it is something else, or cannot be read.
    """
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        check_expanded_size(yaml.compose(text, Loader=yaml.SafeLoader))
        values = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ExperimentError(f"{path}{line}: {in_plain_words(error)}") from error
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise _unreadable(path, error) from error
    if not isinstance(values, Mapping):
        raise ExperimentError(f"{path}: this is not a YAML file of keys and values")
    return dict(values)


def in_plain_words(error: Any) -> str:
    """Describe a syntax error of PyYAML in one line."""
    return f"this is not valid YAML: {' '.join(str(error.problem).split())}"


def _unreadable(path: Path, error: Exception) -> ExperimentError:
    if isinstance(error, RecursionError):
        return ExperimentError(f"{path}: this is too deeply nested")
    if isinstance(error, UnicodeDecodeError):
        return ExperimentError(f"{path}: this is not UTF-8 text")
    return ExperimentError(f"{path}: it cannot be read: {' '.join(str(error).split())}")


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
