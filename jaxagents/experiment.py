"""From a configuration file to an environment, an agent, and the directory of its run.

What an environment, an agent or a picture needs is imported where it is used: seconds may pass
before what is wrong with a configuration is said otherwise.
"""

import contextlib
import dataclasses
import difflib
import itertools
import json
import logging
import os
import re
import time
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Literal, final

import jax
import numpy as np

import jaxagents
from jaxagents.config import AgentConfig
from jaxagents.errors import CheckpointError
from jaxagents.hyperparameters import HyperParameters, PerPolicy, check_hyperparams
from jaxagents.tracking import Callback, Evaluation, JsonLines

if typing.TYPE_CHECKING:
    from jaxagents.ippo.base import IPPOBase

_logger = logging.getLogger(__name__)
_NO_PLAIN_DATA = ("actor_network", "critic_network", "optimizer", "checkpoint_dir")


class ExperimentError(ValueError):
    """What was asked for cannot be done; the message says why, in one line."""


_OF_CHECKS = (ImportError, OSError, TypeError, ValueError)
_OF_FILES = (CheckpointError, OSError)  # anything else that training raises is not the user's fault


@contextlib.contextmanager
def _explained(place: str = "", kinds: tuple[type[Exception], ...] = _OF_CHECKS) -> Iterator[None]:
    """Turn what a check of this package or of a library raises into an `ExperimentError`."""
    try:
        yield
    except kinds as error:
        raise ExperimentError(place + " ".join(str(error).split())) from error


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
        evaluation: The evaluation after training.
        runs_dir: Folder of the runs' directories.
    """

    name: str
    env: str
    agent: AgentConfig
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    env_params: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    hyperparams: HyperParameters = field(default_factory=HyperParameters)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
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


def _to_plain(config: ExperimentConfig) -> dict[str, Any]:
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
    with _explained(f"{path}: "):
        return _from_plain(ExperimentConfig, values)


def save_config(config: ExperimentConfig, path: Path) -> None:
    """Write every field to a YAML file that `load_config` reads, or leave what there was."""
    import yaml

    header = f"# Written by jaxagents {jaxagents.__version__}. To repeat: jaxagents train {path}\n"
    new = path.with_name(f"{path.name}.new")
    new.write_text(header + yaml.safe_dump(_to_plain(config), sort_keys=False), encoding="utf-8")
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


# Runs.


@final
class Experiment:
    """An agent, built as configured, and the directory of its run.

    Nothing is written before `train`. Then the directory holds

    * ``config.yaml``: the complete configuration, which repeats the run exactly; once the run has
      been resumed with another one, that one, and the earlier ones as ``config.1.yaml``, ...;
    * ``checkpoints/``: what `restore` loads;
    * ``metrics.jsonl``: a line per evaluation, see `jaxagents.tracking.JsonLines`;
    * ``learning_curve.png`` and ``summary.json``, once training has ended.

    Args:
        config: The configuration.
        directory: Of the run; None finds a new one in ``config.runs_dir``.
        callbacks: Called with each evaluation of the training, after it has been recorded.
        progress_bar: False hides the progress bar, whatever the configuration says.

    Raises:
        ExperimentError: The configuration fits no environment or no agent.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        directory: str | PathLike[str] | None = None,
        callbacks: Sequence[Callback] = (),
        progress_bar: bool = True,
    ):
        self.config = config
        self.directory = _new_directory(config) if directory is None else Path(directory)
        self._metrics: JsonLines | None = None
        self._has_new_config = False
        agent_config = dataclasses.replace(
            config.agent,
            checkpoint_dir=self.directory / "checkpoints",
            progress_bar=config.agent.progress_bar and progress_bar,
        )
        with _explained():
            env, env_params = make_environment(config)
            self.agent = _agent_class(env, env_params)(
                env, env_params, agent_config, callbacks=[self._record, *callbacks]
            )
            check_hyperparams(config.hyperparams, self.agent.policies.n_policies)

    @classmethod
    def of_run(
        cls,
        directory: str | PathLike[str],
        overrides: Sequence[str] = (),
        callbacks: Sequence[Callback] = (),
        progress_bar: bool = True,
    ) -> "Experiment":
        """Rebuild the experiment of an existing run.

        Args:
            directory: Of the run.
            overrides: As for `load_config`: what is to be different from here on.
            callbacks: As for the class.
            progress_bar: Likewise.

        Raises:
            ExperimentError: The directory holds no run.
        """
        path = Path(directory) / "config.yaml"
        if not path.is_file():
            raise ExperimentError(f"{directory} is no run: it has no config.yaml.")
        return cls(load_config(path, overrides), directory, callbacks, progress_bar)

    def train(self) -> dict[str, Any]:
        """Train, evaluate and leave everything in the directory.

        Returns:
            The summary, as in ``summary.json``.
        """
        with _explained():
            self.directory.mkdir(parents=True)
            save_config(self.config, self.directory / "config.yaml")
            self._metrics = JsonLines(self.directory / "metrics.jsonl")
        rng = jax.random.key(self.config.seed)
        with _explained(kinds=_OF_FILES):
            return self._finish(lambda: self.agent.train(rng, self.config.hyperparams))

    def resume(self) -> dict[str, Any]:
        """Go on from the run's last good checkpoint, as `train` would have done.

        Returns:
            The summary, as in ``summary.json``.

        Raises:
            ExperimentError: There is no checkpoint; the configuration is one of another structure;
                another process trains in the directory.
        """
        path = self.directory / "metrics.jsonl"
        with _explained():
            runner, metrics = self.agent.restore("last")
        try:
            self._metrics = JsonLines(path)
        except OSError as error:
            _logger.warning("%s cannot be written, training goes on without it: %s", path, error)
        n_updates_before = int(runner.n_updates_done)
        with _explained(kinds=_OF_FILES):
            if n_updates_before >= self.config.agent.n_steps:
                return self._finish(lambda: (runner, metrics), n_updates_before)
            self._has_new_config = True
            return self._finish(
                lambda: self.agent.resume(self.config.hyperparams), n_updates_before
            )

    def _keep_config(self) -> None:
        """Write the configuration, if it has changed; the one before is kept."""
        path = self.directory / "config.yaml"
        if _to_plain(load_config(path)) == _to_plain(self.config):
            return
        numbered = (self.directory / f"config.{number}.yaml" for number in itertools.count(1))
        os.link(path, next(each for each in numbered if not each.exists()))
        save_config(self.config, path)

    def _finish(
        self, train: Callable[[], tuple[Any, Mapping[str, Any]]], n_updates_before: int = 0
    ) -> dict[str, Any]:
        """Train, evaluate, and write curve and summary."""
        started = time.perf_counter()
        runner, metrics = train()
        seconds = time.perf_counter() - started
        if self.config.agent.n_evals:
            self._plot(metrics)
        n_updates_done = int(runner.n_updates_done)
        n_steps_now = self._n_environment_steps(n_updates_done - n_updates_before)
        summary = self.evaluate() | {
            "training": {
                "n_updates_done": n_updates_done,
                "n_environment_steps": self._n_environment_steps(n_updates_done),
                # Since it was last resumed; compilation and evaluations included.
                "seconds": round(seconds, 3),
                "environment_steps_per_second": round(n_steps_now / seconds, 1),
            },
            "versions": {"jaxagents": jaxagents.__version__, "jax": jax.__version__},
        }
        text = json.dumps(summary, indent=2, allow_nan=False)
        (self.directory / "summary.json").write_text(text + "\n", encoding="utf-8")
        return summary

    def restore(self, mode: str | None = None) -> "IPPOBase":
        """Load the "best" or the "last" checkpoint; None: the one that the configuration judges.

        Returns:
            The agent, ready for `eval`, `policy` and `value`.

        Raises:
            ExperimentError: There is no such checkpoint.
        """
        self._restore(mode or self.config.evaluation.mode)
        return self.agent

    def export(self, directory: str | PathLike[str], mode: str | None = None) -> list[Path]:
        """Write the policies of a checkpoint as safetensors and JSON; see `jaxagents.exporting`.

        Args:
            directory: Where to.
            mode: As for `restore`.

        Returns:
            The files.

        Raises:
            ExperimentError: There is no such checkpoint, or there are such files already.
        """
        from jaxagents.exporting import export_policy

        with _explained():
            runner, _ = self.agent.restore(mode or self.config.evaluation.mode)
            return export_policy(self.agent, runner, Path(directory), self.config.env)

    def evaluate(self, how: EvaluationConfig | None = None) -> dict[str, Any]:
        """Play episodes with the policies of a checkpoint.

        Args:
            how: None: as configured.

        Returns:
            Plain data: the run, the checkpoint, how it was evaluated, the statistics of
            ``returns`` per actor, and the means over episodes of what else was evaluated.

        Raises:
            ExperimentError: There is no such checkpoint.
        """
        how = how or self.config.evaluation
        n_updates_done = self._restore(how.mode)
        metrics = jax.device_get(self.agent.eval(jax.random.key(how.seed), how.n_evals, how.greedy))
        stats = self.agent.summarize(metrics.pop("returns"))._asdict()
        del stats["episodes"]
        return {
            "name": self.config.name,
            "env": self.config.env,
            "checkpoint": {
                "n_updates_done": n_updates_done,
                "n_environment_steps": self._n_environment_steps(n_updates_done),
            },
            "evaluation": dataclasses.asdict(how),
            "returns": {name: _json(values.tolist()) for name, values in stats.items()},
            "means": {
                name: _json(np.mean(values, axis=0).tolist()) for name, values in metrics.items()
            },
        }

    def _restore(self, mode: str) -> int:
        """Load a checkpoint, and return the number of updates done in it."""
        with _explained():
            runner, _ = self.agent.restore(mode)
        return int(runner.n_updates_done)

    def _record(self, evaluation: Evaluation) -> None:
        try:
            if self._has_new_config:  # and has been accepted
                self._has_new_config = False
                self._keep_config()
            if self._metrics is not None:
                self._metrics(evaluation)
        except OSError as error:
            _logger.warning("something in %s could not be written: %s", self.directory, error)

    def _plot(self, metrics: Mapping[str, Any]) -> None:
        from jaxagents.plotting import plot_learning_curve

        n_updates_done = np.asarray(metrics["n_updates_done"])
        plot_learning_curve(
            {**metrics, "n_environment_steps": self._n_environment_steps(n_updates_done)},
            self.directory / "learning_curve.png",
            title=f"{self.config.name} ({self.config.env})",
        )

    def _n_environment_steps(self, n_updates_done: Any) -> Any:
        return n_updates_done * self.config.agent.steps_per_update


