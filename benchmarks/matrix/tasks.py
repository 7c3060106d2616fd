"""The tasks and settings of the learning matrix."""

from collections.abc import Mapping
from typing import Any, NamedTuple

SHAPED_STEPS = 1_500_000


class Task(NamedTuple):
    """An environment, and how long agents learn on it."""

    env: str
    n_environment_steps: int
    overrides: Mapping[str, Any] = {}
    env_kwargs: Mapping[str, Any] = {}
    env_params: Mapping[str, Any] = {}
    greedy: bool = True  # take the most probable actions in the final evaluation


_MEMORY_CHAIN = {"memory_length": 20, "max_steps_in_episode": 100}
TASKS: dict[str, Task] = {
    "cartpole": Task("gymnax/CartPole-v1", 500_000),
    "cartpole_2m": Task("gymnax/CartPole-v1", 2_000_000),
    "acrobot": Task("gymnax/Acrobot-v1", 1_000_000),
    "pendulum": Task("gymnax/Pendulum-v1", 1_000_000),
    "mountain_car": Task("gymnax/MountainCar-v0", 1_000_000),
    "mountain_car_continuous": Task("gymnax/MountainCarContinuous-v0", 1_000_000),
    "catch": Task("gymnax/Catch-bsuite", 500_000),
    "four_rooms": Task("gymnax/FourRooms-misc", 500_000),
    "memory_chain": Task(
        "gymnax/MemoryChain-bsuite", 500_000, {"recurrent": "gru"}, env_params=_MEMORY_CHAIN
    ),
    "asterix": Task("gymnax/Asterix-MinAtar", 1_000_000),
    "breakout": Task("gymnax/Breakout-MinAtar", 1_000_000),
    "freeway": Task("gymnax/Freeway-MinAtar", 1_000_000),
    "space_invaders": Task("gymnax/SpaceInvaders-MinAtar", 1_000_000),
    "simple_spread": Task("jaxmarl/MPE_simple_spread_v3", 500_000, greedy=False),
    "speaker_listener": Task("jaxmarl/MPE_simple_speaker_listener_v4", 1_000_000),
    "simple_reference": Task("jaxmarl/MPE_simple_reference_v3", 1_000_000),
    "simple_facmac": Task("jaxmarl/MPE_simple_facmac_v1", 1_000_000),
    "cramped_room": Task(
        "jaxmarl/overcooked",
        3_000_000,
        {"shaped_reward_steps": SHAPED_STEPS},
        env_kwargs={"layout": "cramped_room"},
    ),
    "smax_3m": Task("jaxmarl/HeuristicEnemySMAX", 1_000_000, env_kwargs={"scenario": "3m"}),
    "switch_riddle": Task("jaxmarl/switch_riddle", 500_000, {"recurrent": "gru"}),
}


def _rates(actor: float, critic: float) -> dict[str, float]:
    return {
        "actor_optimizer_params.learning_rate": actor,
        "critic_optimizer_params.learning_rate": critic,
    }


# By name: fields of AgentConfig, and of HyperParameters by dotted key.
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    # Time limits and normalisers
    "bootstrap": {"time_limits": "bootstrap", "observe_time": False},
    "terminal": {"time_limits": "terminal", "observe_time": False},
    "terminal, time observed": {"time_limits": "terminal", "observe_time": True},
    "not normalize_values": {"normalize_values": False},
    "not normalize_observations": {"normalize_observations": False},
    "scale_rewards": {"scale_rewards": True},
    "scale_rewards, not normalize_values": {"scale_rewards": True, "normalize_values": False},
    # Critics and losses
    "clip_values": {"clip_values": True},
    "huber": {"critic_error": "huber"},
    "shared_torso": {"shared_torso": True},
    "centralized_critic": {"centralized_critic": True},
    "vtrace": {"advantages": "vtrace"},
    # Policies and networks
    "agent_id": {"agent_id": True},
    "independent": {"parameter_sharing": "independent"},
    "relu": {"actor_layers.activation": "relu", "critic_layers.activation": "relu"},
    "layer_norm": {"actor_layers.layer_norm": True, "critic_layers.layer_norm": True},
    "gru": {"recurrent": "gru"},
    "lstm": {"recurrent": "lstm"},
    "mingru": {"recurrent": "mingru"},
    "gru, chunks of 16": {"recurrent": "gru", "recurrent_chunk_length": 16},
    "gru, critic without memory": {"recurrent": "gru", "recurrent_critic": False},
    # Minibatches and epochs
    "minibatches of time rows": {"minibatch_unit": "time"},
    "minibatches of steps": {"minibatch_unit": "step"},
    "8 minibatches of steps": {"minibatch_unit": "step", "n_minibatches": 8},
    "16 minibatches of steps": {"minibatch_unit": "step", "n_minibatches": 16},
    "32 minibatches of steps": {"minibatch_unit": "step", "n_minibatches": 32},
    "32 minibatches of steps, 10 epochs, rates 3e-4": {
        "minibatch_unit": "step",
        "n_minibatches": 32,
        "actor_epochs": 10,
        "critic_epochs": 10,
        **_rates(3e-4, 3e-4),
    },
    "10 epochs": {"actor_epochs": 10, "critic_epochs": 10},
    "critic 10 epochs": {"critic_epochs": 10},
    "kl_threshold 0.02": {"kl_threshold": 0.02},
    # Schedules and rates
    "learning rate linear": {"learning_rate_schedule": "linear"},
    "learning rate cosine": {"learning_rate_schedule": "cosine"},
    "learning rate by kl": {"learning_rate_schedule": "kl"},
    "ent_coeff linear": {"ent_coeff_schedule": "linear"},
    "eps_clip linear": {"eps_clip_schedule": "linear"},
    "ent_coeff 0": {"ent_coeff": 0.0},
    "rates 2.5e-4": _rates(2.5e-4, 2.5e-4),
    "rates 5e-4": _rates(5e-4, 5e-4),
    "rates 2e-3": _rates(2e-3, 2e-3),
    "actor's rate 5e-4": _rates(5e-4, 1e-3),
    "critic's rate 5e-4": _rates(1e-3, 5e-4),
    "gradients unclipped": {
        "actor_optimizer_params.grad_clip": float("inf"),
        "critic_optimizer_params.grad_clip": float("inf"),
    },
    "squash": {"squash": True},
}
