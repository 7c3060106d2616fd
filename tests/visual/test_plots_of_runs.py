"""Plots of runs, and the commands `jaxagents plot` and `jaxagents compare`."""

import json
import re
import resource
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.text import Text
from PIL import Image

from jaxagents.cli import main as cli
from jaxagents.errors import ExperimentError
from jaxagents.evaluation.runs import read_groups
from jaxagents.visual.run_plots import plot_runs
from jaxagents.visual.style import COLOURS
from tests.fabricated import returns, write_run


@pytest.fixture
def figures(monkeypatch):
    """List figures and leave their files empty: writing them would take longest."""
    from matplotlib.figure import Figure

    written = []

    def savefig(figure, path, **_):
        written.append(figure)
        path.touch()

    monkeypatch.setattr(Figure, "savefig", savefig)
    return written


@pytest.fixture
def drawn(figures, tmp_path):
    """Plot runs and return the figure."""

    def draw(directories, **kwargs):
        plot_runs(read_groups(directories), tmp_path / "drawn.png", **kwargs)
        return figures[-1]

    return draw


@pytest.fixture
def write(tmp_path):
    """Write a run of this name for each of the metrics, and return the directories."""

    def write(name, *metrics):
        return [
            write_run(
                tmp_path / f"{name}-{seed}",
                name=name,
                seed=seed,
                metrics=each,
                agent={"parameter_sharing": "independent", "n_steps": sum(map(ord, name))},
            )
            for seed, each in enumerate(metrics)
        ]

    return write


def legend(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def titles(figure):
    return [axes.get_title(loc="left") for axes in figure.axes]


def two_runs(name, write):
    """Write two runs with two actors and one policy."""
    first = {**returns([0, 5], [2, 6]), "kl": [[None], [0.2]]}
    second = {**returns([0, 5], [4, 8]), "kl": [[None], [0.4]]}
    return write(name, first, second)


def test_groups_share_a_legend_and_panels_are_titled(drawn, write):
    directories = [*two_runs("new", write), *write("old", returns([1, 2], [3, 4]))]
    figure = drawn(directories, actors="each")
    assert legend(figure) == ["new (2 runs)", "old (1 run)"]
    assert titles(figure) == ["Episode return: actor 0", "Episode return: actor 1"]
    new, old = figure.axes[1].lines
    np.testing.assert_array_equal(new.get_ydata(), [5.0, 7.0])
    np.testing.assert_array_equal(old.get_ydata(), [2.0, 4.0])


def test_a_group_has_one_style_in_all_panels_and_differs_from_other_groups(drawn, write):
    directories = [*two_runs("new", write), *write("old", returns([1, 2], [3, 4]))]
    figure = drawn(directories, actors="each")
    styles = [
        [(line.get_color(), line.get_marker(), line.get_linestyle()) for line in axes.lines]
        for axes in figure.axes
    ]
    assert styles[0] == styles[1]
    assert all(new != old for new, old in zip(*styles[0], strict=True))


def test_other_metrics_are_drawn_in_further_panels(drawn, write):
    figure = drawn(two_runs("new", write), metrics=["return", "kl"])
    assert titles(figure)[2:] == ["KL divergence (nats)"]
    np.testing.assert_allclose(figure.axes[2].lines[0].get_ydata(), [0.3])


def test_panels_share_the_axis_of_environment_steps(drawn, write):
    figure = drawn(two_runs("new", write), metrics=["return", "kl"])
    assert len({axes.get_xlim() for axes in figure.axes}) == 1


@pytest.mark.parametrize(
    ("n_actors", "metrics", "columns"),
    [
        (1, ["return"], 1),
        (2, ["return"], 2),
        (2, ["return", "final_rewards"], 2),
        (3, ["return"], 3),
        (3, ["return", "final_rewards"], 3),
        (4, ["return"], 2),
        (6, ["return"], 3),
        (2, ["return", "kl"], 3),
    ],
)
def test_panels_fill_a_grid(drawn, write, n_actors, metrics, columns):
    fabricated = returns(range(n_actors))
    fabricated |= {"final_rewards_mean": [list(range(n_actors))], "kl": [[0.1]]}
    figure = drawn(write("a", fabricated), metrics=metrics)
    assert figure.axes[0].get_subplotspec().get_gridspec().ncols == columns


def test_eight_groups_can_be_told_apart_with_and_without_colour(write):
    runs = [each for name in "abcdefgh" for each in write(name, returns(1, 2))]
    lines = plot_runs(runs).axes[0].lines
    assert len({line.get_marker() for line in lines}) == 8
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 8


def test_every_colour_stands_out_from_white():
    luminances = np.array([to_rgb(each) for each in COLOURS]) @ [0.2126, 0.7152, 0.0722]
    assert luminances.max() < 0.75  # Okabe and Ito's yellow has 0.87


def test_bands_of_a_single_run_span_its_episodes_and_a_standard_deviation_to_either_side(write):
    (axes,) = plot_runs(write("a", returns(5.0, 15.0, std=2.5, below=5.0, above=5.0))).axes
    extremes, deviation = (each.get_datalim(axes.transData) for each in axes.collections)
    assert (extremes.y0, extremes.y1) == (0.0, 20.0)
    assert (deviation.y0, deviation.y1) == (2.5, 17.5)


@pytest.mark.filterwarnings("error")
def test_a_single_evaluation_shows_its_spread(drawn, write):
    axes = drawn(write("a", returns(5.0, std=4.5, below=4.0, above=6.0))).axes[0]
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), [5.0])
    extremes, deviation = (bar.get_segments()[0][:, 1] for bar in axes.collections)
    np.testing.assert_array_equal(extremes, [1.0, 11.0])
    np.testing.assert_array_equal(deviation, [1.0, 9.5])  # no episode was below 1


