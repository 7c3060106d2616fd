"""The commands as a user types them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jaxagents import cli
from jaxagents.environments.registry import MABRAX_IDS, registered_ids
from jaxagents.tracking import read_json_lines

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
hyperparams:
  gamma: 0.9
evaluation:
  mode: last
  n_evals: 5
"""
REPOSITORY = Path(__file__).parents[1]
COMMAND = [sys.executable, "-m", "jaxagents"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A working folder with a configuration and the run that a user's command made of it."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "tiny.yaml").write_text(TINY)
    command = [*COMMAND, "train", "tiny.yaml", "--hyperparams.gamma", "0.5"]
    (folder / "output.txt").write_text(output_of(command, folder))
    return folder


def output_of(command: list[str], folder: Path) -> str:
    finished = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert finished.stderr == ""  # it is no terminal: there is no progress bar
    return finished.stdout


@pytest.fixture(scope="module")
def run(folder) -> Path:
    (run,) = (folder / "runs").iterdir()
    return run


def fail(arguments: list[str], capsys) -> str:
    """Run a command in vain, and return the one line that says why."""
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
        "learning_curve.png",
        "metrics.jsonl",
        "summary.json",
    }
    updates = [line["n_updates_done"] for line in read_json_lines(run / "metrics.jsonl")]
    assert updates == [0, 2, 4]
    summary = json.loads((run / "summary.json").read_text())
    assert summary["checkpoint"] == {"n_updates_done": 4, "n_environment_steps": 64}
    assert summary["training"]["environment_steps_per_second"] > 0
    assert len(summary["returns"]["mean"]) == 2
    assert set(summary["versions"]) == {"jaxagents", "jax"}


def test_train_prints_each_evaluation_and_what_to_do_next(folder, run):
    output = (folder / "output.txt").read_text()
    lines = output.splitlines()
    assert lines[0] == "tiny: hunting/discrete, 4 updates, 64 environment steps"
    rows = [line.split() for line in lines[lines.index("") + 1 :]][:4]
    assert rows[0] == ["updates", "env", "steps", "steps/s", "time", "return", "0", "return", "1"]
    assert [row[:2] for row in rows[1:]] == [["0", "0"], ["2", "32"], ["4", "64"]]
    assert "5 greedy episodes" in output
    assert f"jaxagents eval runs/{run.name}" in output
    assert f"runs/{run.name}/learning_curve.png" in output
    assert f'Experiment.of_run("runs/{run.name}").restore()' in output


def test_a_saved_configuration_repeats_its_run_exactly(folder, run):
    command = [*COMMAND, "train", f"runs/{run.name}/config.yaml", "--quiet"]
    (directory,) = output_of(command, folder).splitlines()
    repeated = folder / directory
    assert repeated.parent == run.parent
    assert repeated != run
    assert without_times(repeated) == without_times(run)
    configurations = [(each / "config.yaml").read_text() for each in (repeated, run)]
    bodies = [text.splitlines()[1:] for text in configurations]  # the first line names the run
    assert bodies[0] == bodies[1]
    assert "  gamma: 0.5" in bodies[0]


def without_times(run: Path) -> tuple:
    summary = json.loads((run / "summary.json").read_text())
    del summary["training"]["seconds"], summary["training"]["environment_steps_per_second"]
    lines = read_json_lines(run / "metrics.jsonl")
    return summary, [{**line, "seconds": None} for line in lines]


def test_eval_plays_the_summary_s_episodes_again_or_others(folder, run, capsys):
    assert cli.main(["eval", str(run)]) == 0
    table = capsys.readouterr().out
    assert table.strip() in (folder / "output.txt").read_text()
    assert cli.main(["eval", str(run), "--n-evals", "2", "--sampled", "--seed", "9"]) == 0
    assert "2 sampled episodes" in capsys.readouterr().out


# What a shell runs in the background ignores Ctrl-C, and so do its children: listen in any case.
LISTENING = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
"""
TRAINING = f"""{LISTENING}
sys.argv[0] = "jaxagents"
runpy.run_module("jaxagents", run_name="__main__")
"""
SIGNAL_FOR_ANOTHER_THREAD = f"""{LISTENING}
import threading, time
from jaxagents import cli

def work():
    time.sleep(1)  # until the main thread sleeps
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
    time.sleep(60)

started = time.monotonic()
try:
    cli._interruptibly(work)
except KeyboardInterrupt:
    print(time.monotonic() - started)
