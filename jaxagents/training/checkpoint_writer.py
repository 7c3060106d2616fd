"""Writes a run's checkpoints in a background thread, and survives disk errors."""

import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple, final

from jaxagents.training.checkpoints import Checkpoints, DamagedError
from jaxagents.training.held_directory import HeldDirectory
from jaxagents.training.named_arrays import Leaves

_NICENESS = 10
_SECONDS_BETWEEN_PARAMS = 10.0  # writing them takes ten times as long as all other files
_logger = logging.getLogger(__name__)


class Checkpoint(NamedTuple):
    """A checkpoint to be written; its arrays must not change afterwards."""

    step: int  # updates done
    runner: Leaves
    history: Leaves
    score: float  # decides which checkpoints `keep_best` keeps; NaN or infinite is worst


@final
class CheckpointWriter:
    """The only writer of a directory of checkpoints, in a thread of its own.

    A checkpoint that cannot be written, for example because the disk is full, is reported at once
    and again by `close`. Earlier checkpoints are kept unchanged.

    Args:
        checkpoints: The directory; it is created if it does not exist.
        keep_latest: Number of latest checkpoints to keep.
        keep_best: Number of checkpoints with the highest scores to keep.
        metadata: Saved with every checkpoint.
        begin_at: Updates done before. Later checkpoints are removed: their updates are repeated.
            None removes none.
        held: The directory, if it may be held already; None: it is not.

    Raises:
        CheckpointError: The directory cannot be written, or another process writes to it.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        keep_latest: int,
        keep_best: int,
        metadata: Mapping[str, Any],
        begin_at: int | None = None,
        held: HeldDirectory | None = None,
    ):
        self._checkpoints = checkpoints
        self._keep_latest = keep_latest
        self._keep_best = keep_best
        self._metadata = metadata
        self._held = held or HeldDirectory(checkpoints.directory)
        self._held.__enter__()
        try:
            # Also the remains of a killed writer.
            last = math.inf if begin_at is None else begin_at
            checkpoints.remove([step for step in checkpoints.steps() if step > last])
            self._scores = self._read_scores()
        except BaseException:
            self._held.__exit__()
            raise
        self._failures: list[str] = []
        self._seconds = 0.0  # duration of the latest write
        self._params_written = -math.inf  # time of the latest `params/`
        self._thread = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="checkpoints", initializer=_lower_priority
        )
        self._latest: Future[None] | None = None

    def save(self, checkpoint: Checkpoint, max_wait: float = 0.0) -> None:
        """Hand a checkpoint to the thread, after waiting for the previous one.

        Args:
            checkpoint: The checkpoint.
            max_wait: Also wait up to this many seconds for this checkpoint, unless the previous one
                took longer to write.

        Raises:
            CheckpointError: As for `HeldDirectory.check`.
        """
        if self._latest is not None:
            wait([self._latest])
        self._held.check()
        self._latest = self._thread.submit(self._try_to_write, checkpoint)
        if self._seconds < max_wait:
            wait([self._latest], timeout=max_wait)

    def close(self) -> None:
        """Wait until everything is on disk and release the directory."""
        try:
            if self._held.is_in_place:
                self._thread.submit(self._add_missing_params)
            self._thread.shutdown()
        finally:
            self._held.__exit__()
        if self._failures:
            steps = self._checkpoints.steps()
            last = f"the last one is of update {steps[-1]}" if steps else "there is none"
            _logger.warning(
                "%d checkpoints could not be written, and %s: %s",
                len(self._failures),
                last,
                self._failures[-1],
            )

    def _try_to_write(self, checkpoint: Checkpoint) -> None:
        started = time.perf_counter()
        try:
            self._write(checkpoint)
        except Exception as error:  # orbax reports a full disk by errors of many types
            reason = " ".join(str(error).split())[:300]
            self._failures.append(f"update {checkpoint.step}: {reason}")
            _logger.warning(
                "the checkpoint of update %d could not be written, training continues: %s",
                checkpoint.step,
                reason,
            )
        self._seconds = time.perf_counter() - started

    def _write(self, checkpoint: Checkpoint) -> None:
        step, runner, history, score = checkpoint
        self._notice_deleted()
        now = time.monotonic()
        with_params = now - self._params_written >= _SECONDS_BETWEEN_PARAMS
        self._checkpoints.write(step, runner, history, self._metadata, score, with_params)
        self._params_written = now if with_params else self._params_written
        self._scores[step] = score if math.isfinite(score) else -math.inf
        kept = self._steps_to_keep()
        with contextlib.suppress(OSError):  # the next checkpoint tries again
            self._checkpoints.remove(set(self._scores) - kept)
            self._scores = {step: self._scores[step] for step in kept}

    def _notice_deleted(self) -> None:
        """Forget checkpoints that were deleted from outside, with a warning."""
        if deleted := sorted(self._scores.keys() - set(self._checkpoints.steps())):
            for step in deleted:
                del self._scores[step]
            _logger.warning(
                "%s: the checkpoints of the updates %s were deleted while the run trained, and are "
                "lost; training continues, and writes the later ones",
                self._checkpoints.directory,
                ", ".join(map(str, deleted)),
            )

    def _add_missing_params(self) -> None:
        """Write ``params/`` to the checkpoints that lack it."""
        for step in self._checkpoints.steps():
            try:
                self._checkpoints.add_params(step)
            except Exception as error:
                _logger.warning(
                    "params/ of the checkpoint of update %d could not be written: %s",
                    step,
                    " ".join(str(error).split())[:300],
                )

    def _steps_to_keep(self) -> set[int]:
        """Choose the latest steps and the best ones; of equal scores, the later step wins."""
        latest = sorted(self._scores)[-self._keep_latest :]
        by_score = sorted(self._scores, key=lambda step: (self._scores[step], step), reverse=True)
        return {*latest, *by_score[: self._keep_best]}

    def _read_scores(self) -> dict[int, float]:
        scores = {}
        for step in self._checkpoints.steps():
            try:
                score = self._checkpoints.read_metadata(step)["score"]
            except DamagedError as error:
                self._checkpoints.set_aside(step, str(error))
                continue
            scores[step] = -math.inf if score is None else score
        return scores


def _lower_priority() -> None:
    """Lower the priority of this thread, and of the threads it starts, below that of training."""
    with contextlib.suppress(AttributeError, OSError):  # not available outside Linux
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