@pytest.mark.filterwarnings("error")
def test_actors_and_evaluations_without_a_finite_return_are_left_out(drawn, write):
    metrics = returns([1, 5, 9], [2, 6, 9], [3, 7, 9])
    for values in metrics.values():
        values[:] = [[*row[:2], None] for row in values[:2]] + [[None] * 3]
    figure = drawn(write("a", metrics))
    assert titles(figure) == ["Episode return: actor 0", "Episode return: actor 1"]
    for axes, values in zip(figure.axes, ([1, 2], [5, 6]), strict=True):
        np.testing.assert_array_equal(axes.lines[0].get_xdata(), [0, 100])
        np.testing.assert_array_equal(axes.lines[0].get_ydata(), values)


def test_environment_steps_are_counted_in_thousands_and_millions(tmp_path):
    steps = [0, 400_000, 1_000_000]
    (axes,) = plot_runs(write_run(tmp_path / "a", metrics=returns(1, 2, 3), steps=steps)).axes
    assert {"0", "200k", "1M"} <= {tick.get_text() for tick in axes.get_xticklabels()}


@pytest.fixture
def axes_of(write):
    """Draw runs of equal episodes, and the return of random actions if there is one."""

    def draw(*means, random=None):
        metrics = [returns(*each, std=0, below=0, above=0) for each in means]
        runs = [run for i, each in enumerate(metrics) for run in write("abc"[i], each)]
        if random is not None:
            summary = {"returns": {"mean": [0.0]}, "random_returns": {"mean": [random]}}
            (runs[0] / "summary.json").write_text(json.dumps(summary))
        return plot_runs(runs).axes[0]

    return draw


def test_a_first_evaluation_far_below_leaves_the_axis_to_the_rest(axes_of):
    limits = axes_of([-120, -20, -15, -12]).get_ylim()
    assert limits == pytest.approx((-20.4, -11.6))  # 5 % more than the curve's -20 to -12


@pytest.mark.parametrize("random", [None, -27.0])
def test_a_first_evaluation_that_takes_half_of_the_axis_stays_on_it(axes_of, random):
    axes = axes_of([-28, -20, -15, -12], random=random)
    assert axes.get_ylim() == pytest.approx((-28.8, -11.2))
    assert any(line.get_linestyle() == ":" for line in axes.lines) == (random is not None)


