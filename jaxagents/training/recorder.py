"""The host side of training: checkpoints, metrics and callbacks of one agent's runs."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, final

import jax
import numpy as np
from jaxtyping import PyTree

from jaxagents.compiler.random_keys import as_key
from jaxagents.config import AgentConfig
from jaxagents.errors import CheckpointError
from jaxagents.training.callbacks import Callback, Evaluation
from jaxagents.training.checkpoint_writer import Checkpoint, Saver
from jaxagents.training.checkpoints import Checkpoints, DamagedError
from jaxagents.training.interruption import Interruption
from jaxagents.training.metric_tables import stack, unstack
from jaxagents.training.named_arrays import Leaves, from_leaves, subtree, to_leaves
from jaxagents.training.progress_bar import ProgressBar
from jaxagents.types import Runner

BestFn = Callable[[Leaves], int]
Result = TypeVar("Result")

_SHARE_OF_WAITING = 0.01  # of a block's time, for its checkpoint to be on disk


@final
class Recorder:
    """Records an agent's training as it goes, and reads what was recorded.

    A compiled program reports each evaluation to `on_evaluation`. An exception cannot cross it
    unharmed: it is kept, training is asked to stop, and `record` raises it at its end. Callbacks
    may use jax, so that they wait for `call_back`, between programs.

    Args:
        config: Names the directory of the checkpoints; None there writes none.
        callbacks: Called with every evaluation; one that returns True requests a stop.
        metadata: Saved with every checkpoint.
    """

    def __init__(
        self, config: AgentConfig, callbacks: Sequence[Callback], metadata: Mapping[str, Any]
    ):
        self._config = config
        self._callbacks = tuple(callbacks)
        self._metadata = metadata
        self._saver: Saver | None = None
        self._interruption = Interruption()
        self._rows: list[dict[str, np.ndarray]] = []
        self._error: BaseException | None = None
        self._bar: ProgressBar | None = None
        self._latest: Evaluation | None = None
        self._waits = False  # the latest evaluation, for `call_back`
        self._started = self._block_started = 0.0

    @property
    def has_work(self) -> bool:
        """Whether evaluations need to be reported at all."""
        return self._config.checkpoint_dir is not None or self.has_callbacks

    @property
    def has_callbacks(self) -> bool:
        """Whether training should pause at evaluations, for `call_back`."""
        return bool(self._callbacks)

    def prepare(self, rng: Any) -> None:
        """Wait for an interrupted training to end, and check that a new one can be recorded.

        Raises:
            ValueError: the directory already holds a run, or the key's generator could not be
                restored from a checkpoint.
        """
        self._interruption.settle()
        directory = self._config.checkpoint_dir
        if directory is None:
            return
        if self._checkpoints().steps():
            raise ValueError(
                f"checkpoint_dir={str(directory)!r} already holds a run; continue it with "
                "agent.resume(), load it with agent.restore(), or train into another directory."
            )
        impl, default = (
            str(jax.random.key_impl(each)) for each in (as_key(rng), jax.random.key(0))
        )
        if not self._config.prng_impl and impl != default:
            raise ValueError(
                f"rng is a key of {impl!r}, and checkpoints are read with keys of {default!r}; "
                "pass jax.random.key(seed), and choose another generator by prng_impl."
            )

    def record(
        self, train: Callable[[], Result], n_updates_done: int, history: Leaves | None = None
    ) -> Result:
        """Call a training, and record it if there is anything to record.

        Afterwards everything is on disk, and what was raised in the meantime is raised.

        Args:
            train: The training.
            n_updates_done: Where it begins.
            history: The metrics of the evaluations before, if it continues a run.
        """
        if not self.has_work:
            return train()

        def train_and_save() -> Result:
            if self._config.checkpoint_dir is None:
                return train()
            config = self._config
            self._saver = Saver(
                self._checkpoints(), config.keep_latest, config.keep_best, self._metadata
            )
            try:
                return train()
            finally:
                saver, self._saver = self._saver, None
                saver.close()

        self._rows = unstack(history or {})
        self._error = self._latest = None
        self._waits = False
        if self._config.progress_bar:
            self._bar = ProgressBar(self._config.n_steps, n_updates_done)
        self._started = self._block_started = time.perf_counter()
        try:
            result = self._interruption.run(train_and_save)
        finally:
            bar, self._bar, self._latest = self._bar, None, None
            if bar is not None:
                bar.close()
        if self._error is not None:
            raise self._error
        return result

    def on_evaluation(self, runner: PyTree, metrics: Mapping[str, np.ndarray]) -> np.bool_:
        """Record one evaluation.

        No jax operation may run in here: it could wait for the program that called it.

        Args:
            runner: The `Runner` as numpy arrays that nobody changes later, its random keys as
                data.
            metrics: The evaluation's row of every metric, copied here.

        Returns:
            Whether training should stop.
        """
        try:
            row = {name: values.copy() for name, values in metrics.items()}
            self._rows.append(row)
            self._latest = self._describe(runner, row)
            if self._bar is not None:
                self._bar.show(self._latest)
            if self.has_callbacks:
                self._waits = True
            else:
                self.save(runner)
            return np.bool_(self._interruption.requested)
        except BaseException as error:
            self._error = error
            return np.bool_(True)

    def call_back(self, agent: Any, runner: Runner) -> bool:
        """Call the callbacks with the evaluation that waits for it, if one does, and save it.

        Args:
            agent: The agent.
            runner: The same as was reported, but not taken to the host.

        Returns:
            Whether training should stop.
        """
        if not self._waits or self._latest is None:
            return False
        self._waits = False
        reported = self._latest.runner
        try:
            evaluation = self._latest._replace(agent=agent, runner=runner)
            # Every callback sees every evaluation, whichever of them asks to stop.
            requests = [_is_true(callback(evaluation)) for callback in self._callbacks]
        finally:  # last, as the thread that writes competes for Python's lock
            self.save(reported)
        return any(requests) or self._interruption.requested

    def save(self, runner: PyTree) -> None:
        """Write a checkpoint of a runner, its random keys as data, if there is a directory."""
        if self._saver is None:
            return
        returns = self._rows[-1].get("returns") if self._rows else None
        checkpoint = Checkpoint(
            step=int(runner.n_updates_done),
            runner=to_leaves(runner),
            history=to_leaves(stack(self._rows)),
            score=float("nan") if returns is None else float(np.mean(returns)),
        )
        now = time.perf_counter()
        self._saver.save(checkpoint, patience=_SHARE_OF_WAITING * (now - self._block_started))
        self._block_started = now

    def restore_to_resume(self, template: Runner) -> tuple[Runner, Leaves]:
        """Read the last checkpoint, once an interrupted training has ended; see `restore`.

        Raises:
            ValueError: as for `restore`; or evaluations had another number of episodes.
        """
        self._interruption.settle()
        runner, history = self.restore(template, "last", highest_return)
        n_evals = history["returns"].shape[1] if "returns" in history else 0
        if history and n_evals != self._config.n_evals:
            raise CheckpointError(
                f"n_evals={self._config.n_evals}, but the run's evaluations so far are of "
                f"{n_evals} episodes, and one table holds all; use n_evals={n_evals}."
            )
        return runner, history

    def restore(self, template: Runner, mode: str, best_fn: BestFn) -> tuple[Runner, Leaves]:
        """Read a runner like ``template``, and the metrics of all evaluations so far.

        Raises:
            ValueError: there is no checkpoint, or it belongs to an agent of another structure.
        """
        checkpoints = self._checkpoints()
        last, history = checkpoints.latest_good(checkpoints.read_history)
        self._refuse_another_structure(checkpoints.read_metadata(last))
        best = mode == "best"
        step = _best_step(checkpoints.steps(), history, best_fn) if best else last
        try:
            leaves = checkpoints.read_runner(step)
        except DamagedError as error:
            checkpoints.set_aside(step, str(error))
            return self.restore(template, mode, best_fn)
        # Hyperparameters may be scalars in one run and per policy in another.
        hyperparams = subtree(leaves, "hyperparams", template.hyperparams)
        try:
            return from_leaves(leaves, template.replace(hyperparams=hyperparams)), history
        except ValueError as error:
            raise CheckpointError(
                f"the checkpoint in {checkpoints.directory} is of another agent: {error}."
            ) from None

    def _refuse_another_structure(self, saved: Mapping[str, Any]) -> None:
        """Raise where the run was trained by an agent of another structure."""
        for name, mine in self._metadata.items():
            if saved.get(name) != mine:
                raise CheckpointError(
                    f"the run in {self._config.checkpoint_dir} is of another agent: its {name} is "
                    f"{saved.get(name)}, and this agent's is {mine}."
                )

    def _checkpoints(self) -> Checkpoints:
        directory = self._config.checkpoint_dir
        if directory is None:
            raise ValueError("the agent has checkpoint_dir=None; configure the run's directory.")
        return Checkpoints(directory)

    def _describe(self, runner: PyTree, row: Mapping[str, np.ndarray]) -> Evaluation:
        n_updates_done = int(runner.n_updates_done)
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


def _is_true(answer: Any) -> bool:
    """Tell whether a callback has returned True, Python's, numpy's or jax's, and no number."""
    is_boolean = str(getattr(answer, "dtype", "")) == "bool" and np.ndim(answer) == 0
    return answer is True or (is_boolean and bool(answer))


def highest_return(metrics: Leaves) -> int:
    """Find the row of the highest return, averaged over episodes and actors.

    Such an average means nothing where one actor's gain is another's loss.
    """
    if "returns" not in metrics:
        raise ValueError(
            "the run was not evaluated (n_evals=0), so none of its checkpoints is the best; "
            "restore mode='last', or give a best_fn."
        )
    scores = metrics["returns"].mean(axis=(1, 2))
    return int(np.argmax(np.where(np.isfinite(scores), scores, -np.inf)))


def _best_step(steps: Sequence[int], history: Leaves, best_fn: BestFn) -> int:
    """Let ``best_fn`` choose among the steps that are kept."""
    rows = np.flatnonzero(np.isin(history.get("n_updates_done", []), steps))
    if not len(rows):
        raise CheckpointError(
            f"none of the checkpoints there are, of updates {list(steps)}, was evaluated; restore "
            "mode='last'."
        )
    row = int(best_fn({name: values[rows] for name, values in history.items()}))
    if not 0 <= row < len(rows):
        raise ValueError(
            f"best_fn returned row {row} of {len(rows)} kept checkpoints; return an index below "
            f"{len(rows)}."
        )
    return int(history["n_updates_done"][rows[row]])
