"""How a run's arrays are divided among the devices that train it."""

from typing import Any

from jaxagents.compiler.devices import DIVIDED, DIVIDED_AFTER_FIRST, WHOLE
from jaxagents.types import Runner, Training


def specs_of(runner: Runner) -> Any:
    """Return the specs of a runner: environments are divided, all else is on every device."""
    reward = runner.normalizers.reward
    if reward is not None:
        reward = reward._replace(statistics=WHOLE, discounted_return=DIVIDED_AFTER_FIRST)
    normalizers = runner.normalizers._replace(
        observation=WHOLE, critic_features=WHOLE, value=WHOLE, reward=reward
    )
    specs: dict[str, Any] = dict.fromkeys(runner.__dataclass_fields__, WHOLE)
    specs |= dict.fromkeys(("env_state", "observation", "memory"), DIVIDED)
    return Runner(**{**specs, "normalizers": normalizers})


def specs_of_training(training: Training) -> Any:
    """Return the specs of a run between two blocks."""
    specs: dict[str, Any] = dict.fromkeys(training._fields, WHOLE)
    return Training(**{**specs, "runner": specs_of(training.runner)})
