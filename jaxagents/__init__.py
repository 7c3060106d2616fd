"""Multi-agent IPPO in JAX."""

import importlib
from typing import TYPE_CHECKING, Any

from jaxagents.compiler.forks import note_forks

if TYPE_CHECKING:
    from jaxagents.compiler.tuned_forms import plain_jax
    from jaxagents.config import AgentConfig, Layers
    from jaxagents.entities import EntityKind
    from jaxagents.environments.action_repeat import ActionRepeat
    from jaxagents.environments.environment_check import EnvironmentFinding, check_environment
    from jaxagents.environments.environment_wrapper import EnvironmentWrapper
    from jaxagents.environments.host.environment import HostEnvironment
    from jaxagents.environments.jaxmarl.navigation import JaxNavFeatures
    from jaxagents.environments.protocol import Environment
    from jaxagents.environments.registry import make, register, register_environment
    from jaxagents.environments.sides.opponents import Opponent, RandomOpponent, Scripted
    from jaxagents.environments.sides.side import PastSelves, Side
    from jaxagents.environments.spaces import Box, Discrete, MultiDiscrete
    from jaxagents.environments.success import Success
    from jaxagents.evaluation.comparison_tables import compare_runs
    from jaxagents.evaluation.episodes import Episode, EpisodeView
    from jaxagents.evaluation.payoffs import CrossPlay, Payoffs, cross_play, payoffs
    from jaxagents.experiments.config_files.file import load_config
    from jaxagents.experiments.experiment import Experiment
    from jaxagents.experiments.planning import Links, Plan, plan
    from jaxagents.experiments.profiling import Profile, profile
    from jaxagents.experiments.zoo import load_policy
    from jaxagents.hyperparameters import HyperParameters, OptimizerParams, PerPolicy
    from jaxagents.ippo.agent_classes import IPPO, ContinuousIPPO, DiscreteIPPO, register_agent
    from jaxagents.ippo.base import IPPOBase
    from jaxagents.ippo.exploitability import (
        BestResponse,
        Exploitability,
        best_response,
        exploitability,
    )
    from jaxagents.ippo.minari_datasets import rollouts_from_minari
    from jaxagents.ippo.opponents import FrozenPolicies
    from jaxagents.ippo.population.selection import PopulationBasedTraining, SuccessiveHalving
    from jaxagents.ippo.presets import textbook_ppo
    from jaxagents.ippo.rollout import Rollout
    from jaxagents.ippo.together import resume_together, train_together
    from jaxagents.networks.entities import NetworkContext
    from jaxagents.networks.recurrent import RecurrentNetwork
    from jaxagents.networks.registry import register_network
    from jaxagents.ppo.finiteness import NonFiniteError
    from jaxagents.training.callbacks import Evaluation, StopAtReturn
    from jaxagents.training.interruption import Interrupted
    from jaxagents.training.trackers import Tracker, register_tracker
    from jaxagents.types import MetricStats, Observation, Runner
    from jaxagents.visual.population_plots import draw_cross_play, draw_payoffs
    from jaxagents.visual.replay import film
    from jaxagents.visual.run_plots import plot_runs

__version__ = "1.0.0"

note_forks()

