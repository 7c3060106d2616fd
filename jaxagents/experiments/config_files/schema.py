"""Configuration files: what a run is determined by, read, checked and written.

What is heavy is imported where it is used: seconds may pass before what is wrong with a
configuration is said otherwise.
"""

import dataclasses
import json
import math
import re
from dataclasses import dataclass
from typing import Any, Literal

from jaxagents.config import AgentConfig, check_seed, use_python_integers
from jaxagents.experiments.config_files.documented_fields import (
    fields_of,
    of_no_file,
)
from jaxagents.hyperparameters import HyperParameters

_INFINITY = ("inf", "infinity")  # of which YAML makes text


@dataclass(frozen=True)
class EvaluationConfig:
    """How the trained policies are judged.

    Attributes:
        mode: Which checkpoint to judge: the "best" one, of the highest return averaged over
            episodes and actors, or the "last". Where one actor's gain is another's loss, as in
            hunting, the highest average says nothing: use "last" there.
        n_evals: Number of episodes.
        greedy: Take the likeliest actions instead of sampling.
        seed: Seed of these episodes. They are others than those that chose the best checkpoint.
    """

    mode: Literal["best", "last"] = "best"
    n_evals: int = 100
    greedy: bool = True
    seed: int = 1

    def __post_init__(self) -> None:
        use_python_integers(self)
        if self.n_evals < 1:
            raise ValueError(f"n_evals={self.n_evals} is too small; evaluate at least 1 episode.")
        check_seed("seed", self.seed)


@dataclass(frozen=True)
class TrackingConfig:
    """Where evaluations are recorded, besides the run's metrics.jsonl.

    Attributes:
        tensorboard: Write event files for TensorBoard into the run's folder tensorboard.
        wandb: Project of Weights & Biases to log to; needs jaxagents[wandb]. Its environment
            variables, such as WANDB_ENTITY and WANDB_MODE, apply. None logs nothing.
        mlflow: Experiment of MLflow to log to; needs jaxagents[mlflow]. Its environment variables,
            such as MLFLOW_TRACKING_URI, apply. None logs nothing.
    """

    tensorboard: bool = True
    wandb: str | None = None
    mlflow: str | None = None

    def __post_init__(self) -> None:
        for name in ("wandb", "mlflow"):
            if getattr(self, name) == "":
                raise ValueError(f"{name}='' names nothing; give a name, or null to log nothing.")


@dataclass(frozen=True)
class ExperimentConfig:
    """All that a run is determined by.

    Attributes:
        name: What the run is called; its directory is runs_dir/name-time-code.
        env: The environment's id, one of those that `jaxagents envs` lists.
        agent: The agent.
        env_kwargs: Arguments of the environment's constructor.
        env_params: Values for some of the environment's parameters, by name.
        seed: Seed of the training.
        hyperparams: The hyperparameters, each one number, or a list of one per policy.
        stop_at_return: End the training once an evaluation's return, averaged over episodes and
            actors, has reached this. None trains for all of agent.n_steps.
        evaluation: The evaluation after training.
        tracking: Where evaluations are recorded.
        runs_dir: Folder of the runs' directories.
    """

    name: str
    env: str
    agent: AgentConfig
    env_kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    env_params: dict[str, Any] = dataclasses.field(default_factory=dict)
    seed: int = 0
    hyperparams: HyperParameters = dataclasses.field(default_factory=HyperParameters)
    stop_at_return: float | None = None
    evaluation: EvaluationConfig = dataclasses.field(default_factory=EvaluationConfig)
    tracking: TrackingConfig = dataclasses.field(default_factory=TrackingConfig)
    runs_dir: str = "runs"

    def __post_init__(self) -> None:
        use_python_integers(self)
        if not re.fullmatch(r"\w[\w.-]*", self.name):
            raise ValueError(f"name={self.name!r} cannot name a directory; use letters and digits.")
        check_seed("seed", self.seed)
        for name in of_no_file(self.agent):
            raise ValueError(f"agent.{name} cannot be kept in a file: leave it at its default.")
        if self.evaluation.mode == "best" and not self.agent.n_evals:
            raise ValueError(
                "evaluation.mode='best' needs evaluations during training, but agent.n_evals=0; "
                "use evaluation.mode='last'."
            )
        if self.stop_at_return is not None and math.isnan(self.stop_at_return):
            raise ValueError(f"stop_at_return={self.stop_at_return} is no return; give a number.")
        if self.stop_at_return is not None and not self.agent.n_evals:
            raise ValueError(
                f"stop_at_return={self.stop_at_return} needs evaluations during training, but "
                "agent.n_evals=0."
            )

    @property
    def n_environment_steps(self) -> int:
        """Environment steps of the whole training."""
        return self.agent.n_steps * self.agent.steps_per_update


def to_plain(config: ExperimentConfig) -> dict[str, Any]:
    """List every field that a file may set, nested, in types that YAML and JSON have."""

    def values(group: Any) -> dict[str, Any]:
        return {
            field.name: values(getattr(group, field.name))
            if field.is_group
            else getattr(group, field.name)
            for field in fields_of(type(group))
        }

    # On the way through JSON, tuples and arrays become lists.
    return json.loads(json.dumps(values(config), default=lambda array: array.tolist()))
