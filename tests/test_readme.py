"""What the README and the pages of docs/ show works as written."""

import glob
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from jaxagents.cli import main as cli
from tests.plugins import forget_registrations
from tests.reported import write_run

REPOSITORY = Path(__file__).parents[1]
DOCS = sorted((REPOSITORY / "docs").glob("*.md"))
README = REPOSITORY / "README.md"
# Pages of the site only, see test_site.py; tutorials are notebooks, see test_tutorials.py.
IN_FOLDERS = sorted((REPOSITORY / "docs").glob("*/*.md"))
PAGES = [README, *DOCS, *(page for page in IN_FOLDERS if page.parent.name != "tutorials")]
FAMILIES = sorted((REPOSITORY / "docs" / "environments").glob("*.md"))
LINKED = [README, *DOCS, *IN_FOLDERS]
LINKED += [REPOSITORY / "CONTRIBUTING.md", REPOSITORY / "CHANGELOG.md", REPOSITORY / "SECURITY.md"]
LINKED += sorted((REPOSITORY / "benchmarks").rglob("*.md"))
# The slowest pages; other tests cover what they show.
SLOW = {
    "actors_and_policies.md",
    "adapter.md",
    "capacity.md",
    "checkpoints.md",
    "command_line.md",
    "compiler.md",
    "devices.md",
    "entities.md",
    "diagnosing.md",
    "fine_tuning.md",
    "first_training.md",
    "index.md",
    "install.md",
    "host_environments.md",
    "moving_here.md",
    "networks.md",
    "moving_from_jaxmarl.md",
    "choosing.md",
    "populations.md",
    "plugins.md",
    "randomness.md",
    "several_agents.md",
    "studies.md",
    "sweeps.md",
    "logged_experience.md",
    "moving_from_jaxagents_0_2_5.md",
    "moving_from_rejax.md",
    "moving_from_skrl.md",
    "moving_from_stable_baselines3.md",
    "your_environment.md",
    "zoo.md",
} | {page.name for page in FAMILIES}
NEEDS = {
    "craftax.md": "craftax",
    "gymnasium.md": "pygame",
    "mabrax.md": "brax",
    "minigrid.md": "navix",
    "mujoco.md": "brax",
    "pettingzoo.md": "pettingzoo.classic",
}
NOT_RUN = ("pip", "pytest")  # they have run before any test does
OTHERS = {"py", "yaml"}  # code of other libraries, in pages for those who come from them
SHORT = {  # full training runs are measured by hand
    "demo": "--no-open --agent.n_steps 2 --agent.eval_frequency 1 --evaluation.n_evals 2",
    "train": "--agent.n_steps 2 --agent.eval_frequency 1 --agent.n_evals 2 --evaluation.n_evals 2",
    "resume": "--agent.n_steps 3",
    "study": "--no-replay --seeds 2 --agent.n_steps 2 --agent.eval_frequency 1 --agent.n_evals 2",
    "exploit": "--agent.n_steps 2 --seeds 1 --n-evals 4",
    "profile": "--agent.batch_size 4 --agent.rollout_length 8 --agent.minibatch_size 2",
}


def blocks(page: Path) -> list[tuple[str, str]]:
    """List the languages and contents of a page's blocks."""
    pattern = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return pattern.findall(page.read_text())


def commands(block: str) -> Iterator[list[str]]:
    for line in block.replace("\\\n", "").splitlines():
        for command in line.split(" && "):
            yield shlex.split(command, comments=True)


def run_command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    while "=" in words[0]:
        monkeypatch.setenv(*words.pop(0).split("=", 1))
    if words[0] in NOT_RUN:
        return
    assert words[0] == "jaxagents"
    arguments = [each for word in words[1:] for each in sorted(glob.glob(word)) or [word]]
    if "--help" not in arguments:
        arguments += SHORT.get(arguments[0], "").split()
    try:
        assert cli.main(arguments) == 0
    except SystemExit as end:
        assert end.code == 0  # noqa: PT017 -- help ends so


def run(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {}
    for language, block in blocks(page):
        if language == "python":
            if file := re.match(r"# (\w+\.py)", block):  # which commands import
                with Path(file[1]).open("a") as module:
                    module.write(block)
            exec(compile(block, page.name, "exec"), names)
        elif language == "bash":
            for words in commands(block):
                run_command(words, monkeypatch)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    # Pages register objects of their own, which no other test should find.
    forget_registrations(monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(REPOSITORY / "configs")
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_are_python_or_commands(page):
    languages = {language for language, _ in blocks(page)}
    assert languages <= {"python", "bash"} | (OTHERS if page.stem.startswith("moving_") else set())


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_code_of_other_libraries_is_valid(page):
    for language, block in blocks(page):
        if language == "py":
            compile(block, page.name, "exec")
        elif language == "yaml":
            assert yaml.safe_load(block)


def test_scripts_of_jaxagents_0_2_5_run_unchanged_once_the_agent_is_configured():
    page = REPOSITORY / "docs" / "moving_from_jaxagents_0_2_5.md"
    before, after = (block for language, block in blocks(page) if language in ("py", "python"))
    unchanged = before[before.index("hyperparams = HyperParameters(") :]
    assert "agent.train(" in unchanged
    assert after.endswith(unchanged)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page.name in SLOW else [])
        for page in PAGES
        if blocks(page) and page.name not in ("looking_at_runs.md", "training.md")
    ],
    ids=lambda page: page.name,
)
def test_the_blocks_of_a_page_run_one_after_the_other(page, folder, monkeypatch):
    if page.name in NEEDS:
        pytest.importorskip(NEEDS[page.name], reason="not in the extra test")
    run(page, monkeypatch)


