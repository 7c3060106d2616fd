"""The report of runs: its text, what it loads, and where it is written."""

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
from jaxagents.evaluation.runs import read_groups
from jaxagents.experiments.report.page import write_report
from jaxagents.experiments.report.parts import CaptionedTable, Picture, document
from jaxagents.experiments.report.sentences import key_figures
from tests.reported import write_run

EMPTY = ("img", "meta", "source", "wbr")
COLUMNS = ("mean", "ci_low", "ci_high", "iqm", "std", "min", "median", "max")


class Page(HTMLParser):
    """A parsed page; every end tag has to match its start tag."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, Any]]] = []
        self.texts: list[tuple[str, str]] = []  # tag of the element, and its text
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


def write_seeds(folder: Path) -> list[Path]:
    """Write four runs that differ only in their seed."""
    return [
        write_run(folder / f"spread-{i}", seed=i, mean=(-20.0 + i, -20.0 + i)) for i in range(4)
    ]


@pytest.fixture
def seeds(tmp_path) -> list[Path]:
    return write_seeds(tmp_path / "runs")


@pytest.fixture
def empty_plots(monkeypatch):
    """Write empty SVGs in place of plots: drawing takes most of the time of a report."""

    def plot_runs(groups, path, metrics):
        path.write_text('<svg xmlns="http://www.w3.org/2000/svg" width="9pt"></svg>')

    monkeypatch.setattr("jaxagents.visual.run_plots.plot_runs", plot_runs)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A finished run whose directory holds its report; tests only read it."""
    run = write_run(tmp_path_factory.mktemp("finished") / "spread-1")
    write_report([run], replay=False)
    return run


@pytest.fixture(scope="module")
def page(finished) -> Page:
    """The report of the finished run."""
    return read(finished / "report.html")


@pytest.fixture(scope="module")
def page_of_two_environments(tmp_path_factory) -> Page:
    """The report of four seeds on one environment and a run on another."""
    folder = tmp_path_factory.mktemp("two_environments")
    other = write_run(folder / "other", name="other", env="hunting/discrete")
    return report(*write_seeds(folder), other, path=folder / "all.html")


def test_the_table_holds_the_statistics_of_the_summary(finished, page):
    returns = json.loads((finished / "summary.json").read_text())["returns"]
    expected = [returns[name][i] for i in range(2) for name in COLUMNS]
    assert [float(value) for value in page.attributes("data", "value")] == expected
    shown = [text for tag, text in page.texts if tag == "data"]
    assert shown == [f"{value:.2f}" for value in expected]


def test_actors_with_equal_returns_share_a_row(tmp_path, empty_plots):
    page = report(write_run(tmp_path / "run", mean=(-19.25, -19.25, -19.25)))
    assert len(page.attributes("data", "value")) == len(COLUMNS)
    assert "each of 3 actors" in page.text()
    assert (
        "Trained for 102,400 environment steps on jaxmarl/MPE_simple_spread_v3. The policies of "
        "the best checkpoint (step 81,920) reach a mean return of -19.25 (95 % interval -20.12 to "
        "-18.44) over 100 greedy episodes."
    ) in page.text()


def test_returns_that_are_nan_or_infinite_are_named_as_such(run, empty_plots):
    summary = json.loads((run / "summary.json").read_text())
    summary["returns"]["mean"] = [None, None]
    (run / "summary.json").write_text(json.dumps(summary))
    page = report(run)
    assert "reach a mean return of NaN or infinity" in page.text()
    assert len(page.attributes("data", "value")) == 2 * (len(COLUMNS) - 1)


def test_a_group_of_seeds_has_an_interquartile_mean_and_every_run_a_row(seeds, empty_plots):
    page = report(*seeds, path=seeds[0].parent / "all.html")
    numbers = [float(value) for value in page.attributes("data", "value")]
    iqm, low, high = numbers[:3]
    assert iqm == pytest.approx(-18.5)  # mean of the middle two, -19 and -18
    assert -20 <= low < -18.5 < high <= -17
    assert numbers[3 :: len(COLUMNS)] == [-20, -19, -18, -17]
    assert (
        "with seeds 0, 1, 2 and 3: the interquartile mean of their returns is -18.50" in page.text()
    )
    assert [each.name in page.text() for each in seeds] == [True] * 4


def test_the_time_of_a_population_counts_once(tmp_path):
    populations = [write_run(tmp_path / each, name=each) for each in "ab"]
    for population in populations:
        for i in range(3):
            write_run(population / "members" / str(i), name=population.name, seed=i)
    figures = {title: value for title, value, _ in key_figures(read_groups(populations))}
    assert figures["Runs"] == "6"
    assert figures["Training time"] == "2:30"  # 75.2 s each


