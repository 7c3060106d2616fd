"""The schema of a configuration: everything that determines a run.

The dataclasses' own docstrings document the fields that a file may set.
"""

import dataclasses
import json
import math
import re
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from jaxagents.config import (
    AgentConfig,
    NamedNetwork,
    NetworkChoice,
    OptimizerChoice,
    check_seed,
    use_python_values,
)
from jaxagents.hyperparameters import HyperParameters, PerPolicy, with_both_rates
from jaxagents.ippo.population.selection import PopulationBasedTraining
from jaxagents.training.saved_policy import PARTS, check_parts

NOT_VARIED = ("name", "seed", "seeds", "runs_dir")
"""Keys that a sweep or a study cannot choose to vary."""
_TYPE_NAMES = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
    type(None): "null",
}
_NOT_IN_FILES = "checkpoint_dir"  # each run has its own
_IN_FILES: dict[Any, Any] = {
    PerPolicy: float | list[float],
    NetworkChoice: str | dict[str, Any] | None,
    OptimizerChoice: Literal["clipped_adam", "adam"],
}
"""Types of fields, and of their values in files."""


@dataclass(frozen=True)
class EvaluationConfig:
    """How the trained policies are evaluated.

    Attributes:
        mode: Which checkpoint to evaluate: "best", the one with the highest return averaged over
            episodes and actors, or "last". Where one actor's gain is another's loss, as in hunting,
            the average return is meaningless: use "last".
        n_evals: Number of episodes.
        greedy: Take the most probable actions instead of sampling.
        seed: Seed of these episodes, which are not the ones that chose the best checkpoint.
    """

    mode: Literal["best", "last"] = "best"
    n_evals: int = 100
    greedy: bool = True
    seed: int = 1

    def __post_init__(self) -> None:
        use_python_values(self)
        if self.n_evals < 1:
            raise ValueError(f"n_evals={self.n_evals} is too small; evaluate at least 1 episode.")
        check_seed("seed", self.seed)


@dataclass(frozen=True)
class SideConfig:
    """The side of an environment that the agent plays; see `jaxagents.Side`.

    Attributes:
        actors: The actors that the agent plays. Empty: all, without opponents.
        opponents: Players of the other actors: "random", directories of runs, whose best
            checkpoints play, or policies of the zoo as zoo:ID.
        past_selves_every: Also train against past versions of the agent, one of which is added
            every so many updates. None: do not.
        n_past_selves: Largest number of past versions.
        prioritized: Play more often against opponents that win more often.
    """

    actors: tuple[int, ...] = ()
    opponents: tuple[str, ...] = ("random",)
    past_selves_every: int | None = None
    n_past_selves: int = 8
    prioritized: bool = False

    def __post_init__(self) -> None:
        use_python_values(self)


@dataclass(frozen=True)
class PopulationBasedTrainingConfig:
    """Weak seeds continue from strong ones; see `jaxagents.PopulationBasedTraining`.

    Attributes:
        vary: The lowest and highest value of each hyperparameter that is varied, by dotted name, as
            in {ent_coeff: [0.001, 0.1], actor_optimizer_params.learning_rate: [0.0001, 0.01]}. The
            first seed begins with the values in hyperparams, the others with values in between.
            Empty: no selection.
        every: Number of evaluations between selections.
        share: Share of the seeds that is replaced at a time.
        factors: One of these multiplies the value of a seed that continues from another.
    """

    vary: dict[str, Any] = dataclasses.field(default_factory=dict)
    every: int = 1
    share: float = 0.25
    factors: tuple[float, ...] = (0.8, 1.25)

    def __post_init__(self) -> None:
        use_python_values(self)
        object.__setattr__(self, "vary", with_both_rates(self.vary))
        self.rule(0)

    def rule(self, seed: int) -> PopulationBasedTraining | None:
        """Return the rule of selection, or None."""
        if not self.vary:
            return None
        return PopulationBasedTraining(self.vary, self.every, self.share, self.factors, seed)


