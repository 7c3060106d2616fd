"""Pictures of runs, and the command that draws them."""

import os
import re
import resource
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from jaxagents.cli import main as cli
from jaxagents.errors import ExperimentError
from jaxagents.visual.plots import plot_runs
from jaxagents.evaluation.runs import read_groups
from tests.fabricated import returns, write_run


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Draw runs and return the figure that would be written, which takes longest."""
    from matplotlib.figure import Figure

    written = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: written.append(figure))

    def draw(directories, **kwargs):
        plot_runs(read_groups(directories), tmp_path / "drawn.png", **kwargs)
        return written[-1]

    return draw


@pytest.fixture
def write(tmp_path):
    """Write runs of a name, with these metrics each, and return their directories."""

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


def both(name, write):
    """Write two runs of two actors and one policy."""
    first = {**returns([0, 5], [2, 6]), "kl": [[None], [0.2]]}
    second = {**returns([0, 5], [4, 8]), "kl": [[None], [0.4]]}
    return write(name, first, second)


def test_groups_have_one_legend_and_every_panel_its_subject(drawn, write):
    figure = drawn([*both("new", write), *write("old", returns([1, 2], [3, 4]))])
    assert legend(figure) == ["new (2 runs)", "old (1 run)"]
    assert titles(figure) == ["Return of an episode: actor 0", "Return of an episode: actor 1"]
    new, old = figure.axes[1].lines
    np.testing.assert_array_equal(new.get_ydata(), [5.0, 7.0])
    np.testing.assert_array_equal(old.get_ydata(), [2.0, 4.0])


def test_a_group_looks_the_same_in_every_panel_and_different_from_others(drawn, write):
    figure = drawn([*both("new", write), *write("old", returns([1, 2], [3, 4]))])
    looks = [
        [(line.get_color(), line.get_marker(), line.get_linestyle()) for line in axes.lines]
        for axes in figure.axes
    ]
    assert looks[0] == looks[1]
    assert all(new != old for new, old in zip(*looks[0], strict=True))


def test_other_metrics_are_further_panels(drawn, write):
    figure = drawn(both("new", write), metrics=["return", "kl"])
    assert titles(figure)[2:] == ["KL divergence, nats"]
    np.testing.assert_allclose(figure.axes[2].lines[0].get_ydata(), [0.3])


def test_panels_show_the_same_part_of_training(drawn, write):
    figure = drawn(both("new", write), metrics=["return", "kl"])
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


def test_a_band_is_one_thing_in_one_picture_and_the_caption_says_which(drawn, write):
    several, one, other = both("new", write), *(write(n, returns([1, 2])) for n in ("old", "x"))
    interval = "Interquartile mean over runs; band: its 95 % bootstrap interval."
    of_one = (
        "Of one run: other seeds may differ. Mean over episodes; band: their standard deviation"
    )
    for directories, n_bands, caption in [
        (several, 1, interval),
        ([*several, *one], 1, f"{interval} Of one run: what it recorded."),
        ([*one, *other], 2, f"{of_one}."),
        (one, 2, f"{of_one}; pale band: from the lowest to the highest."),
    ]:
        figure = drawn(directories)
        assert len(figure.axes[0].collections) == n_bands
        assert figure.get_supxlabel() == caption


def test_lines_without_bands_are_not_explained(drawn, write):
    figure = drawn(write("a", {"kl": [[0.1], [0.2]]}), metrics=["kl"])
    assert not figure.axes[0].collections
    assert figure.get_supxlabel() == "Of one run: other seeds may differ."


def test_a_png_has_the_pixels_of_its_panels(tmp_path, write):
    directories = both("new", write)
    plot_runs(read_groups(directories), tmp_path / "a" / "two.PNG")
    with Image.open(tmp_path / "a" / "two.PNG") as image:
        assert image.format == "PNG"
        assert image.size == (1290, 540)
        assert len(image.convert("RGB").getcolors(100_000)) > 100


def test_an_svg_holds_its_labels_as_text(tmp_path, write):
    plot_runs(read_groups(both("new", write)), tmp_path / "two.svg", metrics=["return", "kl"])
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", (tmp_path / "two.svg").read_text())
    expected = {
        "new (2 runs)",
        "Return of an episode: actor 0",
        "Return of an episode: actor 1",
        "KL divergence, nats",
        "environment steps",
        "Interquartile mean over runs; band: its 95 % bootstrap interval.",
    }
    assert expected <= set(texts)


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_equal_runs_give_equal_files(tmp_path, write, suffix):
    groups = read_groups(both("new", write))
    for name in ("first", "second"):
        plot_runs(groups, tmp_path / f"{name}{suffix}")
    first, second = (tmp_path / f"{name}{suffix}" for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()


def test_another_format_is_refused(tmp_path, write):
    with pytest.raises(ExperimentError, match=r"two\.pdf does not end in \.png or \.svg"):
        plot_runs(read_groups(both("new", write)), tmp_path / "two.pdf")


def test_an_unknown_metric_leaves_no_file(tmp_path, write):
    with pytest.raises(ExperimentError, match="has recorded no 'retrun'; it has kl, return"):
        plot_runs(read_groups(both("new", write)), tmp_path / "x.png", metrics=["retrun"])
    assert not (tmp_path / "x.png").exists()


# The command.


def fail(arguments, capsys):
    assert cli.main([str(each) for each in arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("jaxagents: error: ")
    assert output.err.count("\n") == 1
    return output.err


def test_a_run_s_picture_is_in_its_directory_and_drawn_anew_each_time(write, capsys):
    (run,) = write("a", returns(1.0, 2.0))
    assert cli.main(["plot", str(run)]) == 0
    assert capsys.readouterr().out == f"{run / 'curves.png'}\n"
    before = (run / "curves.png").read_bytes()
    (run / "metrics.jsonl").write_text((run / "metrics.jsonl").read_text().splitlines()[0])
    assert cli.main(["plot", str(run)]) == 0
    assert (run / "curves.png").read_bytes() != before


def test_the_picture_of_several_runs_is_in_the_working_folder(tmp_path, write, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    directories = [each.name for each in both("new", write)]
    assert cli.main(["plot", *directories, "--metrics", "return,kl"]) == 0
    assert capsys.readouterr().out == f"{os.path.join('.', 'curves.png').removeprefix('./')}\n"
    with Image.open("curves.png") as image:
        assert image.size == (1935, 540)


@pytest.mark.parametrize("name", ["mine.png", "mine.svg"])
def test_what_is_no_picture_of_ours_is_not_overwritten(tmp_path, write, capsys, name):
    (run,) = write("a", returns(1.0, 2.0))
    path = tmp_path / name
    path.write_bytes(b"a photograph of my cat")
    assert "exists, and is no picture that" in fail(["plot", run, "--to", path], capsys)
    assert path.read_bytes() == b"a photograph of my cat"
    path.unlink()
    for _ in range(2):
        assert cli.main(["plot", str(run), "--to", str(path)]) == 0


def test_what_cannot_be_plotted_is_said_in_one_line(tmp_path, write, capsys):
    (run,), (begun,) = write("a", returns(1.0)), write("b", {})
    assert "does not end in .png or .svg" in fail(["plot", run, "--to", "x.gif"], capsys)
    assert "has recorded no 'speed'" in fail(["plot", run, "--metrics", "speed"], capsys)
    assert "it has nothing yet" in fail(["plot", run, begun, "--to", tmp_path / "x.png"], capsys)
    assert "is no run" in fail(["plot", tmp_path], capsys)
    assert "are the same run" in fail(["plot", run, run, "--to", tmp_path / "x.png"], capsys)
    path = run / "config.yaml" / "x.png"
    assert str(run / "config.yaml") in fail(["plot", run, "--to", path], capsys)


def test_ten_runs_are_plotted_within_five_seconds_and_without_jax(tmp_path, write):
    import matplotlib.font_manager  # noqa: F401 - it lists the machine's fonts, once in its life

    curve = np.linspace(0.0, 1.0, 200)[:, None] * [1.0, 2.0, 3.0]
    for name in ("new", "old"):
        write(name, *({**returns(*(curve + seed).tolist())} for seed in range(5)))
    directories = sorted(str(each) for each in tmp_path.iterdir())
    assert len(directories) == 10
    code = """