@pytest.mark.parametrize(("random", "text"), [(-121.25, "below"), (60.0, "above")])
def test_random_actions_beyond_the_axis_are_named_at_its_edge(axes_of, random, text):
    axes = axes_of([-120, -20, -15, -12], random=random)
    assert axes.get_ylim() == pytest.approx((-20.4, -11.6))
    assert [each.get_text() for each in axes.texts] == [f"random actions: {random:.3g}, {text}"]


def test_a_level_curve_has_an_axis_of_some_height(axes_of):
    low, high = axes_of([500, 500, 500, 500]).get_ylim()
    assert low < 500 < high


def test_first_evaluations_of_several_runs_do_not_widen_the_axis_in_turn(axes_of):
    # Each first evaluation would double what the ones before have left of the axis.
    axes = axes_of(*([first, -20, -15, -12] for first in (-28, -44, -76)))
    assert axes.get_ylim() == pytest.approx((-28.8, -11.2))


def test_a_profiles_title_fits_its_picture(figures, tmp_path):
    env = "pettingzoo/mpe2:simple_spread_v3"
    runs = [
        str(write_run(tmp_path / name, name=name, env=env, final_returns=[float(i)]))
        for i, name in enumerate(("one", "other"))
    ]
    assert cli.main(["compare", *runs, "--profiles", str(tmp_path / "profiles.png")]) == 0
    (figure,) = figures
    figure.canvas.draw()
    (axes,) = figure.axes
    title = next(each for each in axes.get_children() if _says(each, env))
    assert figure.bbox.x0 <= title.get_window_extent().x0
    assert title.get_window_extent().x1 <= figure.bbox.x1
    assert axes.get_xlabel() == "return of the evaluation after training"
    assert "Band: its 95 % bootstrap interval over runs." in figure.get_supxlabel()


def _says(artist, text):
    return isinstance(artist, Text) and text in artist.get_text()


def test_all_bands_of_a_plot_mean_the_same_and_the_caption_explains_them(drawn, write):
    several, one, other = two_runs("new", write), *(write(n, returns([1, 2])) for n in ("old", "x"))
    interval = "Line: interquartile mean over runs. Band: its 95 % bootstrap interval."
    of_one = (
        "One run per curve: other seeds may differ. Line: mean over episodes. "
        "Band: one standard deviation."
    )
    for directories, n_bands, caption in [
        (several, 1, interval),
        ([*several, *one], 1, f"{interval} Single runs: recorded values."),
        ([*one, *other], 2, of_one),
        (one, 2, f"{of_one} Pale band: minimum to maximum."),
    ]:
        figure = drawn(directories, actors="each")
        assert len(figure.axes[0].collections) == n_bands
        assert figure.get_supxlabel() == caption


def test_lines_without_bands_are_not_explained(drawn, write):
    figure = drawn(write("a", {"kl": [[0.1], [0.2]]}), metrics=["kl"])
    assert not figure.axes[0].collections
    assert figure.get_supxlabel() == "One run per curve: other seeds may differ."


def test_a_png_has_the_pixels_of_its_panels(tmp_path, write):
    directories = two_runs("new", write)
    plot_runs(read_groups(directories), tmp_path / "a" / "two.PNG")
    with Image.open(tmp_path / "a" / "two.PNG") as image:
        assert image.format == "PNG"
        assert image.size == (1290, 540)
        assert len(image.convert("RGB").getcolors(100_000)) > 100


