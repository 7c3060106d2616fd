"""What a release consists of agrees with itself: versions, supported Pythons, files for others."""

import configparser
import importlib.util
import re
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

import jaxagents

REPOSITORY = Path(__file__).parents[1]
_spec = importlib.util.spec_from_file_location(
    "check_release", REPOSITORY / "scripts" / "check_release.py"
)
assert _spec is not None
check_release = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(check_release)
PYTHONS = ["3.11", "3.12", "3.13"]


def text_of(name: str) -> str:
    return (REPOSITORY / name).read_text()


def read_yaml(name: str):
    return yaml.safe_load(text_of(name))


@pytest.fixture
def metadata() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(REPOSITORY / "setup.cfg")
    return parser


def test_the_version_is_written_once_and_the_others_follow(metadata):
    assert metadata["metadata"]["version"] == "attr: jaxagents.__version__"
    newest = re.search(r"^## \[?(\d+\.\d+\.\d+)", text_of("CHANGELOG.md"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == jaxagents.__version__
    assert read_yaml("CITATION.cff")["version"] == jaxagents.__version__


def test_the_citation_agrees_with_the_metadata(metadata):
    citation, package = read_yaml("CITATION.cff"), metadata["metadata"]
    assert citation["cff-version"] == "1.2.0"
    assert citation["license"] == package["license"]
    assert [each["name"] for each in citation["authors"]] == [package["author"]]
    assert citation["keywords"] == package["keywords"].split(", ")


def test_the_same_pythons_are_classified_and_tested(metadata):
    classified = re.findall(r"Python :: (3\.\d+)", metadata["metadata"]["classifiers"])
    jobs = read_yaml(".github/workflows/tests.yml")["jobs"]
    assert classified == PYTHONS
    assert jobs["tests"]["strategy"]["matrix"]["python-version"] == PYTHONS
    assert read_yaml(".gitlab-ci.yml")["tests"]["parallel"]["matrix"] == [{"PYTHON": PYTHONS}]
    assert metadata["options"]["python_requires"] == f">={PYTHONS[0]}"


def test_other_hosts_run_the_repositorys_own_check_with_pinned_actions_and_no_secrets():
    workflow = text_of(".github/workflows/tests.yml")
    for file in (workflow, text_of(".gitlab-ci.yml")):
        assert "bash .ci/run" in file
        assert "secrets" not in file.lower()
    uses = re.findall(r"uses: (\S+)", workflow)
    assert uses
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", each) for each in uses)


def test_other_hosts_build_the_site_by_the_documented_commands():
    install, build = re.findall(
        r"^(pip install .*\[docs\].*|sphinx-build .*)$", text_of("CONTRIBUTING.md"), re.MULTILINE
    )
    steps = read_yaml(".github/workflows/tests.yml")["jobs"]["site"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == [install, build]
    assert read_yaml(".gitlab-ci.yml")["site"]["script"] == [install, build]


def test_issue_templates_ask_for_what_answers_need():
    forms = {
        path.stem: yaml.safe_load(path.read_text())
        for path in (REPOSITORY / ".github" / "ISSUE_TEMPLATE").glob("*.yml")
    }
    assert forms.keys() == {"bug", "learning", "feature", "config"}
    required = {
        name: {each["id"] for each in form["body"] if each.get("validations", {}).get("required")}
        for name, form in forms.items()
        if name != "config"
    }
    assert required == {"bug": {"what", "doctor"}, "learning": {"expected", "report", "doctor"}} | {
        "feature": {"goal"}
    }


def test_the_changelog_keeps_its_format():
    """Keep a Changelog 1.1.0: versions from new to old, with known kinds of changes."""
    text = text_of("CHANGELOG.md")
    versions = re.findall(r"^## (\d+)\.(\d+)\.(\d+) \(.*\)$", text, re.MULTILINE)
    assert len(versions) == len(re.findall(r"^## ", text, re.MULTILINE)) >= 1
    numbers = [tuple(map(int, version)) for version in versions]
    assert numbers == sorted(numbers, reverse=True)
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        titles = re.findall(r"^### (.*)$", section, re.MULTILINE)
        assert titles
        assert len(set(titles)) == len(titles)
        assert set(titles) <= kinds


def test_the_script_looks_for_the_supported_pythons():
    assert list(check_release.SUPPORTED) == PYTHONS


def test_pins_are_the_lower_bounds_of_what_is_always_needed():
    required = ["jax>=0.7", "jsonargparse[signatures]>=4.53", 'optuna>=5; extra == "sweep"', "brax"]
    assert check_release.oldest_versions(required) == ["jax==0.7", "jsonargparse==4.53"]


PACKAGE = {"jaxagents/__init__.py", "jaxagents/py.typed"}
INFORMATION = ["METADATA", "entry_points.txt", "licenses/LICENSE", "RECORD"]


def wheel_of(
    folder: Path, names: set[str], contents: str = "", information: list[str] = INFORMATION
) -> Path:
    path = folder / "a.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in {*names, *(f"jaxagents-1.dist-info/{each}" for each in information)}:
            archive.writestr(name, contents)
    return path


def test_a_wheel_of_the_package_alone_is_accepted(tmp_path):
    check_release.check_wheel(wheel_of(tmp_path, PACKAGE), PACKAGE)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("tests/__init__.py", "holds tests/__init__.py"),
        ("jaxagents/__pycache__/config.pyc", "holds jaxagents/__pycache__"),
        ("jaxagents/.cache/x", "holds jaxagents/.cache"),
        ("/etc/passwd", "holds /etc/passwd"),
        ("jaxagents/../x", r"holds jaxagents/\.\./x"),
        ("jaxagents/stray.py", "holds jaxagents/stray.py"),
    ],
)
def test_a_wheel_with_anything_else_is_refused(more, message, tmp_path):
    with pytest.raises(check_release.ReleaseError, match=message):
        check_release.check_wheel(wheel_of(tmp_path, {*PACKAGE, more}), PACKAGE)


def test_a_wheel_that_lacks_something_or_names_a_folder_is_refused(tmp_path):
    with pytest.raises(check_release.ReleaseError, match=r"lacks jaxagents/py\.typed"):
        check_release.check_wheel(wheel_of(tmp_path, {"jaxagents/__init__.py"}), PACKAGE)
    with pytest.raises(check_release.ReleaseError, match="names the folder"):
        check_release.check_wheel(wheel_of(tmp_path, PACKAGE, f"# {REPOSITORY}/x"), PACKAGE)
    unlicensed = wheel_of(tmp_path, PACKAGE, information=["METADATA", "entry_points.txt"])
    with pytest.raises(check_release.ReleaseError, match="lacks LICENSE"):
        check_release.check_wheel(unlicensed, PACKAGE)


def test_a_source_distribution_with_a_link_or_with_tests_is_refused(tmp_path):
    for name, kind, message in (
        ("a/jaxagents/x", tarfile.SYMTYPE, "is no file"),
        ("a/tests/x.py", tarfile.REGTYPE, "holds tests/x.py"),
    ):
        with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
            member = tarfile.TarInfo(name)
            member.type = kind
            archive.addfile(member)
        with pytest.raises(check_release.ReleaseError, match=message):
            check_release.check_sdist(tmp_path / "a.tar.gz", PACKAGE)
