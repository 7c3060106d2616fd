"""A configuration file to start from: every key, documented, with suggested values."""

import dataclasses
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from jaxagents.environments.registry import EnvironmentInfo, arguments_of, describe, make
from jaxagents.environments.time_limits import TimeLimit, time_limit_of
from jaxagents.experiments.config_files.measured_settings import MEASURED_SETTINGS, Suggestion
from jaxagents.experiments.config_files.schema import (
    ConfigField,
    ExperimentConfig,
    keys_of,
    yaml_text,
)
from jaxagents.hyperparameters import HyperParameters
from jaxagents.ippo.measured_losses import has_lost

_COLUMNS = 100
_INDENT = "  "
_BOUND = 1000  # steps of an episode

# Rewards depend on earlier observations.
_MEMORY_TASKS = (
    "gymnax/MemoryChain-bsuite",
    "gymnax/BernoulliBandit-misc",
    "gymnax/GaussianBandit-misc",
    "gymnax/MetaMaze-misc",
    "jaxmarl/switch_riddle",
    "jaxmarl/SMAX",
    "jaxmarl/HeuristicEnemySMAX",
)
# Listed by hand: only rewards show if similar actors have different goals, and if teams share one.
_RIVALS = ("hunting/discrete", "hunting/continuous")
_INDIVIDUALS = ("jaxmarl/coin_game", "jaxmarl/storm", "jaxmarl/storm_2p", "jaxmarl/storm_np")
_PARTNERS = ("jaxmarl/MPE_simple_speaker_listener_v4",)


def starting_file(env_id: str) -> str:
    """Return the text of a configuration file for an environment, with every key.

    Raises:
        ValueError: the environment is unknown.
        OSError: the environment's data cannot be downloaded.
    """
    info = describe(env_id)
    suggestions = _without_warnings(suggestions_for(info), *make(env_id))
    lines = list(_heading(info))
    for key, field in keys_of(ExperimentConfig):
        indent = _INDENT * key.count(".")
        if not lines[-1].endswith(":"):
            lines.append("")
        lines += _documentation(field, indent)
        if defaults := _OF_ENVIRONMENTS.get(key):
            suggestion = suggestions.get(key, Suggestion({}, ""))
            lines += _of_environment(field.name, defaults(env_id), suggestion)
        elif field.is_group:
            lines.append(f"{indent}{field.name}:")
        else:
            lines.append(f"{indent}{_assignment(field, suggestions.get(key))}")
    return "\n".join(lines) + "\n"


def suggestions_for(info: EnvironmentInfo) -> dict[str, Suggestion]:
    """Suggest values for an environment, by dotted key, where the default is not the best."""
    name = re.sub(r"[^\w.-]", "_", re.sub("^(gymnax|jaxmarl)/", "", info.id))
    chosen = {
        "name": Suggestion(name, ""),
        "env": Suggestion(info.id, ""),
        "agent.n_steps": Suggestion(488, "x 16 x 128: 999,424 environment steps"),
        "agent.eval_frequency": Suggestion(61, "8 evaluations, and one before training"),
        "agent.learning_rate_schedule": Suggestion("linear", "later policies vary less"),
    }
    has_teams = any(each.startswith("teams") for each in info.traits)
    if has_teams:
        why = "teams play different roles"
        chosen["agent.parameter_sharing"] = Suggestion("team", why)
    elif info.id in _RIVALS + _INDIVIDUALS:
        why = "each actor has its own goal"
        chosen["agent.parameter_sharing"] = Suggestion("independent", why)
    if info.id in _RIVALS or (has_teams and info.id not in _PARTNERS):
        why = "one's gain is another's loss: the mean return says little"
        chosen["evaluation.mode"] = Suggestion("last", why)
    if info.id in _MEMORY_TASKS:
        chosen["agent.recurrent"] = Suggestion("gru", "rewards depend on earlier observations")
    return chosen | dict(MEASURED_SETTINGS.get(info.id, {}))


def _without_warnings(
    suggestions: Mapping[str, Suggestion], env: Any, env_params: Any
) -> dict[str, Suggestion]:
    """Drop suggestions that training would warn of, and add those that avoid other warnings."""
    name = getattr(env, "name", None)
    kept = {
        key: each
        for key, each in suggestions.items()
        if not has_lost(name, key.rpartition(".")[2], each.value)
    }
    limit = time_limit_of(env, env_params, None, time_limits=None, observe_time=None)
    return _for_time_limit(limit, getattr(env, "n_steps_without_end", 0) > 0) | kept


