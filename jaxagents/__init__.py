"""Multi-agent IPPO in JAX."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxagents.callbacks import StopAtReturn
    from jaxagents.config import AgentConfig, Layers
    from jaxagents.environments.protocol import Environment
    from jaxagents.environments.registry import make, register
    from jaxagents.environments.spaces import Box, Discrete
    from jaxagents.finiteness import NonFiniteError
    from jaxagents.hyperparameters import HyperParameters, OptimizerParams
    from jaxagents.interruption import Interrupted
    from jaxagents.ippo.base import IPPOBase
    from jaxagents.ippo.continuous import ContinuousIPPO
    from jaxagents.ippo.discrete import DiscreteIPPO
    from jaxagents.profiling import Profile, profile
    from jaxagents.recurrence import RecurrentNetwork
    from jaxagents.tracking import Evaluation, Tracker
    from jaxagents.types import MetricStats, Observation, Runner

__version__ = "1.0.0"

_MODULE_OF = {
    "AgentConfig": "config",
    "Box": "environments.spaces",
    "ContinuousIPPO": "ippo.continuous",
    "Discrete": "environments.spaces",
    "DiscreteIPPO": "ippo.discrete",
    "Environment": "environments.protocol",
    "Evaluation": "tracking",
    "HyperParameters": "hyperparameters",
    "IPPOBase": "ippo.base",
    "Interrupted": "interruption",
    "Layers": "config",
    "MetricStats": "types",
    "NonFiniteError": "finiteness",
    "Observation": "types",
    "OptimizerParams": "hyperparameters",
    "Profile": "profiling",
    "RecurrentNetwork": "recurrence",
    "Runner": "types",
    "StopAtReturn": "callbacks",
    "Tracker": "tracking",
    "make": "environments.registry",
    "profile": "profiling",
    "register": "environments.registry",
}

__all__ = [
    "AgentConfig",
    "Box",
    "ContinuousIPPO",
    "Discrete",
    "DiscreteIPPO",
    "Environment",
    "Evaluation",
    "HyperParameters",
    "IPPOBase",
    "Interrupted",
    "Layers",
    "MetricStats",
    "NonFiniteError",
    "Observation",
    "OptimizerParams",
    "Profile",
    "RecurrentNetwork",
    "Runner",
    "StopAtReturn",
    "Tracker",
    "make",
    "profile",
    "register",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: importing jax and flax takes seconds."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'jaxagents' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"jaxagents.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
