"""An experiment: an environment, an agent, and the directory of its run.

Plots, replays and exports are imported where they are used, so that errors in a configuration are
reported without delay.
"""

import contextlib
import logging
import time
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, final

import jax
import numpy as np

import jaxagents
from jaxagents.compiler.processes import (
    check_agreement,
    ending_together,
    from_first,
    is_first,
    together,
)
from jaxagents.errors import OF_FILES, ExperimentError, explained
from jaxagents.evaluation.run_files import RESUMED_AFTER
from jaxagents.evaluation.runs import path_of_config, population_of
from jaxagents.evaluation.zoo import directory_of, folder_of_results
from jaxagents.experiments.config_files.file import (
    is_one_line,
    load_config,
    locating_errors,
    save_config,
)
from jaxagents.experiments.config_files.schema import (
    EvaluationConfig,
    ExperimentConfig,
    to_plain,
)
from jaxagents.experiments.films import Films, check_can_film
from jaxagents.experiments.make_agent import (
    CHECKPOINTS,
    agent_class,
    checkpoints_of,
    make_environment,
    open_trackers,
    require_trackers,
)
from jaxagents.experiments.members import MemberRuns, SingleRun
from jaxagents.experiments.run_directory import (
    METRICS,
    abandon_later_evaluations,
    append_start,
    check_same_beginning,
    config_in_force,
    describe_start,
    keep_config,
    new_run_directory,
    numbered_if_taken,
    warn_of_changes,
)
from jaxagents.experiments.starting_point import read_starting_point
from jaxagents.experiments.summaries import (
    about_training,
    describe_training,
    evaluate_runner,
    random_returns_of,
    read_training_summary,
    seconds_until,
    write_summary,
)
from jaxagents.hyperparameters import check_hyperparams
from jaxagents.training.callbacks import Callback, Evaluation, StopAtReturn
from jaxagents.training.checkpoints import Checkpoints
from jaxagents.training.trackers import Tracker, Trackers, flat_keys
from jaxagents.types import Runner

if typing.TYPE_CHECKING:
    from jaxagents.ippo.base import IPPOBase

_logger = logging.getLogger(__name__)