@dataclass(frozen=True)
class TrackingConfig:
    """Where evaluations are logged, in addition to the run's metrics.jsonl.

    Attributes:
        tensorboard: Write event files for TensorBoard to the run's folder tensorboard.
        wandb: W&B project to log to; needs the extra wandb. W&B's environment variables, such as
            WANDB_ENTITY and WANDB_MODE, apply. None logs nothing.
        mlflow: MLflow experiment to log to; needs the extra mlflow. MLflow's environment variables,
            such as MLFLOW_TRACKING_URI, apply. None logs nothing.
        others: Trackers added by `jaxagents.register_tracker`, by name, each with its arguments, as
            in {csv: {file: returns.csv}}.
        film_frequency: Number of evaluations between films of an episode, in the run's folder films
            and in TensorBoard and W&B. 0: none. Only for environments in JAX.
    """

    tensorboard: bool = True
    wandb: str | None = None
    mlflow: str | None = None
    others: dict[str, Any] = dataclasses.field(default_factory=dict)
    film_frequency: int = 0

    def __post_init__(self) -> None:
        use_python_values(self)
        if self.film_frequency < 0:
            raise ValueError(
                f"film_frequency={self.film_frequency} is negative; give a number of evaluations, "
                "or 0 for no films."
            )
        for name in ("wandb", "mlflow"):
            if getattr(self, name) == "":
                raise ValueError(f"{name}='' names nothing; give a name, or null to log nothing.")
        for name, arguments in self.others.items():
            if not isinstance(arguments, dict | None):
                raise ValueError(
                    f"others.{name}={arguments!r} should be the tracker's arguments by name, or "
                    "{} for none."
                )


@dataclass(frozen=True)
class ExperimentConfig:
    """Everything that determines a run.

    Attributes:
        name: Name of the run; its directory is runs_dir/name-time-code.
        env: Id of the environment: one that `jaxagents envs` lists; or gymnasium/, pettingzoo/ or
            envpool/ and the library's id, see `jaxagents.make`.
        agent: The agent.
        preset: "textbook": PPO as published and as its reference implementations run it, see
            `jaxagents.textbook_ppo`. It changes the defaults of agent and hyperparams; keys that
            are given keep their values.
        env_kwargs: Arguments of the environment's constructor.
        env_params: Parameters of the environment to change, by name.
        side: The actors that the agent plays, if opponents play the others.
        init_from: Directory of a run, or zoo:ID, whose actor, critic and normalizers training
            starts from; for a run, those of the checkpoint that its evaluation chooses. All must
            fit the agent. Optimizers and schedules start anew. None starts with new networks.
        init_parts: Take only the actor, or only the critic, of init_from, with the statistics that
            belong to it. The other is new, and need not fit.
        agent_class: Name of a class of agents added by `jaxagents.register_agent`. None chooses
            by the action space.
        seed: Seed of the training.
        seeds: Number of seeds: seed, seed + 1, ... are trained together, as one population.
        population_based_training: Selection among these seeds.
        hyperparams: The hyperparameters, each a number or a list of one number per policy.
        stop_at_return: End training early once an evaluation's return, averaged over episodes and
            actors, reaches this. None trains for all agent.n_steps updates.
        evaluation: The evaluation after training.
        tracking: Where evaluations are logged.
        runs_dir: Folder in which runs get their directories.
    """

    name: str
    env: str
    agent: AgentConfig
    preset: Literal["textbook"] | None = None
    env_kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    env_params: dict[str, Any] = dataclasses.field(default_factory=dict)
    side: SideConfig = dataclasses.field(default_factory=SideConfig)
    init_from: str | None = None
    init_parts: tuple[str, ...] = PARTS
    agent_class: str | None = None
    seed: int = 0
    seeds: int = 1
    population_based_training: PopulationBasedTrainingConfig = dataclasses.field(
        default_factory=PopulationBasedTrainingConfig
    )
    hyperparams: HyperParameters = dataclasses.field(default_factory=HyperParameters)
    stop_at_return: float | None = None
    evaluation: EvaluationConfig = dataclasses.field(default_factory=EvaluationConfig)
    tracking: TrackingConfig = dataclasses.field(default_factory=TrackingConfig)
    runs_dir: str = "runs"

    def __post_init__(self) -> None:
        use_python_values(self)
        check_parts("init_parts", self.init_parts)
        if self.init_from is None and set(self.init_parts) != set(PARTS):
            raise ValueError(
                f"init_parts={list(self.init_parts)} of what? Give init_from, or leave init_parts "
                "out."
            )
        if not re.fullmatch(r"\w[\w.-]*", self.name):
            raise ValueError(f"name={self.name!r} cannot name a directory; use letters and digits.")
        check_seed("seed", self.seed)
        if self.seeds < 1:
            raise ValueError(f"seeds={self.seeds} trains nothing; give at least 1.")
        check_seed("seed", self.seed + self.seeds - 1)
        if getattr(self.agent, _NOT_IN_FILES) is not None:
            raise ValueError(
                f"agent.{_NOT_IN_FILES} cannot be saved to a file; leave it at its default."
            )
        for name in ("actor_network", "critic_network"):
            if not isinstance(network := getattr(self.agent, name), NamedNetwork | None):
                raise ValueError(
                    f"agent.{name} is a {type(network).__name__}, which cannot be saved to a file; "
                    "add it by jaxagents.register_network and give its name."
                )
        if self.evaluation.mode == "best" and not self.agent.n_evals:
            raise ValueError(
                "evaluation.mode='best' needs evaluations during training, but agent.n_evals=0; "
                "use evaluation.mode='last'."
            )
        if self.stop_at_return is not None and math.isnan(self.stop_at_return):
            raise ValueError(
                f"stop_at_return={self.stop_at_return} is not a return; give a number."
            )
        film_frequency, target = self.tracking.film_frequency, self.stop_at_return
        for name, is_set in (
            ("population_based_training", bool(self.population_based_training.vary)),
            (f"tracking.film_frequency={film_frequency}", film_frequency > 0),
            (f"stop_at_return={target}", target is not None),
        ):
            if is_set and not self.agent.n_evals:
                raise ValueError(f"{name} needs evaluations during training, but agent.n_evals=0.")

    @property
    def n_environment_steps(self) -> int:
        """Environment steps of the whole training run."""
        return self.agent.n_steps * self.agent.steps_per_update


