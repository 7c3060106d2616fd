"""The files of a run's directory that an experiment maintains, and a description of its machine."""

import contextlib
import importlib.metadata
import itertools
import json
import logging
import os
import platform
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxagents
from jaxagents.errors import ExperimentError, explained
from jaxagents.evaluation.comparison import TASK, differing_keys
from jaxagents.evaluation.run_files import RESUMED_AFTER, read_records
from jaxagents.evaluation.runs import configs_of, read_config
from jaxagents.experiments.config_files.file import load_config, save_config
from jaxagents.experiments.config_files.schema import ExperimentConfig, to_plain
from jaxagents.training.atomic_write import write_atomically
from jaxagents.training.saved_policy import PARTS
from jaxagents.training.trackers import append_line, flat_keys

_logger = logging.getLogger(__name__)
METRICS = "metrics.jsonl"
"""A run's file of evaluations, see `jaxagents.training.trackers.JsonLines`."""
_PACKAGES = ("jax", "jaxlib", "numpy", "flax", "optax", "orbax-checkpoint", "gymnax", "jaxmarl")
_GIT_TIMEOUT = 5.0  # seconds


def new_run_directory(config: ExperimentConfig) -> Path:
    """Return a path for a new run, with a random suffix; create nothing."""
    now, suffix = time.strftime("%Y%m%d-%H%M%S"), secrets.token_hex(3)
    return Path(config.runs_dir).expanduser() / f"{config.name}-{now}-{suffix}"


def numbered_if_taken(path: Path) -> Path:
    """Return a path, with -2, -3, ... appended if it exists."""
    numbered = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(each for each in itertools.chain([path], numbered) if not each.exists())


def check_holds(directory: Path, name: str, kind: str) -> None:
    """Check a directory whose files will be replaced.

    Args:
        directory: The directory, which may be missing or empty.
        name: The file that marks a directory whose files may be replaced.
        kind: What such a directory holds, for the error's message.

    Raises:
        ExperimentError: it holds something else.
    """
    if (directory / name).exists() or not directory.exists():
        return
    with explained(kinds=(OSError,)):
        others = [each for each in directory.iterdir() if not each.name.startswith(".")]
    if others:
        raise ExperimentError(
            f"{directory} holds other files and no {kind}; name a new directory by --to."
        )


def check_same_beginning(
    config: ExperimentConfig, directory: Path, varied: Sequence[str] = ()
) -> None:
    """Check that a run began with a configuration's environment, seed and starting point.

    Args:
        config: The configuration.
        directory: Directory of the run.
        varied: Dotted names of hyperparameters that the run varies.

    Raises:
        ExperimentError: it did not.
    """
    original = read_config(directory)
    for name in ("env", "seed", "seeds"):
        now, before = getattr(config, name), original.get(name)
        if before not in (now, None):
            raise ExperimentError(
                f"{name}={now!r}, but the run began with {before!r} and has learnt from that; "
                f"leave {name} out, or train another run."
            )
    plain = to_plain(config)
    for name, default in (("init_from", None), ("init_parts", list(PARTS))):
        now, before = plain[name], original.get(name, default)
        if now != before:
            raise ExperimentError(
                f"{name}={now!r}, but the run began with {before!r}; leave {name} out, or train "
                "another run."
            )
    own, first = dict(flat_keys(plain)), dict(flat_keys(original))
    for name in (f"hyperparams.{each}" for each in varied):
        if own[name] != first.get(name, own[name]):
            raise ExperimentError(
                f"{name}={own[name]!r}, but population-based training varies it from "
                f"{first[name]!r} on, and each member has its own; leave {name} out, or train "
                "another run."
            )


def keep_config(config: ExperimentConfig, directory: Path, n_updates_done: int) -> None:
    """Write ``config_from_N.yaml`` if a run is resumed after N updates with another configuration.

    ``config.yaml`` stays as it was. Configurations of later updates, which are repeated, are
    renamed.
    """
    new = directory / f"config_from_{n_updates_done}.yaml"
    in_force = config_in_force(directory, n_updates_done)
    for since, path in configs_of(directory):
        if since > n_updates_done:
            path.rename(numbered_if_taken(path.with_name(f"{path.name}.unused")))
    with contextlib.suppress(ExperimentError):  # written by another version of the package
        if to_plain(load_config(in_force)) == to_plain(config):
            return
    if new.exists():
        new.rename(numbered_if_taken(new.with_name(f"{new.name}.unused")))
    save_config(config, new, n_updates_done)


def config_in_force(directory: Path, n_updates_done: int) -> Path:
    """Return the path of the configuration with which a run did the update of this number."""
    return [path for since, path in configs_of(directory) if since <= n_updates_done][-1]


