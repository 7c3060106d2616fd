"""A saved run: the contents of an agent's checkpoints, and the choices that they depend on."""

import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from jaxagents.config import AgentConfig
from jaxagents.errors import CheckpointError
from jaxagents.training import best_members
from jaxagents.training.checkpoints import Checkpoints, DamagedError
from jaxagents.training.named_arrays import Leaves, from_leaves, subtree
from jaxagents.training.saved_policy import POLICY, read_policy, read_structure
from jaxagents.types import Runner

BestFn = Callable[[Leaves], int]
"""Maps the metrics of the kept checkpoints, ``[checkpoints, ...]``, to the row of the best one."""

SELECTION = "selection"
"""Metadata that only a run's training needs, not its policies."""

_BETWEEN_FIELDS = re.compile(r", (?=\w+=)")  # of a dataclass's repr
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in a function's repr; differs between processes
_STRUCTURE = (
    "batch_size",
    "rollout_length",  # converts updates to environment steps
    "agent_id",
    "recurrent",
    "recurrent_critic",
    "centralized_critic",
    "shared_torso",
    "normalize_observations",
    "normalize_values",
    "scale_rewards",
    "replay_updates",
    "max_episode_steps",
    "squash",
    "prng_impl",
    "actor_layers",
    "critic_layers",
    "actor_network",
    "critic_network",
    "optimizer",
)


@final
class SavedRun:
    """Reads the checkpoints in an agent's directory, of a single run or of a population.

    In their place there may be a policy alone; see `saved_policy`.

    Args:
        config: The agent's; its ``checkpoint_dir`` names the directory.
        metadata: The agent's structure, and its population's; other runs are refused.
        n_members: The number of members of a population; None: a single run.
    """

    def __init__(
        self, config: AgentConfig, metadata: Mapping[str, Any], n_members: int | None = None
    ):
        directory = config.checkpoint_dir
        self._config = config
        self._checkpoints = None if directory is None else Checkpoints(directory)
        self._metadata = metadata
        self._n_members = n_members

    @property
    def checkpoints(self) -> Checkpoints:
        """The checkpoints.

        Raises:
            ValueError: The agent has no directory.
        """
        if self._checkpoints is None:
            raise ValueError("the agent has checkpoint_dir=None; configure the run's directory.")
        return self._checkpoints

    @property
    def structure(self) -> dict[str, Any]:
        """The agent's structure, as checkpoints hold it."""
        return dict(self._metadata)

    def policy(self) -> Path | None:
        """Return the file of a policy, if it is in the place of checkpoints."""
        if self._checkpoints is None or self._checkpoints.steps():
            return None
        path = self._checkpoints.directory / POLICY
        return path if path.is_file() else None

    def refuse_policy(self) -> None:
        """Raise CheckpointError if there is a policy in the place of checkpoints."""
        if (path := self.policy()) is not None:
            raise CheckpointError(
                f"{path.parent} holds a policy without the state of its training, so it cannot be "
                "resumed; begin a new run from it, with `--from` or by agent.init(start=...)."
            )

    def read_to_resume(self, template: Runner) -> tuple[Runner, Leaves]:
        """Read the last checkpoint.

        Raises:
            ValueError: As for `read`; or ``n_evals`` or the rule of selection has changed since the
                run began.
        """
        runner, history = self.read(template, "last", highest_return)
        self._check_n_evals(history)
        self._check_selection()
        return runner, history

    def read(self, template: Runner, mode: str, best_fn: BestFn) -> tuple[Runner, Leaves]:
        """Read a runner from a checkpoint; damaged checkpoints are set aside.

        Args:
            template: Shapes and dtypes of the agent's runner.
            mode: "best" or "last".
            best_fn: Chooses the best of the kept checkpoints.

        Returns:
            The runner, and the metrics of all evaluations so far.

        Raises:
            ValueError: There is no checkpoint, or it belongs to an agent of another structure.
        """
        checkpoints = self.checkpoints
        if (path := self.policy()) is not None:
            return self._read_policy(path, template, mode), {}
        last, history = checkpoints.read_latest(checkpoints.read_history)
        self._refuse_another_structure(checkpoints.read_metadata(last))
        best, step = mode == "best", last
        if best and self._n_members is None:
            step = _best_step(checkpoints.steps(), history, best_fn)
        try:
            leaves = checkpoints.read_runner(step)
        except DamagedError as error:
            checkpoints.set_aside(step, str(error))
            return self.read(template, mode, best_fn)
        if self._n_members is not None:
            leaves = best_members.best(leaves) if best else best_members.current(leaves)
            if not leaves:
                raise _never_evaluated()
        return self._as_runner(template, leaves), history

    def read_best_members(self) -> Leaves:
        """Read the best runners of a population's last checkpoint, to resume it."""
        checkpoints = self.checkpoints
        _, leaves = checkpoints.read_latest(checkpoints.read_runner)
        return best_members.best(leaves)

    def n_members(self) -> int | None:
        """Return the number of members of the population in the directory; None: a single run.

        Raises:
            ValueError: There is no checkpoint.
        """
        checkpoints = self.checkpoints
        if self.policy() is not None:
            return None
        return checkpoints.read_latest(checkpoints.read_metadata)[1].get("n_members")

    def read_step(self, template: Runner, step: int) -> tuple[Runner, Leaves]:
        """Read the checkpoint of an update, to resume from it; see `read_to_resume`.

        Raises:
            DamagedError: The checkpoint is damaged; it has been set aside.
            ValueError: As for `read`.
        """
        checkpoints = self.checkpoints
        try:
            history, saved = checkpoints.read_history(step), checkpoints.read_metadata(step)
            leaves = checkpoints.read_runner(step)
        except DamagedError as error:
            checkpoints.set_aside(step, str(error))
            raise
        self._refuse_another_structure(saved)
        self._check_n_evals(history)
        return self._as_runner(template, leaves), history

    def _read_policy(self, path: Path, template: Runner, mode: str) -> Runner:
        if mode == "best":
            raise CheckpointError(
                f"{path} is the policy at the end of a training, and not its best checkpoint; "
                "restore mode='last'."
            )
        self._refuse_another_structure(read_structure(path))
        return read_policy(path, template)

    def _check_n_evals(self, history: Leaves) -> None:
        n_evals = history["returns"].shape[-2] if "returns" in history else 0
        if history and n_evals != self._config.n_evals:
            raise CheckpointError(
                f"n_evals={self._config.n_evals}, but the run's evaluations so far have "
                f"{n_evals} episodes each; use n_evals={n_evals}."
            )

    def _check_selection(self) -> None:
        checkpoints = self.checkpoints
        saved = checkpoints.read_latest(checkpoints.read_metadata)[1].get(SELECTION)
        mine = json.loads(json.dumps(self._metadata.get(SELECTION)))
        if saved != mine:
            raise CheckpointError(
                f"the run in {self._config.checkpoint_dir} was trained with selection={saved}; "
                f"resume it with the same, not with {mine}."
            )

    def _as_runner(self, template: Runner, leaves: Leaves) -> Runner:
        # The run may have scalar hyperparameters and the template one value per policy.
        hyperparams = subtree(leaves, "hyperparams", template.hyperparams)
        try:
            return from_leaves(leaves, template.replace(hyperparams=hyperparams))
        except ValueError as error:
            raise CheckpointError(
                f"the checkpoint in {self._config.checkpoint_dir} belongs to another agent: "
                f"{error}."
            ) from None

    def _refuse_another_structure(self, saved: Mapping[str, Any]) -> None:
        """Raise if an agent of another structure trained the run."""
        for name, mine in self._metadata.items():
            if name == SELECTION:
                continue
            before = saved.get(name)
            if before != mine:
                reasons = [
                    f"its {field} is {then}, and this agent's is {now}"
                    for field, (then, now) in differences(name, before, mine).items()
                ]
                raise CheckpointError(
                    f"the run in {self._config.checkpoint_dir} belongs to another agent: "
                    f"{'; '.join(reasons)}. Leave it unchanged, or train a new run."
                )


