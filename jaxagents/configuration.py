"""Configuration files: what a run is determined by, read, checked and written.

What is heavy is imported where it is used: seconds may pass before what is wrong with a
configuration is said otherwise.
"""

import dataclasses
import difflib
import json
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import jaxagents
from jaxagents.config import AgentConfig
from jaxagents.errors import ExperimentError, explained
from jaxagents.hyperparameters import HyperParameters, PerPolicy

_NO_PLAIN_DATA = ("actor_network", "critic_network", "optimizer", "checkpoint_dir")


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
        if self.n_evals < 1:
            raise ValueError(f"n_evals={self.n_evals} is too small; evaluate at least 1 episode.")


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
        name: What the run is called; its directory is runs_dir/name-time.
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
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    env_params: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    hyperparams: HyperParameters = field(default_factory=HyperParameters)
    stop_at_return: float | None = None
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    runs_dir: str = "runs"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\w[\w.-]*", self.name):
            raise ValueError(f"name={self.name!r} cannot name a directory; use letters and digits.")
        for name in _NO_PLAIN_DATA:
            if getattr(self.agent, name) is not getattr(AgentConfig, name):
                raise ValueError(f"agent.{name} cannot be kept in a file: leave it at its default.")
        if self.evaluation.mode == "best" and not self.agent.n_evals:
            raise ValueError(
                "evaluation.mode='best' needs evaluations during training, but agent.n_evals=0; "
                "use evaluation.mode='last'."
            )
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


def _plain_fields(cls: Any) -> dict[str, tuple[Any, Any]]:
    """Map the fields that a file may set to their types and defaults (MISSING: there is none)."""
    hints = typing.get_type_hints(cls)
    plain = {}
    for each in dataclasses.fields(cls):
        factory = each.default_factory
        if each.name not in _NO_PLAIN_DATA:
            plain[each.name] = (
                float | list[float] if hints[each.name] == PerPolicy else hints[each.name],
                each.default if factory is dataclasses.MISSING else factory(),
            )
    return plain


def _from_plain(cls: Any, values: Any) -> Any:
    if not isinstance(values, Mapping):
        raise TypeError(f"{values!r} stands where the fields of {cls.__name__} should.")
    arguments = {
        name: _from_plain(hint, values[name]) if dataclasses.is_dataclass(hint) else values[name]
        for name, (hint, _) in _plain_fields(cls).items()
    }
    return cls(**arguments)


def to_plain(config: ExperimentConfig) -> dict[str, Any]:
    """List every field that a file may set, nested, in types that YAML and JSON have."""
    plain = dataclasses.asdict(config)
    for name in _NO_PLAIN_DATA:
        del plain["agent"][name]
    # On the way through JSON, arrays become lists.
    return json.loads(json.dumps(plain, default=lambda array: array.tolist()))


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

    parser = make_parser()
    try:
        values = parser.parse_args(["--config", str(path), *overrides]).as_dict()
    except ArgumentError as error:
        raise ExperimentError(_explain(error, parser, str(path), overrides)) from error
    with explained(f"{path}: "):
        return _from_plain(ExperimentConfig, values)


def save_config(config: ExperimentConfig, path: Path) -> None:
    """Write every field to a YAML file that `load_config` reads, or leave what there was."""
    import yaml

    header = f"# Written by jaxagents {jaxagents.__version__}. To repeat: jaxagents train {path}\n"
    new = path.with_name(f"{path.name}.new")
    new.write_text(header + yaml.safe_dump(to_plain(config), sort_keys=False), encoding="utf-8")
    new.replace(path)


def make_parser() -> Any:
    """Build the jsonargparse parser of a configuration file and its overrides."""
    from jsonargparse import SUPPRESS, ArgumentParser

    parser = ArgumentParser(exit_on_error=False, print_config=None, allow_abbrev=False)
    parser.add_argument("--config", action="config", help=SUPPRESS)
    _add_fields(parser, ExperimentConfig, prefix="", title="The run")
    return parser


def _add_fields(parser: Any, cls: Any, prefix: str, title: str) -> None:
    """Let a parser accept a configuration's fields, documented as in its docstring."""
    from docstring_parser import parse

    group = parser.add_argument_group(title)
    help_of = {each.arg_name: each.description or "" for each in parse(cls.__doc__).params}
    for name, (hint, default) in _plain_fields(cls).items():
        key = f"{prefix}{name}"
        if dataclasses.is_dataclass(hint):
            _add_fields(parser, hint, f"{key}.", help_of[name].rstrip("."))
            continue
        required = default is dataclasses.MISSING
        given = {"required": True} if required else {"default": default}
        group.add_argument(f"--{key}", type=hint, help=help_of[name], metavar="VALUE", **given)


def _explain(error: Exception, parser: Any, path: str, overrides: Sequence[str]) -> str:
    """Say in one line what jsonargparse objects to: where, which key, what it should be."""
    text = " ".join(str(error).replace('in "<unicode string>", ', "in ").split())
    if wrong := re.match(r'Parser key "([^"]+)": (.*)', text):
        key, text = wrong.groups()
        if key == "config":
            return f"{path}: there is no such file; CONFIG comes before any --KEY VALUE"
        overridden = any(each.split("=")[0] == f"--{key}" for each in overrides)
        place = "command line" if overridden else path
        wanted = re.search(r"Subtypes: \[(.*)\] Errors|Expected an? (.*?)\. Got", text)
        if wanted is None:
            return f"{place}: {key}: {text}"
        type_text = re.sub(r"<class '(\w+)'>|typing\.", r"\1", wanted[1] or wanted[2])
        value = re.split("Got value: |Given value: ", text)[-1]
        return f"{place}: {key} should be {type_text}, but is {value}"
    if missing := re.match("the following arguments are required: ([^,]+)", text):
        return f"{path}: {missing[1]} is missing; give it there or as --{missing[1]} VALUE"
    if unknown := re.match("Option '([^']+)' is not accepted", text):
        return f"{path}: {_unknown_key(unknown[1], parser)}"
    if unknown := re.match("unrecognized arguments: --([^ =]+)", text):
        return f"command line: {_unknown_key(unknown[1], parser)}"
    if text.startswith("Unexpected config"):
        return f"{path}: this is no YAML file of keys and values"
    return f"{path}: {text}"


def _unknown_key(key: str, parser: Any) -> str:
    nearest = difflib.get_close_matches(key, parser.get_defaults().keys(), n=1)
    suggestion = f"did you mean {nearest[0]}?" if nearest else "see jaxagents train --help"
    return f"unknown key {key}; {suggestion}"