def test_a_group_whose_actors_differ_has_a_range_of_interquartile_means(tmp_path, empty_plots):
    runs = [
        write_run(tmp_path / f"spread-{i}", seed=i, mean=(-20.0 + i, -10.0 + i)) for i in range(4)
    ]
    assert (
        "with seeds 0, 1, 2 and 3: the interquartile mean of their returns is -18.50 to -8.50, "
        "depending on the actor."
    ) in report(*runs, path=tmp_path / "all.html").text()


@pytest.mark.parametrize("other", ["unfinished", "infinite"])
def test_a_group_of_fewer_than_two_usable_returns_has_no_estimate(tmp_path, other, empty_plots):
    first, second = (
        write_run(tmp_path / f"spread-{i}", seed=i, ended=i == 0 or other == "infinite")
        for i in range(2)
    )
    if other == "infinite":
        summary = json.loads((second / "summary.json").read_text())
        summary["returns"]["mean"] = [None, None]
        (second / "summary.json").write_text(json.dumps(summary))
    text = report(first, second, path=tmp_path / "all.html").text()
    assert "2 runs on jaxmarl/MPE_simple_spread_v3 with seeds 0 and 1." in text
    assert "the interquartile mean of their returns" not in text


def test_a_run_resumed_after_its_summary_is_left_out_of_the_estimate(seeds, empty_plots):
    path = seeds[3] / "summary.json"
    summary = json.loads(path.read_text())
    path.write_text(
        json.dumps(summary | {"training": summary["training"] | {"n_updates_done": 40}})
    )
    page = report(*seeds, path=seeds[0].parent / "all.html")
    # Of -20, -19 and -18, the outer two have a weight of a quarter.
    assert float(page.attributes("data", "value")[0]) == pytest.approx(-19.0)
    assert "3 evaluated" in page.text()
    assert "spread-3 is unfinished" in page.text()


def test_only_groups_on_the_same_environment_are_compared(seeds, tmp_path, empty_plots):
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
    # A single run has no interval over runs: both actors have a dash for either bound.
    assert [text for tag, text in page.texts if tag == "td"].count("-") == 4


def test_every_environment_has_its_own_plots(page_of_two_environments):
    page = page_of_two_environments
    titles = [text for tag, text in page.texts if tag == "h3"]
    assert titles == 2 * ["jaxmarl/MPE_simple_spread_v3", "hunting/discrete"]
    alt = page.attributes("img", "alt")
    assert [text.count("hunting") for text in alt] == [0, 1, 0, 1]


def test_plots_have_alternative_texts_that_summarize_them(page):
    returns, losses = page.attributes("img", "alt")
    assert "spread starts at -50.00 to -49.00 and ends at -20.00 to -19.00" in returns
    assert "actor loss, critic loss, kl" in losses