import sys
from jaxagents import cli
status = cli.main(["plot", *sys.argv[1:], "--to", "ten.png"])
print(sorted(name for name in ("jax", "flax", "scipy.stats") if name in sys.modules))
sys.exit(status)
"""
    command = [sys.executable, "-c", code, *directories]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert finished.stdout.splitlines() == ["ten.png", "[]"]
    # Of the processor, as other tests run at the same time.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 5


def test_compare_prints_a_sentence_without_jax(tmp_path):
    for seed in range(4):
        for name, value in (("new", 3.0), ("old", 1.0)):
            agent = {"n_steps": len(name) if name == "new" else 9}
            path = tmp_path / f"{name}-{seed}"
            write_run(path, name=name, seed=seed, final_returns=[value], agent=agent)
    code = """
import sys
from jaxagents import cli
assert cli.main(["compare", *sys.argv[1:]]) == 0
assert "jax" not in sys.modules
"""
    command = [sys.executable, "-c", code, *sorted(map(str, tmp_path.iterdir()))]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert (
        "\nnew earns 2.00 more than old (95 % interval 2.00 to 2.00; better in 100 % of pairs of "
        "seeds).\n"
    ) in output


def test_what_cannot_be_compared_is_said_in_one_line(tmp_path, capsys):
    run = write_run(tmp_path / "a", name="a", final_returns=[1.0])
    assert "are one group (a)" in fail(["compare", run], capsys)
    other = write_run(tmp_path / "b", name="b", agent={"n_steps": 2})
    assert "b has no summary.json" in fail(["compare", run, other], capsys)
