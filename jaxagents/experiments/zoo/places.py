"""Where the zoo and its entries are; imports no jax, so that commands start quickly."""

import os
import re
from os import PathLike
from pathlib import Path

import jaxagents
from jaxagents.errors import ExperimentError, did_you_mean

PREFIX = "zoo:"
"""Before an entry's id where a command takes a run."""
CARD = "card.json"
"""An entry's file of facts about the policy."""
POLICY = "policy.safetensors"
"""An entry's file of parameters."""
VARIABLE = "JAXAGENTS_ZOO"
_CONFIG = "config.yaml"
_PART = re.compile(r"\w[\w.:+-]*")  # of an id, between slashes


def zoo_folder() -> Path:
    """Return the folder of the zoo: that of ``JAXAGENTS_ZOO``, else the repository's ``zoo``.

    Raises:
        ExperimentError: there is none.
    """
    folder = zoo_folder_to_fill()
    if not folder.is_dir():
        raise ExperimentError(
            f"there is no zoo: {folder} is no folder; set {VARIABLE} to the folder zoo of a copy "
            "of the repository, or add an entry by: jaxagents zoo add RUN"
        )
    return folder


def zoo_folder_to_fill() -> Path:
    """Return the folder of the zoo, which may not exist yet.

    Raises:
        ExperimentError: ``JAXAGENTS_ZOO`` is not set, and the package is not installed from its
            repository.
    """
    if given := os.environ.get(VARIABLE):
        return Path(given).expanduser().absolute()
    repository = Path(jaxagents.__file__).resolve().parents[1]
    if not (repository / "pyproject.toml").is_file():
        raise ExperimentError(
            "there is no zoo: this package is not installed from its repository, which has it; "
            f"set {VARIABLE} to the folder zoo of a copy of the repository."
        )
    return repository / "zoo"


def entry_ids(folder: Path) -> list[str]:
    """List the ids of the entries in a folder, sorted."""
    found = (path.parent.relative_to(folder) for path in folder.rglob(CARD))
    return sorted(
        each.as_posix() for each in found if not any(part.startswith(".") for part in each.parts)
    )


def entry_directory(entry_id: str) -> Path:
    """Return the directory of an entry of the zoo.

    Args:
        entry_id: Its id, such as "gymnax/CartPole-v1".

    Raises:
        ExperimentError: there is no zoo, or no such entry.
    """
    folder = zoo_folder()
    ids = entry_ids(folder)
    if entry_id not in ids:
        raise ExperimentError(
            f"the zoo in {folder} has no {entry_id!r}.{did_you_mean(entry_id, ids)} "
            "Its entries are listed by: jaxagents zoo"
        )
    return folder / entry_id


def resolved_run(run: str) -> str:
    """Return the directory that a command's RUN means: of an entry if it begins with ``zoo:``.

    Raises:
        ExperimentError: as for `entry_directory`.
    """
    if not run.startswith(PREFIX):
        return run
    return str(entry_directory(run.removeprefix(PREFIX)))


def is_entry(directory: str | PathLike[str]) -> bool:
    """Return True if a run's directory has a policy in place of checkpoints, as entries do."""
    has_policy = all(Path(directory, name).is_file() for name in (_CONFIG, POLICY))
    return has_policy and not Path(directory, "checkpoints").exists()


def folder_for_output(directory: str | PathLike[str]) -> Path:
    """Return the folder of files about a run: its own, or the current one for an entry."""
    return Path() if is_entry(directory) else Path(directory)


def check_id(entry_id: str, folder: Path) -> None:
    """Check that an id can be added to a folder of entries.

    Raises:
        ExperimentError: it is no path of plain names, or lies within an entry or around one.
    """
    if not all(_PART.fullmatch(part) for part in entry_id.split("/")):
        raise ExperimentError(
            f"{entry_id!r} cannot be an id: give names of letters, digits and ._:+- between "
            "slashes."
        )
    for other in entry_ids(folder):
        if other.startswith(f"{entry_id}/") or entry_id.startswith(f"{other}/"):
            raise ExperimentError(
                f"{entry_id!r} cannot be added beside {other!r}: one lies within the other; name "
                "both, as in ENV/NAME."
            )