def test_runs_that_cannot_be_plotted_together_are_reported_without_plots(tmp_path):
    runs = [write_run(tmp_path / f"spread-{i}", seed=i) for i in range(2)]
    lines = [json.loads(line) for line in (runs[1] / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line["n_environment_steps"] += 10**6  # after the last evaluation of the other run
    (runs[1] / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = report(*runs, path=tmp_path / "all.html")
    assert page.attributes("img", "src") == []
    assert page.text().count("No plot: the runs of spread were evaluated in parts of training") == 2


def test_settings_off_their_defaults_are_listed_and_the_complete_file_is_collapsed(finished, page):
    body = (finished / "report.html").read_text()
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


def test_settings_of_groups_are_listed_side_by_side(run, tmp_path, empty_plots):
    other = write_run(tmp_path / "other", name="other", agent={"recurrent": "gru"})
    text = report(run, other, path=tmp_path / "both.html").text()
    assert re.search(r"\.recurrent\s+null\s+gru\s+null", text)


def test_the_page_tells_how_to_reproduce_the_run(finished, page):
    text = page.text()
    assert f"jaxagents train {finished}/config.yaml" in text
    assert f"jaxagents report {finished}" in text
    assert re.search(r"jax\s+0\.10\.2", text)


def test_a_run_in_training_is_reported_as_unfinished(tmp_path, empty_plots):
    page = report(write_run(tmp_path / "run", n_evaluations=3, ended=False))
    assert "run is unfinished: 20 of 50 updates are recorded." in page.text()
    assert (
        "after 40,960 environment steps, its policies reach a mean return of -38.00 to -37.00"
    ) in page.text()
    values = [float(value) for value in page.attributes("data", "value")]
    assert values == [-38.0, 3.0, -43.0, -33.0, -37.0, 3.0, -42.0, -32.0]
    assert len(page.attributes("img", "src")) == 2


@pytest.mark.parametrize("n_evaluations", [0, 1])
def test_a_run_without_updates_is_reported_too(n_evaluations, tmp_path):
    page = report(write_run(tmp_path / "run", n_evaluations=n_evaluations, ended=False))
    assert "run is unfinished: 0 of 50 updates" in page.text()
    assert "No curves yet: no update has been recorded." in page.text()
    assert len(page.attributes("img", "src")) == n_evaluations


def test_a_run_resumed_after_its_evaluation_is_reported_as_unfinished(run, empty_plots):
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["agent"]["n_steps"] = 90
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    assert "is unfinished" not in report(run).text()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"n_updates_done": 60, "n_environment_steps": 122880, "seconds": 9.0}\n')
    assert "spread-1 is unfinished: 60 of 90 updates are recorded." in report(run).text()


def test_the_page_loads_nothing(page_of_two_environments):
    page = page_of_two_environments
    names = ("src", "srcset", "href", "action", "data", "poster", "background")
    for tag, attributes in page.elements:
        assert tag not in ("script", "link", "iframe", "object", "embed", "base")
        assert all(attributes[name].startswith("data:") for name in names if name in attributes)
    style = "".join(text for tag, text in page.texts if tag == "style")
    assert "{" in style
    assert "url(" not in style
    assert "@import" not in style


def test_headings_are_nested_and_images_have_alternative_texts(page_of_two_environments):
    page = page_of_two_environments
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    images = [attributes for tag, attributes in page.elements if tag == "img"]
    assert images
    assert all(attributes["alt"] for attributes in images)
    assert page.attributes("html", "lang") == ["en"]


def test_names_cannot_inject_html(tmp_path):
    evil = '<script>alert("1")</script>&amp;'
    run = write_run(tmp_path / "run<b>", name=evil, env="<img src=x onerror=alert(1)>")
    page = report(run, path=tmp_path / "evil.html")
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "b"}
    assert ("h1", evil) in page.texts
    assert all(source.startswith("data:") for source in page.attributes("img", "src"))
    assert "<img src=x onerror=alert(1)>" in page.text()


def test_attributes_are_escaped():
    page = Page(document("x", [], [("", [Picture("data:", '"><script>')])]))
    assert page.attributes("img", "alt") == ['"><script>']


def test_a_table_has_row_headers_and_scrolls_in_a_box():
    written = document("x", [], [("", [CaptionedTable(["run", "mean"], [["a", "1.5"]], "Holds.")])])
    assert '<th scope="row">a</th><td>1.5</td>' in written
    assert '<div class="box" role="region" aria-label="Holds." tabindex="0">' in written


def replay_of(pictures: list[Any] | Exception):
    """Make a replacement of `Experiment.replay` that writes these pictures, or fails."""

    def replay(self, directory: Path, n_episodes: int = 1) -> list[Path]:
        if isinstance(pictures, Exception):
            raise pictures
        path = directory / "episode-1.gif"
        pictures[0].save(path, save_all=True, append_images=pictures[1:])
        return [path]

    return replay


def test_an_episode_is_animated_unless_the_reader_prefers_reduced_motion(
    run, monkeypatch, empty_plots
):
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


def test_a_page_without_an_episode_says_why(run, monkeypatch, empty_plots):
    from jaxagents.experiments.experiment import Experiment

    monkeypatch.setattr(Experiment, "replay", replay_of(OSError("nothing draws this")))
    text = read(write_report([run])).text()
    assert "No episode of spread-1 can be shown: nothing draws this" in text
    assert "No episode is shown: the report was made with --no-replay." in report(run).text()


def test_the_report_of_several_runs_is_in_the_working_directory(
    seeds, tmp_path, monkeypatch, capsys, empty_plots
):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", *map(str, seeds), "--no-replay"]) == 0
    assert capsys.readouterr().out == "report.html\n"
    assert "4 runs on" in read(tmp_path / "report.html").text()


def test_an_earlier_report_is_replaced_and_no_other_file_is(run, capsys, empty_plots):
    report(run)
    first = (run / "report.html").read_text()
    shutil.copy(run / "config.yaml", run / "mine.html")
    report(run, path=run / "report.html")
    assert "spread" in first
    for target, message in {
        "mine.html": "mine.html exists and is not a report; name another file with --to",
        "config.yaml": "config.yaml does not end in .html",
        "missing/report.html": "there is no folder",
    }.items():
        arguments = ["report", str(run), "--no-replay", "--to", str(run / target)]
        assert cli.main(arguments) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert (run / "mine.html").read_bytes() == (run / "config.yaml").read_bytes()
    assert [path.name for path in run.iterdir() if ".new" in path.name] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report"], "the following arguments are required: RUN"),
        (["report", "missing"], "missing is not a run: it has no config.yaml"),
        (["report", ".", "--replay"], "unrecognized arguments: --replay"),
    ],
)
def test_a_wrong_command_fails_with_one_line(arguments, message, capsys):
    try:
        status = cli.main(arguments)
    except SystemExit as end:
        status = end.code
    error = capsys.readouterr().err
    assert status == 2
    assert message in error
    assert error.count("\n") == 1
