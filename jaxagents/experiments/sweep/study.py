"""The study of a sweep: its trials, in optuna's storage.

Trials that are known beforehand (a grid, random ones) are queued in the storage, and each is taken
by one process. The trials of a process that has died are queued again. A process on another machine
counts as dead after five minutes without a heartbeat in the storage.

Processes in one directory take turns with a lock file. Processes on other machines only share the
storage: one of them creates the study, and a trial begun beyond the study's number is given back.
"""

import contextlib
import datetime
import fcntl
import itertools
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, final

import numpy as np

from jaxagents.errors import ExperimentError, import_extra
from jaxagents.experiments.sweep.search_space import Choices, Space, Values, as_choice

Sampler = Literal["tpe", "random", "grid"]
LOCK = "study.lock"
"""A file of every sweep's directory."""
_NAME = "sweep"
_MOST_DRAWS = 20  # per random trial, to find different ones
_OWNER, _DEFINITION, _QUEUED, _PARAMS = "owner", "definition", "queued", "params"
_IMPOSSIBLE, _CONCLUDED_BY = "impossible", "concluded by"
_SECONDS_TO_QUEUE = 30.0  # all trials, by the process that has created the study
_SECONDS_BETWEEN_LOOKS = 1.0  # at the trials of other processes
_SECONDS_TO_OWN = 60.0  # a trial that has begun, by a process on another machine
_SECONDS_BETWEEN_BEATS = 30.0
_SECONDS_WITHOUT_BEAT = 300.0  # after which a process on another machine counts as dead


class Result(NamedTuple):
    """A trial that has ended."""

    number: int
    values: Values
    score: float
    scores: list[float]  # of each seed
    n_updates: int | None = None  # after which it ended early; None: it did not
    impossible: str | None = None  # why it could not be trained; None: it could