def test_an_svg_holds_its_labels_as_text(tmp_path, write):
    plot_runs(read_groups(two_runs("new", write)), tmp_path / "two.svg", metrics=["return", "kl"])
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", (tmp_path / "two.svg").read_text())
    expected = {
        "new (2 runs)",
        "Episode return: actor 0",
        "Episode return: actor 1",
        "KL divergence (nats)",
        "environment steps",
        "Line: interquartile mean over runs. Band: its 95 % bootstrap interval.",
    }
    assert expected <= set(texts)


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_equal_runs_give_equal_files(tmp_path, write, suffix):
    groups = read_groups(two_runs("new", write))
    for name in ("first", "second"):
        plot_runs(groups, tmp_path / f"{name}{suffix}")
    first, second = (tmp_path / f"{name}{suffix}" for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()


def test_several_groups_share_one_panel_of_the_mean_over_actors(drawn, write):
    runs = [*two_runs("new", write), *write("old", returns([1, 2], [3, 4]))]
    figure = drawn(runs)
    assert titles(figure) == ["Episode return: mean of 2 actors"]
    assert [line.get_ydata().tolist() for line in figure.axes[0].lines] == [[2.5, 5.0], [1.5, 3.5]]


def test_labels_are_shown_as_given(drawn, write):
    runs = [*two_runs("new", write), *write("old", returns([1, 2]))]
    assert legend(drawn(runs, labels=["IPPO, ours", "IPPO"])) == ["IPPO, ours", "IPPO"]
    assert legend(drawn(runs, labels={"old": "Before"})) == ["new", "Before"]
    with pytest.raises(ExperimentError, match=r"labels='a,a' must be 2 .*, of the groups new, old"):
        plot_runs(runs, labels=["a", "a"])
    with pytest.raises(ExperimentError, match="no group 'odl'; there are new, old"):
        plot_runs(runs, labels={"odl": "Before"})


@pytest.mark.parametrize(
    ("x", "title", "points"),
    [
        ("updates", "updates", [0, 1, 2, 3]),
        ("time", "seconds of training", [0.0, 0.5, 1.0, 1.5]),
        ("steps", "environment steps", [0, 100, 200, 300]),
    ],
)
def test_the_horizontal_axis_is_chosen(write, x, title, points):
    figure = plot_runs(write("a", returns(1, 2, 3, 4)), x=x)
    (line,) = figure.axes[0].lines
    assert figure.axes[0].get_xlabel() == title
    assert line.get_xdata().tolist() == points


def test_time_is_counted_in_hours_over_resumptions(write):
    (run,) = write("a", returns(1, 2, 3))
    path = run / "metrics.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record, seconds in zip(records, (3_600, 7_200, 1_800), strict=True):
        record["seconds"] = seconds
    records[2]["steps_per_second"] = None  # resumed after 7,200
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    (axes,) = plot_runs([run], x="time").axes
    assert axes.get_xlabel() == "hours of training"
    assert axes.lines[0].get_xdata().tolist() == [1.0, 2.0, 2.5]


def test_smoothed_points_are_means_of_evaluations_around_them(write):
    figure = plot_runs(write("a", returns(0, 3, 6, 0)), smooth=3)
    assert figure.axes[0].lines[0].get_ydata().tolist() == [1.5, 3.0, 3.0, 3.0]
    assert figure.get_supxlabel().endswith("Smoothed: means of up to 3 evaluations.")


def test_panels_of_a_metric_share_an_axis_unless_it_squeezes_one(drawn, write):
    near, far = returns([0, 4], [6, 10]), returns([0, 1000], [6, 2000])
    limits = [
        {axes.get_ylim() for axes in drawn(write(name, metrics)).axes}
        for name, metrics in (("near", near), ("far", far))
    ]
    assert [len(each) for each in limits] == [1, 2]


def test_teams_have_a_panel_each_where_runs_recorded_them(drawn, write):
    runs = [*write("a", returns([1, 3, 10])), *write("b", returns([2, 4, 20]))]
    with pytest.raises(ExperimentError, match="a-0 has not recorded teams; choose actors mean or"):
        drawn(runs, actors="team")
    for run in runs:
        summary = {"returns": {"mean": [1.0, 1.0, 1.0]}, "teams": [0, 0, 1]}
        (run / "summary.json").write_text(json.dumps(summary))
    assert titles(drawn(runs)) == [  # without being asked to
        "Episode return: mean of actors 0, 1",
        "Episode return: actor 2",
    ]


def test_a_figure_for_a_column_has_its_width_fonts_and_no_caption(write, tmp_path, capsys):
    (run,) = write("a", returns(1, 2))
    figure = plot_runs(run, size="column")
    (axes,) = figure.axes
    assert figure.get_figwidth() == 3.4
    assert (axes.xaxis.label.get_fontsize(), axes.get_xticklabels()[0].get_fontsize()) == (8, 7.2)
    assert figure.get_supxlabel() == ""
    path = tmp_path / "new.pdf"
    written = []
    for _ in range(2):
        assert cli.main(["plot", str(run), "--size", "column", "--to", str(path)]) == 0
        written.append(path.read_bytes())
    assert capsys.readouterr().out == 2 * f"{path}\n{figure.get_label()}\n"
    assert b"/FontFile2" in written[0]  # TrueType
    assert written[0] == written[1]


def test_a_long_title_is_broken_where_panels_are_narrow(write):
    metrics = {name: [[0.1, 0.2]] for name in ("kl", "entropy", "explained_variance")}
    runs = [*write("a", metrics), *write("b", metrics)]
    assert titles(plot_runs(runs, metrics=list(metrics), size="page")) == [
        "KL divergence (nats):\nmean of 2 policies",
        "Entropy (nats):\nmean of 2 policies",
        "Explained variance:\nmean of 2 policies",
    ]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"x": "epochs"}, "x='epochs' is none of steps, updates, time"),
        ({"actors": "all"}, "actors='all' is none of mean, each, team"),
        ({"size": "poster"}, "size='poster' is none of column, page"),
        ({"smooth": 0}, "smooth=0 evaluations make no mean; choose 1 or more"),
    ],
)
def test_a_wrong_option_is_refused(write, option, message):
    with pytest.raises(ExperimentError, match=message):
        plot_runs(write("a", returns(1, 2)), **option)


