"""Errors in a configuration: one line that names the place, before anything is run."""

import subprocess
import sys
from pathlib import Path

import jax
import pytest

from jaxagents.cli import main as cli

FILE = """\
name: tiny
env: hunting/discrete
env_params:
  prey_speed: 0.05
seed: 0
agent:
  n_steps: 4
  batch_size: 4
  minibatch_size: 2
  rollout_length: 4
  parameter_sharing: independent
  actor_layers:
    hidden_sizes: [8]
hyperparams:
  gamma: 0.9
  actor_optimizer_params:
    learning_rate: 0.001
evaluation:
  mode: best
  n_evals: 5
"""

WRONG_LINES = [  # text of the file, its replacement, the line in the message, the message
    # Keys.
    ("seed: 0", "seeed: 0", 5, "unknown key seeed; did you mean seed?"),
    ("agent:", "agnet:", 6, "unknown key agnet; did you mean agent?"),
    ("  n_steps: 4", "  n_step: 4", 7, "unknown key agent.n_step; did you mean agent.n_steps?"),
    (
        "    hidden_sizes: [8]",
        "    hiden_sizes: [8]",
        13,
        "unknown key agent.actor_layers.hiden_sizes; did you mean agent.actor_layers.hidden_sizes?",
    ),
    ("  gamma: 0.9", "  gama: 0.9", 15, "did you mean hyperparams.gamma?"),
    ("    learning_rate:", "    learing_rate:", 17, "actor_optimizer_params.learning_rate?"),
    ("  mode: best", "  mod: last", 19, "did you mean evaluation.mode?"),
    ("  n_steps: 4", "  gamma: 0.9", 7, "unknown key agent.gamma; did you mean hyperparams.gamma?"),
    ("seed: 0", "learning_rate: 0", 5, "did you mean hyperparams.learning_rate"),
    ("seed: 0", "3: 0", 5, "unknown key 3; see jaxagents train --help"),
    ("seed: 0", "config: other.yaml", 5, "unknown key config; see jaxagents train --help"),
    ("  gamma: 0.9", "  gamma+: 0.9", 15, "unknown key hyperparams.gamma+; did you mean"),
    (
        "  batch_size: 4",
        "  batch_size: 4\n  batch_size: 8",
        9,
        "agent.batch_size is given a second time, after line 8; keep one",
    ),
    ("seed: 0", "agent.n_steps: 8", 7, "agent.n_steps is given a second time, after line 5"),
    ("  prey_speed: 0.05", "  prey_sped: 0.05", 4, "env_params.prey_sped is no parameter of"),
    (
        "  gamma: 0.9",
        "  learning_rate: 0.1",
        15,
        "hyperparams.learning_rate=0.1 is that of both optimizers, but "
        "hyperparams.actor_optimizer_params.learning_rate is given too; give one of them.",
    ),
    (
        "  actor_optimizer_params:\n    learning_rate: 0.001",
        "  learning_rate: -0.1",
        16,
        "actor_optimizer_params.learning_rate=-0.1 is out of range",
    ),
    # Types.
    ("  n_steps: 4", "  n_steps: four", 7, "agent.n_steps should be an integer, but is four"),
    ("  n_steps: 4", "  n_steps: 4.5", 7, "agent.n_steps should be an integer, but is 4.5"),
    ("  n_steps: 4", "  n_steps: .nan", 7, "agent.n_steps should be an integer, but is nan"),
    ("  n_steps: 4", "  n_steps: true", 7, "agent.n_steps should be an integer, but is True"),
    ("  n_steps: 4", "  n_steps:", 7, "agent.n_steps has no value; it should be an integer"),
    ("  n_steps: 4", "  n_steps: 4\n  squash: 1", 8, "should be true or false, but is 1"),
    ("  n_steps: 4", "  n_steps: 4\n  recurrent: None", 8, "gru, lstm, mingru or null, but is"),
    ("independent", "separate", 11, "shared, independent, team or a list of integers, but is sep"),
    ("[8]", "8", 13, "hidden_sizes should be a list of integers, but is 8"),
    ("gamma: 0.9", "gamma: [0.9, high]", 15, "should be a number or a list of numbers, but is"),
    ("gamma: 0.9", "gamma: {a: 0.9}", 15, "a number or a list of numbers, but holds keys"),
    ("mode: best", "mode: first", 19, "evaluation.mode should be best or last, but is first"),
    ("name: tiny", "name: 3", 1, "name should be text, but is 3"),
    (
        "  actor_layers:\n    hidden_sizes: [8]",
        "  actor_layers: [8]",
        12,
        "agent.actor_layers should hold keys, such as agent.actor_layers.hidden_sizes",
    ),
    ("env_params:\n  prey_speed: 0.05", "env_params: 3", 3, "should be keys and values, but is 3"),
    ("prey_speed: 0.05", "prey_speed: fast", 4, "should be a number, but is 'fast'"),
    ("prey_speed: 0.05", "prey_speed: [1, 2]", 4, "should be one number, but is [1, 2]"),
    # Values.
    ("name: tiny", "name: a/b", 1, "name='a/b' cannot name a directory"),
    ("hunting/discrete", "hunting/discreet", 2, "env: unknown environment id 'hunting/discreet'"),
    ("n_steps: 4", "n_steps: -4", 7, "n_steps=-4 is too small; it must be at least 1"),
    ("[8]", "[8, 0]", 13, "hidden_sizes=0 is too small"),
    ("independent", "[0, 0, 1]", 11, "parameter_sharing"),
    ("independent", "[0, -1]", 11, "parameter_sharing"),
    ("gamma: 0.9", "gamma: 1.5", 15, "gamma=1.5 is out of range; it must be between 0 and 1"),
    ("gamma: 0.9", "gamma: .nan", 15, "gamma=nan is out of range"),
    ("gamma: 0.9", "gamma: [0.9, 0.8, 0.7]", 15, "gamma has shape (3,); give a scalar or one"),
    ("rate: 0.001", "rate: -1", 17, "learning_rate=-1.0 is out of range; it must be finite and"),
    ("rate: 0.001", "rate: .inf", 17, "learning_rate=inf is out of range"),
    ("prey_speed: 0.05", "prey_speed: .nan", 4, "env_params.prey_speed should be finite, but is"),
    ("n_evals: 5", "n_evals: 0", 20, "n_evals=0 is too small; evaluate at least 1 episode"),
    # Combinations.
    ("minibatch_size: 2", "minibatch_size: 3", 8, "batch_size=4 trajectories do not divide"),
    ("  n_steps: 4", "  n_steps: 4\n  recurrent_chunk_length: 2", 8, "but recurrent=None"),
    ("  n_steps: 4", "  n_steps: 4\n  n_evals: 0", 20, "use evaluation.mode='last'"),
    # YAML.
    ("name: tiny", "name: [tiny", 2, "a list that begins with [ has no ] or comma there"),
    ("  n_steps: 4", "\tn_steps: 4", 7, "indent with spaces, not tabs"),
    ("seed: 0", "---", 5, "this is not valid YAML"),
    ("gamma: 0.9", "gamma: !!python/name:os.system 1", 15, "python/name:os.system"),
]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def refusal(arguments: list[str], capsys) -> str:
    """Run a command that fails; return its message of one line."""
    try:
        status = cli.main(arguments)
    except SystemExit as end:
        status = end.code
    output = capsys.readouterr()
    assert (status, output.out) == (2, "")
    assert output.err.count("\n") == 1
    assert not Path("runs").is_dir()  # training has not begun
    return output.err.removeprefix("jaxagents: error: ").rstrip()


