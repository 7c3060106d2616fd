"""The host side of training: checkpoints, metrics and callbacks of one agent's runs."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, final

import jax
import numpy as np
from jaxtyping import PyTree

from jaxagents.checkpointing import Checkpointer, Leaves, from_leaves, subtree, to_leaves
from jaxagents.config import AgentConfig
from jaxagents.tracking import Callback, Evaluation
from jaxagents.types import Runner

BestFn = Callable[[Leaves], int]


@final
class Recorder:
    """Records an agent's training as it goes, and reads what was recorded.

    An exception cannot cross a compiled program unharmed: it is kept, training is asked to stop,
    and `recording` raises it at its end.

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
        self._checkpointer: Checkpointer | None = None
        self._rows: list[dict[str, np.ndarray]] = []
        self._error: BaseException | None = None
        self._started = 0.0

    @property
    def has_work(self) -> bool:
        """Whether evaluations need to be reported at all."""
        return self._config.checkpoint_dir is not None or bool(self._callbacks)

    def refuse_to_overwrite(self) -> None:
        """Raise ValueError if the directory already holds a run."""
        directory = self._config.checkpoint_dir
        if directory is not None and self._open().steps():
            raise ValueError(
                f"checkpoint_dir={str(directory)!r} already holds a run; continue it with "
                "agent.resume(), load it with agent.restore(), or train into another directory."
            )

    @contextmanager
    def recording(self, history: Leaves | None = None) -> Iterator[None]:
        """Keep the checkpoints open during a training.

        Afterwards everything is on disk, and what was raised in the meantime is raised.

        Args:
            history: The metrics of the evaluations before, if training continues a run.
        """
        self._rows = _unstack(history or {})
        self._error = None
        self._started = time.perf_counter()
        self._checkpointer = self._open() if self._config.checkpoint_dir is not None else None
        try:
            yield
        finally:
            checkpointer, self._checkpointer = self._checkpointer, None
            if checkpointer is not None:
                checkpointer.close()
        if self._error is not None:
            raise self._error

    def on_evaluation(self, runner: PyTree, metrics: Mapping[str, Any]) -> np.bool_:
        """Record one evaluation.

        Args:
            runner: The `Runner`, its random keys as data.
            metrics: The evaluation's row of every metric.

        Returns:
            Whether training should stop.
        """
        try:
            # No jax operation may run inside a callback: it could wait for itself.
            row = {name: np.array(value) for name, value in metrics.items()}
            self._rows.append(row)
            self.save(runner)
            return np.bool_(self._call_back(runner, row))
        except BaseException as error:
            self._error = error
            return np.bool_(True)

    def save(self, runner: PyTree) -> None:
        """Write a checkpoint of a runner, its random keys as data, if there is a directory."""
        if self._checkpointer is None:
            return
        returns = self._rows[-1].get("returns") if self._rows else None
        self._checkpointer.save(
            int(runner.n_updates_done),
            runner=to_leaves(runner),
            history=to_leaves(_stack(self._rows)),
            metadata=self._metadata,
            score=float("nan") if returns is None else float(np.mean(returns)),
        )

    def restore(self, template: Runner, mode: str, best_fn: BestFn) -> tuple[Runner, Leaves]:
        """Read a runner like ``template``, and the metrics of all evaluations so far.

        Raises:
            ValueError: there is no checkpoint, or it belongs to an agent of another structure.
        """
        checkpointer = self._open()
        step = checkpointer.last_step()
        history = checkpointer.read(step, "history")
        if mode == "best":
            step = _best_step(checkpointer.steps(), history, best_fn)
        leaves = checkpointer.read(step, "runner")
        # Hyperparameters may be scalars in one run and per policy in another.
        hyperparams = subtree(leaves, "hyperparams", template.hyperparams)
        try:
            return from_leaves(leaves, template.replace(hyperparams=hyperparams)), history
        except ValueError as error:
            raise ValueError(
                f"the checkpoint in {checkpointer.directory} is of another agent: {error}."
            ) from None

    def _open(self) -> Checkpointer:
        directory = self._config.checkpoint_dir
        if directory is None:
            raise ValueError("the agent has checkpoint_dir=None; configure the run's directory.")
        return Checkpointer(directory, self._config.keep_latest, self._config.keep_best)

    def _call_back(self, runner: PyTree, row: Mapping[str, np.ndarray]) -> bool:
        n_updates_done = int(runner.n_updates_done)
        evaluation = Evaluation(
            n_updates_done=n_updates_done,
            n_environment_steps=n_updates_done * self._config.steps_per_update,
            seconds=time.perf_counter() - self._started,
            metrics=dict(row),
            runner=jax.tree.map(np.asarray, runner),
        )
        # Every callback sees every evaluation, whichever of them asks to stop.
        requests = [callback(evaluation) is True for callback in self._callbacks]
        return any(requests)


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
    rows = np.flatnonzero(np.isin(history["n_updates_done"], steps))
    row = int(best_fn({name: values[rows] for name, values in history.items()}))
    if not 0 <= row < len(rows):
        raise ValueError(
            f"best_fn returned row {row} of {len(rows)} kept checkpoints; return an index below "
            f"{len(rows)}."
        )
    return int(history["n_updates_done"][rows[row]])


def _stack(rows: Sequence[Mapping[str, np.ndarray]]) -> Leaves:
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]} if rows else {}


def _unstack(history: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    n_rows = len(next(iter(history.values()), ()))
    return [{name: values[i] for name, values in history.items()} for i in range(n_rows)]