def _for_time_limit(limit: TimeLimit, may_never_end: bool) -> dict[str, Suggestion]:
    """Suggest a bound for episodes that may never end, or a horizon within a short limit."""
    if limit.n_steps is None:
        why = "no limit is known, and episodes may never end"
        return {"agent.max_episode_steps": Suggestion(_BOUND, why)} if may_never_end else {}
    gamma = float(np.floor(1000 * (1 - 1 / limit.n_steps)) / 1000)
    if limit.is_terminal or gamma >= HyperParameters().gamma:
        return {}
    return {"hyperparams.gamma": Suggestion(gamma, "looks no further than the time limit")}


def _heading(info: EnvironmentInfo) -> Iterator[str]:
    actors = "one actor" if info.n_actors == 1 else f"{info.n_actors} actors"
    shape = " x ".join(map(str, info.observation_shape)) or "a scalar"
    facts = [
        f"{info.id}: {actors}; observations of {shape} ({info.observation_dtype}), "
        f"actions in {info.action_space}",
        *info.traits,
        f"episodes are truncated by the {info.truncation_rule}"
        if info.truncation_rule.startswith("time limit")
        else f"episodes are truncated: {info.truncation_rule}",
    ]
    yield from _comment("; ".join(facts) + ".")
    yield "#"
    yield "#   jaxagents train THIS_FILE"
    yield "#"
    yield from _comment(
        "All keys are listed, each with its type and default in parentheses; a key that is left "
        "out has its default. Comments after values say why they differ from the default. Each "
        "key can be overridden on the command line, as in --agent.n_steps 1000."
    )


def _documentation(field: ConfigField, indent: str) -> list[str]:
    if field.is_group:
        return _comment(field.meaning, indent)
    values = f"({field.type_and_default})"
    together = _comment(f"{field.meaning} {values}", indent)
    if len(together) == 1:
        return together
    return _comment(field.meaning, indent) + _comment(values, indent)


def _comment(text: str, indent: str = "", columns: int = _COLUMNS) -> list[str]:
    start = f"{indent}# "
    return textwrap.wrap(
        text,
        columns,
        initial_indent=start,
        subsequent_indent=start,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _assignment(field: ConfigField, suggestion: Suggestion | None) -> str:
    if suggestion is None:
        return f"{field.name}: {yaml_text(field.default)}"
    text = f"{field.name}: {yaml_text(suggestion.value)}"
    return f"{text}  # {suggestion.why}" if suggestion.why else text


def _of_environment(
    name: str, defaults: Mapping[str, tuple[Any, str]], suggestion: Suggestion
) -> list[str]:
    """List what an environment takes, commented out, after the values that are suggested."""
    if not defaults:
        return [f"# {name}: {{}}  # this environment takes none"]
    lines = [f"# {name}:"]
    if suggestion.value:
        lines = [f"{name}:  # {suggestion.why}"]
        lines += (
            f"{_INDENT}{each}: {yaml_text(given)}" for each, given in suggestion.value.items()
        )
    rest = {each: value for each, value in defaults.items() if each not in suggestion.value}
    return lines + [f"# {line}" for line in _with_remarks(rest)]


def _with_remarks(defaults: Mapping[str, tuple[Any, str]]) -> Iterator[str]:
    for each, (value, remark) in defaults.items():
        line = f"{_INDENT}{each}: {yaml_text(value)}"
        if len(line) > _COLUMNS - len("# ") and isinstance(value, list | tuple):
            yield f"{_INDENT}{each}:"
            yield from (f"{_INDENT}- {yaml_text(item)}" for item in value)
        else:
            yield line
        yield from _comment(remark, _INDENT, _COLUMNS - len("# "))


def _constructor_defaults(env_id: str) -> dict[str, tuple[Any, str]]:
    return {
        each.name: (each.default, f"one of {', '.join(each.choices)}" if each.choices else "")
        for each in arguments_of(env_id)
    }


def _param_defaults(env_id: str) -> dict[str, tuple[Any, str]]:
    _, params = make(env_id)
    if not dataclasses.is_dataclass(params):
        return {}
    names = [each.name for each in dataclasses.fields(params)]
    values = {name: np.asarray(getattr(params, name)) for name in names}
    # A file cannot hold objects, such as the rules of a world.
    return {name: (value.tolist(), "") for name, value in values.items() if value.dtype != object}


_OF_ENVIRONMENTS = {"env_kwargs": _constructor_defaults, "env_params": _param_defaults}
