"""The choices that a run's checkpoints depend on, and how another agent differs in them."""

import re
from typing import Any

from jaxagents.config import AgentConfig

_BETWEEN_FIELDS = re.compile(r", (?=\w+=)")  # of a dataclass's repr
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in a function's repr; differs between processes
_STRUCTURE = (
    "batch_size",
    "rollout_length",  # converts updates to environment steps
    "agent_id",
    "recurrent",
    "recurrent_critic",
    "centralized_critic",
    "shared_torso",
    "normalize_observations",
    "normalize_values",
    "scale_rewards",
    "replay_updates",
    "max_episode_steps",
    "squash",
    "prng_impl",
    "actor_layers",
    "critic_layers",
    "actor_network",
    "critic_network",
    "optimizer",
)


def structure_of(config: AgentConfig) -> dict[str, Any]:
    """Return, as plain data, the choices that a run's checkpoints depend on."""
    values = {name: getattr(config, name) for name in _STRUCTURE}
    adapts = config.learning_rate_schedule == "kl"
    return {name: _plain(value) for name, value in values.items()} | {
        "adapts_learning_rate": adapts
    }


def _plain(value: Any) -> Any:
    """Describe a choice by types that JSON has, in the same way in every process."""
    if value is None or isinstance(value, bool | int | str):
        return value
    name = getattr(value, "__qualname__", None)
    return name or _ADDRESS.sub("", " ".join(repr(value).split()))


def differences(name: str, before: Any, now: Any) -> dict[str, tuple[Any, Any]]:
    """Return both values of a choice of `structure_of`; of `Layers`, of the fields that differ."""
    if not all(isinstance(each, str) and each.startswith("Layers(") for each in (before, now)):
        return {name: (before, now)}
    old, new = _fields(before), _fields(now)
    pairs = {f"{name}.{field}": (old.get(field), value) for field, value in new.items()}
    differing = {field: pair for field, pair in pairs.items() if pair[0] != pair[1]}
    return differing or {name: (before, now)}


def _fields(layers: str) -> dict[str, str]:
    """Return the fields of `Layers` as its repr, or `_plain`, shows them."""
    parts = _BETWEEN_FIELDS.split(layers.removeprefix("Layers(").removesuffix(")"))
    return {field: value for field, _, value in (part.partition("=") for part in parts)}