def to_plain(config: ExperimentConfig) -> dict[str, Any]:
    """Return every field that a file may set, as nested data of YAML's and JSON's types."""

    def values(group: Any) -> dict[str, Any]:
        return {
            field.name: values(getattr(group, field.name))
            if field.is_group
            else getattr(group, field.name)
            for field in fields_of(type(group))
        }

    def plain(value: Any) -> Any:
        return value.plain if isinstance(value, NamedNetwork) else value.tolist()

    # The round trip through JSON turns tuples and arrays into lists.
    return json.loads(json.dumps(values(config), default=plain))


class ConfigField(NamedTuple):
    """A field that a file may set."""

    name: str
    hint: Any  # its type; a dataclass if it is a group of fields
    default: Any  # dataclasses.MISSING: it is required
    meaning: str  # its docstring, in the words of YAML

    @property
    def is_group(self) -> bool:
        """True if it holds fields itself."""
        return dataclasses.is_dataclass(self.hint)

    @property
    def takes_any_key(self) -> bool:
        """True if it is a mapping with keys of the user's choice."""
        return any(typing.get_origin(each) is dict for each in (self.hint, *_members(self.hint)))

    @property
    def is_real(self) -> bool:
        """True if it may be any real number."""
        return float in (self.hint, *_members(self.hint))

    @property
    def is_required(self) -> bool:
        """True if it has no default."""
        return self.default is dataclasses.MISSING

    @property
    def type_and_default(self) -> str:
        """Its type and its default, as text."""
        default = "required" if self.is_required else f"default {yaml_text(self.default)}"
        return f"{type_text(self.hint)}; {default}"


def fields_of(cls: Any) -> list[ConfigField]:
    """List the fields of a dataclass that a file may set."""
    from docstring_parser import parse

    hints = typing.get_type_hints(cls)
    meanings = {each.arg_name: each.description or "" for each in parse(cls.__doc__ or "").params}
    fields = []
    for each in dataclasses.fields(cls):
        if each.name == _NOT_IN_FILES:
            continue
        factory = each.default_factory
        fields.append(
            ConfigField(
                each.name,
                _IN_FILES.get(hints[each.name], hints[each.name]),
                each.default if factory is dataclasses.MISSING else factory(),
                _in_words_of_yaml(meanings.get(each.name, "")),
            )
        )
    return fields


def keys_of(cls: Any, prefix: str = "") -> Iterator[tuple[str, ConfigField]]:
    """List all fields with their dotted keys: simple fields first, then each group and its own."""
    fields = fields_of(cls)
    for field in sorted(fields, key=lambda each: each.is_group):
        yield f"{prefix}{field.name}", field
        if field.is_group:
            yield from keys_of(field.hint, f"{prefix}{field.name}.")


def type_text(hint: Any) -> str:
    """Describe the values of a type, as in "an integer or null"."""
    options = _options(hint)
    return " or ".join([", ".join(options[:-1]), options[-1]] if options[1:] else options)


def yaml_text(value: Any) -> str:
    """Format a value as one line of YAML."""
    import yaml

    plain = list(value) if isinstance(value, tuple) else value
    text = yaml.safe_dump(plain, default_flow_style=True, width=10**9, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


def _members(hint: Any) -> tuple[Any, ...]:
    """List the members of a union; empty for other types."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else ()


def _options(hint: Any) -> list[str]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if members := _members(hint):
        return [text for each in members for text in _options(each)]
    if origin is Literal:
        return [str(each) for each in arguments]
    if origin in (tuple, list):
        return [f"a list of {_TYPE_NAMES[arguments[0]].split()[-1]}s"]
    return ["keys and values"] if origin is dict else [_TYPE_NAMES.get(hint, str(hint))]


def _in_words_of_yaml(docstring: str) -> str:
    text = " ".join(docstring.split()).replace("AgentConfig.", "agent.")
    words = {"None": "null", "True": "true", "False": "false"}
    return re.sub(r"\b(None|True|False)\b", lambda match: words[match[0]], text)
