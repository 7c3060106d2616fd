"""Studies: methods on environments, from one file."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxagents.cli import main as cli
from jaxagents.errors import ExperimentError
from jaxagents.experiments.config_files.file import config_of, save_config
from jaxagents.experiments.config_files.source import read_source
from jaxagents.experiments.config_files.study_file import study_sources
from jaxagents.experiments.experiment import Experiment
from jaxagents.experiments.method_study import MethodStudy
from jaxagents.ppo.finiteness import NonFiniteError
from jaxagents.training.checkpoints import Checkpoints
from tests.experiments.test_experiment import TINY_AGENT
from tests.reported import write_run

BASE = f"""
    agent:
      n_steps: {TINY_AGENT.n_steps}
      batch_size: {TINY_AGENT.batch_size}
      minibatch_size: {TINY_AGENT.minibatch_size}
      rollout_length: {TINY_AGENT.rollout_length}
      actor_epochs: {TINY_AGENT.actor_epochs}
      critic_epochs: {TINY_AGENT.critic_epochs}
      eval_frequency: {TINY_AGENT.eval_frequency}
      n_evals: {TINY_AGENT.n_evals}
      actor_layers: {{hidden_sizes: [8]}}
      critic_layers: {{hidden_sizes: [8]}}
    evaluation: {{n_evals: 3}}"""
STUDY = f"""study:
  base: {BASE}
  methods:
    plain:
    greedy: {{hyperparams: {{ent_coeff: 0.0}}}}
  environments:
    - hunting/discrete
    - {{env: gymnax/CartPole-v1, agent: {{batch_size: 2, n_steps: 2}}}}
  seeds: 3
"""


def write_study(folder: Path, text: str = STUDY) -> Path:
    path = folder / "study.yaml"
    path.write_text(text)
    return path


def test_groups_of_keys_are_merged_and_the_method_comes_last(tmp_path):
    (tmp_path / "base.yaml").write_text(
        "name: base\nenv: any\nenv_kwargs: {a: 1}\nagent: {n_steps: 9, batch_size: 8, n_evals: 2}\n"
    )
    text = """study:
  base: base.yaml
  methods:
    one: {agent: {n_steps: 7}, env_kwargs: {b: 2}}
    two:
  environments: [x, {env: y, seed: 5, agent: {n_steps: 6, batch_size: 16}}]
  seeds: 4