@final
class Study:
    """The trials of a sweep.

    Attributes:
        optuna: The study itself, for optuna's pictures.

    Args:
        directory: The sweep's directory, which exists.
        storage: optuna's URL of a database, "journal:" and a path, or None: a SQLite file in the
            directory.
        space: What is varied.
        sampler: Chooses the values.
        n_trials: Number of trials of all processes; more than the study has extend it. A grid has
            its own number.
        seed: Seed of random trials.
        definition: The values that are equal in equal sweeps.

    Raises:
        ExperimentError: optuna is not installed, the storage cannot be reached, or it holds the
            study of another sweep or one of more trials.
    """

    def __init__(
        self,
        directory: Path,
        storage: str | None,
        space: Space,
        sampler: Sampler,
        n_trials: int,
        seed: int,
        definition: Mapping[str, Any],
    ):
        self._space = space
        self._optuna = import_optuna()
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        self._distributions = {key: domain.distribution() for key, domain in space.items()}
        self._beats: dict[str, tuple[Any, float]] = {}  # of others, with the time they were seen
        self._lock = directory / LOCK
        self._opened = time.time()
        with _locked(self._lock):
            self.optuna, is_new = self._open(directory, storage, sampler)
            if not is_new:
                self._wait_until_queued()
            self._check(definition)
            n_queued = self.optuna.user_attrs.get(_QUEUED, 0)
            if sampler != "grid" and n_trials < n_queued:
                raise ExperimentError(
                    f"the sweep has {n_queued} trials, more than n_trials={n_trials}; give "
                    f"{n_queued} to continue it, or more to extend it."
                )
            if n_trials > n_queued:
                self._queue(sampler, n_trials, seed)
            self._requeue_of_dead()

    @property
    def n_trials(self) -> int:
        """Number of trials in all, which another process may have raised."""
        return self.optuna.user_attrs[_QUEUED]

    def ask(self, n_trials: int) -> list[tuple[Any, Values]]:
        """Begin at most this many trials; none once all of the study's trials have begun."""
        trials: list[tuple[Any, Values]] = []
        with _locked(self._lock):
            while len(trials) < n_trials and self._n_open() > 0:
                trial = self.optuna.ask(self._distributions)
                trial.set_user_attr(_OWNER, _this_process())
                if self._is_surplus(trial.number):
                    self.optuna.tell(trial, state=self._optuna.trial.TrialState.FAIL)
                    break
                trials.append((trial, self._decoded(trial.params)))
        return trials

    def wait_for_others(self, report: Callable[[str], None]) -> bool:
        """Wait while other processes train trials.

        Args:
            report: Called with a line about the processes and their trials, whenever it changes.

        Returns:
            True if trials of processes that have died are open again; False if all have ended.
        """
        said = ""
        while True:
            with _locked(self._lock):
                self._requeue_of_dead()
                if self._n_open() > 0:
                    return True
                waiting = self._trained_by_others()
            if not waiting:
                return False
            if waiting != said:
                report(f"waiting for the trials of others: {waiting}")
                said = waiting
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    @contextlib.contextmanager
    def beating(self) -> Iterator[None]:
        """Within this context, show processes on other machines that this one is alive."""
        is_over, name = threading.Event(), _beat_of(_this_process())

        def beat() -> None:
            for number in itertools.count():
                with contextlib.suppress(Exception):  # the database may be busy
                    self.optuna.set_user_attr(name, number)
                if is_over.wait(_SECONDS_BETWEEN_BEATS):
                    return

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    @contextlib.contextmanager
    def concluding(self, report: Callable[[str], None] = lambda text: None) -> Iterator[str]:
        """Within this context, let only one process confirm and report the best trial.

        Args:
            report: Called with a line while it is unknown whether another process is alive.

        Yields:
            The other process that does so, or has done so since this one opened the study; empty if
            this one should do it.
        """
        me, is_first, report_once = _this_process(), None, [report]
        other: dict[str, Any] = {}
        while is_first is None:
            with _locked(self._lock):
                other = self.optuna.user_attrs.get(_CONCLUDED_BY) or {}
                is_first = not other or self._may_conclude_after(other, me)
                if is_first:
                    self.optuna.set_user_attr(_CONCLUDED_BY, me)
            if is_first is None:
                if report_once:
                    report_once.pop()(f"waiting for a sign of {_name_of(other)}")
                time.sleep(_SECONDS_BETWEEN_LOOKS)
        if not is_first:
            yield _name_of(other)
            return
        ended = None
        try:
            with self.beating():
                yield ""
            ended = {**me, "ended": time.time()}
        finally:
            self.optuna.set_user_attr(_CONCLUDED_BY, ended)

    def _may_conclude_after(self, other: Mapping[str, Any], me: Mapping[str, Any]) -> bool | None:
        if "ended" in other:
            return other["ended"] < self._opened
        return other == me or self._has_died(other)

    def _has_died(self, owner: Mapping[str, Any]) -> bool | None:
        """Return True if a process has died; None: unknown, because it is on another machine."""
        if owner["host"] == socket.gethostname():
            return not _is_alive(owner)
        name, now = _beat_of(owner), time.monotonic()
        beat = self.optuna.user_attrs.get(name)
        before, since = self._beats.setdefault(name, (beat, now))
        if beat != before:
            self._beats[name] = (beat, now)
            return False
        return True if now - since > _SECONDS_WITHOUT_BEAT else None

    def _trained_by_others(self) -> str:
        """Describe which process trains which trials."""
        running = (self._optuna.trial.TrialState.RUNNING,)
        of_owner: dict[str, list[str]] = {}
        for trial in self.optuna.get_trials(deepcopy=False, states=running):
            owner = trial.user_attrs.get(_OWNER)
            if owner == _this_process():
                continue
            name = "a process" if owner is None else _name_of(owner)
            of_owner.setdefault(name, []).append(str(trial.number))
        return ", ".join(f"{name} trains {' '.join(each)}" for name, each in of_owner.items())

    def tell(
        self,
        trial: Any,
        scores: Sequence[float],
        n_updates: int | None = None,
        impossible: str | None = None,
    ) -> bool:
        """End a trial with the score of each seed; the trial's own score is their mean.

        Args:
            trial: A trial from `ask`.
            scores: The score of each seed; NaN: it has diverged, or could not be trained.
            n_updates: Updates after which it ended early; None: it did not.
            impossible: Why it could not be trained; None: it could.

        Returns:
            False if another process has taken the trial, because this one was suspended and counted
            as dead.
        """
        states = self._optuna.trial.TrialState
        if self.optuna.get_trials(deepcopy=False)[trial.number].state != states.RUNNING:
            return False
        if impossible is not None:
            trial.set_user_attr(_IMPOSSIBLE, impossible)
        trial.set_user_attr("scores", [float(score) for score in scores])
        score = float(np.mean(scores))
        if not np.isfinite(score):
            self.optuna.tell(trial, state=states.FAIL)
        elif n_updates is None:
            self.optuna.tell(trial, score)
        else:
            trial.report(score, n_updates)
            self.optuna.tell(trial, state=states.PRUNED)
        return True

    def results(self) -> list[Result]:
        """List the trials that have ended, in their order; failed ones score NaN."""
        states = self._optuna.trial.TrialState
        ended = (states.COMPLETE, states.PRUNED, states.FAIL)
        return [
            Result(
                trial.number,
                self._decoded(trial.params),
                float(np.mean(trial.user_attrs["scores"])),
                trial.user_attrs["scores"],
                trial.last_step,
                trial.user_attrs.get(_IMPOSSIBLE),
            )
            for trial in self.optuna.get_trials(states=ended)
            if "scores" in trial.user_attrs
        ]

    def _open(self, directory: Path, storage: str | None, sampler: Sampler) -> tuple[Any, bool]:
        """Create the study or load it; also return whether it is new."""
        optuna = self._optuna
        samplers = optuna.samplers
        chosen = samplers.TPESampler(constant_liar=True) if sampler == "tpe" else None
        url = storage or f"sqlite:///{directory / 'study.db'}"
        try:
            opened = self._open_storage(url)
            chosen = chosen or samplers.RandomSampler()
            arguments = {"storage": opened, "study_name": _NAME, "sampler": chosen}
            try:
                return optuna.create_study(**arguments, direction="maximize"), True
            except optuna.exceptions.DuplicatedStudyError:
                return optuna.load_study(**arguments), False
        except Exception as error:  # of optuna, SQLAlchemy, or the database's driver
            reason = " ".join(str(error).split())[:300]
            raise ExperimentError(f"the storage {url} cannot be used: {reason}") from error

    def _open_storage(self, url: str) -> Any:
        storages = self._optuna.storages
        if url.startswith("journal:"):
            backend = storages.journal.JournalFileBackend(url.removeprefix("journal:"))
            return storages.JournalStorage(backend)
        try:
            return storages.RDBStorage(url)
        except Exception as error:
            if "already exists" not in str(error):
                raise
            time.sleep(1.0)  # another process creates the database's tables
            return storages.RDBStorage(url)

    def _check(self, definition: Mapping[str, Any]) -> None:
        now = json.loads(json.dumps(definition))
        before = self.optuna.user_attrs.get(_DEFINITION)
        if before is None:
            self.optuna.set_user_attr(_DEFINITION, now)
            return
        for name in now:
            if now[name] != before.get(name):
                raise ExperimentError(
                    f"the study is of another sweep: its {name} is {before.get(name)}, and this "
                    f"one's is {now[name]}; sweep in another directory."
                )

    def _queue(self, sampler: Sampler, n_trials: int, seed: int) -> None:
        """Queue the unchanged configuration, and the trials that are known beforehand."""
        if sampler == "grid":
            trials = self._grid()
        elif sampler == "random":
            trials = self._random(n_trials, seed)
        else:
            trials = []
        # A process may have died after it had queued some, and a study that is extended has some.
        queued = [each.user_attrs.get(_PARAMS) for each in self.optuna.get_trials(deepcopy=False)]
        for params in trials:
            if params not in queued:
                self.optuna.enqueue_trial(params, user_attrs={_PARAMS: params})
        self.optuna.set_user_attr(_QUEUED, len(trials) or n_trials)

    def _random(self, n_trials: int, seed: int) -> list[Values]:
        """Draw different values; fewer if the space has too few."""
        sampler = self._optuna.samplers.RandomSampler(seed=seed)
        apart = self._optuna.create_study(sampler=sampler)
        trials: list[Values] = []
        for _ in range(_MOST_DRAWS * n_trials):
            params = apart.ask(self._distributions).params
            if params not in trials:
                trials.append(params)
            if len(trials) == n_trials:
                break
        return trials

    def _grid(self) -> list[Values]:
        columns = []
        for key, domain in self._space.items():
            if not isinstance(domain, Choices):
                raise ExperimentError(
                    f"a grid needs choices, and {key} is a range; list its values, or use "
                    "--sampler random."
                )
            columns.append(domain.values)
        return [
            {key: as_choice(value) for key, value in zip(self._space, values, strict=True)}
            for values in itertools.product(*columns)
        ]

    def _wait_until_queued(self) -> None:
        """Wait for the process that has created the study; continue without it if it has died."""
        deadline = time.monotonic() + _SECONDS_TO_QUEUE
        while not self.optuna.user_attrs.get(_QUEUED) and time.monotonic() < deadline:
            time.sleep(0.1)

    def _is_surplus(self, number: int) -> bool:
        """Return True if all of the study's trials had begun before this one."""
        before = [each for each in self._begun() if each.number < number]
        return len(before) >= self.n_trials

    def _requeue_of_dead(self) -> None:
        """Queue the trials of processes that have died."""
        states = self._optuna.trial.TrialState
        for trial in self.optuna.get_trials(deepcopy=False, states=(states.RUNNING,)):
            owner = trial.user_attrs.get(_OWNER)
            if owner is None and _seconds_since(trial.datetime_start) < _SECONDS_TO_OWN:
                continue
            if owner is not None and not self._has_died(owner):
                continue
            with contextlib.suppress(ValueError, RuntimeError):  # another machine has done so
                self.optuna.tell(trial.number, state=states.FAIL)
                # A process may have died before the trial had all of its values.
                planned = trial.user_attrs.get(_PARAMS)
                attributes = None if planned is None else {_PARAMS: planned}
                self.optuna.enqueue_trial(planned or trial.params, user_attrs=attributes)

    def _n_open(self) -> int:
        """Return how many trials have not begun."""
        return self.n_trials - len(self._begun())

    def _begun(self) -> list[Any]:
        """List the trials that have begun, except those of dead processes."""
        states = self._optuna.trial.TrialState
        begun = (states.RUNNING, states.COMPLETE, states.PRUNED)
        return [
            each
            for each in self.optuna.get_trials(deepcopy=False)
            if each.state in begun or (each.state == states.FAIL and "scores" in each.user_attrs)
        ]

    def _decoded(self, params: Mapping[str, Any]) -> Values:
        return {key: self._decode(key, value) for key, value in params.items()}

    def _decode(self, key: str, value: Any) -> Any:
        domain = self._space[key]
        if isinstance(domain, Choices):
            return next(each for each in domain.values if as_choice(each) == value)
        return value


def import_optuna() -> Any:
    """Import optuna.

    Raises:
        ExperimentError: it is not installed.
    """
    return import_extra("optuna", "sweeps need", "sweep", ExperimentError)


def _seconds_since(start: datetime.datetime) -> float:
    return (datetime.datetime.now() - start).total_seconds()


def _this_process() -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": os.getpid(), "started": _start_of(os.getpid())}


def _name_of(owner: Mapping[str, Any]) -> str:
    here = owner["host"] == socket.gethostname()
    return f"process {owner['pid']}{'' if here else ' on ' + owner['host']}"


def _beat_of(owner: Mapping[str, Any]) -> str:
    return f"heartbeat of {owner['pid']} on {owner['host']} since {owner['started']}"


def _is_alive(owner: Mapping[str, Any]) -> bool:
    here = owner["host"] == socket.gethostname()
    return here and _start_of(owner["pid"]) == owner["started"] is not None


def _start_of(process_id: int) -> str | None:
    """Return a process's start time, as a later one may reuse its id; None: it has ended."""
    try:
        text = Path(f"/proc/{process_id}/stat").read_text()
    except OSError:
        return None
    state, *numbers = text.rpartition(")")[2].split()
    return None if state == "Z" else numbers[18]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