def test_another_format_is_refused(tmp_path, write):
    with pytest.raises(ExperimentError, match=r"two\.gif does not end in one of \.png, \.svg, "):
        plot_runs(read_groups(two_runs("new", write)), tmp_path / "two.gif")


def test_an_unknown_metric_leaves_no_file(tmp_path, write):
    message = r"has recorded no 'retrun'; it has kl, return\. Did you mean return\?$"
    with pytest.raises(ExperimentError, match=message):
        plot_runs(read_groups(two_runs("new", write)), tmp_path / "x.png", metrics=["retrun"])
    assert not (tmp_path / "x.png").exists()


def fail(arguments, capsys):
    """Run a command, which fails, and return its one-line error message."""
    assert cli.main([str(each) for each in arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("jaxagents: error: ")
    assert output.err.count("\n") == 1
    return output.err


def test_the_plot_of_a_run_is_in_its_directory_and_redrawn_each_time(write, capsys):
    (run,) = write("a", returns(1.0, 2.0))
    assert cli.main(["plot", str(run)]) == 0
    assert capsys.readouterr().out == f"{run / 'curves.png'}\n"
    before = (run / "curves.png").read_bytes()
    (run / "metrics.jsonl").write_text((run / "metrics.jsonl").read_text().splitlines()[0])
    assert cli.main(["plot", str(run)]) == 0
    assert (run / "curves.png").read_bytes() != before


def test_the_plot_of_several_runs_is_in_the_working_directory(tmp_path, write, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    directories = [each.name for each in two_runs("new", write)]
    assert cli.main(["plot", *directories, "--metrics", "return,kl"]) == 0
    assert capsys.readouterr().out == "curves.png\n"
    with Image.open("curves.png") as image:
        assert image.size == (1935, 540)


@pytest.mark.parametrize("name", ["mine.png", "mine.svg"])
def test_only_plots_made_by_jaxagents_are_overwritten(tmp_path, write, capsys, name):
    (run,) = write("a", returns(1.0, 2.0))
    path = tmp_path / name
    path.write_bytes(b"a photograph of my cat")
    assert "exists and was not made by jaxagents" in fail(["plot", run, "--to", path], capsys)
    assert path.read_bytes() == b"a photograph of my cat"
    path.unlink()
    for _ in range(2):
        assert cli.main(["plot", str(run), "--to", str(path)]) == 0


def test_a_folder_is_replaced_by_no_picture_and_no_table(tmp_path, write, capsys):
    (run,) = write("a", returns(1.0, 2.0))
    picture, numbers = tmp_path / "d.png", tmp_path / "e.csv"
    picture.mkdir()
    numbers.mkdir()
    for command, option in ("plot", "--to"), ("compare", "--profiles"), ("crossplay", "--to"):
        assert f"{picture} is a folder; name a file." in fail(
            [command, run, option, picture], capsys
        )
    beside = fail(["crossplay", run, "--to", tmp_path / "e.png"], capsys)
    assert f"{numbers} is a folder, but the numbers are written to a file of that name" in beside


def test_what_cannot_be_plotted_is_explained_in_one_line(tmp_path, write, capsys):
    (run,), (begun,) = write("a", returns(1.0)), write("b", {})
    assert "does not end in one of .png, .svg, .pdf" in fail(["plot", run, "--to", "x.gif"], capsys)
    assert "has recorded no 'speed'" in fail(["plot", run, "--metrics", "speed"], capsys)
    assert "it has nothing yet" in fail(["plot", run, begun, "--to", tmp_path / "x.png"], capsys)
    assert "is not a run" in fail(["plot", tmp_path], capsys)
    assert "are the same run" in fail(["plot", run, run, "--to", tmp_path / "x.png"], capsys)
    path = run / "config.yaml" / "x.png"
    assert str(run / "config.yaml") in fail(["plot", run, "--to", path], capsys)


def test_ten_runs_are_plotted_within_five_seconds_without_jax_and_pyplot(tmp_path, write):
    import matplotlib.font_manager  # noqa: F401 - indexes the machine's fonts, once

    curve = np.linspace(0.0, 1.0, 200)[:, None] * [1.0, 2.0, 3.0]
    for name in ("new", "old"):
        write(name, *({**returns(*(curve + seed).tolist())} for seed in range(5)))
    directories = sorted(str(each) for each in tmp_path.iterdir())
    assert len(directories) == 10
    code = """
import sys
import jaxagents.visual.run_plots
from jaxagents.cli.main import main
print("matplotlib" in sys.modules)
status = main(["plot", *sys.argv[1:], "--to", "ten.png"])
unneeded = "jax", "flax", "scipy.stats", "matplotlib.pyplot"
print(sorted(name for name in unneeded if name in sys.modules))
sys.exit(status)
"""
    command = [sys.executable, "-c", code, *directories]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert finished.stdout.splitlines() == ["False", "ten.png", "[]"]
    # CPU time, as other tests run at the same time.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 5


def test_compare_prints_a_sentence_without_jax(tmp_path):
    for seed in range(4):
        for name, value in (("new", 3.0), ("old", 1.0)):
            agent = {"n_steps": len(name) if name == "new" else 9}
            path = tmp_path / f"{name}-{seed}"
            write_run(path, name=name, seed=seed, final_returns=[value], agent=agent)
    code = """
import sys
from jaxagents.cli.main import main
assert main(["compare", *sys.argv[1:]]) == 0
assert "jax" not in sys.modules
"""
    command = [sys.executable, "-c", code, *sorted(map(str, tmp_path.iterdir()))]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert (
        "\nnew earns 2.00 more than old (95 % interval 2.00 to 2.00; better in 100 % of pairs of "
        "seeds).\n"
    ) in output


def test_what_cannot_be_compared_is_explained_in_one_line(tmp_path, capsys):
    run = write_run(tmp_path / "a", name="a", final_returns=[1.0])
    assert "are one group (a)" in fail(["compare", run], capsys)
    other = write_run(tmp_path / "b", name="b", agent={"n_steps": 2})
    assert "b has no summary.json" in fail(["compare", run, other], capsys)
