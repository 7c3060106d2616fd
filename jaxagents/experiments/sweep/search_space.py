"""Search spaces: the keys of a configuration that a sweep varies, read from a YAML file."""

import json
import math
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxagents.errors import ExperimentError, explained
from jaxagents.experiments.config_files.file import keys_of_files, load_config
from jaxagents.experiments.config_files.schema import NOT_VARIED, ExperimentConfig
from jaxagents.hyperparameters import check_hyperparams, flat_items

_HYPERPARAMS = "hyperparams."
_RANGE_KEYS = {"low", "high", "log"}

Values = dict[str, Any]
"""A trial's value of each key."""


class Range(NamedTuple):
    """Numbers from ``low`` to ``high``; integers if both are."""

    low: float
    high: float
    log: bool  # uniform in the logarithm

    def distribution(self) -> Any:
        """Return optuna's form of it."""
        import optuna

        if isinstance(self.low, int) and isinstance(self.high, int):
            return optuna.distributions.IntDistribution(self.low, self.high, self.log)
        return optuna.distributions.FloatDistribution(self.low, self.high, self.log)


class Choices(NamedTuple):
    """One of several values."""

    values: tuple[Any, ...]

    def distribution(self) -> Any:
        """Return optuna's form of it, in which lists are written as JSON."""
        import optuna

        return optuna.distributions.CategoricalDistribution([as_choice(v) for v in self.values])


Space = dict[str, Range | Choices]
"""What is varied, by dotted key of the configuration."""


def load_space(
    path: str | PathLike[str], config: str | PathLike[str], overrides: Sequence[str] = ()
) -> Space:
    """Read a search space, and check it against the configuration that it varies.

    Args:
        path: A YAML file: dotted keys with lists of choices, or with ``low``, ``high`` and
            optionally ``log: true``. Ranges of real-valued keys hold real numbers, even if both
            ends are written as integers.
        config: The configuration file.
        overrides: Changes to it, as for `load_config`.

    Raises:
        ExperimentError: the file cannot be read, a range is empty, a key is unknown or may not be
            varied, or the configuration refuses one of the values.
    """
    import yaml

    try:
        read = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ExperimentError(f"{path}: there is no such file") from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ExperimentError(f"{path} cannot be read as a search space: {reason}") from error
    if not isinstance(read, Mapping) or not read:
        raise ExperimentError(
            f"{path} holds no search space; write keys of the configuration with their values, as "
            "in hyperparams.gamma: [0.95, 0.99]."
        )
    space = {str(key): _parse(path, str(key), value) for key, value in read.items()}
    fields = dict(keys_of_files())
    for key, domain in space.items():
        if key in NOT_VARIED:
            raise ExperimentError(f"{path}: {key} cannot be varied by a sweep; leave it out.")
        ends = domain.values if isinstance(domain, Choices) else (domain.low, domain.high)
        for value in ends:
            with explained(f"{path}: {key}: "):
                _check(configure(config, overrides, {key: value}))
        if isinstance(domain, Range) and key in fields and fields[key].is_real:
            space[key] = domain._replace(low=float(domain.low), high=float(domain.high))
    return space


def _check(config: ExperimentConfig) -> None:
    """Check hyperparameters, whatever the number of policies is."""
    n_policies = max(np.size(value) for value in flat_items(config.hyperparams).values())
    check_hyperparams(config.hyperparams, n_policies)


def _parse(path: Any, key: str, value: Any) -> Range | Choices:
    if isinstance(value, list):
        if not value:
            raise ExperimentError(f"{path}: {key} has no choices; give at least one.")
        for choice in value:
            _check_is_plain(path, key, choice)
        return Choices(tuple(value))
    if not isinstance(value, Mapping) or not {"low", "high"} <= value.keys() <= _RANGE_KEYS:
        raise ExperimentError(
            f"{path}: {key}={value!r} is neither a list of choices nor a range, as in "
            "{low: 1.0e-4, high: 1.0e-2, log: true}."
        )
    low, high, log = value["low"], value["high"], bool(value.get("log", False))
    if not all(type(end) in (int, float) and math.isfinite(end) for end in (low, high)):
        raise ExperimentError(
            f"{path}: {key} reaches from {low!r} to {high!r}, which are not both numbers; YAML "
            "reads 1e-3 as a word: write 1.0e-3."
        )
    if not low < high:
        raise ExperimentError(f"{path}: the range of {key}, {low} to {high}, is empty.")
    if log and low <= 0:
        raise ExperimentError(f"{path}: {key} begins at {low}, which has no logarithm.")
    return Range(low, high, log)


def _check_is_plain(path: Any, key: str, choice: Any) -> None:
    """Check that JSON, as which choices are stored, can hold one; YAML also has dates."""
    try:
        json.dumps(choice)
    except (TypeError, ValueError) as error:
        raise ExperimentError(
            f"{path}: a choice of {key} should be text, a number, true, false, null, or lists or "
            f"keys of these, but is {choice}; write text that looks like a date in quotes."
        ) from error


def as_choice(value: Any) -> Any:
    """Write a choice as optuna stores it."""
    return value if isinstance(value, bool | int | float | str) else json.dumps(value)


def as_overrides(values: Values) -> list[str]:
    """Return a trial's values as overrides of the command line."""
    return [
        part
        for key, value in values.items()
        for part in (f"--{key}", value if isinstance(value, str) else json.dumps(value))
    ]


def structure_of_trial(values: Values) -> Values:
    """Return the values that need a program of their own: all but hyperparameters."""
    return {key: value for key, value in values.items() if not key.startswith(_HYPERPARAMS)}


def configure(
    path: str | PathLike[str], overrides: Sequence[str], values: Values
) -> ExperimentConfig:
    """Return the configuration of a trial.

    Raises:
        ExperimentError: the configuration refuses the values.
    """
    try:
        return load_config(path, [*overrides, *as_overrides(values)])
    except ExperimentError as error:
        # The values are passed like overrides, but the space holds them.
        raise ExperimentError(str(error).removeprefix("command line: ")) from error
