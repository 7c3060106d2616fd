"""A run: an environment, an agent, and the directory that holds what comes of them.

What pictures and exports need is imported where it is used: seconds may pass before what is wrong
with a configuration is said otherwise.
"""

import contextlib
import itertools
import json
import logging
import os
import secrets
import shutil
import time
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from os import PathLike
from pathlib import Path
from typing import Any, final

import jax
import numpy as np

import jaxagents
from jaxagents.errors import OF_FILES, ExperimentError, explained
from jaxagents.evaluation.runs import path_of_config, read_config
from jaxagents.experiments.config_files.file import load_config, places_named, save_config
from jaxagents.experiments.config_files.schema import EvaluationConfig, ExperimentConfig, to_plain
from jaxagents.experiments.configured_trackers import open_trackers, require_installed
from jaxagents.experiments.make_agent import agent_class, make_environment
from jaxagents.experiments.provenance import append_start, describe_start
from jaxagents.hyperparameters import check_hyperparams
from jaxagents.training.atomic_write import write_at_once
from jaxagents.training.callbacks import Callback, Evaluation, StopAtReturn
from jaxagents.training.trackers import JsonLines, Tracker, Trackers

if typing.TYPE_CHECKING:
    from jaxagents.ippo.base import IPPOBase

_logger = logging.getLogger(__name__)


