"""Settings with which agents learn better than with the defaults, by environment."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxagents.hyperparameters import OWN_RATES


class Suggestion(NamedTuple):
    """A better value than the default."""

    value: Any
    why: str  # a comment after the value; may be empty


def _rates(rate: float, why: str) -> dict[str, Suggestion]:
    return {f"hyperparams.{name}": Suggestion(rate, why) for name in OWN_RATES}


def _of_both(changes: Mapping[str, Any]) -> dict[str, Suggestion]:
    return {
        f"agent.{role}_{name}": Suggestion(value, "")
        for name, value in changes.items()
        for role in ("actor", "critic")
    }


_ATTENTION = {"name": "attention", "size": 64, "heads": 4}
_MANY_EPOCHS = {
    "agent.actor_epochs": Suggestion(10, ""),
    "agent.critic_epochs": Suggestion(10, ""),
}
_LARGE_BATCH = {
    "agent.batch_size": Suggestion(64, ""),
    "agent.minibatch_size": Suggestion(16, "4 minibatches an epoch"),
}
_MINATAR = {
    "agent.n_steps": Suggestion(610, "x 64 x 128: 4,997,120 environment steps"),
    "agent.batch_size": Suggestion(64, ""),
    "agent.minibatch_size": Suggestion(8, "8 minibatches an epoch"),
    **_rates(2.5e-3, ""),
}
_OVERCOOKED = {
    "agent.n_steps": Suggestion(305, "x 64 x 256: 4,997,120 environment steps"),
    "agent.batch_size": Suggestion(64, ""),
    "agent.minibatch_size": Suggestion(4, "16 minibatches an epoch"),
    "agent.rollout_length": Suggestion(256, ""),
    "agent.eval_frequency": Suggestion(61, "5 evaluations, and one before training"),
    "agent.shaped_reward_steps": Suggestion(2_500_000, "half of training"),
    **_rates(5e-4, ""),
}
MEASURED_SETTINGS: Mapping[str, Mapping[str, Suggestion]] = {
    "gymnax/Acrobot-v1": {
        "agent.eval_frequency": Suggestion(40, "12 evaluations, and one before training"),
        "agent.minibatch_unit": Suggestion("step", ""),
        "agent.n_minibatches": Suggestion(16, "of 128 steps"),
        **_MANY_EPOCHS,
        **_rates(3e-4, ""),
        "hyperparams.ent_coeff": Suggestion(0.0, ""),
    },
    "gymnax/MountainCar-v0": {
        "agent.learning_rate_schedule": Suggestion("constant", "as measured"),
    },
    "gymnax/MountainCarContinuous-v0": {
        "agent.n_steps": Suggestion(3_906, "x 16 x 16: 999,936 environment steps"),
        "agent.eval_frequency": Suggestion(390, "10 evaluations, and one before training"),
        "agent.rollout_length": Suggestion(16, "short: without the goal, standing still is best"),
        "agent.learning_rate_schedule": Suggestion("constant", "as measured"),
        "hyperparams.gae_lambda": Suggestion(0.98, ""),
        "hyperparams.ent_coeff": Suggestion(0.0, ""),
        **_rates(5e-4, "of Adam"),
        "hyperparams.gamma": Suggestion(0.999, "an episode may last 999 steps"),
    },
    "gymnax/Pendulum-v1": {
        "agent.n_steps": Suggestion(244, "x 64 x 128: 1,998,848 environment steps"),
        "agent.eval_frequency": Suggestion(20, "12 evaluations, and one before training"),
        **_LARGE_BATCH,
        **_MANY_EPOCHS,
        "hyperparams.ent_coeff": Suggestion(0.0, "precision pays"),
        "hyperparams.gamma": Suggestion(0.95, "a torque takes effect within about 20 steps"),
    },
    "gymnax/Asterix-MinAtar": _MINATAR,
    "gymnax/Breakout-MinAtar": _MINATAR,
    "gymnax/Freeway-MinAtar": _MINATAR,
    "gymnax/SpaceInvaders-MinAtar": {
        **_MINATAR,
        "agent.n_steps": Suggestion(305, "x 64 x 128: 2,498,560 environment steps"),
    },
    "jaxmarl/MPE_simple_speaker_listener_v4": {
        "agent.n_steps": Suggestion(488, "x 16 x 128: 999,424 environment steps"),
        "agent.eval_frequency": Suggestion(61, "8 evaluations, and one before training"),
        "agent.actor_epochs": Suggestion(10, "with few, the two learn to talk later"),
        "agent.critic_epochs": Suggestion(10, ""),
        "agent.centralized_critic": Suggestion(True, "sees the goal, as the speaker does"),
        "agent.learning_rate_schedule": Suggestion("constant", "as measured"),
    },
    "jaxmarl/ant_4x2": {
        "agent.n_steps": Suggestion(244, "x 64 x 64: 999,424 environment steps"),
        "agent.rollout_length": Suggestion(64, ""),
        "agent.learning_rate_schedule": Suggestion("constant", "as measured"),
        **_LARGE_BATCH,
        **_MANY_EPOCHS,
        "hyperparams.ent_coeff": Suggestion(0.0, ""),
    },
    "jaxmarl/hanabi": {
        "agent.n_steps": Suggestion(1_830, "x 64 x 128: 14,991,360 environment steps"),
        "agent.batch_size": Suggestion(64, ""),
        "agent.minibatch_unit": Suggestion("step", ""),
        "agent.n_minibatches": Suggestion(16, "of 512 steps"),
        "agent.normalize_observations": Suggestion(False, "keeps the zeros of missing cards"),
        **_of_both({"network": _ATTENTION, "layers.hidden_sizes": (128, 128)}),
    },
    "jaxmarl/jaxnav": {
        "env_kwargs": Suggestion(
            {
                "evaporating": True,
                "lidar_range_resolution": 0.1,
                "lidar_rew": 0.0,
                "wrappers": [
                    "jaxagents:JaxNavFeatures",
                    {"jaxagents:ActionRepeat": {"n_steps": 5}},
                ],
            },
            "otherwise robots learn slowly, or to stand still",
        ),
        "agent.n_steps": Suggestion(120, "x 64 x 64 actions of five steps: 2,457,600 steps"),
        "agent.batch_size": Suggestion(64, ""),
        "agent.rollout_length": Suggestion(64, ""),
        "agent.eval_frequency": Suggestion(20, "6 evaluations, and one before training"),
        "agent.minibatch_unit": Suggestion("step", ""),
        "agent.n_minibatches": Suggestion(8, "of 512 actions"),
        "agent.squash": Suggestion(True, ""),
        **_of_both({"layers.hidden_sizes": (128, 128), "layers.activation": "relu"}),
        **_rates(5e-4, ""),
        "hyperparams.ent_coeff": Suggestion(0.0, ""),
    },
    "jaxmarl/overcooked": _OVERCOOKED,
    "jaxmarl/overcooked_v2": _OVERCOOKED,
    "jaxmarl/switch_riddle": {
        "agent.n_steps": Suggestion(240, "x 128 x 32: 983,040 environment steps"),
        "agent.batch_size": Suggestion(128, ""),
        "agent.minibatch_size": Suggestion(32, "4 minibatches an epoch"),
        "agent.rollout_length": Suggestion(32, ""),
        "agent.eval_frequency": Suggestion(20, "12 evaluations, and one before training"),
        "agent.n_evals": Suggestion(256, ""),
        "agent.normalize_observations": Suggestion(False, "as measured"),
        "agent.learning_rate_schedule": Suggestion("constant", "as measured"),
        **_of_both({"layers.hidden_sizes": (64,), "layers.activation": "relu"}),
    },
}
"""Values that the shipped configurations of these environments have, by dotted key."""