"""


def test_ctrl_c_is_heard_whichever_thread_the_system_hands_it_to():
    command = [sys.executable, "-c", SIGNAL_FOR_ANOTHER_THREAD]
    finished = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    assert float(finished.stdout) < 20


def test_ctrl_c_ends_a_training_with_one_line_and_status_130(tmp_path):
    (tmp_path / "tiny.yaml").write_text(TINY)
    command = [sys.executable, "-c", TRAINING, "train", "tiny.yaml"]
    command += ["--agent.n_steps=1000000000"]
    command += ["--agent.eval_frequency=1000000"]  # the first block takes minutes
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            while not process.stdout.readline().startswith("       0"):
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert error.startswith("jaxagents: interrupted; what there is, is in runs/tiny-")
    assert error.count("\n") == 1


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from jaxagents.cli import main\n"
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
    assert "Discount per environment step, in [0, 1]. (type: float | list[float]," in text
    assert "--hyperparams.critic_optimizer_params.learning_rate VALUE" in text
    assert "checkpoint_dir" not in text


def test_version_is_the_package_s(capsys):
    import jaxagents

    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out.strip() == jaxagents.__version__


def test_the_documented_table_of_environments_is_what_envs_prints(monkeypatch, capsys):
    # Without MNISTBandit, which would fetch its images, and what this machine has besides.
    text = (REPOSITORY / "docs" / "environments.md").read_text()
    documented = [
        line for line in text.splitlines() if line.startswith("|") and "MNIST" not in line
    ]
    ids = [each for each in registered_ids() if "MNIST" not in each and each not in MABRAX_IDS]
    assert [line.split()[1] for line in documented[2:]] == ids
    monkeypatch.setattr("jaxagents.environments.registry.registered_ids", lambda: ids)
    assert cli.main(["envs", "--markdown"]) == 0
    assert capsys.readouterr().out.splitlines() == documented


def test_envs_takes_part_of_an_id_in_any_case(capsys):
    assert cli.main(["envs", "HUNT"]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["hunting/discrete", "hunting/continuous"]
    assert "time limit: 100 steps" in rows[0]


def test_an_environment_whose_data_cannot_be_had_does_not_spoil_the_list(monkeypatch, capsys):
    def describe(env_id):
        raise OSError("no network")

    monkeypatch.setattr("jaxagents.environments.registry.describe", describe)
    assert cli.main(["envs", "hunting/discrete"]) == 0
    assert "not available here: its data are downloaded" in capsys.readouterr().out


def test_a_reader_that_goes_away_is_no_error():
    read, write = os.pipe()
    os.close(read)
    finished = subprocess.run(
        [*COMMAND, "envs", "hunting"], stdout=write, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    assert (finished.returncode, finished.stderr) == (1, "")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("n_steps: 4", "n_stpes: 4", "unknown key agent.n_stpes; did you mean agent.n_steps?"),
        ("hyperparams:", "hyperparms:", "did you mean hyperparams.gamma?"),
        ("n_steps: 4", "n_steps: four", "agent.n_steps should be int, but is four"),
        ("n_steps: 4", "n_steps: 0", "n_steps=0 is too small"),
        ("  n_steps: 4\n", "", "agent.n_steps is missing"),
        ("gamma: 0.9", "gamma: [0.9, high]", "hyperparams.gamma should be float, list[float], but"),
        ("hyperparams:\n  gamma: 0.9", "hyperparams: 3", "HyperParameters"),
        ("mode: last", "mode: first", "evaluation.mode should be Literal['best', 'last'], but is"),
        ("name: tiny", "name: [tiny", "line 3"),
        (TINY, "just words", "this is no YAML file of keys and values"),
        ("minibatch_size: 2", "minibatch_size: 3", "batch_size=4 trajectories do not divide"),
    ],
)
def test_a_wrong_file_is_named_in_one_line_with_the_key(old, new, message, tmp_path, capsys):
    path = tmp_path / "wrong.yaml"
    assert old in TINY
    path.write_text(TINY.replace(old, new))
    error = fail(["train", str(path)], capsys)
    assert f"error: {path}: " in error
    assert message in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--agent.n_setps", "3"], "command line: unknown key agent.n_setps; did you mean"),
        (["--agent.n_steps", "x"], "command line: agent.n_steps should be int, but is x"),
        (["--agent.n_steps=1.5"], "command line: agent.n_steps should be int, but is 1.5"),
        (["--agent.n_steps"], "expected one argument"),
        (["--agent.n_evals=0", "--evaluation.mode=best"], "evaluation.mode='best' needs"),
        (["--env", "hunting/discreet"], "Did you mean hunting/discrete"),
        (["--env", "nothing"], "unknown environment id 'nothing'"),
        (["--env_kwargs.size", "3"], "hunting/discrete cannot be constructed with size=3"),
        (["--env_params.speed", "3"], "env_params.speed is no parameter of hunting/discrete"),
        (["--hyperparams.gamma", "1.5"], "gamma=1.5 is out of range"),
        (["--hyperparams.gamma", "[0.1, 0.2]"], "gamma has shape (2,)"),
        (["surplus"], "unrecognized arguments: surplus"),
    ],
)
def test_a_wrong_override_is_refused_in_one_line(arguments, message, tmp_path, capsys):
    (tmp_path / "tiny.yaml").write_text(TINY)
    runs_dir = tmp_path / "runs"
    command = ["train", str(tmp_path / "tiny.yaml"), f"--runs_dir={runs_dir}", *arguments]
    error = fail([*command, "--quiet"], capsys)
    assert message in error
    assert not runs_dir.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["trian"], "invalid choice: 'trian'"),
        (["train"], "the following arguments are required: CONFIG"),
        (["train", "missing.yaml"], "missing.yaml: there is no such file"),
        (["eval", "missing"], "missing is no run: it has no config.yaml"),
        (["eval", "missing", "--episodes", "3"], "unrecognized arguments: --episodes 3"),
        (["eval", "missing", "--mode", "worst"], "invalid choice: 'worst'"),
        (["envs", "atari"], "no environment's id contains 'atari'"),
    ],
)
def test_a_wrong_command_is_refused_in_one_line(arguments, message, capsys):
    assert message in fail(arguments, capsys)


def test_a_run_without_checkpoints_is_refused_in_one_line(run, tmp_path, capsys):
    (tmp_path / "config.yaml").write_text((run / "config.yaml").read_text())
    assert "holds no checkpoint" in fail(["eval", str(tmp_path)], capsys)


def test_an_error_of_the_program_itself_keeps_its_traceback(monkeypatch):
    def broken() -> list[str]:
        raise ZeroDivisionError

    monkeypatch.setattr("jaxagents.environments.registry.registered_ids", broken)
    with pytest.raises(ZeroDivisionError):
        cli.main(["envs"])
