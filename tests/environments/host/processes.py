"""Counts this process's workers."""

import os
from pathlib import Path

ENTRY = "jaxagents.environments.host.worker"


def workers(parent: int | None = None) -> set[int]:
    """Return the numbers of the worker processes of a process that have not ended."""
    parent = os.getpid() if parent is None else parent
    return {
        int(folder.name)
        for folder in Path("/proc").iterdir()
        if folder.name.isdigit() and _is_worker(folder, parent)
    }


def is_running(process_id: int) -> bool:
    return _is_worker(Path(f"/proc/{process_id}"), None)


def _is_worker(folder: Path, parent: int | None) -> bool:
    try:
        status = (folder / "status").read_text()
        command = (folder / "cmdline").read_text()
    except OSError:  # it has just ended
        return False
    is_child = parent is None or f"\nPPid:\t{parent}\n" in status
    return is_child and ENTRY in command and "\nState:\tZ" not in status
