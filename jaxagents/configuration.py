"""Configuration files: what a run is determined by, read, checked and written.

What is heavy is imported where it is used: seconds may pass before what is wrong with a
configuration is said otherwise.
"""

import contextlib
import dataclasses
import json
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import jaxagents
from jaxagents.config import AgentConfig, check_seed, use_python_integers
from jaxagents.errors import ExperimentError
from jaxagents.fields import Field, fields_of, keys_of, of_no_file, type_text
from jaxagents.files import write_at_once
from jaxagents.hyperparameters import HyperParameters
from jaxagents.sources import (
    Source,
    first_within,
    read_source,
    refuse_wrong_keys,
    unknown_key,
)

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


# Configurations as plain data.


def _from_plain(values: Mapping[str, Any], source: Source) -> ExperimentConfig:
    all_fields = dict(keys_of(ExperimentConfig))

    def build(cls: Any, values: Mapping[str, Any], prefix: str) -> Any:
        arguments = {
            field.name: build(field.hint, values[field.name], f"{prefix}{field.name}.")
            if field.is_group
            else values[field.name]
            for field in fields_of(cls)
        }
        with source.blamed(all_fields, prefix):
            return cls(**arguments)

    return build(ExperimentConfig, values, "")


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


# Configuration files.


def load_config(path: str | PathLike[str], overrides: Sequence[str] = ()) -> ExperimentConfig:
    """Read a configuration file.

    Args:
        path: A YAML file.
        overrides: As on the command line: "--agent.n_steps", "100", ...

    Raises:
        ExperimentError: The file is missing or not YAML, a key is unknown, or a value is wrong.
    """
    from jsonargparse import ArgumentError

    source = read_source(path, overrides)
    fields = dict(keys_of(ExperimentConfig))
    refuse_wrong_keys(source, fields)
    try:
        values = _make_parser().parse_args(["--config", source.text, *overrides]).as_dict()
    except ArgumentError as error:
        raise ExperimentError(_explain(error, source, fields)) from error
    return _from_plain(values, source)


@contextlib.contextmanager
def places_named(path: str | PathLike[str], overrides: Sequence[str] = ()) -> Iterator[None]:
    """Let what is found wrong with a configuration later say where its value was given.

    Args:
        path: As for `load_config`.
        overrides: Likewise.

    Raises:
        ExperimentError: Something was wrong.
    """
    try:
        yield
    except (TypeError, ValueError):
        with read_source(path, overrides).blamed(dict(keys_of(ExperimentConfig))):
            raise


def save_config(config: ExperimentConfig, path: Path) -> None:
    """Write every field to a YAML file that `load_config` reads, or leave what there was."""
    import yaml

    header = f"# Written by jaxagents {jaxagents.__version__}. To repeat: jaxagents train {path}\n"
    write_at_once(path, header + yaml.safe_dump(to_plain(config), sort_keys=False))


def help_text(width: int) -> str:
    """Document every key that a file and overrides may set.

    Args:
        width: Of a line, in characters.
    """
    lines = ["The run:"]
    for key, field in keys_of(ExperimentConfig):
        if field.is_group:
            lines += ["", f"{field.meaning.rstrip('.')}:"]
            continue
        lines.append(f"  --{key} VALUE")
        text = f"{field.meaning} ({field.type_and_default})"
        lines += textwrap.wrap(text, width, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines)


def _make_parser() -> Any:
    """Build the jsonargparse parser of a configuration file and its overrides."""
    from jsonargparse import SUPPRESS, ArgumentParser

    parser = ArgumentParser(exit_on_error=False, print_config=None, allow_abbrev=False)
    parser.add_argument("--config", action="config", help=SUPPRESS)
    for key, field in keys_of(ExperimentConfig):
        if not field.is_group:
            given = {"required": True} if field.is_required else {"default": field.default}
            parser.add_argument(f"--{key}", type=field.hint, **given)
    return parser


def _explain(error: Exception, source: Source, fields: Mapping[str, Field]) -> str:
    """Say in one line what jsonargparse objects to: where, which key, what it should be."""
    text = " ".join(str(error).replace('in "<unicode string>", ', "in ").split())
    if tagged := re.search(r"(could not .*?) in line (\d+), column", text):
        lines = [each.line for each in source.entries.values() if f"'{each.node.tag}'" in text]
        return f"{source.path}:{(lines or [tagged[2]])[0]}: {tagged[1]}"
    if wrong := re.match(r'Parser key "([^"]+)": (.*)', text):
        key, text = wrong.groups()
        place = source.place(key)
        if key not in fields:
            return f"{place}: {key}: {text}"
        value = re.split("(?:Got|Given) value: ?", text)[-1]
        wanted = type_text(fields[key].hint)
        hint = "; infinity is written .inf" if value.lstrip("+-").lower() in _INFINITY else ""
        return f"{place}: {key} should be {wanted}, but is {value or 'empty'}{hint}"
    if missing := re.match("the following arguments are required: ([^,]+)", text):
        return f"{source.path}: {missing[1]} is missing; give it there or as --{missing[1]} VALUE"
    if unknown := re.match("(?:unrecognized arguments: --|Option ')([^ =']+)", text):
        key = unknown[1]
        if key in fields:
            example = first_within(key, fields)
            return f"command line: {key} holds keys; give one of them, as --{example} VALUE"
        return f"command line: {unknown_key(key, fields)}"
    if incomplete := re.match("argument --(.*): expected one argument", text):
        return f"command line: --{incomplete[1]} needs a value"
    if stray := re.match("unrecognized arguments: ([^ ]+)", text):
        hint = f"; did you mean --{stray[1]}?" if stray[1].split("=")[0] in fields else ""
        return f"command line: unrecognized argument {stray[1]}{hint}"
    return f"{source.path}: {text}"
