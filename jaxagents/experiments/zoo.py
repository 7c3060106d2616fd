"""Entries of the zoo: made from finished runs, loaded, and evaluated again.

`jaxagents.evaluation.zoo` describes an entry's files and reads them without jax.
"""

import json
import math
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import jaxagents
from jaxagents.errors import OF_FILES, ExperimentError, explained
from jaxagents.evaluation.runs import (
    MEMBERS,
    Run,
    member_directories,
    path_of_config,
    read_run,
    root_of,
)
from jaxagents.evaluation.zoo import (
    CARD,
    PREFIX,
    STATISTICS,
    Prediction,
    directory_of,
    entry_ids,
    id_of,
    is_policy_alone,
    predictions,
    read_card,
    zoo_folder,
)
from jaxagents.experiments.config_files.file import load_config
from jaxagents.experiments.config_files.schema import (
    EvaluationConfig,
    ExperimentConfig,
    TrackingConfig,
    to_plain,
)
from jaxagents.experiments.make_agent import restored_agent
from jaxagents.experiments.summaries import evaluate_runner
from jaxagents.training.atomic_write import write_atomically
from jaxagents.training.saved_policy import POLICY, write_policy

if TYPE_CHECKING:
    from jaxagents.ippo.base import IPPOBase

_FEWEST_EPISODES = 100
_MOST_POINTS = 60  # of a curve
_DIGITS = 5  # of a curve's returns
_LOCAL_OPTIONS = ("--runs_dir", "--quiet")  # of commands, which change nothing in the result


def load_policy(policy: str | PathLike[str]) -> "IPPOBase":
    """Load a trained policy of the zoo, or of a run.

    Args:
        policy: An id of the zoo, such as "gymnax/CartPole-v1", or a run's directory, from which the
            checkpoint that its configuration chooses is loaded.

    Returns:
        The agent, ready for `eval`, `record`, `policy` and `value`.

    Raises:
        ExperimentError: there is no such policy, or its environment cannot be made.
    """
    from jaxagents.experiments.experiment import Experiment

    name = os.fspath(policy)
    is_run = name.startswith(PREFIX) or (Path(name) / "config.yaml").is_file()
    return Experiment.of_run(name if is_run else f"{PREFIX}{name}", progress_bar=False).restore()


def add_to_zoo(
    run: str | PathLike[str],
    entry_id: str | None = None,
    folder: str | PathLike[str] | None = None,
    member: int | None = None,
    replaces: bool = False,
) -> Path:
    """Make an entry of the zoo from the policy at the end of a finished run.

    It is evaluated in as many episodes as the run's evaluation has, but at least 100.

    Args:
        run: Directory of the run.
        entry_id: The entry's id; None: the environment's.
        folder: Folder of the zoo, which is created if there is none; None: the zoo's.
        member: The member of a population; None: the first.
        replaces: Replace an earlier entry of this id.

    Returns:
        The entry's directory.

    Raises:
        ExperimentError: the run has not ended, or cannot be evaluated; the id is taken or is not a
            path; or a file cannot be written.
    """
    directory = _directory_of_policy(directory_of(run), member)
    recorded = read_run(directory)
    if recorded.final_summary is None:
        raise ExperimentError(f"{run} has not ended; finish it by `jaxagents resume {run}`.")
    config = load_config(path_of_config(directory))
    _check_can_move(config, directory)
    entry_id = id_of(config.env) if entry_id is None else entry_id
    target = _target(entry_id, zoo_folder() if folder is None else Path(folder), replaces)
    how = replace(
        config.evaluation,
        mode="last",
        n_evals=max(config.evaluation.n_evals, _FEWEST_EPISODES),
    )
    with explained():
        agent, runner = restored_agent(directory, how.mode)
    evaluation = evaluate_runner(agent, runner, how, config)
    if not _is_finite(evaluation["returns"]):
        raise ExperimentError(f"{run}: the returns of its policy are not finite.")
    card = _card(entry_id, recorded, evaluation)
    with explained(kinds=OF_FILES):
        target.mkdir(parents=True, exist_ok=True)
        (target / CARD).unlink(missing_ok=True)  # until all files are replaced there is no entry
        write_policy(target / POLICY, runner, agent.recorder.saved.structure)
        write_atomically(target / "config.yaml", _config_text(entry_id, config, how))
        write_atomically(target / CARD, json.dumps(card, indent=2, allow_nan=False) + "\n")
    return target


def check_entry(entry_id: str) -> list[Prediction]:
    """Evaluate an entry again, with another random key, and compare the returns with its card.

    Returns:
        One comparison per actor; see `predictions`.

    Raises:
        ExperimentError: there is no such entry, it cannot be read, or its environment cannot be
            made.
    """
    directory = directory_of(f"{PREFIX}{entry_id}")
    card = read_card(directory)
    how = card["evaluation"]
    again = EvaluationConfig("last", how["n_evals"], how["greedy"], how["seed"] + 1)
    with explained():
        agent, runner = restored_agent(directory)
        config = load_config(path_of_config(directory))
        returns = evaluate_runner(agent, runner, again, config)["returns"]
        if not _is_finite(returns):
            returns = {name: [math.inf for _ in returns[name]] for name in ("mean", "std")}
        return predictions(card, returns, again.n_evals)