@final
class Experiment:
    """An agent, built from a configuration, and the directory of its run.

    Nothing is written before `train`. The directory then holds

    * ``config.yaml``: the complete configuration, which repeats the run exactly. Resuming with
      another one after update N keeps it, and adds the new one as ``config_from_N.yaml``;
    * ``checkpoints/``: loaded by `restore`;
    * ``metrics.jsonl``: one line per evaluation, see `jaxagents.training.trackers.JsonLines`;
    * ``tensorboard/``, and the files of the other trackers in ``config.tracking``;
    * ``environment.json``: versions, device, command and git revision of each start of training,
      and the policy that it began from, if any;
    * ``learning_curve.png`` and ``summary.json``, once training has ended;
    * ``films/``: GIFs made during training, if ``config.tracking.film_frequency`` is above 0;
    * ``replay/``: written by `replay`.

    With ``config.seeds`` above 1 it is the directory of a population, and ``members/0``, ... hold
    each member's ``config.yaml``, ``metrics.jsonl`` and ``summary.json``: a member's directory is
    read like any run's. Replays, exports and `restore` use the best member. With
    ``config.population_based_training`` the run's own files are those of the best member, and
    ``lineages.png`` shows which member continued from which.

    Args:
        config: The configuration.
        directory: Directory of the run; None names a new one in ``config.runs_dir``.
        callbacks: Called with each evaluation during training, after it has been logged.
        progress_bar: False hides the progress bar, whatever the configuration says.
        trackers: Trackers in addition to the configured ones. They are closed when training ends.
            A tracker that fails is reported and never ends training.

    Raises:
        ExperimentError: the configuration fits no environment or no agent, or names an unknown
            tracker.
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
        if directory is None:
            directory = from_first(str(new_run_directory(config).absolute()))
        self.directory: Path = Path(directory).absolute()  # whatever the working directory becomes
        self.n_updates_before: int = 0  # of the run that is resumed
        self._seconds_before = 0.0
        self._read: tuple[Path, bytes] | None = None  # the file and text of the configuration
        self._own_trackers = tuple(trackers)
        self._trackers = Trackers(())
        self._start: dict[str, Any] | None = None  # written once resumed training is under way
        self._plays_start = False  # of `elsewhere`: policies are those of ``init_from``
        if config.stop_at_return is not None:
            callbacks = [*callbacks, StopAtReturn(config.stop_at_return)]
        checkpoints, self._member = checkpoints_of(self.directory, config)
        agent_config = replace(
            config.agent,
            checkpoint_dir=checkpoints,
            progress_bar=config.agent.progress_bar and progress_bar,
        )
        if not self.directory.exists():  # a run that exists is evaluated without its trackers
            require_trackers(config)
        with explained():
            from jaxagents.ippo.population.training import check_can_be_population
            from jaxagents.ippo.training_run import check_division

            env, env_params = make_environment(config)
            self.agent: IPPOBase = agent_class(env, env_params, config.agent_class)(
                env, env_params, agent_config, callbacks=[self._record, *callbacks]
            )
            check_hyperparams(config.hyperparams, self.agent.policies.n_policies)
            check_can_film(config, self.agent)
            self._selection = config.population_based_training.rule(config.seed)
            self._runs: SingleRun | MemberRuns
            if config.seeds > 1:
                check_can_be_population(self.agent, config.seeds)
                n_policies = self.agent.policies.n_policies
                self._runs = MemberRuns(config, self.directory, n_policies, self._selection)
            else:
                check_division(self.agent)
                self._runs = SingleRun(config, self.directory, self._member)

    @classmethod
    def of_run(
        cls,
        directory: str | PathLike[str],
        overrides: Sequence[str] = (),
        callbacks: Sequence[Callback] = (),
        progress_bar: bool = True,
        trackers: Sequence[Tracker] = (),
    ) -> "Experiment":
        """Rebuild the experiment of an existing run, or of an entry of the zoo.

        Args:
            directory: Directory of the run, or ``zoo:ID``.
            overrides: Changes to the run's configuration, as for `load_config`.
            callbacks: As for the class.
            progress_bar: As for the class.
            trackers: As for the class.

        Raises:
            ExperimentError: the directory holds no run, or the zoo no such entry.
        """
        directory = directory_of(directory)
        path = path_of_config(directory)
        with explained(kinds=(OSError,)):
            text = path.read_bytes()
        config = load_config(path, overrides)
        with locating_errors(path, overrides):
            experiment = cls(config, directory, callbacks, progress_bar, trackers)
        experiment._read = (path.absolute(), text)
        return experiment

    @classmethod
    def elsewhere(cls, run: str | PathLike[str], overrides: Sequence[str]) -> "Experiment":
        """Let the policies of a run play in a changed configuration, such as in a larger team.

        `evaluate`, `restore` and `replay` then take the policies of that run.

        Args:
            run: Directory of the run, or ``zoo:ID``.
            overrides: Changes to the run's configuration, as for `load_config`.

        Raises:
            ExperimentError: there is no such run, or the configuration fits no agent.
        """
        start = ["--init_from", str(run), "--seeds", "1"]
        experiment = cls(load_config(path_of_config(directory_of(run)), [*overrides, *start]))
        experiment._plays_start = True
        return experiment

    def train(self) -> dict[str, Any]:
        """Train, evaluate and write everything to the directory.

        Returns:
            The summary, as in ``summary.json``.

        Raises:
            ExperimentError: the directory exists already, or cannot be written; or the policy of
                ``config.init_from`` does not fit.
        """
        require_trackers(self.config)
        if not is_one_line(self.directory):
            raise ExperimentError(
                f"the run's directory {str(self.directory)!r} has a line break or control "
                "character; name another by runs_dir."
            )
        if self._selection is not None:
            with explained():
                self._selection.check(self.config.seeds)
        rng, hyperparams = self._runs.keys(), self._runs.initial_hyperparams()
        self._check_start()
        start = read_starting_point(self.agent, self.config)
        about_start = {} if start is None else start.description
        together(lambda: self._create_directory(about_start) if is_first() else None)

        def train() -> tuple[Any, Mapping[str, Any]]:
            runner = None if start is None else self._runs.begin(self.agent, start.runner)
            return self.agent.train(rng, hyperparams, runner, self._selection)

        with explained(kinds=OF_FILES), self.agent.recorder.holding():
            return self._finish(train)

    @property
    def has_checkpoint(self) -> bool:
        """True if the directory has a checkpoint, from which `resume` continues."""
        return bool(Checkpoints(self.directory / CHECKPOINTS).steps())

    def _create_directory(self, about_start: Mapping[str, Any]) -> None:
        if self.directory.exists():
            raise ExperimentError(
                f"{self.directory} exists already; name another directory, or continue the run "
                "in it by resume."
            )
        with explained(f"runs_dir: {self.config.runs_dir} cannot be written to: "):
            self.directory.mkdir(parents=True)
            save_config(self.config, self.directory / "config.yaml")
            self._runs.write_configs()
            metrics = self._runs.open_metrics()
        append_start(self.directory / "environment.json", {**describe_start(), **about_start})
        self._track([metrics])

    def _check_start(self) -> None:
        """Check that there are devices and memory, and that all processes train the same."""
        from jaxagents.ippo.population.memory import check_fits

        with explained():
            self.agent.devices.check()
            check_fits(self.agent)
        config = dict(flat_keys(to_plain(self.config)))
        versions = {"jaxagents": jaxagents.__version__, "jax": jax.__version__}
        check_agreement({**versions, "the run's directory": str(self.directory), **config})

    def resume(self) -> dict[str, Any]:
        """Continue from the run's last undamaged checkpoint, as if it had never been interrupted.

        Returns:
            The summary, as in ``summary.json``.

        Raises:
            ExperimentError: there is no checkpoint; the agent's structure, the environment or the
                seed differs from the run's; or another process is training in the directory.
        """
        require_trackers(self.config)
        with explained():
            self.agent.recorder.saved.refuse_policy()
        if (population := population_of(self.directory)) is not None:
            raise ExperimentError(
                f"{self.directory} is a member of a population; resume {population[0]}."
            )
        with contextlib.ExitStack() as holding:
            with explained():
                holding.enter_context(self.agent.recorder.holding_run())
            return self._resume()

    def _resume(self) -> dict[str, Any]:
        """Continue from the last checkpoint of a directory that no other process trains in."""
        path = path_of_config(self.directory)
        if self._read is not None and self._read != (path, path.read_bytes()):
            raise ExperimentError(
                f"{path} was written while this process started: another one has resumed the run; "
                "resume it again."
            )
        self._read = None  # from here on this process writes it
        varied = () if self._selection is None else self._selection.varied
        check_same_beginning(self.config, self.directory, varied)
        self._check_start()
        with explained():
            runner, metrics = self.agent.restore("last")
        self.n_updates_before = int(np.max(runner.n_updates_done))
        self._seconds_before = seconds_until(self.n_updates_before, self._runs.folders)
        with explained(kinds=OF_FILES):
            is_finished = self.n_updates_before >= self.config.agent.n_steps
            if is_finished or self._has_reached_target(metrics):
                if is_first():
                    self._abandon_later_evaluations()
                summary = self._finish(lambda: (runner, metrics))
                if not is_first():
                    return summary
                trained_with = load_config(config_in_force(self.directory, self.n_updates_before))
                self._keep_config(replace(trained_with, evaluation=self.config.evaluation))
                return summary
            if is_first():
                warn_of_changes(self.config, self.directory, self.n_updates_before)
                self._track(self._metrics_if_writable())
                self._start = describe_start() | {RESUMED_AFTER: self.n_updates_before}
            hyperparams = self._runs.hyperparams_to_resume(runner)
            return self._finish(lambda: self.agent.resume(hyperparams, self._selection))

    def _metrics_if_writable(self) -> list[Tracker]:
        for path in (folder / METRICS for folder in self._runs.folders):
            if not path.exists():
                _logger.warning(
                    "%s is missing: plots and reports lack the run's evaluations so far", path
                )
        try:
            return [self._runs.open_metrics()]
        except OSError as error:
            _logger.warning(
                "%s cannot be written, training continues without it: %s", METRICS, error
            )
            return []

    def _has_reached_target(self, metrics: Mapping[str, Any]) -> bool:
        target = self.config.stop_at_return
        if target is None or not np.size(metrics.get("returns", ())):
            return False
        return float(np.nanmean(self._runs.latest_returns(metrics))) >= target

    def _track(self, metrics: Sequence[Tracker]) -> None:
        others = [*open_trackers(self.config, self.directory), *self._own_trackers]
        films: list[Tracker] = []
        if self.config.tracking.film_frequency:
            films = [Films(self.config, self.directory / "films", Trackers(others))]
        self._trackers = Trackers([*metrics, *others, *films])

    def _finish(self, train: Callable[[], tuple[Any, Mapping[str, Any]]]) -> dict[str, Any]:
        """Train, evaluate, and write the summary and the learning curve.

        Of several processes only the first evaluates and writes; the others return nothing.
        """
        started = time.perf_counter()
        with ending_together():
            try:
                runner, metrics = train()
            finally:
                self._trackers.close()
            self.agent.recorder.check_directory()
            seconds = time.perf_counter() - started
            if not is_first():
                return {}
            return self._conclude(runner, metrics, seconds)

    def _conclude(self, runner: Any, metrics: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Evaluate the trained policies, and write the summary and the learning curve."""
        n_updates_done = int(np.max(runner.n_updates_done))
        training = None
        if n_updates_done == self.n_updates_before:  # nothing was trained: keep the earlier times
            training = read_training_summary(self.directory, n_updates_done)
            if training is None and self._seconds_before > 0:
                training = describe_training(self.config, n_updates_done, self._seconds_before)
        if training is None:
            before = (self.n_updates_before, self._seconds_before)
            training = describe_training(self.config, n_updates_done, seconds, *before)
        evaluation = self.evaluate()
        random_returns = random_returns_of(self.agent, self.config.evaluation)
        teams = self.agent.environments.teams
        about = about_training(training, random_returns, teams)
        trained = (runner, metrics)
        summary = self._runs.summarize(self.agent, trained, evaluation, random_returns, about)
        write_summary(summary, self.directory)
        if self.config.agent.n_evals:
            try:
                self._runs.plot()
            except ExperimentError as error:  # such as metrics that could not be written
                _logger.warning("the learning curve is not drawn: %s", error)
        return summary

    def restore(self, mode: str | None = None) -> "IPPOBase":
        """Load the "best" or the "last" checkpoint; None takes the configured one.

        Returns:
            The agent, ready for `eval`, `policy` and `value`.

        Raises:
            ExperimentError: there is no such checkpoint; or elsewhere, its policies do not fit.
        """
        if self._plays_start:
            self.agent.collect_training(self._start_runner(mode))
            return self.agent
        with explained():
            self.agent.restore(mode or self.config.evaluation.mode, member=self._member)
        return self.agent

    def _start_runner(self, mode: str | None) -> Runner:
        start = read_starting_point(self.agent, self.config, mode)
        if start is None:
            raise ExperimentError("init_from is not set: there are no policies to play.")
        return start.runner

    def export(
        self, directory: str | PathLike[str], mode: str | None = None, onnx: bool = False
    ) -> list[Path]:
        """Write the policies of a checkpoint as safetensors and JSON; see `policy_export`.

        Args:
            directory: Directory of the files.
            mode: As for `restore`.
            onnx: Write them as an ONNX model too, see `policy_onnx`; needs the extra onnx.

        Returns:
            The paths of the files.

        Raises:
            ExperimentError: there is no such checkpoint, a file exists already, ``onnx`` lacks its
                extra, or ``onnx`` is given for a network that does not consist of configured
                layers.
        """
        from jaxagents.experiments.policy_export import export_policy

        with explained():
            runner, _ = self.agent.restore(mode or self.config.evaluation.mode, member=self._member)
            return export_policy(self.agent, runner, Path(directory), self.config.env, onnx)

    def replay(
        self,
        directory: str | PathLike[str] | None = None,
        n_episodes: int = 1,
        greedy: bool | None = None,
        mode: str | None = None,
        seed: int | None = None,
        mp4: bool = False,
        max_frames: int | None = None,
        view: bool = False,
    ) -> list[Path]:
        """Animate the first of the episodes that `evaluate` plays; see `jaxagents.visual.replay`.

        Args:
            directory: Directory of the files; None takes the run's ``replay``, or if that exists
                ``replay-2``, .... For an entry of the zoo, or elsewhere, these are in the current
                folder.
            n_episodes: Number of episodes.
            greedy: Take the most probable actions instead of sampling; None: as configured.
            mode: As for `restore`.
            seed: Seed of the episodes; None: the configured one.
            mp4: Write MP4 films too.
            max_frames: Show only every second, third, ... state of longer episodes; None means 300.
            view: Also show each actor's value and likely actions.

        Returns:
            The paths of the files.

        Raises:
            ExperimentError: there is no such checkpoint, a file exists already, or ``mp4`` lacks
                ffmpeg.
        """
        from jaxagents.visual.replay import MAX_FRAMES, check_replay, write_replay

        own = Path(".") if self._plays_start else folder_of_results([self.directory])
        replays = own / "replay"
        folder = numbered_if_taken(replays) if directory is None else Path(directory)
        n_frames = MAX_FRAMES if max_frames is None else max_frames
        with explained():
            how = self.evaluation_by(greedy=greedy, mode=mode, seed=seed)
            check_replay(folder, n_episodes, mp4, n_frames)
            env, env_params = make_environment(self.config)
            agent = self.restore(how.mode)
            episodes = agent.record(jax.random.key(how.seed), n_episodes, how.n_evals, how.greedy)
            views = [agent.view(episode) for episode in episodes] if view else None
        with explained(kinds=OF_FILES):
            return write_replay(env, env_params, episodes, folder, mp4, n_frames, views)

    def evaluation_by(self, **changes: Any) -> EvaluationConfig:
        """Return the configured evaluation with some fields changed.

        Args:
            **changes: Fields of `EvaluationConfig`; None keeps the configured value.

        Raises:
            ExperimentError: a value is out of range.
        """
        given = {name: value for name, value in changes.items() if value is not None}
        with explained():
            return replace(self.config.evaluation, **given)

    def evaluate(self, how: EvaluationConfig | None = None) -> dict[str, Any]:
        """Play episodes with the policies of a checkpoint.

        Args:
            how: Which checkpoint and episodes; None: as configured.

        Returns:
            Plain data: the run, the checkpoint, the evaluation's settings, statistics of
            ``returns`` per actor, and means over episodes of the other evaluation metrics. For a
            population see `MemberRuns.evaluate`.

        Raises:
            ExperimentError: there is no such checkpoint; or elsewhere, its policies do not fit.
        """
        how = how or self.config.evaluation
        if self._plays_start:
            return evaluate_runner(self.agent, self._start_runner(how.mode), how, self.config)
        return self._runs.evaluate(self.agent, how)

    def _record(self, evaluation: Evaluation) -> None:
        if self._start is not None:  # this is the first evaluation of resumed training
            start, self._start = self._start, None
            append_start(self.directory / "environment.json", start)
            self._abandon_later_evaluations()
            try:
                self._keep_config(self.config)
            except OSError as error:
                _logger.warning("the new configuration could not be written: %s", error)
        self._trackers.log(evaluation)

    def _abandon_later_evaluations(self) -> None:
        for folder in {self.directory, *self._runs.folders}:
            abandon_later_evaluations(folder, self.n_updates_before)

    def _keep_config(self, config: ExperimentConfig) -> None:
        """Write the configuration, and those of a population's members, where they have changed."""
        keep_config(config, self.directory, self.n_updates_before)
        self._runs.keep_configs(config, self.n_updates_before)
