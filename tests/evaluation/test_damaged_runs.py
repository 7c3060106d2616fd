"""Hand-edited and damaged files of runs: every command tells file and line, and fails in a line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from jaxagents.cli import main as cli
from jaxagents.errors import ExperimentError
from jaxagents.evaluation.runs import check_can_be_reported, read_run
from tests.fabricated import returns, write_run

METRICS = {
    **returns([1.0, 2.0], [3.0, 4.0]),
    "kl": [[0.1], [0.2]],
    "actor_loss": [[0.1], [0.2]],
    "critic_loss": [[0.1], [0.2]],
    "episode_length_mean": [5.0, 6.0],
}
STATISTICS = ("mean", "ci_low", "ci_high", "iqm", "std", "min", "median", "max")
SUMMARY = {
    "name": "run",
    "env": "hunting/discrete",
    "returns": {name: [1.0, 2.0] for name in STATISTICS},
    "means": {"episode_lengths": 5.0},
    "evaluation": {"mode": "last", "n_evals": 3, "greedy": True, "seed": 1},
    "checkpoint": {"n_updates_done": 1, "n_environment_steps": 100},
    "diagnosis": ["nothing"],
    "training": {
        "n_updates_done": 1,
        "n_environment_steps": 100,
        "seconds": 1.0,
        "environment_steps_per_second": 100.0,
    },
    "versions": {"jax": "0"},
}
NAMES = ("config.yaml", "metrics.jsonl", "summary.json")
WRONG: tuple[Any, ...] = (None, "text", [], {}, [[1, 2], [3]], {"a": [1]}, -1, True, 10**400)


def complete_run(directory: Path) -> Path:
    run = write_run(directory, metrics=METRICS, agent={"n_steps": 1}, hyperparams={"gamma": 0.9})
    (run / "summary.json").write_text(json.dumps(SUMMARY, indent=1))
    return run


def paths_in(values: Any, prefix: tuple = ()) -> list[tuple]:
    keys = values if isinstance(values, dict) else range(len(values) if type(values) is list else 0)
    return [prefix] + [path for key in keys for path in paths_in(values[key], (*prefix, key))]


def replaced(values: Any, path: tuple, new: Any) -> Any:
    if not path:
        return new
    copy = dict(values) if isinstance(values, dict) else list(values)
    copy[path[0]] = replaced(values[path[0]], path[1:], new)
    return copy


def read(path: Path) -> Any:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    return (yaml.safe_load if path.suffix == ".yaml" else json.loads)(path.read_text())


def write(path: Path, values: Any) -> None:
    if path.suffix == ".jsonl":
        lines = values if type(values) is list else [values]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    else:
        dump: Callable = yaml.safe_dump if path.suffix == ".yaml" else json.dumps
        path.write_text(dump(values))


def refused(run: Path) -> str:
    """Read a run as reports do; return the message if that is refused."""
    try:
        check_can_be_reported(read_run(run))
    except ExperimentError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", NAMES)
def test_wrong_types_at_every_level_are_refused_by_file_and_line_or_do_no_harm(name, tmp_path):
    """Each value of each file is replaced by one of each type; what is read is then used."""
    run = complete_run(tmp_path / "run")
    path, values = run / name, read(run / name)
    assert not refused(run)
    n_refused = 0
    for keys in paths_in(values):
        for wrong in WRONG:
            write(path, replaced(values, keys, wrong))
            message = refused(run)
            n_refused += bool(message)
            assert "\n" not in message
            assert not message or message.startswith(str(path)), (keys, wrong, message)
    assert n_refused > 50


@pytest.mark.parametrize("content", [b"", b"\0\xff\xfe\n\x80rubbish\n", b"[1, 2]\n", 9999 * b"["])
@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_something_else_is_refused_by_name_unless_it_is_an_empty_one_of_metrics(
    name, content, tmp_path
):
    run = complete_run(tmp_path / "run")
    (run / name).write_bytes(content)
    message = refused(run)
    if name == "metrics.jsonl" and not content:  # as a killed process leaves it
        assert not message
    else:
        assert message.startswith(str(run / name))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_damages_that_are_not_refused_end_no_command_in_a_traceback(name, tmp_path, capsys):
    run, other = complete_run(tmp_path / "run"), complete_run(tmp_path / "other")
    path, values = run / name, read(run / name)
    for keys in paths_in(values):
        for wrong in WRONG:
            write(path, replaced(values, keys, wrong))
            if not refused(run):
                for command in (["plot"], ["report", "--no-replay"], ["compare", str(other)]):
                    status = cli.main([*command, str(run)])
                    assert status == 0 or len(capsys.readouterr().err.splitlines()) == 1


DAMAGES = [
    ("metrics.jsonl", b'{"n_updates_done": null}\n', "metrics.jsonl:1: n_updates_done should be"),
    ("metrics.jsonl", b"3\n", "metrics.jsonl:1: this is no evaluation"),
    ("summary.json", b"{}", "summary.json: returns.mean is missing; write the summary again by"),
    (
        "summary.json",
        b'{"returns": {"mean": [1.0]},\n "teams": [0, 1]}',
        "summary.json:2: teams should be a list of 1 integers",
    ),
    ("summary.json", b'{\n "returns": 3}', "summary.json:2: returns should be statistics by name"),
    ("config.yaml", b"env: a\nagent: {}\nname: [a, b]\n", "config.yaml:3: name should be text"),
    ("config.yaml", b"name: a\nenv: b\nagent: hello\n", "config.yaml:3: agent should "),
    (
        "config.yaml",
        b"name: a\nenv: b\nagent: {}\nseed: 2020-01-01\n",
        "config.yaml:4: seed should",
    ),
]
READERS = {
    "plot": ["plot"],
    "compare": ["compare"],
    "report": ["report", "--no-replay"],
    "eval": ["eval"],
    "resume": ["resume", "--quiet"],
    "replay": ["replay"],
}


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize(("name", "content", "message"), DAMAGES)
def test_every_command_refuses_a_damaged_run_in_one_line(
    command, name, content, message, tmp_path, capsys
):
    runs = [complete_run(tmp_path / "run")]
    if command == "compare":
        runs.append(write_run(tmp_path / "other", name="other", final_returns=[1.0, 2.0]))
    (runs[0] / name).write_bytes(content)
    verb, *options = READERS[command]
    assert cli.main([verb, *map(str, runs), *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    if command in ("plot", "compare", "report"):
        assert f"{runs[0]}/{message}" in line
    elif name == "config.yaml":
        assert f"{runs[0]}/config.yaml:" in line
    else:  # these files are not needed
        assert "holds no checkpoint" in line


def test_lines_cut_short_by_a_crash_are_left_out(tmp_path):
    run = complete_run(tmp_path / "run")
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"n_updates_done": 2, "n_env\n\0\0\0\n')
    assert [record["n_updates_done"] for record in read_run(run).records] == [0, 1]


def test_missing_metrics_are_named(tmp_path, capsys):
    run = complete_run(tmp_path / "run")
    (run / "metrics.jsonl").unlink()
    assert cli.main(["plot", str(run)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(
        f"{run}/metrics.jsonl is missing: the run's evaluations are lost to plots."
    )