@pytest.mark.parametrize(("old", "new", "line", "message"), WRONG_LINES)
def test_a_wrong_line_of_a_file_is_named(old, new, line, message, capsys):
    assert FILE.count(old) == 1
    Path("wrong.yaml").write_text(FILE.replace(old, new))
    refused = refusal(["train", "wrong.yaml", "--quiet"], capsys)
    assert refused.startswith(f"wrong.yaml:{line}: ")
    assert message in refused


WRONG_FILES = [  # name, content (None: there is no such file), message
    ("empty.yaml", b"", "empty.yaml: the file is empty; jaxagents config ENV prints a full one"),
    ("comment.yaml", b"# to be written\n", "comment.yaml: the file is empty"),
    ("words.yaml", b"just words\n", "words.yaml: this is not a YAML file of keys and values"),
    ("list.yaml", b"- name: tiny\n", "list.yaml: this is not a YAML file of keys and values"),
    ("image.png", b"\x89PNG\r\n\x1a\n\x00\xff", "image.png: this is not UTF-8 text"),
    ("tag.yaml", FILE.encode().replace(b"seed: 0", b"seed: !!int a"), "invalid literal for int()"),
    ("key.yaml", FILE.encode().replace(b"  prey_speed", b"  [a]"), "unhashable key in line 4"),
    ("loop.yaml", b"env_params: &a\n  b: *a\n", "an anchor (&) contains an alias (*) of itself"),
    (300 * "x", None, "it cannot be read: File name too long"),
    ("null.yaml", b"name: a\x00b\n", "null.yaml: this is not valid YAML: "),
    ("lacks.yaml", b"name: a\nenv: hunting/discrete\n", "agent.n_steps is missing; give it there"),
    ("lacks.yaml", FILE.encode().replace(b"env: hunting/discrete\n", b""), "env is missing; give"),
]