@final
class Experiment:
    """An agent, built as configured, and the directory of its run.

    Nothing is written before `train`. Then the directory holds

    * ``config.yaml``: the complete configuration, which repeats the run exactly; once the run has
      been resumed with another one, that one, and the earlier ones as ``config.1.yaml``, ...;
    * ``checkpoints/``: what `restore` loads;
    * ``metrics.jsonl``: a line per evaluation, see `jaxagents.tracking.JsonLines`;
    * ``tensorboard/``, and what else of ``config.tracking`` leaves files;
    * ``environment.json``: for each start of the training its versions, device, command and the
      git revision of the working folder;
    * ``learning_curve.png`` and ``summary.json``, once training has ended;
    * ``replay/``: what `replay` writes.

    Args:
        config: The configuration.
        directory: Of the run; None finds a new one in ``config.runs_dir``.
        callbacks: Called with each evaluation of the training, after it has been recorded.
        progress_bar: False hides the progress bar, whatever the configuration says.
        trackers: Where evaluations are recorded besides; closed when a training ends. One that
            fails is warned of, and never ends a training.

    Raises:
        ExperimentError: The configuration fits no environment or no agent.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        directory: str | PathLike[str] | None = None,
        callbacks: Sequence[Callback] = (),
        progress_bar: bool = True,
        trackers: Sequence[Tracker] = (),
    ):
        self.config = config
        self.directory = _new_directory(config) if directory is None else Path(directory)
        self._own_trackers = tuple(trackers)
        self._trackers = Trackers(())
        self._start: dict[str, Any] | None = None  # of a training that has not been accepted yet
        if config.stop_at_return is not None:
            callbacks = [*callbacks, StopAtReturn(config.stop_at_return)]
        agent_config = replace(
            config.agent,
            checkpoint_dir=self.directory.absolute() / "checkpoints",
            progress_bar=config.agent.progress_bar and progress_bar,
        )
        with explained():
            env, env_params = make_environment(config)
            self.agent = agent_class(env, env_params)(
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
        trackers: Sequence[Tracker] = (),
    ) -> "Experiment":
        """Rebuild the experiment of an existing run.

        Args:
            directory: Of the run.
            overrides: As for `load_config`: what is to be different from here on.
            callbacks: As for the class.
            progress_bar: Likewise.
            trackers: Likewise.

        Raises:
            ExperimentError: The directory holds no run.
        """
        path = path_of_config(directory)
        config = load_config(path, overrides)
        with places_named(path, overrides):
            return cls(config, directory, callbacks, progress_bar, trackers)

    def train(self) -> dict[str, Any]:
        """Train, evaluate and leave everything in the directory.

        Returns:
            The summary, as in ``summary.json``.

        Raises:
            ExperimentError: The directory exists already, or cannot be written.
        """
        require_installed(self.config)
        if self.directory.exists():
            raise ExperimentError(
                f"{self.directory} exists already; name another directory, or go on with the run "
                "in it by resume."
            )
        with explained(f"runs_dir: {self.config.runs_dir} cannot be written to: "):
            self.directory.mkdir(parents=True)
            save_config(self.config, self.directory / "config.yaml")
            metrics = JsonLines(self.directory / "metrics.jsonl")
        append_start(self.directory / "environment.json", describe_start())
        self._track([metrics])
        rng = jax.random.key(self.config.seed)
        with explained(kinds=OF_FILES):
            return self._finish(lambda: self.agent.train(rng, self.config.hyperparams))

    def resume(self) -> dict[str, Any]:
        """Go on from the run's last good checkpoint, as `train` would have done.

        Returns:
            The summary, as in ``summary.json``.

        Raises:
            ExperimentError: There is no checkpoint; the configuration is one of another structure,
                or of another beginning; another process trains in the directory.
        """
        require_installed(self.config)
        self._refuse_another_beginning()
        with explained():
            runner, metrics = self.agent.restore("last")
        n_updates_before = int(runner.n_updates_done)
        with explained(kinds=OF_FILES):
            if n_updates_before >= self.config.agent.n_steps or self._has_reached_target(metrics):
                summary = self._finish(lambda: (runner, metrics), n_updates_before)
                begun = load_config(self.directory / "config.yaml")
                self._keep_config(replace(begun, evaluation=self.config.evaluation))
                return summary
            path = self.directory / "metrics.jsonl"
            try:
                self._track([JsonLines(path)])
            except OSError as error:
                _logger.warning(
                    "%s cannot be written, training goes on without it: %s", path, error
                )
                self._track([])
            self._start = describe_start()
            return self._finish(
                lambda: self.agent.resume(self.config.hyperparams), n_updates_before
            )

    def _refuse_another_beginning(self) -> None:
        begun = read_config(self.directory)
        for name in ("env", "seed"):
            mine, given = getattr(self.config, name), begun.get(name)
            if given not in (mine, None):
                raise ExperimentError(
                    f"{name}={mine!r}, but the run has begun with {given!r}, and all that it has "
                    f"learnt is of that: leave {name} out, or train another run."
                )

    def _has_reached_target(self, metrics: Mapping[str, Any]) -> bool:
        target, returns = self.config.stop_at_return, metrics.get("returns", ())
        return target is not None and len(returns) > 0 and float(np.mean(returns[-1])) >= target

    def _track(self, metrics: Sequence[Tracker]) -> None:
        configured = open_trackers(self.config, self.directory)
        self._trackers = Trackers([*metrics, *configured, *self._own_trackers])

    def _keep_config(self, config: ExperimentConfig) -> None:
        """Write a configuration, if it is another one; the one before is kept."""
        path = self.directory / "config.yaml"
        with contextlib.suppress(ExperimentError):  # where no agent takes it any more
            if to_plain(load_config(path)) == to_plain(config):
                return
        numbered = (self.directory / f"config.{number}.yaml" for number in itertools.count(1))
        earlier = next(each for each in numbered if not each.exists())
        try:
            os.link(path, earlier)
        except OSError:  # some file systems have no links
            shutil.copy2(path, earlier)
        save_config(config, path)

    def _finish(
        self, train: Callable[[], tuple[Any, Mapping[str, Any]]], n_updates_before: int = 0
    ) -> dict[str, Any]:
        """Train, evaluate, and write curve and summary."""
        started = time.perf_counter()
        try:
            runner, metrics = train()
        finally:
            self._trackers.close()
        seconds = time.perf_counter() - started
        n_updates_done = int(runner.n_updates_done)
        n_steps_now = self._n_environment_steps(n_updates_done - n_updates_before)
        training = {
            "n_updates_done": n_updates_done,
            "n_environment_steps": self._n_environment_steps(n_updates_done),
            # Since it was last resumed; compilation and evaluations included.
            "seconds": round(seconds, 3),
            "environment_steps_per_second": round(n_steps_now / seconds, 1),
        }
        if n_updates_done == n_updates_before:  # evaluated anew only
            training = self._summarized_training(n_updates_done) or training
        summary = self.evaluate() | {
            "training": training,
            "versions": {"jaxagents": jaxagents.__version__, "jax": jax.__version__},
        }
        text = json.dumps(summary, indent=2, allow_nan=False)
        write_at_once(self.directory / "summary.json", text + "\n")
        if self.config.agent.n_evals:
            self._plot(metrics)
        return summary

    def _summarized_training(self, n_updates_done: int) -> dict[str, Any] | None:
        """Read what the summary that is there says of the training up to here, if it does."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            text = (self.directory / "summary.json").read_text(encoding="utf-8")
            training = json.loads(text)["training"]
            return training if training["n_updates_done"] == n_updates_done else None

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
        from jaxagents.experiments.policy_export import export_policy

        with explained():
            runner, _ = self.agent.restore(mode or self.config.evaluation.mode)
            return export_policy(self.agent, runner, Path(directory), self.config.env)

    def replay(
        self,
        directory: str | PathLike[str] | None = None,
        n_episodes: int = 1,
        greedy: bool | None = None,
        mode: str | None = None,
        seed: int | None = None,
        mp4: bool = False,
    ) -> list[Path]:
        """Show episodes, the first of those that `evaluate` plays; see `jaxagents.replay`.

        Args:
            directory: Where to; None: the run's ``replay``, or if that is there ``replay-2``, ...
            n_episodes: How many.
            greedy: Take the likeliest actions instead of sampling; None: as configured.
            mode: As for `restore`.
            seed: Of the episodes; None: the configured one.
            mp4: Write films, too.

        Returns:
            The files.

        Raises:
            ExperimentError: There is no such checkpoint, one of the files is there already, or
                there is no ffmpeg to write films with.
        """
        from jaxagents.visual.replay import check_replay, write_replay

        folder = _unused(self.directory / "replay") if directory is None else Path(directory)
        with explained():
            how = self.evaluation_by(greedy=greedy, mode=mode, seed=seed)
            check_replay(folder, n_episodes, mp4)
            env, env_params = make_environment(self.config)
            agent = self.restore(how.mode)
            episodes = agent.record(jax.random.key(how.seed), n_episodes, how.n_evals, how.greedy)
        with explained(kinds=OF_FILES):
            return write_replay(env, env_params, episodes, folder, mp4)

    def evaluation_by(self, **changes: Any) -> EvaluationConfig:
        """Change the configured evaluation.

        Args:
            **changes: Fields of `EvaluationConfig`; None leaves one as configured.

        Raises:
            ExperimentError: A value is wrong.
        """
        given = {name: value for name, value in changes.items() if value is not None}
        with explained():
            return replace(self.config.evaluation, **given)

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
            "evaluation": asdict(how),
            "returns": {name: _json(values.tolist()) for name, values in stats.items()},
            "means": {
                name: _json(np.mean(values, axis=0).tolist()) for name, values in metrics.items()
            },
        }

    def _restore(self, mode: str) -> int:
        """Load a checkpoint, and return the number of updates done in it."""
        with explained():
            runner, _ = self.agent.restore(mode)
        return int(runner.n_updates_done)

    def _record(self, evaluation: Evaluation) -> None:
        if self._start is not None:  # and the training has been accepted
            start, self._start = self._start, None
            append_start(self.directory / "environment.json", start)
            try:
                self._keep_config(self.config)
            except OSError as error:
                _logger.warning("config.yaml could not be kept up to date: %s", error)
        self._trackers.log(evaluation)

    def _plot(self, metrics: Mapping[str, Any]) -> None:
        from jaxagents.visual.plots import plot_learning_curve

        n_updates_done = np.asarray(metrics["n_updates_done"])
        plot_learning_curve(
            {**metrics, "n_environment_steps": self._n_environment_steps(n_updates_done)},
            self.directory / "learning_curve.png",
            title=f"{self.config.name} ({self.config.env})",
        )

    def _n_environment_steps(self, n_updates_done: Any) -> Any:
        return n_updates_done * self.config.agent.steps_per_update


def _new_directory(config: ExperimentConfig) -> Path:
    """Name a directory for a run, as no other is likely to be named, and make none."""
    now, own = time.strftime("%Y%m%d-%H%M%S"), secrets.token_hex(3)
    return Path(config.runs_dir).expanduser() / f"{config.name}-{now}-{own}"


def _unused(path: Path) -> Path:
    """Number a path if it exists."""
    numbered = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(each for each in itertools.chain([path], numbered) if not each.exists())


def _json(values: Any) -> Any:
    """Replace what JSON has no number for in nested lists."""
    if isinstance(values, list):
        return [_json(each) for each in values]
    return values if np.isfinite(values) else None
