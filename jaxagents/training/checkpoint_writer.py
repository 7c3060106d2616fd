"""Writing a run's checkpoints in the background, come what may."""

import contextlib
import fcntl
import logging
import math
import os
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple, final

from jaxagents.errors import CheckpointError
from jaxagents.training.checkpoints import Checkpoints, DamagedError
from jaxagents.training.named_arrays import Leaves

_LOCK = ".lock"
_NICENESS = 10
_SECONDS_BETWEEN_PARAMS = 10.0  # as orbax takes ten times as long for them as all the rest does
_logger = logging.getLogger(__name__)


class Checkpoint(NamedTuple):
    """What is to be saved; the arrays must not change afterwards."""

    step: int  # updates done
    runner: Leaves
    history: Leaves
    score: float  # what "best" compares; not finite counts as worst


@final
class Saver:
    """The one writer of a directory of checkpoints, in a thread of its own.

    What cannot be written, because the disk is full for example, is reported at once and again by
    `close`, and leaves the earlier checkpoints as they are.

    Args:
        checkpoints: The directory; it is made if it does not exist.
        keep_latest: Number of latest steps kept.
        keep_best: Number of steps kept for their score.
        metadata: Saved with every checkpoint.

    Raises:
        CheckpointError: the directory cannot be written, or another process writes to it.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        keep_latest: int,
        keep_best: int,
        metadata: Mapping[str, Any],
    ):
        self._checkpoints = checkpoints
        self._keep_latest = keep_latest
        self._keep_best = keep_best
        self._metadata = metadata
        self._lock = _lock(checkpoints.directory)
        try:
            checkpoints.remove(())  # what a killed writer has left
            self._scores = self._read_scores()
        except BaseException:
            os.close(self._lock)
            raise
        self._failures: list[str] = []
        self._seconds = 0.0  # that the latest checkpoint took
        self._params_written = -math.inf
        self._thread = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="checkpoints", initializer=_give_way
        )
        self._latest: Future[None] | None = None

    def save(self, checkpoint: Checkpoint, patience: float = 0.0) -> None:
        """Have a checkpoint written, after the one before it.

        Args:
            checkpoint: The checkpoint.
            patience: Seconds to wait for it, if it is likely to be written by then. The one before
                it is waited for in any case.
        """
        if self._latest is not None:
            wait([self._latest])
        self._latest = self._thread.submit(self._try_to_write, checkpoint)
        if self._seconds < patience:
            wait([self._latest], timeout=patience)

    def close(self) -> None:
        """Wait until everything is on disk, and let go of the directory."""
        try:
            self._thread.submit(self._complete)
            self._thread.shutdown()
        finally:
            os.close(self._lock)
        if self._failures:
            steps = self._checkpoints.steps()
            last = f"the last one there is of update {steps[-1]}" if steps else "there is none"
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
        except Exception as error:  # orbax reports a full disk by errors of many kinds
            reason = " ".join(str(error).split())[:300]
            self._failures.append(f"update {checkpoint.step}: {reason}")
            _logger.warning(
                "the checkpoint of update %d could not be written, training goes on: %s",
                checkpoint.step,
                reason,
            )
        self._seconds = time.perf_counter() - started

    def _write(self, checkpoint: Checkpoint) -> None:
        step, runner, history, score = checkpoint
        now = time.monotonic()
        with_params = now - self._params_written >= _SECONDS_BETWEEN_PARAMS
        self._checkpoints.write(step, runner, history, self._metadata, score, with_params)
        self._params_written = now if with_params else self._params_written
        self._scores[step] = score if math.isfinite(score) else -math.inf
        kept = self._kept()
        with contextlib.suppress(OSError):  # it will be tried again with the next one
            self._checkpoints.remove(set(self._scores) - kept)
            self._scores = {step: self._scores[step] for step in kept}

    def _complete(self) -> None:
        """Write for other programs what checkpoints still lack."""
        for step in self._checkpoints.steps():
            try:
                self._checkpoints.add_params(step)
            except Exception as error:
                _logger.warning(
                    "params/ of the checkpoint of update %d could not be written: %s",
                    step,
                    " ".join(str(error).split())[:300],
                )

    def _kept(self) -> set[int]:
        """Choose the latest steps and the best, among equal ones the later."""
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


def _give_way() -> None:
    """Let this thread, and those that it starts, run where training leaves a core idle."""
    with contextlib.suppress(AttributeError, OSError):  # elsewhere than on Linux
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def _lock(directory: Path) -> int:
    """Take a lock that ends with this process, however it ends; return its file."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise CheckpointError(f"{directory} cannot be written: {error}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError) as error:  # the latter on some network file systems
        os.close(file)
        raise CheckpointError(
            f"another training writes to {directory}; wait for its end, or take another directory."
        ) from error
    except OSError as error:  # others have no locks
        _logger.warning(
            "%s cannot be locked (%s): see to it that no other training writes there",
            directory,
            error,
        )
    return file