def highest_return(metrics: Leaves) -> int:
    """Return the row with the highest return, averaged over episodes and actors.

    Of equal ones it is the last, as for the checkpoints that are kept. In zero-sum environments
    this average is meaningless.
    """
    if "returns" not in metrics:
        raise _never_evaluated()
    scores = best_members.scores_of(metrics["returns"])
    scores = np.where(np.isfinite(scores), scores, -np.inf)
    return len(scores) - 1 - int(np.argmax(scores[::-1]))


def _never_evaluated() -> ValueError:
    return ValueError(
        "the run was not evaluated (n_evals=0), so none of its checkpoints is the best; restore "
        "mode='last', or pass a best_fn."
    )


def _best_step(steps: Sequence[int], history: Leaves, best_fn: BestFn) -> int:
    """Choose among the kept steps with ``best_fn``."""
    rows = np.flatnonzero(np.isin(history.get("n_updates_done", []), steps))
    if not len(rows):
        raise CheckpointError(
            f"none of the checkpoints, of updates {list(steps)}, was evaluated; restore "
            "mode='last'."
        )
    returned = best_fn({name: values[rows] for name, values in history.items()})
    try:
        row = operator.index(returned)
    except TypeError:
        raise TypeError(
            f"best_fn returned {type(returned).__name__}; return the index of a row, as numpy's "
            "argmax does."
        ) from None
    if not 0 <= row < len(rows):
        raise ValueError(
            f"best_fn returned row {row} of {len(rows)} kept checkpoints; return an index below "
            f"{len(rows)}."
        )
    return int(history["n_updates_done"][rows[row]])


def structure_of(config: AgentConfig) -> dict[str, Any]:
    """Return, as plain data, the choices that a run's checkpoints depend on."""
    values = {name: getattr(config, name) for name in _STRUCTURE}
    return {name: _plain(value) for name, value in values.items()} | {
        "adapts_learning_rate": config.learning_rate_schedule == "kl",
        "freeze": list(config.freeze) or None,  # as in runs from before freezing existed
    }


def _plain(value: Any) -> Any:
    """Describe a choice with types that JSON has, in the same way in every process."""
    if value is None or isinstance(value, bool | int | str):
        return value
    name = getattr(value, "__qualname__", None)
    return name or _ADDRESS.sub("", " ".join(repr(value).split()))


def differences(name: str, before: Any, now: Any) -> dict[str, tuple[Any, Any]]:
    """Return both values of a choice of `structure_of`; for `Layers`, of the fields that differ."""
    if not all(isinstance(each, str) and each.startswith("Layers(") for each in (before, now)):
        return {name: (before, now)}
    old, new = _fields(before), _fields(now)
    pairs = {f"{name}.{field}": (old.get(field), value) for field, value in new.items()}
    differing = {field: pair for field, pair in pairs.items() if pair[0] != pair[1]}
    return differing or {name: (before, now)}


def _fields(layers: str) -> dict[str, str]:
    """Return the fields of `Layers` as its repr, or `_plain`, shows them."""
    parts = _BETWEEN_FIELDS.split(layers.removeprefix("Layers(").removesuffix(")"))
    return {field: value for field, _, value in (part.partition("=") for part in parts)}