_MODULE_OF = {
    "ActionRepeat": "environments.action_repeat",
    "AgentConfig": "config",
    "BestResponse": "ippo.exploitability",
    "Box": "environments.spaces",
    "ContinuousIPPO": "ippo.agent_classes",
    "CrossPlay": "evaluation.payoffs",
    "Discrete": "environments.spaces",
    "DiscreteIPPO": "ippo.agent_classes",
    "EntityKind": "entities",
    "Environment": "environments.protocol",
    "EnvironmentFinding": "environments.environment_check",
    "EnvironmentWrapper": "environments.environment_wrapper",
    "Episode": "evaluation.episodes",
    "EpisodeView": "evaluation.episodes",
    "Evaluation": "training.callbacks",
    "Experiment": "experiments.experiment",
    "Exploitability": "ippo.exploitability",
    "FrozenPolicies": "ippo.opponents",
    "HostEnvironment": "environments.host.environment",
    "HyperParameters": "hyperparameters",
    "IPPO": "ippo.agent_classes",
    "IPPOBase": "ippo.base",
    "Interrupted": "training.interruption",
    "JaxNavFeatures": "environments.jaxmarl.navigation",
    "Layers": "config",
    "Links": "experiments.planning",
    "MetricStats": "types",
    "MultiDiscrete": "environments.spaces",
    "NetworkContext": "networks.entities",
    "NonFiniteError": "ppo.finiteness",
    "Observation": "types",
    "Opponent": "environments.sides.opponents",
    "OptimizerParams": "hyperparameters",
    "PerPolicy": "hyperparameters",
    "PastSelves": "environments.sides.side",
    "Payoffs": "evaluation.payoffs",
    "Plan": "experiments.planning",
    "PopulationBasedTraining": "ippo.population.selection",
    "Profile": "experiments.profiling",
    "RandomOpponent": "environments.sides.opponents",
    "RecurrentNetwork": "networks.recurrent",
    "Rollout": "ippo.rollout",
    "Runner": "types",
    "Scripted": "environments.sides.opponents",
    "Side": "environments.sides.side",
    "StopAtReturn": "training.callbacks",
    "Success": "environments.success",
    "SuccessiveHalving": "ippo.population.selection",
    "Tracker": "training.trackers",
    "best_response": "ippo.exploitability",
    "check_environment": "environments.environment_check",
    "compare_runs": "evaluation.comparison_tables",
    "cross_play": "evaluation.payoffs",
    "draw_cross_play": "visual.population_plots",
    "draw_payoffs": "visual.population_plots",
    "exploitability": "ippo.exploitability",
    "film": "visual.replay",
    "load_config": "experiments.config_files.file",
    "load_policy": "experiments.zoo",
    "make": "environments.registry",
    "payoffs": "evaluation.payoffs",
    "plain_jax": "compiler.tuned_forms",
    "plan": "experiments.planning",
    "plot_runs": "visual.run_plots",
    "profile": "experiments.profiling",
    "register": "environments.registry",
    "register_agent": "ippo.agent_classes",
    "register_environment": "environments.registry",
    "register_network": "networks.registry",
    "register_tracker": "training.trackers",
    "resume_together": "ippo.together",
    "rollouts_from_minari": "ippo.minari_datasets",
    "textbook_ppo": "ippo.presets",
    "train_together": "ippo.together",
}

__all__ = [
    "IPPO",
    "ActionRepeat",
    "AgentConfig",
    "BestResponse",
    "Box",
    "ContinuousIPPO",
    "CrossPlay",
    "Discrete",
    "DiscreteIPPO",
    "EntityKind",
    "Environment",
    "EnvironmentFinding",
    "EnvironmentWrapper",
    "Episode",
    "EpisodeView",
    "Evaluation",
    "Experiment",
    "Exploitability",
    "FrozenPolicies",
    "HostEnvironment",
    "HyperParameters",
    "IPPOBase",
    "Interrupted",
    "JaxNavFeatures",
    "Layers",
    "Links",
    "MetricStats",
    "MultiDiscrete",
    "NetworkContext",
    "NonFiniteError",
    "Observation",
    "Opponent",
    "OptimizerParams",
    "PastSelves",
    "Payoffs",
    "PerPolicy",
    "Plan",
    "PopulationBasedTraining",
    "Profile",
    "RandomOpponent",
    "RecurrentNetwork",
    "Rollout",
    "Runner",
    "Scripted",
    "Side",
    "StopAtReturn",
    "Success",
    "SuccessiveHalving",
    "Tracker",
    "best_response",
    "check_environment",
    "compare_runs",
    "cross_play",
    "draw_cross_play",
    "draw_payoffs",
    "exploitability",
    "film",
    "load_config",
    "load_policy",
    "make",
    "payoffs",
    "plain_jax",
    "plan",
    "plot_runs",
    "profile",
    "register",
    "register_agent",
    "register_environment",
    "register_network",
    "register_tracker",
    "resume_together",
    "rollouts_from_minari",
    "textbook_ppo",
    "train_together",
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