def test_the_line_of_an_unknown_tag_is_named_in_a_file_with_any_letters(capsys):
    text = "# größer\n# or not\n" + FILE.replace("gamma: 0.9", "gamma: !larger 1")
    Path("wrong.yaml").write_text(text, encoding="utf-8")
    assert refusal(["train", "wrong.yaml", "--quiet"], capsys).startswith("wrong.yaml:17: ")


@pytest.mark.parametrize(("name", "content", "message"), WRONG_FILES)
def test_a_wrong_file_is_named(name, content, message, capsys):
    if content is not None:
        Path(name).write_bytes(content)
    refused = refusal(["train", name, "--quiet"], capsys)
    assert refused.startswith(f"{name}: ")
    assert message in refused


@pytest.mark.parametrize("arguments", [[], ["--seed", "3"]])
def test_a_missing_file_is_called_missing(arguments, capsys):
    refused = refusal(["train", "missing.yaml", *arguments], capsys)
    assert refused == "missing.yaml: there is no such file"


def test_the_value_of_an_option_before_the_file_is_taken_for_it_and_named_with_the_remedy(capsys):
    Path("tiny.yaml").write_text(FILE)
    refused = refusal(["train", "--seed", "3", "tiny.yaml"], capsys)
    assert refused == "3: there is no such file; CONFIG comes before any --KEY VALUE"


def test_a_directory_is_refused_with_the_configuration_in_it(capsys):
    assert refusal(["train", "."], capsys) == ".: this is a directory; name a YAML file"
    Path("config.yaml").write_text(FILE)
    assert refusal(["train", "."], capsys).endswith("its configuration is config.yaml")