@pytest.mark.slow
def test_the_page_about_training_prints_the_shapes_that_it_explains(folder, monkeypatch, capsys):
    run(REPOSITORY / "docs" / "training.md", monkeypatch)
    printed = capsys.readouterr().out
    assert "(3, 32, 2)" in printed
    assert "(3, 3, 32, 2)" in printed


@pytest.mark.slow
def test_the_page_about_runs_works_on_several_runs(folder, monkeypatch, capsys):
    for seed in range(4):
        write_run(folder / "runs" / f"one-{seed}", name="one", seed=seed)
        write_run(folder / "runs" / f"two-{seed}", name="two", seed=seed, mean=(-9.0, -8.0))
    run(REPOSITORY / "docs" / "looking_at_runs.md", monkeypatch)
    assert "two earns" in capsys.readouterr().out


def test_the_readme_is_short_and_begins_with_both_commands():
    assert len(README.read_text().splitlines()) <= 200
    bash = [block for language, block in blocks(README) if language == "bash"]
    assert "jaxagents train configs/simple_spread.yaml" in bash[0]
    install_and_test = 'pip install -c constraints.txt -e ".[test]" && pytest'
    assert install_and_test in bash[1]
    assert install_and_test in (REPOSITORY / ".ci" / "run").read_text()


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_and_pictures_exist(page):
    for is_picture, link in re.findall(r"(!?)\[[^\]]*\]\(([^)\s]+)\)", page.read_text()):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        if is_picture:
            assert target.stat().st_size < 200_000, link
        if anchor:
            assert anchor in anchors(target), link


def anchors(page: Path) -> set[str]:
    """List the anchors that GitHub gives to a page's headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_architecture_names_what_its_files_hold():
    """In a row, a name belongs to the files linked before it; without any, to ippo/base.py."""
    page = REPOSITORY / "docs" / "architecture.md"
    for row in re.findall(r"^\|.*$", page.read_text(), re.MULTILINE):
        files, follows_name = ["../jaxagents/ippo/base.py"], True
        for link, name in re.findall(r"\[`[^`]*`\]\(([^)]*)\)|`([\w.]+)`", row):
            if link:
                files = [link] if follows_name else [*files, link]
            else:
                text = "".join(contents(page.parent / file) for file in files)
                assert name.rpartition(".")[2] in text, (files, name)
            follows_name = not link


def contents(path: Path) -> str:
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return "".join(file.read_text() for file in files)


def test_each_shipped_configuration_is_on_one_page_of_a_family():
    named = [set(re.findall(r"configs/(\w+)\.yaml", page.read_text())) for page in FAMILIES]
    shipped = [path.stem for path in (REPOSITORY / "configs").glob("*.yaml")]
    assert sorted(name for names in named for name in names) == sorted(shipped)


@pytest.mark.parametrize("page", FAMILIES, ids=lambda page: page.name)
def test_a_family_shows_a_picture_and_below_it_the_commands_that_made_it(page):
    ((text, picture, made_by),) = re.findall(
        r"^!\[(.*)\]\((\w+\.gif)\)\n\n```bash\n(.*?)^```$",
        page.read_text(),
        re.MULTILINE | re.DOTALL,
    )
    assert text
    assert picture == f"{page.stem}.gif"
    *_, train, replay = commands(made_by)
    assert train[:2] == ["jaxagents", "train"]
    assert [word for word in replay if "=" not in word][:2] == ["jaxagents", "replay"]


@pytest.mark.parametrize("page", [README, *DOCS, *IN_FOLDERS], ids=lambda page: page.name)
def test_what_made_a_picture_is_said_beside_it(page):
    lines = page.read_text().splitlines()
    pictures = [i for i, line in enumerate(lines) if line.startswith("![")]
    for i in pictures:
        beside = "\n".join(lines[max(i - 8, 0) : i + 8])
        assert re.search(r"jaxagents (train|plot|replay)|learning_curve\.png|python bench", beside)


def test_the_figures_of_the_first_page_are_those_of_the_results():
    results = (REPOSITORY / "benchmarks" / "RESULTS.md").read_text()
    parts = dict(re.findall(r"^##+ (.*)\n([^#]*)", results, re.MULTILINE))
    ratio = re.search(r"^\| 16 \|.*\| ([\d.]+) \|$", parts["Speed"], re.MULTILINE)
    better = re.findall(r"\| [\d.]+ %, ([\d.]+) % \|$", parts["Beside peers"], re.MULTILINE)
    killed = re.findall(r"(\d+) \| [\d, ]+ \| \d+ \| bit-identical", parts["Safety"])
    again = re.search(r"(\d+) kills, and (\d+) more", parts["Safety"])
    assert ratio
    assert again
    n_killed = sum(map(int, [*killed, *again.groups()]))
    page = " ".join((REPOSITORY / "docs" / "index.md").read_text().split())
    assert f"[{float(ratio[1]):.1f} " in page
    assert all(float(share) > 50 for share in better)
    assert f"[{len(better)} of {len(better)}]" in page
    assert f"{sum(map(float, better)) / len(better):.0f} % of pairs of seeds" in page
    assert f"[{n_killed} of {n_killed}]" in page


def test_every_page_is_linked_from_the_readme():
    assert {f"docs/{page.name}" for page in DOCS} <= set(
        re.findall(r"\((.*?)\)", README.read_text())
    )
