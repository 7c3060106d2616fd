"""Records an agent's runs on the host: metrics, checkpoints, callbacks, progress, signals."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, final

import jax
import numpy as np

from jaxagents.compiler.forks import check_has_threads
from jaxagents.compiler.processes import is_first, largest, together
from jaxagents.compiler.random_keys import as_key
from jaxagents.config import AgentConfig
from jaxagents.training.best_members import BestMembers
from jaxagents.training.callbacks import Callback, Evaluation
from jaxagents.training.checkpoint_writer import Checkpoint, CheckpointWriter
from jaxagents.training.held_directory import HeldDirectory
from jaxagents.training.interruption import Interruption
from jaxagents.training.metric_tables import Table
from jaxagents.training.named_arrays import Leaves, to_leaves
from jaxagents.training.progress_bar import ProgressBar
from jaxagents.training.saved_run import SELECTION, SavedRun
from jaxagents.types import PyTree, Runner

Result = TypeVar("Result")

_SHARE_OF_WAITING = 0.01  # part of a block's time that may be spent on waiting for its checkpoint


@final
class Recorder:
    """Records an agent's training.

    A compiled program reports each evaluation to `on_evaluation`. Exceptions cannot pass through
    compiled code: `on_evaluation` keeps an exception and stops the run, and `record` raises it.
    Callbacks may use jax, and are therefore called by `call_back`, between compiled programs.

    Args:
        config: Its ``checkpoint_dir`` names the directory of the checkpoints; None writes none.
        callbacks: Called with every evaluation; one that returns True ends the run.
        metadata: Saved with every checkpoint.
        n_members: The number of members of a population, which all runners and metrics then have
            as a first axis. None: a single run.

    Attributes:
        saved: What was recorded in the directory.
    """

    def __init__(
        self,
        config: AgentConfig,
        callbacks: Sequence[Callback],
        metadata: Mapping[str, Any],
        n_members: int | None = None,
    ):
        self._config = config
        self._callbacks = tuple(callbacks)
        self._metadata = {**metadata, "n_members": n_members}
        self.saved: SavedRun = SavedRun(config, self._metadata, n_members)
        directory = config.checkpoint_dir
        self._held = None if directory is None else HeldDirectory(self.saved.checkpoints.directory)
        self._n_members = n_members
        self._best_members: BestMembers | None = None
        self._writer: CheckpointWriter | None = None
        self._interruption = Interruption()
        self._rows = Table()
        self._error: BaseException | None = None
        self._bar: ProgressBar | None = None
        self._latest: Evaluation | None = None
        self._call_back_due = False  # with the latest evaluation
        self._started = self._block_started = 0.0

    @property
    def has_work(self) -> bool:
        """True if evaluations need to be reported: there are checkpoints or callbacks."""
        return self._config.checkpoint_dir is not None or bool(self._callbacks)

    def of_population(
        self, n_members: int, selection: Mapping[str, Any] | None = None
    ) -> "Recorder":
        """Return the recorder of a population, in the same directory.

        Args:
            n_members: Number of members.
            selection: Settings of the rule that selects among them.
        """
        metadata = {**self._metadata, SELECTION: selection}
        recorder = Recorder(self._config, self._callbacks, metadata, n_members)
        recorder._interruption = self._interruption
        recorder._held = self._held
        return recorder

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Keep other trainings out of the directory of checkpoints, within this context.

        Raises:
            CheckpointError: Another training writes to it, or it cannot be written.
        """
        held = self._held if is_first() else None
        together(lambda: None if held is None else held.__enter__())
        try:
            yield
        finally:
            if held is not None:
                held.__exit__()

    @contextlib.contextmanager
    def holding_run(self) -> Iterator[None]:
        """Keep other trainings out of the directory if there is one; see `holding`.

        Waits for an interrupted run of this process to end.

        Raises:
            ValueError: The agent has no directory, or as for `holding`.
            RuntimeError: This process was forked after jax had run.
        """
        check_has_threads()
        self._interruption.wait_for_abandoned_work()
        if self.saved.checkpoints.directory.exists():
            with self.holding():
                yield
        else:  # there is nothing to resume, as reading will tell
            yield

    def check_directory(self) -> None:
        """Check that the directory, which is held, is still there; see `HeldDirectory.check`."""
        if self._held is not None and is_first():
            self._held.check()

    def prepare(self, rng: Any) -> None:
        """Check that a new run can be recorded, after waiting for an interrupted one to end.

        Args:
            rng: The run's random key.

        Raises:
            ValueError: The directory already holds a run, or a checkpoint could not restore keys
                of this generator.
            RuntimeError: This process was forked after jax had run.
        """
        check_has_threads()
        self._interruption.wait_for_abandoned_work()
        directory = self._config.checkpoint_dir
        if directory is None:
            return
        self._check_is_new()
        impl, default = (
            str(jax.random.key_impl(each)) for each in (as_key(rng), jax.random.key(0))
        )
        if not self._config.prng_impl and impl != default:
            raise ValueError(
                f"rng is a key of {impl!r}, but checkpoints are read with keys of {default!r}; "
                "pass jax.random.key(seed), and choose another generator by prng_impl."
            )

    def _check_is_new(self) -> None:
        if self.saved.checkpoints.steps():
            raise ValueError(
                f"checkpoint_dir={str(self._config.checkpoint_dir)!r} already holds a run; "
                "continue it with agent.resume(), load it with agent.restore(), or train into "
                "another directory."
            )

    def record(
        self,
        train: Callable[[], Result],
        n_updates_done: int,
        history: Leaves | None = None,
        members: Leaves | None = None,
    ) -> Result:
        """Run training and record it, if there is anything to record.

        All checkpoints are on disk when this returns or raises, except after a second signal.

        Args:
            train: Runs the training.
            n_updates_done: Updates done before it.
            history: Metrics of earlier evaluations, if it resumes a run.
            members: The best runners so far, if that is a population's.

        Raises:
            Interrupted: A signal ended the training.
        """
        if self._n_members is not None:
            self._best_members = BestMembers(self._n_members, history, members)
        return record_together([self], train, n_updates_done, [history])

    @contextlib.contextmanager
    def _recording(
        self, n_updates_done: int, history: Leaves | None, is_shown: bool
    ) -> Iterator[None]:
        """Collect rows and show progress, within this context."""
        config = self._config
        self._rows = Table(history)
        self._error = self._latest = None
        self._call_back_due = False
        if config.progress_bar and is_shown and is_first():
            self._bar = ProgressBar(config.n_steps, n_updates_done)
        self._started = self._block_started = time.perf_counter()
        try:
            yield
        finally:
            bar, self._bar, self._latest = self._bar, None, None
            if bar is not None:
                bar.close()

    @contextlib.contextmanager
    def _writing(self, keep_latest: int, begin_at: int | None, is_new: bool) -> Iterator[None]:
        """Write checkpoints, within this context."""
        config = self._config
        if self._held is None or not is_first():
            yield
            return
        with self._held:
            if is_new:  # another training may have ended since `prepare`
                self._check_is_new()
            self._writer = CheckpointWriter(
                self.saved.checkpoints,
                max(config.keep_latest, keep_latest),
                config.keep_best,
                self._metadata,
                begin_at,
                self._held,
            )
            try:
                yield
            finally:
                writer, self._writer = self._writer, None
                writer.close()

    def on_evaluation(self, runner: PyTree, metrics: Mapping[str, np.ndarray]) -> np.bool_:
        """Record an evaluation that a compiled program reports.

        No jax operation may run in here: it could wait for that very program.

        Args:
            runner: The `Runner` as numpy arrays that do not change later, its random keys as
                uint32 data.
            metrics: The evaluation's row of every metric; it is copied.

        Returns:
            True if training should stop.
        """
        try:
            if self._writer is not None:
                self._writer.check()
            row = {name: values.copy() for name, values in metrics.items()}
            self._rows.append(row)
            self._interruption.has_results = True
            self._latest = self._evaluation_of(runner, row)
            if self._bar is not None:
                self._bar.show(self._latest)
            if self._callbacks and is_first():
                self._call_back_due = True
            else:
                self.save(runner)
            return np.bool_(self._interruption.requested)
        except BaseException as error:
            self._error = error
            return np.bool_(True)

    def call_back(self, agent: Any, runner: Runner) -> bool:
        """Call the callbacks with the latest evaluation, once, and then save its checkpoint.

        Args:
            agent: The agent in training.
            runner: The runner that was reported, still on the device.

        Returns:
            True if training should stop.
        """
        if not self._call_back_due or self._latest is None:
            return False
        self._call_back_due = False
        reported = self._latest.runner
        try:
            evaluation = self._latest._replace(agent=agent, runner=runner)
            # Every callback receives every evaluation, even if an earlier one ends the run.
            requests = [_is_true(callback(evaluation)) for callback in self._callbacks]
        finally:  # after the callbacks: the writer's thread would compete for the GIL
            self.save(reported)
        return any(requests) or self._interruption.requested

    def agreed(self, stop: Any, call_back: Callable[[], bool]) -> bool:
        """Call the callbacks, and agree with other processes whether to stop.

        A signal that one of them has received ends all as an interruption. An exception of a
        callback is raised by `record`, once the others know.

        Args:
            stop: True if this process should stop.
            call_back: Calls the callbacks.
        """
        try:
            stop = bool(stop) | call_back()
        except BaseException as error:
            self._error, stop = error, True
        self._interruption.adopt(largest(self._interruption.signal_number))
        return bool(largest(stop)) or self._interruption.requested

    def save(self, runner: PyTree) -> None:
        """Write a checkpoint if there is a directory.

        Args:
            runner: The `Runner` as numpy arrays, its random keys as uint32 data.
        """
        if self._writer is None:
            return
        returns = self._rows.last_row().get("returns")
        leaves = to_leaves(runner)
        if self._best_members is not None:
            leaves = self._best_members.joined(leaves, returns)
        checkpoint = Checkpoint(
            step=_updates_done(runner),
            runner=leaves,
            history=to_leaves(self._rows.columns()),
            score=float("nan") if returns is None else _mean_of_finite(returns),
        )
        now = time.perf_counter()
        self._writer.save(checkpoint, max_wait=_SHARE_OF_WAITING * (now - self._block_started))
        self._block_started = now

    def restore_to_resume(self, template: Runner) -> tuple[Runner, Leaves]:
        """Read the last checkpoint, after waiting for an interrupted run to end.

        Raises:
            ValueError: As for `SavedRun.read_to_resume`.
        """
        self._interruption.wait_for_abandoned_work()
        return self.saved.read_to_resume(template)

    def kept_steps(self) -> list[int]:
        """List the updates after which there is a checkpoint.

        Waits for an interrupted run to end.
        """
        self._interruption.wait_for_abandoned_work()
        return self.saved.checkpoints.steps()

    def _evaluation_of(self, runner: PyTree, row: Mapping[str, np.ndarray]) -> Evaluation:
        n_updates_done = _updates_done(runner)
        n_environment_steps = n_updates_done * self._config.steps_per_update
        seconds, before = time.perf_counter() - self._started, self._latest
        steps_per_second = float("nan")
        if before is not None and seconds > before.seconds:
            n_steps = n_environment_steps - before.n_environment_steps
            steps_per_second = n_steps / (seconds - before.seconds)
        return Evaluation(
            n_updates_done=n_updates_done,
            n_environment_steps=n_environment_steps,
            seconds=seconds,
            metrics=dict(row),
            runner=runner,
            steps_per_second=steps_per_second,
        )


