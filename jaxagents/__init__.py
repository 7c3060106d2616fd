"""Multi-agent IPPO in JAX."""

import importlib
from typing import TYPE_CHECKING, Any

from jaxagents.compiler.processors import give_xla_two_threads

if TYPE_CHECKING:
    from jaxagents.compiler.switch import plain_jax
    from jaxagents.config import AgentConfig, Layers
    from jaxagents.environments.host.environment import HostEnvironment
    from jaxagents.environments.protocol import Environment
    from jaxagents.environments.registry import make, register
    from jaxagents.environments.spaces import Box, Discrete, MultiDiscrete
    from jaxagents.experiments.config_files.file import load_config
    from jaxagents.experiments.experiment import Experiment
    from jaxagents.experiments.profiling import Profile, profile
    from jaxagents.hyperparameters import HyperParameters, OptimizerParams
    from jaxagents.ippo.base import IPPOBase
    from jaxagents.ippo.continuous import ContinuousIPPO
    from jaxagents.ippo.discrete import DiscreteIPPO
    from jaxagents.ippo.minari_datasets import rollouts_from_minari
    from jaxagents.ippo.rollout import Rollout
    from jaxagents.networks.recurrent import RecurrentNetwork
    from jaxagents.ppo.finiteness import NonFiniteError
    from jaxagents.training.callbacks import Evaluation, StopAtReturn
    from jaxagents.training.interruption import Interrupted
    from jaxagents.training.trackers import Tracker
    from jaxagents.types import MetricStats, Observation, Runner

__version__ = "1.1.0"

give_xla_two_threads()

_MODULE_OF = {
    "AgentConfig": "config",
    "Box": "environments.spaces",
    "ContinuousIPPO": "ippo.continuous",
    "Discrete": "environments.spaces",
    "DiscreteIPPO": "ippo.discrete",
    "Environment": "environments.protocol",
    "Evaluation": "training.callbacks",
    "Experiment": "experiments.experiment",
    "HostEnvironment": "environments.host.environment",
    "HyperParameters": "hyperparameters",
    "IPPOBase": "ippo.base",
    "Interrupted": "training.interruption",
    "Layers": "config",
    "MetricStats": "types",
    "MultiDiscrete": "environments.spaces",
    "NonFiniteError": "ppo.finiteness",
    "Observation": "types",
    "OptimizerParams": "hyperparameters",
    "Profile": "experiments.profiling",
    "RecurrentNetwork": "networks.recurrent",
    "Rollout": "ippo.rollout",
    "Runner": "types",
    "StopAtReturn": "training.callbacks",
    "Tracker": "training.trackers",
    "load_config": "experiments.config_files.file",
    "make": "environments.registry",
    "plain_jax": "compiler.switch",
    "profile": "experiments.profiling",
    "register": "environments.registry",
    "rollouts_from_minari": "ippo.minari_datasets",
}

__all__ = [
    "AgentConfig",
    "Box",
    "ContinuousIPPO",
    "Discrete",
    "DiscreteIPPO",
    "Environment",
    "Evaluation",
    "Experiment",
    "HostEnvironment",
    "HyperParameters",
    "IPPOBase",
    "Interrupted",
    "Layers",
    "MetricStats",
    "MultiDiscrete",
    "NonFiniteError",
    "Observation",
    "OptimizerParams",
    "Profile",
    "RecurrentNetwork",
    "Rollout",
    "Runner",
    "StopAtReturn",
    "Tracker",
    "load_config",
    "make",
    "plain_jax",
    "profile",
    "register",
    "rollouts_from_minari",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use: importing jax and flax takes seconds."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'jaxagents' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"jaxagents.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
