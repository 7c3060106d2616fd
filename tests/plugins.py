"""Registrations that end with a test, and packages with entry points as pip would install them."""

import sys
from pathlib import Path

import pytest

from jaxagents.environments.registry import ENVIRONMENTS
from jaxagents.ippo.agent_classes import AGENTS
from jaxagents.networks.registry import NETWORKS
from jaxagents.training.trackers import TRACKERS


def forget_registrations(patch: pytest.MonkeyPatch) -> None:
    """Let only this package's names be registered until the patch is undone."""
    for registry in (ENVIRONMENTS, AGENTS, NETWORKS, TRACKERS):
        own = {
            name: each
            for name, each in registry._registered.items()
            if each.__module__.startswith("jaxagents.")
        }
        patch.setattr(registry, "_registered", own)
        patch.setattr(registry, "_loaded", {})


def write_package(folder: Path, name: str, code: str, **groups: str) -> None:
    """Write a module and the metadata of its distribution, as pip does.

    Args:
        folder: Of the module, as it stands on `sys.path`.
        name: Of the distribution; the module's has underscores.
        code: The module's.
        groups: Lines of the entry points by the groups' last names.
    """
    (folder / f"{name.replace('-', '_')}.py").write_text(code)
    metadata = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    sections = [f"[jaxagents.{group}]\n{lines}\n" for group, lines in groups.items()]
    (metadata / "entry_points.txt").write_text("\n".join(sections))


def install(patch: pytest.MonkeyPatch, folder: Path, name: str, code: str, **groups: str) -> None:
    """Write a package, and put it on `sys.path` until the patch is undone."""
    write_package(folder, name, code, **groups)
    patch.syspath_prepend(folder)
    patch.delitem(sys.modules, name.replace("-", "_"), raising=False)
