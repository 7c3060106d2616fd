"""Options that learnt less than the defaults, on the environments where this was measured.

The figures are those of ``benchmarks/learning_options.csv``: four seeds, one option changed at a
time; the 95 % interval of the difference lies below zero.
"""

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxagents.compiler.jit import is_traced
from jaxagents.config import AgentConfig
from jaxagents.errors import stacklevel_of_caller
from jaxagents.hyperparameters import OWN_RATES, HyperParameters, flat_items


class MeasuredLoss(NamedTuple):
    """What an option cost on an environment: interquartile means of final returns over seeds."""

    env: str  # its name
    n_environment_steps: int  # of a training
    option: Mapping[str, Any]  # keys of AgentConfig and HyperParameters
    reached: float
    reached_by_defaults: float


_SPREAD = ("SimpleSpreadMPE", 500_000)
_SPEAKER = ("SimpleSpeakerListenerMPE", 1_000_000)
_SLOWER_RATES: dict[str, float] = dict.fromkeys(OWN_RATES, 5e-4)
_VALUES_AS_THEY_ARE = {"normalize_values": False, "scale_rewards": False}
MEASURED_LOSSES = (
    MeasuredLoss(*_SPREAD, {"learning_rate_schedule": "linear"}, -18.7, -17.4),
    MeasuredLoss(*_SPREAD, {"learning_rate_schedule": "cosine"}, -18.8, -17.4),
    MeasuredLoss(*_SPREAD, {"ent_coeff": 0.0}, -18.6, -17.4),
    MeasuredLoss(*_SPREAD, _SLOWER_RATES, -18.5, -17.4),
    MeasuredLoss("Pendulum-v1", 500_000, _VALUES_AS_THEY_ARE, -407.2, -147.6),
    MeasuredLoss(*_SPEAKER, _VALUES_AS_THEY_ARE, -11.5, -7.4),
    MeasuredLoss(*_SPEAKER, {"normalize_observations": False}, -15.9, -7.4),
    MeasuredLoss(*_SPEAKER, {"normalize_values": False, "scale_rewards": True}, -11.1, -7.4),
    MeasuredLoss(*_SPEAKER, {"shared_torso": True}, -13.0, -7.4),
    MeasuredLoss(*_SPEAKER, {"learning_rate_schedule": "linear"}, -12.6, -7.4),
    MeasuredLoss(*_SPEAKER, {"learning_rate_schedule": "cosine"}, -12.3, -7.4),
    MeasuredLoss(*_SPEAKER, _SLOWER_RATES, -14.3, -7.4),
)
"""All losses except those of time limits, which `warn_of_short_episodes` reports everywhere."""


def has_lost(env_name: str | None, key: str, value: Any) -> bool:
    """Return True if an option alone learnt less than the default on an environment."""
    return any(loss.env == env_name and loss.option == {key: value} for loss in MEASURED_LOSSES)


def warn_of_measured_losses(
    env_name: str | None, config: AgentConfig, hyperparams: HyperParameters
) -> None:
    """Warn of options whose setting learnt less than the default on this environment.

    There is no warning for a longer training, where slower learning may be harmless, or for one of
    less than half the measured length, which was not measured.

    Args:
        env_name: Name of the environment, if it has one.
        config: The agent's.
        hyperparams: For its training; traced ones are skipped.
    """
    losses = [loss for loss in MEASURED_LOSSES if loss.env == env_name]
    if not losses or is_traced(hyperparams):
        return
    n_steps = config.n_steps * config.steps_per_update
    values = {**vars(config), **flat_items(hyperparams)}
    if config.anneal_learning_rate:
        values["learning_rate_schedule"] = "linear"
    for loss in losses:
        n_measured = loss.n_environment_steps
        if n_measured / 2 <= n_steps <= 1.01 * n_measured and _is_set(loss.option, values):
            measured = "Rates of 5e-4" if loss.option == _SLOWER_RATES else "This"
            warnings.warn(
                f"{_text(loss.option, config, values)}: {measured} learnt less than the defaults "
                f"on {env_name} in {n_measured:,} steps: {loss.reached:g} instead of "
                f"{loss.reached_by_defaults:g} (final return per actor, four seeds). Longer "
                "trainings may gain from it; see docs/choosing.md.",
                stacklevel=stacklevel_of_caller(),
            )


def _text(option: Mapping[str, Any], config: AgentConfig, values: Mapping[str, Any]) -> str:
    """Return the option as the user has set it."""
    if "learning_rate_schedule" in option and config.anneal_learning_rate:
        return "anneal_learning_rate=True"
    return ", ".join(f"{key}={_value_text(values[key])}" for key in option)


def _value_text(value: Any) -> str:
    if isinstance(value, bool | str):
        return repr(value)
    numbers = [f"{number:g}" for number in np.ravel(value)]  # of float32: 0.00025 as it was written
    return numbers[0] if len(numbers) == 1 else f"[{', '.join(numbers)}]"


def _is_set(option: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """True if all keys have the option's values; learning rates may also be lower."""
    return all(
        np.all((np.less_equal if key in OWN_RATES else np.equal)(values[key], value))
        for key, value in option.items()
    )