"""
    with pytest.raises(ExperimentError, match=r"study.yaml:6: an environment cannot change seed"):
        study_sources(read_source(write_study(tmp_path, text)))
    path = write_study(tmp_path, text.replace(" seed: 5,", ""))
    configs = [config_of(each) for each in study_sources(read_source(path, ["--seed=3"]))]
    found = [
        (c.name, c.env, c.env_kwargs, c.agent.n_steps, c.agent.batch_size, c.agent.n_evals)
        for c in configs
    ]
    assert found == [
        ("one", "x", {"b": 2}, 7, 8, 2),
        ("one", "y", {"b": 2}, 7, 16, 2),
        ("two", "x", {"a": 1}, 9, 8, 2),
        ("two", "y", {"a": 1}, 6, 16, 2),
    ]
    assert {(c.seed, c.seeds) for c in configs} == {(3, 4)}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ent_coeff", "ent_coef", r":\d+: unknown key hyperparams.ent_coef; did you mean .*coeff"),
        ("greedy:", "plain:", r":\d+: study.methods.plain is given a second time"),
        ("seeds: 3", "seeds: few", r":\d+: seeds should be an integer, but is few"),
        ("seeds: 3", "seed: 3", r":\d+: unknown key study.seed. Did you mean seeds\?"),
        ("  seeds: 3\n", "", r"study.seeds is missing"),
        ("study:", "name: a\nstudy:", r":1: name stands beside study"),
        ("study:", "studies:", r"has no key study"),
        ("env: gymnax/CartPole-v1", "env: hunting/discrete", "is given a second time, after line"),
        ("env: gymnax/CartPole-v1,", "", ":\\d+: this environment has no env"),
        ("env: gymnax/CartPole-v1", "env: gymnax/CartPol", r":\d+: env: unknown environment"),
        ("hyperparams: {ent_coeff: 0.0}", "name: a", "greedy cannot change name"),
        ("plain:", "plain: 3", "the method plain should be keys"),
        ("ent_coeff: 0.0", "ent_coeff: -1", r":\d+: .*ent_coeff=-1"),
    ],
)
def test_a_wrong_study_is_refused_in_one_line(tmp_path, capsys, old, new, message):
    path = write_study(tmp_path, STUDY.replace(old, new, 1))
    assert cli.main(["study", str(path), "--to", str(tmp_path / "new")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(message, error)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["methods", "environments"])
def test_a_study_of_nothing_is_refused(tmp_path, name):
    text = re.sub(rf"  {name}:\n(    .*\n)+", f"  {name}: []\n", STUDY)
    with pytest.raises(ExperimentError, match=f"study.{name} should be .*, at least one"):
        MethodStudy(write_study(tmp_path, text))


@pytest.mark.parametrize("n_environments", [1, 2])
def test_a_study_of_one_method_is_refused(tmp_path, n_environments):
    text = STUDY.replace("    greedy: {hyperparams: {ent_coeff: 0.0}}\n", "")
    if n_environments == 1:
        text = re.sub(r"    - \{env: .*\n", "", text)
    with pytest.raises(ExperimentError, match=r"study\.yaml: one method leaves nothing to compare"):
        MethodStudy(write_study(tmp_path, text), tmp_path / "new")


@pytest.mark.parametrize("override", ["--name=other", "--env=hunting/discrete"])
def test_the_command_line_renames_no_method_or_environment(tmp_path, override):
    with pytest.raises(ExperimentError, match="leave --name and --env out"):
        MethodStudy(write_study(tmp_path), tmp_path / "new", [override])


def test_a_directory_of_another_study_is_refused_with_what_differs(tmp_path):
    path, directory = write_study(tmp_path), tmp_path / "new"
    study = MethodStudy(path, directory)
    assert [run.directory.name for run in study.runs] == [
        "plain@hunting-discrete",
        "plain@gymnax-CartPole-v1",
        "greedy@hunting-discrete",
        "greedy@gymnax-CartPole-v1",
    ]
    with study.holding(), pytest.raises(ExperimentError, match="another training writes"):
        study.holding().__enter__()
    write_study(tmp_path, STUDY.replace("ent_coeff: 0.0", "ent_coeff: 0.1"))
    changed = "greedy@hunting-discrete: hyperparams.ent_coeff is 0.1, and was 0.0"
    with pytest.raises(ExperimentError, match=changed):
        MethodStudy(path, directory)
    write_study(tmp_path, STUDY.replace("greedy:", "other:"))
    with pytest.raises(ExperimentError, match="greedy@hunting-discrete is gone"):
        MethodStudy(path, directory)
    with pytest.raises(ExperimentError, match="other files and no study"):
        MethodStudy(path, tmp_path)


def test_environments_outside_of_jax_have_a_run_for_each_seed(tmp_path):
    text = STUDY.replace("gymnax/CartPole-v1", "gymnasium/CartPole-v1")
    runs = MethodStudy(write_study(tmp_path, text), tmp_path / "new").runs
    assert [(run.config.seeds, run.config.seed, run.directory.name) for run in runs[:4]] == [
        (3, 0, "plain@hunting-discrete"),
        *((1, seed, f"plain@gymnasium-CartPole-v1-seed-{seed}") for seed in range(3)),
    ]


def test_finished_runs_are_left_alone_and_compared(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("jaxagents.experiments.report.page.episodes", lambda groups: [])
    path, directory = write_study(tmp_path), tmp_path / "new"
    study = MethodStudy(path, directory)
    with study.holding():
        pass  # study.json is written
    for i, run in enumerate(study.runs):
        write_run(run.directory, name=run.config.name, env=run.config.env, mean=(-9.0 - i,))
    assert all(run.is_finished for run in study.runs)
    assert cli.main(["study", str(path), "--to", str(directory)]) == 0
    written = ["comparison.txt", "comparison.csv", "comparison.tex", "report.html"]
    written += ["returns-gymnax-CartPole-v1.pdf", "returns-hunting-discrete.pdf"]
    output = capsys.readouterr().out
    assert all(str(directory / name) in output for name in written)
    assert "plain on hunting/discrete" in (directory / "report.html").read_text()
    for table in re.findall(
        r"\\begin\{tabular\}\{(l*r*)\}(.*?)\\end", (directory / "comparison.tex").read_text(), re.S
    ):
        rows = re.findall(r"^(.*) \\\\$", table[1], re.MULTILINE)
        assert {row.replace(r"\&", "").count("&") + 1 for row in rows} == {len(table[0])}


def test_a_run_that_fails_stops_no_other(tmp_path, monkeypatch, capsys):
    trained = []

    def fail(experiment):
        trained.append(experiment.config.name)
        raise NonFiniteError("the loss is NaN.")

    monkeypatch.setattr(Experiment, "train", fail)
    path = write_study(tmp_path, re.sub(r"    - \{env: .*\n", "", STUDY))
    assert cli.main(["study", str(path), "--to", str(tmp_path / "new")]) == 1
    assert trained == ["plain", "greedy"]
    assert "error: 2 of 2 runs failed" in capsys.readouterr().err


@pytest.fixture
def interrupted(tmp_path):
    """A study on one environment, with a file of its first run's first checkpoint."""
    path = write_study(tmp_path, re.sub(r"    - \{env: .*\n", "", STUDY))
    study = MethodStudy(path, tmp_path / "new")
    with study.holding():
        pass  # study.json is written
    run = study.runs[0]
    (run.directory / "checkpoints" / "0").mkdir(parents=True)
    (run.directory / "checkpoints" / "0" / "state.npz").write_text("damaged")
    save_config(run.config, run.directory / "config.yaml")
    return path, run


