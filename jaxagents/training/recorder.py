"""Records an agent's runs on the host: metrics, checkpoints, callbacks, progress, signals."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

import jax
import numpy as np

from jaxagents.compiler.forks import check_has_threads
from jaxagents.compiler.processes import is_first, together
from jaxagents.compiler.random_keys import as_key
from jaxagents.config import AgentConfig
from jaxagents.training.best_members import BestMembers
from jaxagents.training.callbacks import Callback, Evaluation
from jaxagents.training.checkpoint_writer import Checkpoint, CheckpointWriter
from jaxagents.training.held_directory import HeldDirectory
from jaxagents.training.interruption import Interrupted, Interruption
from jaxagents.training.named_arrays import Leaves, Table, to_leaves
from jaxagents.training.progress_bar import ProgressBar
from jaxagents.training.saved_run import SELECTION, SavedRun
from jaxagents.types import PyTree, Runner

_SHARE_OF_WAITING = 0.01  # part of a block's time that may be spent on waiting for its checkpoint


@final
class Recorder:
    """Records an agent's training.

    A compiled program reports each evaluation to `on_evaluation`. Exceptions cannot pass through
    compiled code: `on_evaluation` keeps an exception and stops the run, and `recording` raises it.
    Callbacks may use jax, and are therefore called by `call_back`, between compiled programs.

    Args:
        config: Its ``checkpoint_dir`` names the directory of the checkpoints; None writes none.
        callbacks: Called with every evaluation; one that returns True ends the run.
        metadata: Saved with every checkpoint.
        n_members: The number of members of a population, which all runners and metrics then have
            as a first axis. None: a single run.
        held: The directory, if another recorder holds it; None: hold it separately.

    Attributes:
        saved: Reads the directory's checkpoints.
        interruption: Handles signals during its runs.
        error: The exception of `on_evaluation` or `call_back` in the latest run.
    """

    def __init__(
        self,
        config: AgentConfig,
        callbacks: Sequence[Callback],
        metadata: Mapping[str, Any],
        n_members: int | None = None,
        held: HeldDirectory | None = None,
    ):
        self._config = config
        self._callbacks = tuple(callbacks)
        self._metadata = {**metadata, "n_members": n_members}
        self.saved: SavedRun = SavedRun(config, self._metadata, n_members)
        directory = config.checkpoint_dir
        if held is None and directory is not None:
            held = HeldDirectory(self.saved.checkpoints.directory)
        self._held = held
        self._n_members = n_members
        self._best_members: BestMembers | None = None
        self._writer: CheckpointWriter | None = None
        self.interruption: Interruption = Interruption()
        self.error: BaseException | None = None
        self._is_recording = False
        self._rows = Table()
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
        recorder = Recorder(self._config, self._callbacks, metadata, n_members, self._held)
        recorder.interruption = self.interruption
        return recorder

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Within this context, keep other trainings out of the directory of checkpoints.

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
        self.interruption.wait_for_abandoned_work()
        self.saved.refuse_policy()
        if self.saved.checkpoints.directory.exists():
            with self.holding():
                yield
        else:  # there is nothing to resume: reading raises the error
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
        self.interruption.wait_for_abandoned_work()
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
        if self.saved.checkpoints.steps() or self.saved.policy() is not None:
            raise ValueError(
                f"checkpoint_dir={str(self._config.checkpoint_dir)!r} already holds a run; "
                "continue it with agent.resume(), load it with agent.restore(), or train into "
                "another directory."
            )

    @contextlib.contextmanager
    def showing(
        self, n_updates_done: int, history: Leaves | None, best: Leaves | None, is_shown: bool
    ) -> Iterator[None]:
        """Within this context, collect rows and show progress; see `recording`."""
        config = self._config
        self._rows = Table(history)
        self.error = self._latest = None
        self._call_back_due = False
        if self._n_members is not None:
            self._best_members = BestMembers(self._n_members, history, best)
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
    def writing(self, keep_latest: int, begin_at: int | None, is_new: bool) -> Iterator[None]:
        """Within this context, take reports and write checkpoints; see `recording`."""
        config = self._config
        self._is_recording = True
        with contextlib.ExitStack() as files:
            files.callback(self._leave)
            if self._held is not None and is_first():
                files.enter_context(self._held)
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
            yield

    def _leave(self) -> None:
        """Take no more reports: a program that was left running may still send one."""
        self._is_recording = False
        writer, self._writer = self._writer, None
        if writer is not None:
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
        if not self._is_recording:
            return np.bool_(True)
        try:
            self.check_directory()
            row = {name: values.copy() for name, values in metrics.items()}
            self._rows.append(row)
            self.interruption.has_results = True
            self._latest = self._evaluation_of(runner, row)
            if self._bar is not None:
                self._bar.show(self._latest)
            if self._callbacks and is_first():
                self._call_back_due = True
            else:
                self.save(runner)
            return np.bool_(self.interruption.requested)
        except BaseException as error:
            self.error = error
            return np.bool_(True)

    def call_back(self, agent: Any, runner: Runner) -> bool:
        """Call the callbacks with the latest evaluation, once, and then save its checkpoint.

        Their exceptions are kept, and raised by `recording` once all processes know.

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
            try:
                evaluation = self._latest._replace(agent=agent, runner=runner)
                # Every callback receives every evaluation, even if an earlier one ends the run.
                requests = [_is_true(callback(evaluation)) for callback in self._callbacks]
            finally:  # after the callbacks: the writer's thread would compete for the GIL
                self.save(reported)
        except Interrupted:
            raise
        except BaseException as error:
            self.error = error
            return True
        return any(requests)

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


@contextlib.contextmanager
def recording(
    recorders: Sequence[Recorder],
    n_updates_done: int,
    histories: Sequence[Leaves | None],
    best: Leaves | None = None,
) -> Iterator[None]:
    """Within this context, record a run that several agents may share, and handle signals.

    All checkpoints are on disk when it ends. A killed process may leave the agents' latest
    checkpoints up to two evaluations apart, so each keeps three.

    Args:
        recorders: One per agent. Nothing happens if none has work.
        n_updates_done: Updates done before it.
        histories: Each agent's metrics of earlier evaluations, if it resumes a run.
        best: The best runners so far, if the run is a population's.

    Raises:
        Interrupted: A signal ended the run.
    """
    if not any(recorder.has_work for recorder in recorders):
        yield
        return
    interruption = recorders[0].interruption
    for recorder in recorders:
        recorder.interruption.wait_for_abandoned_work()
        recorder.interruption = interruption
    # A single agent resumes from its very last checkpoint.
    n_needed, begin_at = (1, None) if len(recorders) == 1 else (3, n_updates_done)
    with contextlib.ExitStack() as contexts:
        for recorder, history in zip(recorders, histories, strict=True):
            is_shown = recorder is recorders[0]
            contexts.enter_context(recorder.showing(n_updates_done, history, best, is_shown))
        contexts.enter_context(interruption.handling(has_results=False))
        for recorder, history in zip(recorders, histories, strict=True):
            contexts.enter_context(recorder.writing(n_needed, begin_at, history is None))
        yield
        for recorder in recorders:  # before a signal that has arrived too
            if recorder.error is not None:
                raise recorder.error


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
    return float(np.mean(finite, dtype=np.float64)) if finite.size else float("nan")
