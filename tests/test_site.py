"""The documentation site builds without a warning or the network, and all its links hold."""

import html.parser
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import jaxagents
from jaxagents.experiments.config_files.schema import ExperimentConfig, keys_of
from tests.browser import CHROMIUM, Browser

# Building takes half a minute, and the packages of the extra "docs".
pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[1]
CONTRIBUTING = (REPOSITORY / "CONTRIBUTING.md").read_text()
WINDOWS = [(1280, 900, "light"), (1280, 900, "dark"), (390, 844, "light"), (390, 844, "dark")]
LOOKED_AT = [
    "docs/index",
    "docs/choosing",
    "docs/concepts/algorithm",
    "docs/environments/mpe",
    "docs/reference/agents",
    "docs/reference/configuration_keys",
    "docs/sections/environments",
    "docs/tutorials/single_agent",
    "benchmarks/RESULTS",
    "source/jaxagents/ppo",
    "search",
]

# Resolving a name is the first thing that any client does.
_WITHOUT_NETWORK = """
import runpy, socket, sys
def refuse(*arguments, **options):
    raise OSError("this build has no network")
socket.getaddrinfo = socket.socket.connect = refuse
sys.argv = ["sphinx-build", *sys.argv[1:]]
runpy.run_module("sphinx", run_name="__main__")
"""


# The keyboard scrolls only what it can focus.
_REACHABLE = "element => element.scrollWidth <= element.clientWidth || element.tabIndex === 0"


class Page(html.parser.HTMLParser):
    """The ids of a page, the addresses that it links to, and those that it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids, self.links, self.loaded = set(), set(), set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids.add(values.get("id"))
        loaded = {values.get("src"), values.get("srcset"), values.get("data"), values.get("poster")}
        if tag == "link" and values.get("rel") not in ("canonical", "index", "search"):
            loaded.add(values.get("href"))
        elif "href" in values:
            self.links.add(values["href"])
        loaded |= set(re.findall(r"url\(([^)]*)\)", values.get("style", "")))
        self.loaded |= loaded - {None, ""}


def build_options() -> list[str]:
    """Return the options of the command that CONTRIBUTING.md shows, but for the output's folder."""
    (command,) = re.findall(r"^sphinx-build (.*) build/site$", CONTRIBUTING, re.MULTILINE)
    return command.split()


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("sphinx", reason="needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    result = subprocess.run(
        [sys.executable, "-c", _WITHOUT_NETWORK, *build_options(), str(folder)],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


def is_elsewhere(address: str) -> bool:
    return bool(urlsplit(address).scheme or urlsplit(address).netloc)


def test_warnings_are_errors_and_unknown_names_are_warnings():
    assert {"-W", "--keep-going", "-n"} <= set(build_options())


def test_each_internal_link_leads_to_a_page_and_an_anchor(pages):
    broken = [
        (str(path), address)
        for path, page in pages.items()
        for address in page.links | page.loaded
        if not is_elsewhere(address) and not leads_somewhere(address, path, pages)
    ]
    assert broken == []


def leads_somewhere(address: str, path: Path, pages: dict[Path, Page]) -> bool:
    parts = urlsplit(address)
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target not in pages:
        return target.is_file()
    return not parts.fragment or unquote(parts.fragment) in pages[target].ids


def test_no_page_loads_anything_from_elsewhere(site, pages):
    loaded = {address for page in pages.values() for address in page.loaded}
    assert {address for address in loaded if is_elsewhere(address)} == set()
    for style in site.rglob("*.css"):
        addresses = re.findall(
            r"url\(\s*['\"]?([^)'\"]*)|@import\s+['\"]([^'\"]*)", style.read_text()
        )
        assert not [each for pair in addresses for each in pair if re.match(r"(https?:)?//", each)]


def test_every_page_of_the_repository_is_on_the_site(site):
    for page in (REPOSITORY / "docs").glob("*.md"):
        assert (site / "docs" / f"{page.stem}.html").exists()


def test_no_part_of_the_navigation_has_more_than_nine_entries():
    docs = REPOSITORY / "docs"
    for page in [docs / "index.md", *(docs / "sections").iterdir()]:
        (tree,) = re.findall(r":::\{toctree\}\n:hidden:\n\n([^:]*)\n:::", page.read_text())
        assert len(tree.splitlines()) <= 9, page.name


def test_every_tutorial_shows_what_it_draws(pages):
    tutorials = {path: page for path, page in pages.items() if path.parent.name == "tutorials"}
    drawn = {
        path.stem
        for path, page in tutorials.items()
        if any("_images/" in address for address in page.loaded)
    }
    sources = (REPOSITORY / "docs" / "tutorials").glob("*.md")
    assert drawn == {source.stem for source in sources}


def test_the_reference_documents_every_public_name_and_method(site):
    documented = inventory(site)
    assert {f"jaxagents.{name}" for name in jaxagents.__all__} <= documented
    between_modules = {"step_and_check", "checked"}  # public for the package's own sake
    methods = {name for name in dir(jaxagents.IPPOBase) if not name.startswith("_")}
    methods -= between_modules
    documents_itself = [name for name in methods if callable(getattr(jaxagents.IPPOBase, name))]
    assert {f"jaxagents.IPPOBase.{name}" for name in documents_itself} <= documented


def test_the_reference_lists_every_key_of_configurations(site):
    keys = [key for key, field in keys_of(ExperimentConfig) if not field.is_group]
    assert set(keys) <= inventory(site)


def test_the_reference_shows_the_help_of_every_command(site):
    page = (site / "docs" / "reference" / "command_line.html").read_text()
    help_text = subprocess.run(
        [sys.executable, "-m", "jaxagents", "--help"], capture_output=True, text=True, check=True
    ).stdout
    commands = re.findall(r"^    (\w+)", help_text.partition("commands:")[2], re.MULTILINE)
    assert "train" in commands
    for command in commands:
        assert f"usage: jaxagents {command}" in page


def inventory(site: Path) -> set[str]:
    """List the names that the site documents."""
    *_, compressed = (site / "objects.inv").read_bytes().split(b"\n", maxsplit=4)
    return {line.split()[0] for line in zlib.decompress(compressed).decode().splitlines()}


def test_the_first_page_leads_to_the_site(site):
    assert 'url=docs/index.html"' in (site / "index.html").read_text()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with Browser() as browser:
        yield browser


@pytest.mark.parametrize(("width", "height", "scheme"), WINDOWS)
@pytest.mark.parametrize("name", LOOKED_AT)
def test_pages_fit_the_window_and_load_only_themselves(browser, site, name, width, height, scheme):
    browser.open(site / f"{name}.html", width, height, scheme)
    assert browser.problems == []
    assert [each for each in browser.requested if not each.startswith(("file:", "data:"))] == []
    assert browser.evaluate("innerWidth") == width
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert browser.evaluate("document.querySelectorAll('h1').length") == 1
    for scrolls in ("pre", ".table-wrapper", ".math"):
        assert browser.evaluate(f"[...document.querySelectorAll('{scrolls}')].every({_REACHABLE})")
