"""The zoo: trained policies in the repository's folder ``zoo/``, found by id without jax.

An entry is a run's directory reduced to three files, ``zoo/<id>/``:

* ``config.yaml``: the run's configuration;
* ``policy.safetensors``: the policy at the end of training, see `jaxagents.training.saved_policy`;
* ``card.json``: how it was trained, and what it earns. It is written last: an entry exists once its
  card does.

Its id is the environment's, see `id_of`, with a name after a slash where one environment has
several entries. Commands take ``zoo:<id>`` in place of a run's directory.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import jaxagents
from jaxagents.errors import ExperimentError, did_you_mean, pip_install

PREFIX = "zoo:"
VARIABLE = "JAXAGENTS_ZOO"
"""The environment variable that names the folder of another zoo."""
CARD = "card.json"
_POLICY, _CHECKPOINTS = "policy.safetensors", "checkpoints"  # named by modules that import jax
_CONFIDENCE = 0.999  # of all actors of an entry together
_OF_ROUNDING = 1e-5  # relative difference of equal returns on two machines
STATISTICS = ("mean", "std", "ci_low", "ci_high")
"""The statistics of returns on a card, each with a number per actor."""


def zoo_folder() -> Path:
    """Return the folder of the zoo: that of `VARIABLE`, or else the repository's.

    Raises:
        ExperimentError: there is none.
    """
    if named := os.environ.get(VARIABLE):
        folder = Path(named).expanduser()
        if not folder.is_dir():
            raise ExperimentError(f"{VARIABLE}={named}: there is no such folder.")
        return folder.absolute()
    repository = Path(jaxagents.__file__).parents[1]
    if (repository / "setup.cfg").is_file() and (repository / "zoo").is_dir():
        return repository / "zoo"
    raise ExperimentError(
        "there is no zoo: it is a folder of the repository and not of the installed package. "
        f"Clone the repository and use {pip_install()}, or name the zoo's folder by {VARIABLE}."
    )


def entry_ids(folder: Path | None = None) -> list[str]:
    """List the ids of the entries in a folder; None: in the zoo's.

    Raises:
        ExperimentError: there is no zoo.
    """
    folder = zoo_folder() if folder is None else folder
    cards = sorted(folder.rglob(CARD))
    return [path.parent.relative_to(folder).as_posix() for path in cards if path.parent != folder]


def id_of(env: str) -> str:
    """Return the id of the only entry of an environment.

    It is the environment's id, with slashes for colons, which not every file system allows.
    """
    return env.replace(":", "/")


def is_entry_name(run: str | PathLike[str]) -> bool:
    """Return True if a run is named as an entry of the zoo."""
    return os.fspath(run).startswith(PREFIX)


def directory_of(run: str | PathLike[str]) -> Path:
    """Return the directory of a run, which may be named as an entry of the zoo.

    Args:
        run: A directory, or ``zoo:<id>``.

    Raises:
        ExperimentError: there is no zoo, or the id is unknown.
    """
    if not is_entry_name(run):
        return Path(run)
    entry_id, folder = os.fspath(run).removeprefix(PREFIX).strip("/"), zoo_folder()
    known = entry_ids(folder)
    if entry_id not in known:
        below = [each for each in known if each.startswith(f"{entry_id}/")]
        similar = f" It has {', '.join(below)}." if below else did_you_mean(entry_id, known)
        raise ExperimentError(
            f"{PREFIX}{entry_id} is no entry of the zoo.{similar} `jaxagents zoo` lists all "
            f"{len(known)} in {folder}."
        )
    return folder / entry_id


def is_policy_alone(directory: str | PathLike[str]) -> bool:
    """Return True if a run's directory has a policy in place of checkpoints, as an entry has.

    Commands write nothing there.
    """
    path = Path(directory)
    return (path / _POLICY).is_file() and not (path / _CHECKPOINTS).exists()


def folder_of_results(runs: Sequence[str | PathLike[str]]) -> Path:
    """Return the folder in which a command writes its results on some runs by default.

    It is a single run's directory. For several runs, or for an entry of the zoo, it is the current
    folder.

    Raises:
        ExperimentError: as for `directory_of`.
    """
    directories = [directory_of(run) for run in runs]
    is_own = len(directories) == 1 and not is_policy_alone(directories[0])
    return directories[0] if is_own else Path(".")


def read_card(directory: Path) -> dict[str, Any]:
    """Read the card of an entry.

    Raises:
        ExperimentError: it cannot be read, or lacks a value.
    """
    path = directory / CARD
    try:
        card = json.loads(path.read_bytes())
        _check(card)
    except (OSError, RecursionError) as error:
        raise ExperimentError(f"{path} cannot be read: {error}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ExperimentError(f"{path} is no card of an entry: {reason}") from error
    return card


def _check(card: Mapping[str, Any]) -> None:
    """Raise an error unless a card holds the values that readers use."""
    for name in ("id", "env", "command"):
        if not isinstance(card[name], str):
            raise TypeError(f"{name} should be text")
    for value in (card["n_environment_steps"], card["seeds"], card["evaluation"]["n_evals"]):
        if type(value) is not int:
            raise TypeError(f"{value!r} should be an integer")
    if type(card["evaluation"]["greedy"]) is not bool:
        raise TypeError("evaluation.greedy should be true or false")
    lengths = {len([float(each) for each in card["returns"][name]]) for name in STATISTICS}
    if len(lengths) != 1 or lengths == {0}:
        raise ValueError("the statistics of returns should have a number per actor")


def size_of(directory: Path) -> int:
    """Return the bytes of an entry's own files."""
    return sum(each.stat().st_size for each in directory.iterdir() if each.is_file())


class Prediction(NamedTuple):
    """Where the mean return of one actor should lie in another evaluation."""

    low: float
    high: float
    found: float  # the mean return of the other evaluation

    @property
    def holds(self) -> bool:
        """True if it lies in the interval."""
        return self.low <= self.found <= self.high


def predictions(
    card: Mapping[str, Any], returns: Mapping[str, Sequence[float]], n_episodes: int
) -> list[Prediction]:
    """Compare another evaluation with a card, actor by actor.

    Means m and m' of n and n' independent episodes of the same policy differ with variance
    s²/n + s'²/n': with n = n' and equal deviations s, by sqrt(2) standard errors. The interval is
    m ± z sqrt(s²/n + s'²/n'). It holds 99.9 % of the differences, for all actors of an entry
    together: z = 3.29 for one actor, and more for several (Bonferroni). So a check of 40 unchanged
    entries passes with a probability of 96 %. The new deviation counts too, because where failures
    are rare, all of the card's episodes may have succeeded. A hundred-thousandth of the return is
    allowed for rounding.

    Args:
        card: As `read_card` returned it.
        returns: The other evaluation's ``mean`` and ``std`` per actor.
        n_episodes: Its number of episodes.

    Raises:
        ValueError: the number of actors differs.
    """
    own, n_own = card["returns"], card["evaluation"]["n_evals"]
    n_actors = len(own["mean"])
    z = NormalDist().inv_cdf(1 - (1 - _CONFIDENCE) / (2 * n_actors))
    found = []
    for mean, std, new_mean, new_std in zip(
        own["mean"], own["std"], returns["mean"], returns["std"], strict=True
    ):
        error = math.sqrt(std**2 / n_own + new_std**2 / n_episodes)
        margin = z * error + _OF_ROUNDING * abs(mean)
        found.append(Prediction(mean - margin, mean + margin, new_mean))
    return found