def _directory_of_policy(run: Path, member: int | None) -> Path:
    """Return the directory of a run, or of a population's member.

    Raises:
        ExperimentError: there is no such member, or the run is an entry of a zoo already.
    """
    if is_policy_alone(run):
        raise ExperimentError(f"{run} is an entry of a zoo already; give the run that it is of.")
    members = member_directories(run)
    if not members:
        if member is not None:
            raise ExperimentError(f"--member {member}: {run} is not a population; leave it out.")
        return run
    index = 0 if member is None else member
    if not 0 <= index < len(members):
        raise ExperimentError(
            f"--member {index}: {run} has {len(members)} members, which are counted from 0."
        )
    return run / MEMBERS / str(index)


def _check_can_move(config: ExperimentConfig, run: Path) -> None:
    """Raise ExperimentError if an environment needs other runs, which the zoo does not hold."""
    for name in config.side.opponents if config.side.actors else ():
        if name != "random" and not name.startswith(PREFIX):
            raise ExperimentError(
                f"{run} plays against the run {name}, which only this machine has; add that one "
                f"to the zoo first, and train against {PREFIX}ID."
            )


def _target(entry_id: str, folder: Path, replaces: bool) -> Path:
    """Return the directory of a new entry.

    Raises:
        ExperimentError: the id is not a path below the folder, or is taken.
    """
    parts = entry_id.split("/")
    if any(each in ("", ".", "..") or each.startswith("~") for each in parts) or set(
        entry_id
    ) & set("\\:"):
        raise ExperimentError(
            f"--id {entry_id!r} is no id; give names with slashes between them, without colons."
        )
    if entry_id in entry_ids(folder) and not replaces:
        raise ExperimentError(
            f"{PREFIX}{entry_id} exists in {folder}; replace it with --replace, or give another "
            "--id."
        )
    return folder / entry_id


def _is_finite(returns: Mapping[str, Sequence[float | None]]) -> bool:
    return all(None not in returns[name] for name in STATISTICS)


def _config_text(entry_id: str, config: ExperimentConfig, how: EvaluationConfig) -> str:
    """Write the configuration without what is specific to the machine that trained."""
    import yaml

    config = replace(
        config,
        evaluation=how,
        tracking=TrackingConfig(),
        runs_dir=ExperimentConfig.runs_dir,
    )
    header = (
        f"# Of {PREFIX}{entry_id}, by jaxagents {jaxagents.__version__}. To repeat: jaxagents "
        f"train zoo/{entry_id}/config.yaml\n"
    )
    return header + yaml.safe_dump(to_plain(config), sort_keys=False)


def _card(entry_id: str, run: Run, evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Describe an entry, as plain data."""
    root = root_of(run.directory)
    population = run if root == run.directory else read_run(root)
    start, training = _first_start(root), (run.final_summary or {})["training"]
    how, statistics = evaluation["evaluation"], evaluation["returns"]
    success = {"success": evaluation["success"]} if "success" in evaluation else {}
    return {
        "id": entry_id,
        "env": evaluation["env"],
        "name": evaluation["name"],
        "command": _command(start),
        "git": start.get("git"),
        "versions": {k: v for k, v in (start.get("versions") or {}).items() if v is not None},
        "device": start.get("device"),
        "seed": run.config.get("seed", 0),
        "seeds": population.config.get("seeds") or 1,
        "n_updates": training["n_updates_done"],
        "n_environment_steps": training["n_environment_steps"],
        "seconds": round(training["seconds"], 1),
        "evaluation": {name: how[name] for name in ("n_evals", "greedy", "seed")},
        "returns": {name: statistics[name] for name in STATISTICS},
        "episode_length": evaluation["means"]["episode_lengths"],
        **success,
        "curve": _curve(run.records),
    }


def _first_start(root: Path) -> dict[str, Any]:
    """Return the first start of a run's training; empty if the file is missing or damaged."""
    try:
        starts = json.loads((root / "environment.json").read_text(encoding="utf-8"))
        return dict(starts[0])
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return {}


def _command(start: Mapping[str, Any]) -> str:
    """Return the command that began a training, without paths of its machine."""
    words = [str(each) for each in start.get("command") or ()]
    names = [Path(each).name for each in words]
    folder = f"{start.get('folder')}{os.sep}"
    if "jaxagents" in names:
        words = ["jaxagents", *words[names.index("jaxagents") + 1 :]]
    elif words:
        words = ["python", *words[1:]]
    kept, skips = [], False
    for word in words:
        if skips:
            skips = False
        elif word.split("=")[0] in _LOCAL_OPTIONS:
            skips = word == "--runs_dir"
        else:
            kept.append(word.removeprefix(folder))
    return shlex.join(kept)


def _curve(records: Sequence[Mapping[str, Any]]) -> dict[str, list[int] | list[float]]:
    """Return environment steps and the mean return, averaged over actors."""
    points = [
        (record["n_environment_steps"], np.mean([float(each) for each in record["return_mean"]]))
        for record in records
        if "return_mean" in record and None not in record["return_mean"]
    ]
    chosen = np.unique(np.linspace(0, len(points) - 1, min(len(points), _MOST_POINTS)).astype(int))
    return {
        "n_environment_steps": [points[i][0] for i in chosen],
        "return": [float(f"{points[i][1]:.{_DIGITS}g}") for i in chosen],
    }
