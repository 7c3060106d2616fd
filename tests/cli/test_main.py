"""The commands of the command line."""

import contextlib
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from jaxagents.cli import main as cli
from jaxagents.cli import streams
from jaxagents.cli.output import EvaluationLines, summary_text
from jaxagents.compiler import platform
from jaxagents.environments import registry
from jaxagents.environments.host import HostEnvironmentError, sharing
from jaxagents.environments.registry import EnvironmentInfo, ids_of_extras, registered_ids
from jaxagents.evaluation.run_files import read_records
from jaxagents.experiments.config_files.file import load_config
from jaxagents.experiments.experiment import Experiment
from jaxagents.experiments.report.content import recipe
from jaxagents.training.callbacks import Evaluation
from jaxagents.training.checkpoints import Checkpoints

TINY = """
name: tiny
env: hunting/discrete
agent:
  n_steps: 4
  batch_size: 4
  minibatch_size: 2
  rollout_length: 4
  actor_epochs: 1
  critic_epochs: 1
  eval_frequency: 2
  n_evals: 3
  actor_layers: {hidden_sizes: [16]}
  critic_layers: {hidden_sizes: [16]}
hyperparams:
  gamma: 0.9
evaluation:
  mode: last
  n_evals: 5
"""
# Numbers that programs read from arrays: another one compiles nothing.
OTHERS = (
    *("--seed", "3", "--agent.n_steps", "5", "--agent.eval_frequency", "1"),
    *("--evaluation.seed", "4"),
    *("--hyperparams.actor_optimizer_params.learning_rate", "0.002"),
)
REPOSITORY = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "jaxagents"]
COMPILED = "caches/jaxagents"


class Commands(NamedTuple):
    """A training by a user's command."""

    folder: Path
    run: Path
    output: str
    compiled: dict[str, int]  # the times of the cached programs by name

    @property
    def compiled_programs(self) -> Path:
        """Folder of the cached programs, for later trainings."""
        return self.folder / COMPILED


@pytest.fixture(scope="module")
def commands(tmp_path_factory) -> Commands:
    folder = tmp_path_factory.mktemp("cli")
    (folder / "tiny.yaml").write_text(TINY)
    command = [*COMMAND, "train", "tiny.yaml", "--hyperparams.gamma", "0.5"]
    output = output_of(command, folder)
    (run,) = (folder / "runs").iterdir()
    return Commands(folder, run, output, cached_programs(folder))


@pytest.fixture(scope="module")
def repeated_run(commands) -> Path:
    """A repetition of the training by its saved configuration."""
    command = [*COMMAND, "train", f"runs/{commands.run.name}/config.yaml", "--quiet"]
    (repeated,) = output_of(command, commands.folder).splitlines()
    return commands.folder / repeated


def output_of(command: list[str], folder: Path) -> str:
    """Run a command of a user whose compiled programs are in a folder."""
    # Optimized as in this process, which resumes the run to the same numbers.
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(folder / "caches"),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    }
    del environment["JAX_COMPILATION_CACHE_DIR"]
    finished = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    assert finished.stderr == ""  # it is not a terminal: there is no progress bar
    return finished.stdout


def cached_programs(folder: Path) -> dict[str, int]:
    paths = (folder / COMPILED).iterdir()
    return {path.name: path.stat().st_mtime_ns for path in paths}


@pytest.fixture(scope="module")
def run(commands) -> Path:
    return commands.run


def test_a_command_finds_what_an_earlier_one_compiled(commands, repeated_run):
    assert any("update_repeatedly" in name for name in commands.compiled)
    assert cached_programs(commands.folder) == commands.compiled


@pytest.mark.slow
def test_a_run_of_another_seed_length_and_learning_rate_compiles_nothing(commands):
    # Except for the program that calls the host, which jax never keeps.
    command = [*COMMAND, "train", "tiny.yaml", "--quiet", "--runs_dir", "others", *OTHERS]
    output_of(command, commands.folder)
    assert cached_programs(commands.folder) == commands.compiled


