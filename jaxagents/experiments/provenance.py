"""Provenance of a run: versions, device, git revision and command."""

import importlib.metadata
import json
import logging
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax

import jaxagents
from jaxagents.training.atomic_write import write_atomically

_logger = logging.getLogger(__name__)

_PACKAGES = ("jax", "jaxlib", "numpy", "flax", "optax", "orbax-checkpoint", "gymnax", "jaxmarl")
_GIT_TIMEOUT = 5.0  # seconds


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