def warn_of_changes(config: ExperimentConfig, directory: Path, n_updates_done: int) -> None:
    """Log what a changed configuration affects unexpectedly when a run is resumed.

    That is which hyperparameters jump, and whether the best checkpoint is chosen over two tasks.
    """
    with contextlib.suppress(ExperimentError):  # written by another version of the package
        before = load_config(config_in_force(directory, n_updates_done))
        schedules = stretched_schedules(before, config, n_updates_done)
        for text in filter(None, [schedules, changed_task(before, config, n_updates_done)]):
            _logger.warning("%s", text)


def changed_task(before: ExperimentConfig, after: ExperimentConfig, n_updates_done: int) -> str:
    """Say in a line that the best checkpoint is chosen over two tasks; empty if it is not.

    Args:
        before: Configuration of the run that is resumed.
        after: Configuration to resume it with.
        n_updates_done: Updates done before.
    """
    changed = differing_keys(to_plain(before), to_plain(after), TASK)
    if not changed or after.evaluation.mode != "best":
        return ""
    return (
        f"{', '.join(changed)} changed after update {n_updates_done:,}, and evaluation.mode=best "
        "chooses among checkpoints of both tasks; use --evaluation.mode last, or begin another "
        "run by: jaxagents train FILE --from RUN"
    )


def stretched_schedules(
    before: ExperimentConfig, after: ExperimentConfig, n_updates_done: int
) -> str:
    """Say in a line which hyperparameters jump because another ``n_steps`` stretches schedules.

    Args:
        before: Configuration of the run that is resumed.
        after: Configuration to resume it with.
        n_updates_done: Updates done before.

    Returns:
        The line; empty if none jumps.
    """
    import jax.numpy as jnp

    from jaxagents.hyperparameters import as_arrays, flat_items
    from jaxagents.ppo.schedules import scheduled

    hyperparams = as_arrays(after.hyperparams)
    # One that adapts does not jump.
    rate = jnp.asarray(hyperparams.actor_optimizer_params.learning_rate)
    n_before, n_after = before.agent.n_steps, after.agent.n_steps
    old, new = (
        flat_items(scheduled(hyperparams, agent, jnp.asarray(n_updates_done / agent.n_steps), rate))
        for agent in (before.agent, after.agent)
    )
    jumps = [
        f"{name} is {_rounded(new[name])}, not {_rounded(old[name])}"
        for name in new
        if n_before != n_after and _rounded(old[name]) != _rounded(new[name])
    ]
    if not jumps:
        return ""
    return (
        f"agent.n_steps={n_after:,} instead of {n_before:,} stretches the schedules: after update "
        f"{n_updates_done:,} {', '.join(jumps)}"
    )


def _rounded(values: Any) -> str:
    return " and ".join(dict.fromkeys(f"{value:.3g}" for value in np.ravel(values)))


def abandon_later_evaluations(directory: Path, n_updates_done: int) -> None:
    """Note in a run's metrics that it is resumed after N updates if they have later ones.

    A killed run may have evaluations after its last checkpoint, of a training that is not
    continued. They stay in the file, but no longer count. A failure is logged as a warning.
    """
    path = directory / METRICS
    try:
        records = read_records(path) if path.is_file() else []
        if records and records[-1]["n_updates_done"] > n_updates_done:
            append_line(path, {RESUMED_AFTER: n_updates_done})
    except (ExperimentError, OSError) as error:
        _logger.warning("evaluations after update %d may count: %s", n_updates_done, error)


def describe_start() -> dict[str, Any]:
    """Describe this process, its machine and its versions, as plain data."""
    devices = jax.devices()
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": [*sys.orig_argv],
        "folder": os.getcwd(),
        "git": _revision(),
        "versions": {
            "python": platform.python_version(),
            "jaxagents": jaxagents.__version__,
            **{name: _version(name) for name in _PACKAGES},
        },
        "platform": platform.platform(),
        "device": {
            "backend": jax.default_backend(),
            "kind": devices[0].device_kind,
            "count": len(devices),
        },
    }


def append_start(path: Path, start: dict[str, Any]) -> None:
    """Append a start to the JSON list in a file; log a warning if that fails."""
    try:
        starts = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
        if not isinstance(starts, list):
            raise TypeError("it should be a list of starts")
        write_atomically(path, json.dumps([*starts, start], indent=2) + "\n")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        _logger.warning("%s could not be continued: %s", path, error)


def _revision() -> dict[str, Any] | None:
    """Return the commit of the working folder, and whether tracked files differ from it."""
    revision = _git("rev-parse", "HEAD")
    changes = _git("status", "--porcelain", "--untracked-files=no")
    if revision is None or changes is None:
        return None
    return {"revision": revision, "dirty": bool(changes)}


def _git(*arguments: str) -> str | None:
    """Run git; return its output, or None without git, without a repository or on failure."""
    try:
        answer = subprocess.run(
            ["git", "--no-optional-locks", *arguments],
            capture_output=True,
            text=True,
            errors="replace",  # file names may have any encoding
            timeout=_GIT_TIMEOUT,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
