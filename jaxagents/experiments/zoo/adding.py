"""Make an entry of the zoo from a finished run."""

import contextlib
import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

import jaxagents
from jaxagents.errors import OF_FILES, ExperimentError, explained
from jaxagents.evaluation.runs import Run, read_run
from jaxagents.experiments.config_files.schema import ExperimentConfig, to_plain
from jaxagents.experiments.experiment import Experiment
from jaxagents.experiments.make_agent import checkpoints_of, restored_runner
from jaxagents.experiments.zoo.places import (
    CARD,
    POLICY,
    check_id,
    is_entry,
    zoo_folder_to_fill,
)
from jaxagents.experiments.zoo.policy_files import policy_as_bytes

FEWEST_EPISODES = 100  # of an entry's evaluation
_MOST_POINTS = 40  # of an entry's curve
_DIGITS = 6  # of the numbers on a card


def add_entry(
    run: str | PathLike[str],
    entry_id: str | None = None,
    folder: str | PathLike[str] | None = None,
    replace_entry: bool = False,
) -> Path:
    """Evaluate the final policy of a finished run, and write an entry of the zoo.

    Args:
        run: The run's directory; of a population that of a member.
        entry_id: The id; None: the environment's.
        folder: Folder of entries; None: the zoo's.
        replace_entry: Replace an entry of the same id.

    Returns:
        The entry's directory.

    Raises:
        ExperimentError: the run is unfinished, a population, or plays with policies of other runs;
            the id is taken or cannot be one; or a file cannot be written.
    """
    target_folder = zoo_folder_to_fill() if folder is None else Path(folder).absolute()
    experiment, found = Experiment.of_run(run, progress_bar=False), read_run(run)
    _check_can_be_added(experiment.config, found)
    entry_id = entry_id or experiment.config.env
    check_id(entry_id, target_folder)
    target = target_folder / entry_id
    if target.exists() and not (replace_entry and is_entry(target)):
        remedy = "give --replace, or another --id" if is_entry(target) else "give another --id"
        raise ExperimentError(f"{target} exists already; {remedy}.")
    evaluation = experiment.config.evaluation
    n_evals = max(evaluation.n_evals, FEWEST_EPISODES)
    how = replace(evaluation, mode="last", n_evals=n_evals)
    summary = experiment.evaluate(how)
    with explained():
        _, member = checkpoints_of(run, experiment.config)
        runner = restored_runner(experiment.agent, run, "last", member)
    card = {"id": entry_id, **_card(found, summary)}
    files = {
        "config.yaml": _config_text(replace(experiment.config, evaluation=how)).encode(),
        POLICY: policy_as_bytes(runner),
        CARD: (json.dumps(card, indent=1, allow_nan=False) + "\n").encode(),
    }
    with explained(kinds=OF_FILES):
        _write_directory(target, files)
    return target


def _check_can_be_added(config: ExperimentConfig, run: Run) -> None:
    if is_entry(run.directory):
        raise ExperimentError(f"{run.directory} is an entry of the zoo already.")
    if config.seeds > 1:
        raise ExperimentError(
            f"{run.directory} is a population; add one member, such as {run.directory}/members/0."
        )
    if run.final_summary is None:
        raise ExperimentError(
            f"{run.directory} is unfinished; finish it by: jaxagents resume {run.directory}"
        )
    if others := [each for each in config.side.opponents if each != "random"]:
        raise ExperimentError(
            f"{run.directory} plays against {', '.join(others)}, which the zoo would lack."
        )


def _card(run: Run, evaluation: Mapping[str, Any]) -> dict[str, Any]:
    training = (run.summary or {}).get("training", {})
    starts = _read_starts(run.directory / "environment.json")
    returns = evaluation["returns"]
    card = {
        "format_version": 1,
        "environment": evaluation["env"],
        "command": " && ".join(_command_text(each.get("command", ())) for each in starts) or None,
        "git": starts[-1].get("git") if starts else None,
        "versions": starts[-1].get("versions") if starts else {"jaxagents": jaxagents.__version__},
        "seed": run.config.get("seed", 0),
        "n_environment_steps": evaluation["checkpoint"]["n_environment_steps"],
        "training_seconds": training.get("seconds"),
        "evaluation": {
            name: evaluation["evaluation"][name] for name in ("greedy", "n_evals", "seed")
        },
        "returns": {
            name: _rounded_numbers(returns[name]) for name in ("mean", "ci_low", "ci_high", "std")
        },
    }
    if "success" in evaluation:
        card["success"] = evaluation["success"]
    return card | {"curve": _curve(run.records)}


def _curve(records: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the mean return of all actors over environment steps, at most 40 points of it."""
    evaluated = [each for each in records if None not in each.get("return_mean", [None])]
    places = np.linspace(0, len(evaluated) - 1, min(len(evaluated), _MOST_POINTS))
    points = [evaluated[round(place)] for place in places]
    means = [float(np.mean(each["return_mean"])) for each in points]
    return {
        "n_environment_steps": [each["n_environment_steps"] for each in points],
        "return_mean": _rounded_numbers(means),
    }


def _rounded_numbers(values: Sequence[float | None]) -> list[float | None]:
    return [None if each is None else float(f"{each:.{_DIGITS}g}") for each in values]


def _read_starts(path: Path) -> list[dict[str, Any]]:
    """Read how the run was started and resumed; nothing if that is unknown."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        starts = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(starts, list):
            return [each for each in starts if isinstance(each, dict)]
    return []


def _command_text(words: Sequence[str]) -> str:
    """Return a command as a user types it: without the paths of Python and of the script."""
    places = [i for i, word in enumerate(words) if Path(word).name == "jaxagents"]
    return shlex.join(["jaxagents", *words[places[0] + 1 :]] if places else words)


def _config_text(config: ExperimentConfig) -> str:
    """Return the configuration as YAML, without the paths of the machine that trained it."""
    import yaml

    plain = to_plain(replace(config, runs_dir=ExperimentConfig.runs_dir))
    header = f"# Of an entry of the zoo, written by jaxagents {jaxagents.__version__}.\n"
    return header + yaml.safe_dump(plain, sort_keys=False)


def _write_directory(target: Path, files: Mapping[str, bytes]) -> None:
    """Write a directory, or replace one, so that readers find all of it or nothing of it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=target.parent) as scratch:
        new = Path(scratch, "new")
        new.mkdir()
        for name, content in files.items():
            (new / name).write_bytes(content)
        if target.exists():
            target.rename(Path(scratch, "old"))
        try:
            os.rename(new, target)
        except OSError:
            with contextlib.suppress(OSError):
                shutil.move(Path(scratch, "old"), target)
            raise
