"""The page about runs: what it says, what it loads, and where it is written."""

import itertools
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from jaxagents.cli import main as cli
from jaxagents.experiments.report.page import write_report
from tests.reported import write_run

EMPTY = ("img", "meta", "source", "wbr")
COLUMNS = ("mean", "ci_low", "ci_high", "iqm", "std", "min", "median", "max")


class Page(HTMLParser):
    """What a browser would make of a page; ends of elements have to match their beginnings."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, Any]]] = []
        self.texts: list[tuple[str, str]] = []  # of which element, and what
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in EMPTY:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self._open[-1] if self._open else "", data))

    def attributes(self, tag: str, name: str) -> list[str]:
        return [attrs[name] for each, attrs in self.elements if each == tag and name in attrs]

    def text(self) -> str:
        return " ".join(text for tag, text in self.texts if tag != "style")


def read(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def report(*runs: Path, **arguments: Any) -> Page:
    return read(write_report(runs, replay=False, **arguments))


@pytest.fixture
def run(tmp_path) -> Path:
    return write_run(tmp_path / "runs" / "spread-1")


@pytest.fixture
def seeds(tmp_path) -> list[Path]:
    """Four runs that differ in their seed only."""
    return [
        write_run(tmp_path / "runs" / f"spread-{i}", seed=i, mean=(-20.0 + i, -20.0 + i))
        for i in range(4)
    ]


# What it says.


def test_the_table_holds_the_numbers_of_the_summary(run):
    page = report(run)
    returns = json.loads((run / "summary.json").read_text())["returns"]
    expected = [returns[name][i] for i in range(2) for name in COLUMNS]
    assert [float(value) for value in page.attributes("data", "value")] == expected
    shown = [text for tag, text in page.texts if tag == "data"]
    assert shown == [f"{value:.2f}" for value in expected]


def test_actors_of_equal_returns_share_a_row(tmp_path):
    page = report(write_run(tmp_path / "run", mean=(-19.25, -19.25, -19.25)))
    assert len(page.attributes("data", "value")) == len(COLUMNS)
    assert "each of 3 actors" in page.text()
    assert (
        "Trained for 102,400 environment steps on jaxmarl/MPE_simple_spread_v3, the policies of "
        "the best checkpoint, of step 81,920, return -19.25 (95 % interval -20.12 to -18.44), "
        "averaged over 100 greedy episodes."
    ) in page.text()


def test_returns_that_are_no_numbers_are_shown_as_such(run):
    summary = json.loads((run / "summary.json").read_text())
    summary["returns"]["mean"] = [None, None]
    (run / "summary.json").write_text(json.dumps(summary))
    page = report(run)
    assert "return no finite number" in page.text()
    assert len(page.attributes("data", "value")) == 2 * (len(COLUMNS) - 1)


def test_a_group_of_seeds_has_its_interquartile_mean_and_each_run_its_row(seeds):
    page = report(*seeds, path=seeds[0].parent / "all.html")
    numbers = [float(value) for value in page.attributes("data", "value")]
    iqm, low, high = numbers[:3]
    assert iqm == pytest.approx(-18.5)  # the mean of the two in the middle: -19 and -18
    assert -20 <= low < -18.5 < high <= -17
    assert numbers[3 :: len(COLUMNS)] == [-20, -19, -18, -17]
    assert (
        "of seeds 0, 1, 2 and 3: the interquartile mean of their returns is -18.50" in page.text()
    )
    assert [each.name in page.text() for each in seeds] == [True] * 4


def test_a_run_that_has_gone_on_since_its_summary_is_in_no_estimate(seeds):
    path = seeds[3] / "summary.json"
    summary = json.loads(path.read_text())
    path.write_text(
        json.dumps(summary | {"training": summary["training"] | {"n_updates_done": 40}})
    )
    page = report(*seeds, path=seeds[0].parent / "all.html")
    # Of -20, -19 and -18, the outer ones weigh a quarter.
    assert float(page.attributes("data", "value")[0]) == pytest.approx(-19.0)
    assert "3 of them evaluated" in page.text()
    assert "spread-3 has not ended" in page.text()


def test_groups_of_an_environment_are_compared_and_environments_drawn_apart(seeds, tmp_path):
    slow = [
        write_run(
            tmp_path / f"slow-{i}", name="slow", seed=i, mean=(-30.0 - i,), agent={"n_evals": 9}
        )
        for i in range(4)
    ]
    other = write_run(tmp_path / "other", name="other", env="hunting/discrete")
    page = report(*seeds, *slow, other, path=tmp_path / "all.html")
    assert ("h1", "spread, slow and other") in page.texts
    # The interquartile means are -18.5 and -31.5.
    assert "spread earns 13.00 more than slow" in page.text()
    assert page.text().count("earns") == 1
    # A single run has no interval over runs: its two actors have a dash for either bound.
    assert [text for tag, text in page.texts if tag == "td"].count("-") == 4
    titles = [text for tag, text in page.texts if tag == "h3"]
    assert titles == 2 * ["jaxmarl/MPE_simple_spread_v3", "hunting/discrete"]
    alt = page.attributes("img", "alt")
    assert [text.count("hunting") for text in alt] == [0, 1, 0, 1]


def test_curves_have_words_that_say_where_they_lead(run):
    page = report(run)
    returns, losses = page.attributes("img", "alt")
    assert "spread from -50.00 to -49.00 at first to -20.00 to -19.00 at last" in returns
    assert "loss of the critic, KL divergence of an update" in losses


def test_what_is_not_at_its_default_comes_first_and_the_rest_is_folded_away(run):
    page = report(run)
    body = (run / "report.html").read_text()
    config = body[body.index("<h2>Configuration") :]
    table, complete = config.split("<details>")
    rows = re.findall("<tr>.*?</tr>", table)[1:]
    cells = [re.sub("<[^>]*>", "|", row).strip("|").replace("||", "|") for row in rows]
    assert [re.sub(r"\|+", " ", row) for row in cells] == [
        "env jaxmarl/MPE_simple_spread_v3",
        "agent .n_steps 50",
        "agent .eval_frequency 10 50",
    ]
    assert "minibatch_unit: trajectory" in complete
    assert "details" not in [tag for tag, attributes in page.elements if "open" in attributes]


def test_groups_are_set_beside_each_other_where_they_differ(run, tmp_path):
    other = write_run(tmp_path / "other", name="other", agent={"recurrent": "gru"})
    text = report(run, other, path=tmp_path / "both.html").text()
    assert re.search(r"\.recurrent\s+null\s+gru\s+null", text)


def test_it_tells_how_to_have_the_run_again(run):
    text = report(run).text()
    assert f"jaxagents train {run}/config.yaml" in text
    assert f"jaxagents report {run}" in text
    assert re.search(r"jax\s+0\.10\.2", text)


# Runs that have not ended.


def test_a_run_in_training_is_reported_as_such(tmp_path):
    page = report(write_run(tmp_path / "run", n_evaluations=3, ended=False))
    assert "run has not ended: 20 of 50 updates are recorded." in page.text()
    assert "after 40,960 environment steps, the policies return -38.00 to -37.00" in page.text()
    values = [float(value) for value in page.attributes("data", "value")]
    assert values == [-38.0, 3.0, -43.0, -33.0, -37.0, 3.0, -42.0, -32.0]
    assert len(page.attributes("img", "src")) == 2


@pytest.mark.parametrize("n_evaluations", [0, 1])
def test_a_run_that_has_just_begun_is_reported_too(n_evaluations, tmp_path):
    page = report(write_run(tmp_path / "run", n_evaluations=n_evaluations, ended=False))
    assert "run has not ended: 0 of 50 updates" in page.text()
    assert "There are none yet: no update has been recorded." in page.text()
    assert len(page.attributes("img", "src")) == n_evaluations


def test_a_run_that_goes_on_after_its_evaluation_is_reported_as_such(run):
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["agent"]["n_steps"] = 90
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    assert "has not ended" not in report(run).text()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"n_updates_done": 60, "n_environment_steps": 122880, "seconds": 9.0}\n')
    assert "spread-1 has not ended: 60 of 90 updates are recorded." in report(run).text()


# The page as such.


def test_nothing_is_loaded_from_anywhere(seeds, tmp_path):
    page = report(*seeds, path=tmp_path / "all.html")
    names = ("src", "srcset", "href", "action", "data", "poster", "background")
    for tag, attributes in page.elements:
        assert tag not in ("script", "link", "iframe", "object", "embed", "base")
        assert all(attributes[name].startswith("data:") for name in names if name in attributes)
    style = "".join(text for tag, text in page.texts if tag == "style")
    assert "{" in style
    assert "url(" not in style
    assert "@import" not in style


def test_headings_are_in_order_and_pictures_have_words(seeds, tmp_path):
    other = write_run(tmp_path / "other", name="other", env="hunting/discrete")
    page = report(*seeds, other, path=tmp_path / "all.html")
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    images = [attributes for tag, attributes in page.elements if tag == "img"]
    assert images
    assert all(attributes["alt"] for attributes in images)
    assert page.attributes("html", "lang") == ["en"]


def test_names_cannot_become_elements(tmp_path):
    evil = '<script>alert("1")</script>&amp;'
    run = write_run(tmp_path / "run<b>", name=evil, env="<img src=x onerror=alert(1)>")
    page = report(run, path=tmp_path / "evil.html")
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "b"}
    assert ("h1", evil) in page.texts
    assert all(source.startswith("data:") for source in page.attributes("img", "src"))
    assert "<img src=x onerror=alert(1)>" in page.text()


# Episodes.


def replay_of(pictures: list[Any] | Exception):
    """Stand in for rendering."""

    def replay(self, directory: Path, n_episodes: int = 1) -> list[Path]:
        if isinstance(pictures, Exception):
            raise pictures
        path = directory / "episode-1.gif"
        pictures[0].save(path, save_all=True, append_images=pictures[1:])
        return [path]

    return replay


def test_an_episode_plays_and_stands_still_for_those_who_ask(run, monkeypatch):
    from PIL import Image

    from jaxagents.experiments.experiment import Experiment

    colours = ("red", "green")
    frames = [Image.new("RGB", (40, 30), colour) for colour in colours]
    monkeypatch.setattr(Experiment, "replay", replay_of(frames))
    page = read(write_report([run]))
    (moving,) = [each for each in page.attributes("img", "src") if "gif" in each]
    (still,) = page.attributes("source", "srcset")
    assert moving.startswith("data:image/gif;base64,")
    assert still.startswith("data:image/png;base64,")
    assert page.attributes("source", "media") == ["(prefers-reduced-motion: reduce)"]


def test_where_no_episode_can_be_shown_the_page_says_why(run, monkeypatch):
    from jaxagents.experiments.experiment import Experiment

    monkeypatch.setattr(Experiment, "replay", replay_of(OSError("nothing draws this")))
    text = read(write_report([run])).text()
    assert "No episode could be shown of spread-1: nothing draws this" in text
    assert "None is shown: the report was made with --no-replay." in report(run).text()


# Where it is written.


def test_the_report_of_several_runs_is_in_the_working_folder(seeds, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", *map(str, seeds), "--no-replay"]) == 0
    assert capsys.readouterr().out == "report.html\n"
    assert "4 runs on" in read(tmp_path / "report.html").text()


def test_an_earlier_report_is_replaced_and_nothing_else_is(run, capsys):
    report(run)
    first = (run / "report.html").read_text()
    shutil.copy(run / "config.yaml", run / "mine.html")
    report(run, path=run / "report.html")
    assert "spread" in first
    for target, message in {
        "mine.html": "mine.html is no report and stays as it is; name another file by --to",
        "config.yaml": "config.yaml does not end in .html",
        "missing/report.html": "there is no folder",
    }.items():
        arguments = ["report", str(run), "--no-replay", "--to", str(run / target)]
        assert cli.main(arguments) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert (run / "mine.html").read_bytes() == (run / "config.yaml").read_bytes()
    assert [path.name for path in run.iterdir() if path.suffix == ".new"] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report"], "the following arguments are required: RUN"),
        (["report", "missing"], "missing is no run: it has no config.yaml"),
        (["report", ".", "--replay"], "unrecognized arguments: --replay"),
    ],
)
def test_a_wrong_command_is_refused_in_one_line(arguments, message, capsys):
    try:
        status = cli.main(arguments)
    except SystemExit as end:
        status = end.code
    error = capsys.readouterr().err
    assert status == 2
    assert message in error
    assert error.count("\n") == 1