def record_together(
    recorders: Sequence[Recorder],
    train: Callable[[], Result],
    n_updates_done: int,
    histories: Sequence[Leaves | None],
) -> Result:
    """Run a training that several agents may share, and record each agent's part.

    All checkpoints are on disk when this returns or raises, except after a second signal. A killed
    process may leave the agents' latest checkpoints up to two evaluations apart, so each keeps
    three.

    Args:
        recorders: One per agent.
        train: Runs the training.
        n_updates_done: Updates done before it.
        histories: Each agent's metrics of earlier evaluations, if it resumes a run.

    Raises:
        Interrupted: A signal ended the training.
    """
    if not any(recorder.has_work for recorder in recorders):
        return train()
    interruption = recorders[0]._interruption
    # Agents alone resume from their very last checkpoint.
    n_needed, begin_at = (1, None) if len(recorders) == 1 else (3, n_updates_done)

    def write_and_train() -> Result:
        with contextlib.ExitStack() as writing:
            for recorder, history in zip(recorders, histories, strict=True):
                writing.enter_context(recorder._writing(n_needed, begin_at, history is None))
            return train()

    with contextlib.ExitStack() as recording:
        for recorder, history in zip(recorders, histories, strict=True):
            recorder._interruption = interruption
            is_shown = recorder is recorders[0]
            recording.enter_context(recorder._recording(n_updates_done, history, is_shown))
        result = interruption.run(write_and_train, has_results=False)
    for recorder in recorders:
        if recorder._error is not None:
            raise recorder._error
    return result


def _is_true(answer: Any) -> bool:
    """Return True only for the True of Python, numpy or jax; other truthy values do not count."""
    is_boolean = str(getattr(answer, "dtype", "")) == "bool" and np.ndim(answer) == 0
    return answer is True or (is_boolean and bool(answer))


def _updates_done(runner: PyTree) -> int:
    """Return the updates of a runner, or of the members that have not stopped."""
    return int(np.max(runner.n_updates_done))


def _mean_of_finite(returns: np.ndarray) -> float:
    """Return the mean over episodes and actors, and over members that have not stopped."""
    finite = returns[np.isfinite(returns)]
    return float(np.mean(finite)) if finite.size else float("nan")
