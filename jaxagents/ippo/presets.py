"""Named settings of many options at once."""

from typing import Any

from jaxagents.config import AgentConfig
from jaxagents.hyperparameters import (
    LEARNING_RATE,
    OPTIMIZERS,
    HyperParameters,
    OptimizerParams,
    check_one_rate,
)

TEXTBOOK_CONFIG: dict[str, Any] = {
    "minibatch_unit": "step",
    "n_minibatches": 4,
    "joint_update": True,
    "normalize_observations": False,
    "normalize_values": False,
    "normalize_advantages": "minibatch",
    "scale_actor_loss": False,
    "observe_time": False,
    "optimizer": "adam",
}
"""What PPO's reference implementations do, where the defaults of `AgentConfig` differ."""
TEXTBOOK_LEARNING_RATE = 2.5e-4


def textbook_ppo(**fields: Any) -> tuple[AgentConfig, HyperParameters]:
    """Configure PPO as published and as its reference implementations run it.

    Single steps are shuffled into four minibatches, and advantages are standardised over each. The
    unscaled losses of actor and critic are summed, and plain Adam steps at a rate of 2.5e-4, with
    both networks' gradients clipped by their common norm. Nothing is normalised, and agents do not
    observe the time. Recurrent agents draw minibatches of whole trajectories.

    Args:
        fields: Fields of `AgentConfig` and of `HyperParameters`, in place of these settings and of
            the defaults; ``learning_rate`` sets both networks' rates.

    Raises:
        TypeError: a field is unknown, or n_steps is missing.
        ValueError: a value is wrong.

    Source: Schulman et al. 2017, https://arxiv.org/abs/1707.06347; Huang et al. 2022, "The 37
    Implementation Details of Proximal Policy Optimization",
    https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details; Raffin et al. 2021,
    Stable-Baselines3, https://jmlr.org/papers/v22/20-1364.html.
    """
    fields = dict(fields)
    if LEARNING_RATE in fields:
        check_one_rate(fields[LEARNING_RATE], [name for name in OPTIMIZERS if name in fields])
    rate = OptimizerParams(learning_rate=fields.pop(LEARNING_RATE, TEXTBOOK_LEARNING_RATE))
    hyperparams = {"actor_optimizer_params": rate, "critic_optimizer_params": rate}
    for name in HyperParameters.__dataclass_fields__:
        if name in fields:
            hyperparams[name] = fields.pop(name)
    return AgentConfig(**textbook_config(fields)), HyperParameters(**hyperparams)


def textbook_config(fields: dict[str, Any]) -> dict[str, Any]:
    """Complete fields of `AgentConfig` with the textbook's settings."""
    settings = dict(TEXTBOOK_CONFIG)
    if fields.get("recurrent") is not None:
        settings["minibatch_unit"] = "trajectory"
    if "minibatch_size" in fields:
        del settings["n_minibatches"]
    return settings | fields