@pytest.mark.parametrize(("cache", "keeps"), [("new/caches", None), ("file/caches", "false")])
def test_programs_are_kept_where_their_folder_can_be_written(cache, keeps, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.delenv("JAX_ENABLE_COMPILATION_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache))
    cli._keep_compiled_programs()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(tmp_path / cache / "jaxagents")
    assert os.environ.pop("JAX_ENABLE_COMPILATION_CACHE", None) == keeps


def test_a_user_without_a_home_has_no_folder_of_programs(monkeypatch):
    for name in ("JAX_COMPILATION_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    cli._keep_compiled_programs()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


def fail(arguments: list[str], capsys) -> str:
    """Run a command that fails; return its one line of output."""
    try:
        status = cli.main(arguments)
    except SystemExit as end:
        status = end.code
    output = capsys.readouterr()
    assert (status, output.out) == (2, "")
    assert output.err.startswith("jaxagents")
    assert output.err.count("\n") == 1
    return output.err


def test_train_writes_every_file_of_a_run(run):
    assert run.name.startswith("tiny-20")
    assert {each.name for each in run.iterdir()} == {
        "checkpoints",
        "config.yaml",
        "environment.json",
        "learning_curve.png",
        "metrics.jsonl",
        "summary.json",
        "tensorboard",
    }
    updates = [line["n_updates_done"] for line in read_records(run / "metrics.jsonl")]
    assert updates == [0, 2, 4]
    summary = json.loads((run / "summary.json").read_text())
    assert summary["checkpoint"] == {"n_updates_done": 4, "n_environment_steps": 64}
    assert summary["training"]["environment_steps_per_second"] > 0
    assert len(summary["returns"]["mean"]) == 2
    assert set(summary["versions"]) == {"jaxagents", "jax"}


def test_train_prints_each_evaluation_and_what_to_do_next(commands, run):
    output = commands.output
    lines = output.splitlines()
    assert lines[0] == "tiny: hunting/discrete, 4 updates, 64 environment steps"
    rows = [line.split() for line in lines[lines.index("") + 1 :]][:4]
    assert rows[0] == ["updates", "env", "steps", "steps/s", "time", "return", "0", "return", "1"]
    assert [row[:2] for row in rows[1:]] == [["0", "0"], ["2", "32"], ["4", "64"]]
    assert "5 greedy episodes" in output
    assert f"jaxagents eval runs/{run.name}" in output
    assert f"runs/{run.name}/learning_curve.png" in output
    assert "import jaxagents as ja" in output
    assert f'ja.Experiment.of_run("runs/{run.name}").restore()' in output


def test_warnings_for_the_user_are_one_line_without_the_programs(monkeypatch, capsys):
    def show(_):
        for warning in (UserWarning("gamma looks far"), DeprecationWarning("an old name")):
            print(warnings.formatwarning(warning, type(warning), "program.py", 1), end="")

    before = warnings.formatwarning
    monkeypatch.setattr("jaxagents.cli.first_steps.envs", show)
    assert cli.main(["envs"]) == 0
    of_user, of_python = capsys.readouterr().out.splitlines()
    assert of_user == "Warning: gamma looks far"
    assert of_python == "program.py:1: DeprecationWarning: an old name"
    assert warnings.formatwarning is before


def test_actors_whose_returns_tie_at_first_have_columns_of_their_own_from_then_on(capsys):
    print_line = EvaluationLines(beside_bar=False)
    for returns in ([-1.5, -1.5], [-1.0, -2.0], [-1.0, -1.0]):
        print_line(Evaluation(0, 0, 0.0, {"returns": np.array([returns])}, runner=None))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    titles = ["updates", "env", "steps", "steps/s", "time"]
    assert lines == [
        [*titles, "return"],
        ["0", "0", "0:00", "-1.50"],
        [*titles, "return", "0", "return", "1"],
        ["0", "0", "0:00", "-1.00", "-2.00"],
        ["0", "0", "0:00", "-1.00", "-1.00"],
    ]


def test_a_saved_configuration_repeats_its_run_exactly(repeated_run, run):
    assert repeated_run.parent == run.parent
    assert repeated_run != run
    assert without_times(repeated_run) == without_times(run)
    configurations = [(each / "config.yaml").read_text() for each in (repeated_run, run)]
    bodies = [text.splitlines()[1:] for text in configurations]  # the first line names the run
    assert bodies[0] == bodies[1]
    assert "  gamma: 0.5" in bodies[0]


def without_times(run: Path) -> tuple:
    summary = json.loads((run / "summary.json").read_text())
    del summary["training"]["seconds"], summary["training"]["environment_steps_per_second"]
    lines = read_records(run / "metrics.jsonl")
    return summary, [{**line, "seconds": None, "steps_per_second": None} for line in lines]


@pytest.mark.slow
def test_eval_plays_the_episodes_of_the_summary_or_others(commands, run, capsys):
    assert cli.main(["eval", str(run)]) == 0
    table = capsys.readouterr().out
    assert table.strip() in commands.output
    assert cli.main(["eval", str(run), "--n-evals", "2", "--sampled", "--seed", "9"]) == 0
    assert "2 sampled episodes" in capsys.readouterr().out


@pytest.fixture
def own_run(run, tmp_path, monkeypatch) -> Path:
    """A copy of the run to resume."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(run, tmp_path / "runs" / run.name))


@pytest.mark.slow
def test_a_summary_shows_the_means_of_scalar_infos(run):
    summary = json.loads((run / "summary.json").read_text())
    without = summary_text(summary).splitlines()
    summary["means"] |= {"info_won": 0.859, "info_shaped_reward": [1.0, 2.0]}
    *lines, last = summary_text(summary).splitlines()
    assert lines == without
    assert last.split() == ["won", "0.86"]


@pytest.mark.slow
def test_resume_extends_a_run_as_if_it_had_always_been_longer(own_run, capsys):
    (own_run / "metrics.jsonl").write_bytes(b"")  # it is not needed
    before = (own_run / "config.yaml").read_text()
    assert cli.main(["resume", f"runs/{own_run.name}", "--agent.n_steps=6", "--quiet"]) == 0
    assert capsys.readouterr().out == f"runs/{own_run.name}\n"
    assert cli.main(["train", f"runs/{own_run.name}/config_from_4.yaml", "--quiet"]) == 0
    (longer,) = capsys.readouterr().out.splitlines()
    resumed, straight = (Checkpoints(Path(each) / "checkpoints") for each in (own_run, longer))
    for read in ("read_runner", "read_history"):
        one, two = (getattr(each, read)(6) for each in (resumed, straight))
        assert one.keys() == two.keys()
        for name, values in one.items():
            np.testing.assert_array_equal(values, two[name])
    summary = json.loads((own_run / "summary.json").read_text())
    assert summary["training"]["n_updates_done"] == 6
    assert "n_steps: 6" in (own_run / "config_from_4.yaml").read_text()
    assert (own_run / "config.yaml").read_text() == before
    assert recipe(own_run) == [
        f"jaxagents train {own_run}/config.yaml",
        "jaxagents resume NEW_RUN --agent.n_steps 6",
    ]
    first, second = json.loads((own_run / "environment.json").read_text())  # of both starts
    assert second["resumed_after_update"] == 4
    assert first["time"] <= second["time"]
    assert first["versions"] == second["versions"]


@pytest.mark.slow
def test_resume_writes_a_missing_summary(own_run, run, capsys):
    (own_run / "summary.json").unlink()
    (own_run / "learning_curve.png").unlink()
    assert cli.main(["resume", str(own_run), "--quiet"]) == 0
    again, once = (json.loads((each / "summary.json").read_text()) for each in (own_run, run))
    assert again["returns"] == once["returns"]
    assert again["training"]["n_updates_done"] == 4
    assert (own_run / "learning_curve.png").exists()
    assert (own_run / "config.yaml").read_bytes() == (run / "config.yaml").read_bytes()


def test_resuming_a_finished_run_says_so_and_how_to_extend_it(commands, own_run, capsys):
    assert "Nothing was trained" not in commands.output
    assert cli.main(["resume", str(own_run)]) == 0
    why = "Nothing was trained: the run had already finished at 4 updates; extend it by "
    assert f"\n{why}--agent.n_steps N.\n" in capsys.readouterr().out


def test_resuming_an_ended_run_evaluates_again_and_keeps_its_training_summary(own_run):
    before = json.loads((own_run / "summary.json").read_text())
    arguments = ["--evaluation.n_evals", "5", "--evaluation.greedy", "false"]
    arguments += ["--hyperparams.gamma", "0.7"]  # nothing is trained with it any more
    assert cli.main(["resume", str(own_run), "--quiet", *arguments]) == 0
    after = json.loads((own_run / "summary.json").read_text())
    assert (after["evaluation"]["n_evals"], after["evaluation"]["greedy"]) == (5, False)
    assert after["training"] == before["training"]
    config = load_config(own_run / "config_from_4.yaml")
    assert (config.evaluation.n_evals, config.evaluation.greedy) == (5, False)
    assert config.hyperparams.gamma == 0.5


@pytest.mark.parametrize("change", ["--seed=9", "--env=hunting/continuous"])
def test_a_run_is_not_resumed_with_another_seed_or_environment(own_run, capsys, change):
    before = sorted((path, path.read_bytes()) for path in own_run.rglob("*") if path.is_file())
    line = fail(["resume", str(own_run), "--quiet", "--agent.n_steps=6", change], capsys)
    name = change[2:].split("=")[0]
    assert f"{name}=" in line
    assert f"leave {name} out, or train another run" in line
    after = sorted((path, path.read_bytes()) for path in own_run.rglob("*") if path.is_file())
    assert after == before


@pytest.mark.slow
def test_a_run_is_resumed_where_metrics_cannot_be_written(own_run, caplog):
    (own_run / "metrics.jsonl").unlink()
    (own_run / "metrics.jsonl").mkdir()
    before = (own_run / "config.yaml").read_text()
    assert cli.main(["resume", str(own_run), "--quiet", "--agent.n_steps=6"]) == 0
    assert (own_run / "config.yaml").read_text() == before
    assert "n_steps: 6" in (own_run / "config_from_4.yaml").read_text()
    assert "metrics.jsonl cannot be written, training continues without it" in caplog.text
    assert "the learning curve is not drawn: " in caplog.text
    assert json.loads((own_run / "summary.json").read_text())["training"]["n_updates_done"] == 6


def test_a_run_with_another_network_is_not_resumed_and_left_unchanged(own_run, capsys):
    before = sorted((path, path.read_bytes()) for path in own_run.rglob("*") if path.is_file())
    line = fail(
        ["resume", str(own_run), "--quiet", "--agent.actor_layers.hidden_sizes=[8]"], capsys
    )
    assert line.rstrip().endswith(
        "belongs to another agent: its actor_layers.hidden_sizes is (16,), and this agent's is "
        "(8,). Leave it unchanged, or train a new run."
    )
    after = sorted((path, path.read_bytes()) for path in own_run.rglob("*") if path.is_file())
    assert after == before


def test_a_refused_configuration_does_not_replace_that_of_the_run(own_run, capsys):
    before = (own_run / "config.yaml").read_bytes()
    arguments = ["resume", str(own_run), "--quiet", "--agent.n_steps=6", "--agent.n_evals=5"]
    assert "use n_evals=3" in fail(arguments, capsys)
    assert (own_run / "config.yaml").read_bytes() == before
    assert not list(own_run.glob("config_from_*"))


def test_a_folder_without_a_run_is_not_resumed(tmp_path, capsys):
    assert "is not a run: it has no config.yaml" in fail(["resume", str(tmp_path)], capsys)


def test_a_run_without_a_good_checkpoint_is_not_resumed(own_run, capsys):
    for path in (own_run / "checkpoints").glob("*/metadata.json"):
        path.unlink()
    status = cli.main(["resume", str(own_run), "--quiet"])
    lines = capsys.readouterr().err.splitlines()
    assert status == 2
    assert "holds no checkpoint; train into it first" in lines[-1]
    assert not any("Traceback" in line for line in lines)


@pytest.mark.slow
def test_a_training_with_nan_or_infinity_ends_with_one_line_and_status_1(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    rates = [
        f"--hyperparams.{network}_optimizer_params.learning_rate=1e30"
        for network in ("actor", "critic")
    ]
    assert cli.main(["train", "tiny.yaml", "--quiet", *rates]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("jaxagents: error: update 1 has NaN or infinity in the critic's ")
    assert " The run so far is in runs/tiny-" in line


def test_export_writes_two_files_once(own_run, capsys):
    assert cli.main(["export", str(own_run)]) == 0
    paths = capsys.readouterr().out.splitlines()
    assert paths == [f"{own_run}/export/policy.safetensors", f"{own_run}/export/policy.json"]
    assert json.loads(Path(paths[1]).read_text())["environment"] == "hunting/discrete"
    assert "exists already" in fail(["export", str(own_run)], capsys)
    assert cli.main(["export", str(own_run), "--to", str(own_run / "other"), "--mode=last"]) == 0


# Programs that a shell runs in the background ignore Ctrl-C, and so do their children.
TRAINING = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv[0] = "jaxagents"
runpy.run_module("jaxagents", run_name="__main__")
"""


@contextlib.contextmanager
def training_process(
    folder: Path, eval_frequency: int, compiled: Path
) -> Iterator[subprocess.Popen]:
    """Start a training with some compiled programs, and wait for its first evaluation."""
    (folder / "tiny.yaml").write_text(TINY)
    command = [sys.executable, "-c", TRAINING, "train", "tiny.yaml", "--agent.n_steps=100000"]
    command += [f"--agent.eval_frequency={eval_frequency}"]
    with subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | {"JAX_COMPILATION_CACHE_DIR": str(compiled)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            while not process.stdout.readline().startswith("       0"):
                assert process.poll() is None
            yield process
        finally:
            process.kill()


def test_a_signal_ends_a_training_after_a_block(tmp_path, commands):
    with training_process(tmp_path, 2, commands.compiled_programs) as process:
        process.send_signal(signal.SIGINT)
        output, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert_ended_after_a_block(tmp_path, output, error)


def assert_ended_after_a_block(folder: Path, output: str, error: str) -> tuple[Path, int]:
    """Check a training's files and output; return the run and its number of updates."""
    (run,) = (folder / "runs").iterdir()
    first, last = error.strip().splitlines()
    assert "the training ends after the next evaluation; a second signal ends it at once" in first
    assert last == f"jaxagents: interrupted; resume with: jaxagents resume runs/{run.name}"
    n_done = read_records(run / "metrics.jsonl")[-1]["n_updates_done"]
    assert Checkpoints(run / "checkpoints").last_step() == n_done
    printed = ["0", *(line.split()[0] for line in output.splitlines() if line)]
    assert printed[-1] == f"{n_done:,}"
    return run, n_done


@pytest.mark.slow
def test_a_training_ended_by_a_signal_can_be_resumed(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    print_line = EvaluationLines.__call__

    def interrupt(lines, evaluation):
        print_line(lines, evaluation)
        if evaluation.n_updates_done == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(EvaluationLines, "__call__", interrupt)
    assert cli.main(["train", "tiny.yaml", "--agent.n_steps=50"]) == 143
    run, n_done = assert_ended_after_a_block(tmp_path, *capfd.readouterr())
    assert cli.main(["resume", str(run), "--quiet", f"--agent.n_steps={n_done + 2}"]) == 0
    summary = json.loads((run / "summary.json").read_text())
    assert summary["training"]["n_updates_done"] == n_done + 2
    assert capfd.readouterr().out == f"runs/{run.name}\n"


@pytest.mark.slow
def test_a_second_signal_ends_a_training_at_once(tmp_path, commands):
    # The first block alone takes tens of seconds.
    with training_process(tmp_path, 100000, commands.compiled_programs) as process:
        assert process.stderr is not None
        process.send_signal(signal.SIGTERM)
        while "a second signal" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error.startswith("jaxagents: interrupted; resume with: jaxagents resume runs/tiny-")
    assert error.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_training_at_once_before_its_first_evaluation(tmp_path, number):
    (tmp_path / "tiny.yaml").write_text(TINY)
    # One block: it would take minutes.
    sizes = ["--agent.n_steps=1000000", "--agent.eval_frequency=1000000"]
    command = [sys.executable, "-c", TRAINING, "train", "tiny.yaml", *sizes]
    command += ["--agent.initial_evaluation=false"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            while not list(tmp_path.glob("runs/*/metrics.jsonl")):  # made as training starts
                assert process.poll() is None
                time.sleep(0.05)
            process.send_signal(number)
            _, error = process.communicate(timeout=10)
        finally:
            process.kill()
    # Until training proper, Python's or the system's own handlers are at work.
    assert process.returncode in (128 + number, -number)
    assert error == "" or error.startswith("jaxagents: interrupted")


def test_a_training_beyond_the_memory_is_refused_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    sizes = ["--agent.batch_size=100000000000", "--agent.minibatch_size=100000000000"]
    assert cli.main(["train", "tiny.yaml", "--quiet", *sizes]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "batch_size=100,000,000,000 with rollout_length=4 needs at least " in line
    assert cli.main(["plan", "tiny.yaml", *sizes]) == 1
    assert not (tmp_path / "runs").exists()


REGISTERING = """
import gymnasium, jaxagents
from gymnasium.envs.classic_control import CartPoleEnv
gymnasium.register("mine/Cart-v0", entry_point=lambda **settings: CartPoleEnv(**settings))
jaxagents.register("mine/cart", lambda: jaxagents.HostEnvironment(
    lambda: gymnasium.make("mine/Cart-v0"), n_workers=1, max_episode_steps=40
))
"""


@pytest.mark.slow
@pytest.mark.parametrize("given", [">&- 2>&-", ">/dev/full 2>&-", ">/dev/full 2>/dev/full"])
def test_training_goes_on_without_standard_streams(tmp_path, given):
    (tmp_path / "tiny.yaml").write_text(TINY)
    command = f"exec '{sys.executable}' -m jaxagents train tiny.yaml {given}"
    assert subprocess.run(command, shell=True, cwd=tmp_path, timeout=100).returncode == 0
    assert list(tmp_path.glob("runs/*/summary.json"))


TERMINAL = """
import fcntl, signal, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # it hangs up when it goes
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("handler", "n_steps", "status"),
    [("SIG_DFL", 100000, 128 + signal.SIGHUP), ("SIG_IGN", 100, 0)],
    ids=["by default", "nohup"],
)
def test_a_training_whose_terminal_goes_ends_with_a_checkpoint(tmp_path, handler, n_steps, status):
    (tmp_path / "tiny.yaml").write_text(TINY)
    ours, theirs = pty.openpty()
    program = f"{TERMINAL}\nsignal.signal(signal.SIGHUP, signal.{handler})\n{TRAINING}"
    command = [sys.executable, "-c", program, "train", "tiny.yaml", f"--agent.n_steps={n_steps}"]
    streams_of_it = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    with subprocess.Popen(
        command, cwd=tmp_path, start_new_session=True, **streams_of_it
    ) as process:
        try:
            os.close(theirs)
            output = b""
            while b"\n       2" not in output:  # after an evaluation
                output += os.read(ours, 1024)
            os.close(ours)
            assert process.wait(60) == status
        finally:
            process.kill()
    (run,) = (tmp_path / "runs").iterdir()
    last = read_records(run / "metrics.jsonl")[-1]["n_updates_done"]
    assert Checkpoints(run / "checkpoints").last_step() == last
    assert last == n_steps or handler == "SIG_DFL"


@pytest.mark.slow
def test_a_full_standard_output_is_one_line():
    with open("/dev/full", "w") as full:
        command = [*COMMAND, "envs", "hunting"]
        finished = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    message = "jaxagents: error: standard output: No space left on device\n"
    assert (finished.returncode, finished.stderr) == (1, message)


def test_output_that_fails_is_told_once_while_training_goes_on(capfd):
    guarded = streams.guarded_streams(goes_on=lambda: True)
    with open("/dev/full", "w") as full, contextlib.redirect_stdout(full), guarded:
        print("first", flush=True)
        print("second", flush=True)
    message = "jaxagents: standard output failed (No space left on device); the command continues"
    assert capfd.readouterr().err == f"{message} without it\n"


@pytest.mark.parametrize(
    ("name", "value"), [("JAX_PLATFORMS", "nothing"), ("JAX_ENABLE_X64", "banana")]
)
def test_wrong_variables_of_jax_are_one_line(tmp_path, name, value):
    (tmp_path / "tiny.yaml").write_text(TINY)
    finished = subprocess.run(
        [*COMMAND, "train", "tiny.yaml", "--quiet"],
        cwd=tmp_path,
        env=os.environ | {name: value},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 2
    (line,) = finished.stderr.splitlines()
    assert line.startswith(f"jaxagents: error: {name}={value}: ")


def test_a_missing_platform_is_named_with_the_remedy(monkeypatch):
    def fail_as_without_a_gpu():
        raise AssertionError

    monkeypatch.setattr(platform.jax, "default_backend", fail_as_without_a_gpu)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    with pytest.raises(ValueError, match=r"^JAX_PLATFORMS=cuda: jax finds no such device; unset"):
        platform.check_platform()


@pytest.mark.slow
def test_modules_named_by_import_register_for_commands_and_for_workers(tmp_path):
    (tmp_path / "mine.py").write_text(REGISTERING)
    (tmp_path / "tiny.yaml").write_text(TINY)
    named = ["--import", "mine"]
    assert "mine/cart" in output_of([*COMMAND, "envs", "mine", *named], tmp_path)
    command = [*COMMAND, "train", "tiny.yaml", "--quiet", "--env=mine/cart", *named]
    (run,) = output_of(command, tmp_path).splitlines()
    assert "return" in output_of([*COMMAND, "eval", run, *named], tmp_path)


def test_a_module_is_imported_from_the_current_directory(tmp_path, monkeypatch, capsys):
    (tmp_path / "registers_an_environment.py").write_text(
        "import jaxagents\n"
        "from jaxagents.environments.hunting import DiscreteHunting\n"
        "jaxagents.register('of_a_module/hunting', DiscreteHunting)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    monkeypatch.setattr(registry.ENVIRONMENTS, "_registered", {})
    monkeypatch.setattr(sharing, "_modules", {})
    assert cli.main(["envs", "of_a_module", "--import", "registers_an_environment"]) == 0
    assert "of_a_module/hunting" in capsys.readouterr().out


def test_a_module_that_cannot_be_imported_is_named(capsys):
    error = fail(["envs", "--import", "no_such_module"], capsys)
    assert "error: --import no_such_module: ModuleNotFoundError: No module named" in error


def test_every_command_takes_modules_to_import(capsys):
    commands = cli._make_parser()._subparsers._group_actions[0].choices
    for command in commands.values():
        assert "--import MODULE" in command.format_help()


def test_only_commands_that_play_or_show_a_policy_name_entries_of_the_zoo_for_a_run():
    commands = cli._make_parser()._subparsers._group_actions[0].choices
    named = {
        name
        for name, command in commands.items()
        for action in command._actions
        if action.metavar == "RUN" and not action.option_strings and "zoo:ID" in action.help
    }
    assert named == {"eval", "replay", "export", "report", "crossplay", "exploit"}


def test_an_interruption_outside_of_training_names_the_command_to_resume_too(
    tmp_path, monkeypatch, capsys
):
    def interrupt(experiment):
        checkpoint = experiment.directory / "checkpoints" / "4"
        checkpoint.mkdir(parents=True)
        (checkpoint / "metadata.json").touch()
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    monkeypatch.setattr(Experiment, "train", interrupt)
    assert cli.main(["train", "tiny.yaml", "--quiet", "--import", "json"]) == 130
    (run,) = Path("runs").iterdir()
    command = f"jaxagents resume {run} --import json"
    assert capsys.readouterr().err == f"jaxagents: interrupted; resume with: {command}\n"
    with sharing.importing_for_workers():
        sharing.import_modules(["json"])
        assert recipe(run) == [f"jaxagents train {run}/config.yaml --import json"]
    assert recipe(run) == [f"jaxagents train {run}/config.yaml"]  # it ends with its command


WITHIN_A_PROGRAM = """
import os, signal, sys, threading, time
import jax
from jaxagents.cli import first_steps, main
signal.signal(signal.SIGINT, signal.default_int_handler)

def compute(parsed):
    multiply = jax.jit(lambda x: jax.lax.fori_loop(0, 10**9, lambda _, x: x @ x, x))
    running = multiply(jax.numpy.ones((200, 200)))  # for minutes
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    time.sleep(60)

first_steps.envs = compute
sys.argv = ["jaxagents", "envs"]
sys.exit(main.main())
"""


def test_ctrl_c_while_a_program_runs_ends_a_command_in_one_line():
    command = [sys.executable, "-c", WITHIN_A_PROGRAM]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (finished.returncode, finished.stderr) == (130, "jaxagents: interrupted\n")


def test_a_start_that_fails_before_the_first_checkpoint_says_so(tmp_path, monkeypatch, capsys):
    def fail_at_once(experiment):
        raise HostEnvironmentError("environment 0 at step 0 raised ValueError.")

    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    monkeypatch.setattr(Experiment, "train", fail_at_once)
    assert cli.main(["train", "tiny.yaml", "--quiet"]) == 1
    assert capsys.readouterr().err == (
        "jaxagents: error: environment 0 at step 0 raised ValueError. "
        "This was before the first checkpoint: there is nothing to resume.\n"
    )


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from jaxagents.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'jax', 'flax', 'numpy', 'gymnax', 'jaxmarl', 'jsonargparse', 'matplotlib'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert finished.stdout.splitlines()[-1] == "[]"
    assert "train" in finished.stdout


def test_the_help_of_train_documents_every_key(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["train", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert end.value.code == 0
    for key in ("--quiet", "--env ", "--agent.n_steps", "--evaluation.mode", "--env_params"):
        assert key in text
    assert "Discount per environment step, in [0, 1]. (a number or a list of numbers;" in text
    assert "--hyperparams.critic_optimizer_params.learning_rate VALUE" in text
    assert "checkpoint_dir" not in text


def test_version_is_that_of_the_package(capsys):
    import jaxagents

    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out.strip() == jaxagents.__version__


@pytest.mark.parametrize(
    "families",
    [
        ("CartPole", "hunting", "MPE_simple_tag", "overcooked"),
        pytest.param(("",), marks=pytest.mark.slow),
    ],
)
def test_the_documented_table_of_environments_is_what_envs_prints(families, monkeypatch, capsys):
    # Without MNISTBandit, which would download its images, and without optional environments.
    text = (REPOSITORY / "docs" / "reference" / "environment_ids.txt").read_text()
    documented = [
        line for line in text.splitlines() if line.startswith("|") and "MNIST" not in line
    ]
    optional = ids_of_extras()
    ids = [each for each in registered_ids() if "MNIST" not in each and each not in optional]
    assert [line.split()[1] for line in documented[2:]] == ids

    chosen = [each for each in ids if any(family in each for family in families)]
    monkeypatch.setattr("jaxagents.environments.registry.registered_ids", lambda: chosen)
    assert cli.main(["envs", "--markdown"]) == 0
    rows = [line for line in documented[2:] if line.split()[1] in chosen]
    assert capsys.readouterr().out.splitlines() == documented[:2] + rows


def test_envs_takes_part_of_an_id_in_any_case(capsys):
    assert cli.main(["envs", "HUNT"]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["hunting/discrete", "hunting/continuous"]
    assert "time limit: 100 steps" in rows[0]


def test_envs_prints_a_family_before_it_constructs_the_next_one(monkeypatch, capsys):
    def describe(env_id):
        if env_id == "two/a":
            raise RuntimeError("construction fails")
        return EnvironmentInfo(env_id, 1, (2,), "float32", "Discrete(3)", (), "none")

    ids = ["one/a", "one/b", "two/a"]
    monkeypatch.setattr("jaxagents.environments.registry.registered_ids", lambda: ids)
    monkeypatch.setattr("jaxagents.environments.registry.describe", describe)
    with pytest.raises(RuntimeError, match="construction fails"):
        cli.main(["envs"])
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["one/a", "one/b"]


def test_envs_names_the_extra_of_ids_that_are_not_listed_without_it(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    line = fail(["envs", "ANT_4"], capsys)
    assert "not listed without brax: jaxmarl/ant_4x2; pip install" in line
    line = fail(["envs", "SnakE"], capsys)
    assert "not listed without jumanji: jumanji/Snake-v1; pip install" in line


def test_an_environment_whose_data_cannot_be_downloaded_is_listed_as_such(monkeypatch, capsys):
    def describe(env_id):
        raise OSError("no network")

    monkeypatch.setattr("jaxagents.environments.registry.describe", describe)
    assert cli.main(["envs", "hunting/discrete"]) == 0
    assert "needs a connection: its data is downloaded" in capsys.readouterr().out


@pytest.mark.slow
def test_a_closed_pipe_is_no_error():
    read, write = os.pipe()
    os.close(read)
    finished = subprocess.run(
        [*COMMAND, "envs", "hunting"], stdout=write, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    assert (finished.returncode, finished.stderr) == (1, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["trian"], "invalid choice: 'trian'"),
        (["train"], "the following arguments are required: CONFIG"),
        (["eval", "missing"], "missing is not a run: it has no config.yaml"),
        (["eval", "missing", "--episodes", "3"], "--episodes is no option of eval; of the run's"),
        (["replay", "missing", "--n-evals", "3"], "--n-evals is no option of replay; of the run's"),
        (["eval", "missing", "--mode", "worst"], "invalid choice: 'worst'"),
        (["envs", "atari"], "no environment's id contains 'atari'"),
        (["envs", "mpe2"], "ids of Gymnasium and PettingZoo are not listed: name them as in"),
    ],
)
def test_a_wrong_command_is_refused_in_one_line(arguments, message, capsys):
    assert message in fail(arguments, capsys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["eval", "--n-evals", "0"], "n_evals=0 is too small"),
        (["eval", "--seed", "99999999999999999999999"], "is too large; it must be below 2**32"),
        (["replay", "--seed", "-4"], "seed=-4 is too small"),
        (["replay", "--episodes", "0"], "0 episodes cannot be replayed"),
        (["replay", "--max-frames", "1"], "max_frames=1 cannot show the first and the last"),
    ],
)
def test_episodes_that_cannot_be_played_are_refused_in_one_line(arguments, message, run, capsys):
    assert message in fail([arguments[0], str(run), *arguments[1:]], capsys)


@pytest.mark.parametrize("command", ["eval", "replay", "export", "resume"])
def test_a_command_that_takes_one_run_refuses_several_by_name(command, tmp_path, capsys):
    first, second = (tmp_path / name for name in ("first", "second"))
    second.mkdir()
    line = fail([command, str(first), str(second), "--seed", "1"], capsys)
    assert f"{command} takes one run, but several were given: {first}, {second};" in line


def test_a_run_without_checkpoints_is_refused_in_one_line(run, tmp_path, capsys):
    (tmp_path / "config.yaml").write_text((run / "config.yaml").read_text())
    assert "holds no checkpoint" in fail(["eval", str(tmp_path)], capsys)


def test_an_unexpected_error_keeps_its_traceback(monkeypatch):
    def broken() -> list[str]:
        raise ZeroDivisionError

    monkeypatch.setattr("jaxagents.environments.registry.registered_ids", broken)
    with pytest.raises(ZeroDivisionError):
        cli.main(["envs"])


def test_a_run_without_evaluations_names_no_learning_curve(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    command = ["train", "tiny.yaml", "--agent.n_evals=0", "--evaluation.mode=last"]
    assert cli.main(command) == 0
    output = capsys.readouterr().out
    assert "HTML report" in output
    assert "learning_curve.png" not in output


@pytest.mark.slow
def test_a_run_that_reaches_stop_at_return_ends_and_is_complete(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    assert cli.main(["train", "tiny.yaml", "--agent.n_steps=100000", "--stop_at_return=-1000"]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    why = "Ended after 0 of 100,000 updates: the return has reached stop_at_return=-1000.0."
    assert why in capsys.readouterr().out
    assert [each["n_updates_done"] for each in read_records(run / "metrics.jsonl")] == [0]
    assert (run / "summary.json").exists()
    assert (run / "learning_curve.png").exists()
    summary = json.loads((run / "summary.json").read_text())
    monkeypatch.setattr(Experiment, "evaluate", lambda _: summary)  # the same once more
    assert cli.main(["resume", str(run)]) == 0
    assert why in capsys.readouterr().out
    assert [each["n_updates_done"] for each in read_records(run / "metrics.jsonl")] == [0]


def test_stop_at_return_needs_evaluations(tmp_path, capsys):
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    assert cli.main(["train", str(path), "--stop_at_return=1", "--agent.n_evals=0"]) == 2
    assert "stop_at_return=1.0 needs evaluations" in capsys.readouterr().err