WRONG_OVERRIDES = [  # arguments, message
    (["--agent.n_setps", "3"], "unknown key agent.n_setps; did you mean agent.n_steps?"),
    (["--n_steps=3"], "unknown key n_steps; did you mean agent.n_steps?"),
    (["--agent.n_steps", "x"], "agent.n_steps should be an integer, but is x"),
    (["--agent.n_steps=1.5"], "agent.n_steps should be an integer, but is 1.5"),
    (["--agent.n_steps="], "agent.n_steps should be an integer, but is empty"),
    (["--agent.n_steps"], "--agent.n_steps needs a value"),
    (["--agent.n_steps", "--seed", "3"], "--agent.n_steps needs a value"),
    (["--agent.n_steps 3"], "give --agent.n_steps and its value as two arguments, or write"),
    (["--config", "{}"], "unknown key config"),
    (["--config=null"], "unknown key config"),
    (["--agent.actor_layers.hidden_sizes", "8,8"], "should be a list of integers, but is 8,8"),
    (["--agent", "{n_steps: 3}"], "agent holds keys; give one of them, as --agent.n_steps VALUE"),
    (["agent.n_steps=3"], "unrecognized argument agent.n_steps=3; did you mean --agent.n_steps=3?"),
    (["surplus"], "unrecognized argument surplus"),
    (["--agent.minibatch_size=3"], "batch_size=4 trajectories do not divide"),
    (["--agent.n_evals=0"], "use evaluation.mode='last'"),
    (["--name", "a/b"], "name='a/b' cannot name a directory"),
    (["--env", "hunting/discreet"], "env: unknown environment id 'hunting/discreet'. Did you mean"),
    (["--env", "nothing"], "env: unknown environment id 'nothing'"),
    (["--env_params", "3"], "env_params should be keys and values, but is 3"),
    (["--env_params.speed", "3"], "env_params.speed is no parameter of hunting/discrete; it has"),
    (["--hyperparams.gamma", "1.5"], "gamma=1.5 is out of range"),
    (["--hyperparams.learning_rate", "-1"], "learning_rate=-1.0 is out of range"),
    (["--hyperparams.gamma", "[0.1, 0.2, 0.3]"], "gamma has shape (3,)"),
    (["--hyperparams.kl_threshold", "inf"], "numbers, but is inf; infinity is written .inf"),
    (["--stop_at_return", ".nan"], "stop_at_return=nan is not a return; give a number"),
    (["--env_kwargs.maps.fill", "3"], "nested too deeply; set env_kwargs.maps as a whole: --e"),
    (["--env_kwargs.a.b.c=3"], "set env_kwargs.a as a whole: --env_kwargs.a '{b: {c: VALUE}}'"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG_OVERRIDES)
def test_a_wrong_override_is_located_on_the_command_line(arguments, message, capsys):
    Path("tiny.yaml").write_text(FILE)
    refused = refusal(["train", "tiny.yaml", "--quiet", *arguments], capsys)
    assert refused.startswith("command line: ")
    assert message in refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env_kwargs.size", "3"], "hunting/discrete cannot be constructed with size=3"),
        (["--runs_dir=tiny.yaml"], "runs_dir: tiny.yaml cannot be written to: [Errno 20] Not a di"),
    ],
)
def test_an_error_of_several_values_names_them(arguments, message, capsys):
    Path("tiny.yaml").write_text(FILE)
    assert message in refusal(["train", "tiny.yaml", "--quiet", *arguments], capsys)


def test_an_error_that_names_no_key_is_located_at_the_file(capsys):
    Path("tiny.yaml").write_text(FILE)
    with jax.enable_x64(True):
        refused = refusal(["train", "tiny.yaml", "--quiet"], capsys)
    assert refused.startswith("tiny.yaml: ")
    assert "switch it off" in refused


def test_a_broken_configuration_of_a_run_is_named_by_eval_and_resume(capsys):
    Path("config.yaml").write_text(FILE.replace("gamma: 0.9", "gamma: 9"))
    for command in ("eval", "resume"):
        refused = refusal([command, "."], capsys)
        assert refused.startswith("config.yaml:15: gamma=9.0 is out of range")


def test_a_process_prints_one_line_and_exits_with_status_2():
    Path("wrong.yaml").write_text(FILE.replace("n_steps", "n_stpes"))
    command = [sys.executable, "-m", "jaxagents", "train", "wrong.yaml"]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert (finished.returncode, finished.stdout) == (2, "")
    assert finished.stderr == (
        "jaxagents: error: wrong.yaml:7: unknown key agent.n_stpes; did you mean agent.n_steps?\n"
    )