def test_a_run_with_damaged_checkpoints_fails_alone_and_then_starts_anew(
    interrupted, monkeypatch, capsys, caplog
):
    path, run = interrupted
    trained = []

    def fail(experiment):
        trained.append(experiment.config.name)
        raise NonFiniteError("the loss is NaN.")

    monkeypatch.setattr(Experiment, "train", fail)
    command = ["study", str(path), "--to", str(run.directory.parent)]
    assert cli.main(command) == 1
    assert trained == ["greedy"]
    error = capsys.readouterr().err
    assert f"error: {run.directory.absolute()}/checkpoints holds no checkpoint" in error
    assert "error: 2 of 2 runs failed" in error
    caplog.clear()
    assert cli.main(command) == 1
    assert trained == ["greedy", "plain", "greedy"]
    kept = run.directory.with_name(f"{run.directory.name}.unused")
    assert (kept / "checkpoints" / "0.damaged" / "state.npz").read_text() == "damaged"
    (warning,) = caplog.messages
    assert warning.startswith(f"{run.directory} has no checkpoint, so its run starts from the")
    assert warning.endswith(f"is kept as {kept}")


@pytest.mark.parametrize(
    ("name", "text", "is_kept"),
    [
        ("metrics.jsonl", "", False),
        ("metrics.jsonl", '{"n_updates_done": 0, "n_environment_steps": 0, "seconds": 1}\n', False),
        ("metrics.jsonl", '{"n_updates_done": 1, "n_environment_steps": 8, "seconds": 1}\n', True),
        ("metrics.jsonl", "edited\n", True),
        ("checkpoints/.unfinished-0/state.npz", "", False),
        ("checkpoints/0.damaged/state.npz", "", True),
        ("tensorboard/events", "", True),  # without metrics
        ("notes.txt", "", True),
    ],
)
def test_what_a_run_writes_before_its_first_checkpoint_is_not_kept(
    interrupted, caplog, name, text, is_kept
):
    _, run = interrupted
    shutil.rmtree(run.directory / "checkpoints" / "0")
    (run.directory / name).parent.mkdir(parents=True, exist_ok=True)
    (run.directory / name).write_text(text)
    run.begin()
    assert not run.directory.exists()
    kept = run.directory.with_name(f"{run.directory.name}.unused")
    assert (kept / name).is_file() == kept.exists() == bool(caplog.messages) == is_kept


@pytest.mark.slow
def test_a_study_killed_in_its_second_run_continues(tmp_path):
    path = write_study(tmp_path, re.sub(r"    - \{env: .*\n", "", STUDY))
    directory = tmp_path / "runs" / "study"
    command = [sys.executable, "-m", "jaxagents", "study", path.name, "--no-replay"]
    command += ["--agent.n_steps=40"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        second = Checkpoints(directory / "greedy@hunting-discrete" / "checkpoints")
        while not second.steps():
            assert process.poll() is None
            time.sleep(0.02)
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL
    first = directory / "plain@hunting-discrete" / "summary.json"
    before, n_done = first.read_bytes(), max(second.steps())
    assert n_done < 40

    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)

    assert first.read_bytes() == before
    assert "1 of 2: plain: hunting/discrete" in found.stdout
    assert "comparison.tex" in found.stdout
    starts = json.loads((second.directory.parent / "environment.json").read_text())
    assert [each.get("resumed_after_update") for each in starts] == [None, n_done]
