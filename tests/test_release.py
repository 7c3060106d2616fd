"""What a release consists of agrees with itself: versions, supported Pythons, files for others."""

import configparser
import re
from pathlib import Path

import pytest
import yaml

import jaxagents

REPOSITORY = Path(__file__).parents[1]
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
