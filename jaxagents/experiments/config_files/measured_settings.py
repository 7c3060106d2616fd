"""Settings with which agents learn better than with the defaults, measured in `benchmarks/`."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Suggestion(NamedTuple):
    """A better value than the default."""

    value: Any
    why: str  # a comment after the value; may be empty


def _rates(rate: float, why: str) -> dict[str, Suggestion]:
    keys = (f"hyperparams.{name}_optimizer_params.learning_rate" for name in ("actor", "critic"))
    return {key: Suggestion(rate, why) for key in keys}


_MINATAR = {
    "agent.n_steps": Suggestion(610, "x 64 x 128: 4,997,120 environment steps"),
    "agent.batch_size": Suggestion(64, ""),
    "agent.minibatch_size": Suggestion(8, "8 minibatches an epoch"),
    **_rates(2.5e-3, ""),
}
MEASURED_SETTINGS: Mapping[str, Mapping[str, Suggestion]] = {
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
}