def make_environment(config: ExperimentConfig) -> tuple[Any, Any]:
    """Make the configured environment, and its parameters with ``env_params`` applied.

    Raises:
        ValueError: The environment or one of its parameters is unknown.
        TypeError: The value of a parameter is no number like the default's.
    """
    from jaxagents.environments.registry import make

    env, params = make(config.env, **config.env_kwargs)
    if not config.env_params:
        return env, params
    if not hasattr(params, "replace"):
        raise ValueError(f"{config.env} has no parameters; empty env_params, or use env_kwargs.")
    known = [each.name for each in dataclasses.fields(params)]
    for name, value in config.env_params.items():
        if name not in known:
            raise ValueError(
                f"env_params.{name} is no parameter of {config.env}; it has {', '.join(known)}."
            )
        if not isinstance(value, bool | int | float | list):
            raise TypeError(f"env_params.{name} should be a number, but is {value!r}.")
    return env, params.replace(**config.env_params)


def _agent_class(env: Any, env_params: Any) -> Any:
    from jaxagents.environments.spaces import Discrete, as_space
    from jaxagents.ippo.continuous import ContinuousIPPO
    from jaxagents.ippo.discrete import DiscreteIPPO

    discrete = isinstance(as_space(env.action_space(env_params)), Discrete)
    return DiscreteIPPO if discrete else ContinuousIPPO


def _new_directory(config: ExperimentConfig) -> Path:
    """Name a directory that does not exist yet, nor creates it."""
    stem = Path(config.runs_dir) / f"{config.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    candidates = (stem.with_name(f"{stem.name}-{number}") for number in itertools.count(2))
    return next(each for each in itertools.chain([stem], candidates) if not each.exists())


def _json(values: Any) -> Any:
    """Replace what JSON has no number for in nested lists."""
    if isinstance(values, list):
        return [_json(each) for each in values]
    return values if np.isfinite(values) else None
