"""What the README shows works as written."""

import glob
import re
import shlex
from pathlib import Path

from jaxagents.cli import main as cli

REPOSITORY = Path(__file__).parents[1]
README = (REPOSITORY / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    lines = "".join(blocks("bash")).splitlines()
    parts = [part for line in lines for part in line.split(" && ")]
    return [part for part in parts if part.startswith("jaxagents ")]


def test_there_are_blocks_of_both_kinds_and_of_no_other():
    assert len(blocks("python")) > 5
    assert len(commands()) > 3
    opening = re.findall(r"^```(\w*)$", README, re.MULTILINE)[::2]
    assert set(opening) == {"python", "bash"}


def test_the_python_blocks_run_one_after_the_other(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(REPOSITORY / "configs")
    names = {}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), names)
    assert "(3, 32, 2)" in capsys.readouterr().out  # the shape that the text explains
    assert (tmp_path / "returns.csv").read_text().startswith("0,")


def test_the_commands_run_one_after_the_other(tmp_path, monkeypatch, capsys):
    """Trainings are cut short: their whole length is measured by hand."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(REPOSITORY / "configs")
    for command in commands():
        words = shlex.split(command)[1:]
        arguments = [each for word in words for each in sorted(glob.glob(word)) or [word]]
        if arguments[0] == "train" and arguments[1] != "--help":
            arguments += ["--agent.n_steps", "2", "--agent.eval_frequency", "1",
                          "--agent.n_evals", "2", "--evaluation.n_evals", "2"]  # fmt: skip
        try:
            assert cli.main(arguments) == 0
        except SystemExit as end:
            assert end.code == 0  # noqa: PT017 -- help ends so
        assert capsys.readouterr().out


def test_the_set_up_is_that_of_the_continuous_integration():
    install_and_test = 'pip install -c constraints.txt -e ".[test]" && pytest'
    assert install_and_test in blocks("bash")[1]
    assert install_and_test in (REPOSITORY / ".ci" / "run").read_text()
    for picture in re.findall(r"^!\[.*\]\((.*)\)$", README, re.MULTILINE):
        assert (REPOSITORY / picture).stat().st_size < 200_000
