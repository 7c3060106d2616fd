"""Learning curves of the metrics that `train` returns."""

import re
import subprocess
import sys

import matplotlib.colors
import numpy as np
import pytest

from jaxagents.visual.plots import plot_learning_curve
from jaxagents.visual.style import COLOURS

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def training(returns):
    """Make the metrics of a training with these returns."""
    returns = np.asarray(returns, dtype=np.float32)
    return {"returns": returns, "n_environment_steps": 100_000 * np.arange(len(returns))}


def two_actors():
    return training(np.arange(3 * 4 * 2).reshape(3, 4, 2))


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Plot metrics and return the figure that was written."""
    from matplotlib.figure import Figure

    written = []
    savefig = Figure.savefig

    def remember(figure, *args, **kwargs):
        written.append(figure)
        savefig(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", remember)

    def draw(metrics, **kwargs):
        plot_learning_curve(metrics, tmp_path / "curve.png", **kwargs)
        return written[-1]

    return draw


def labels(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_the_suffix_decides_the_format(tmp_path):
    plot_learning_curve(two_actors(), tmp_path / "curve.png")
    plot_learning_curve(two_actors(), str(tmp_path / "new" / "curve.SVG"))
    assert (tmp_path / "curve.png").read_bytes().startswith(PNG_SIGNATURE)
    assert "<svg" in (tmp_path / "new" / "curve.SVG").read_text()


@pytest.mark.parametrize("name", ["curve", "curve.gif"])
def test_another_suffix_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match=r"does not end in one of \.png, \.svg"):
        plot_learning_curve(two_actors(), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_line_is_the_mean_over_episodes(drawn):
    figure = drawn(training([[[1.0], [3.0]], [[10.0], [20.0]]]))
    (line,) = figure.axes[0].lines
    np.testing.assert_array_equal(line.get_xdata(), [0, 100_000])
    np.testing.assert_array_equal(line.get_ydata(), [2.0, 15.0])


def test_bands_span_minimum_to_maximum_and_a_standard_deviation_to_either_side(drawn):
    # The mean is 5, the variance (5² + 5²) / 8 = 2.5².
    episodes = np.array([0.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 10.0])[:, None]
    figure = drawn(training([episodes, episodes + 10]))
    extremes, deviation = (
        band.get_datalim(figure.axes[0].transData) for band in figure.axes[0].collections
    )
    assert (extremes.y0, extremes.y1) == (0.0, 20.0)
    assert (deviation.y0, deviation.y1) == (2.5, 17.5)


def test_many_curves_are_drawn_without_minimum_and_maximum(drawn):
    figure = drawn(training(np.arange(2 * 3 * 5).reshape(2, 3, 5)))
    assert len(figure.axes[0].lines) == len(figure.axes[0].collections) == 5
    assert "Pale band" not in figure.get_supxlabel()


def test_curves_can_be_told_apart_with_and_without_colour(drawn):
    (axes,) = drawn(training(np.arange(2 * 3 * 8).reshape(2, 3, 8))).axes
    assert len({line.get_marker() for line in axes.lines}) == 8
    assert len({(line.get_color(), line.get_linestyle()) for line in axes.lines}) == 8


def test_every_colour_stands_out_from_white():
    luminances = np.array([matplotlib.colors.to_rgb(c) for c in COLOURS]) @ (
        [0.2126, 0.7152, 0.0722]
    )
    assert luminances.max() < 0.75  # Okabe and Ito's yellow has 0.87


def test_the_legend_is_in_the_order_of_the_final_returns(drawn):
    metrics = training([[[9.0, 1.0, 2.0]], [[1.0, 3.0, 2.0]]])
    assert labels(drawn(metrics)) == ["actor 1", "actor 2", "actor 0"]


def test_a_single_actor_has_no_legend(drawn):
    assert labels(drawn(training([[[1.0]], [[2.0]]]))) == []


def test_actors_with_equal_returns_share_one_curve(drawn):
    shared = np.repeat(np.arange(6.0).reshape(2, 3, 1), 4, axis=2)
    figure = drawn(training(np.concatenate([shared, np.full((1, 3, 4), np.nan)])))
    assert len(figure.axes[0].lines) == 1
    assert labels(figure) == ["all actors"]


def test_actors_that_share_a_curve_are_all_named_without_breaking_a_name(drawn):
    returns = np.stack([[1.0, 2.0]] * 4 + [[5.0, 6.0]], axis=-1)[:, None]
    figure = drawn(training(returns))
    assert labels(figure) == ["actor 4", "actor 0, actor 1, actor 2,\nactor 3"]


@pytest.mark.filterwarnings("error")
def test_evaluations_after_an_early_stop_are_left_out(drawn):
    returns = np.full((4, 2, 2), np.nan)
    returns[:2] = [[[1, 5], [3, 7]], [[5, 1], [7, 3]]]
    first, second = drawn(training(returns)).axes[0].lines
    np.testing.assert_array_equal(first.get_xdata(), [0, 100_000])
    np.testing.assert_array_equal(first.get_ydata(), [2, 6])
    np.testing.assert_array_equal(second.get_ydata(), [6, 2])


@pytest.mark.filterwarnings("error")
def test_an_actor_without_a_finite_return_is_left_out(drawn):
    returns = np.ones((2, 3, 3))
    returns[:, :, 0] = np.nan
    returns[:, :, 1] = np.inf
    figure = drawn(training(returns))
    assert len(figure.axes[0].lines) == 1
    assert labels(figure) == ["actor 2"]


@pytest.mark.filterwarnings("error")
def test_a_single_evaluation_shows_its_spread(drawn):
    axes = drawn(training([[[1.0], [3.0], [11.0]]])).axes[0]
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), [5.0])
    extremes, deviation = (bar.get_segments()[0][:, 1] for bar in axes.collections)
    np.testing.assert_array_equal(extremes, [1.0, 11.0])
    # The deviation to either side, √(56 / 3), would reach below the minimum.
    np.testing.assert_allclose(deviation, [1.0, 5.0 + (56 / 3) ** 0.5])


def test_environment_steps_are_counted_in_thousands_and_millions(drawn):
    metrics = two_actors() | {"n_environment_steps": np.array([0, 400_000, 1_000_000])}
    ticks = [tick.get_text() for tick in drawn(metrics).axes[0].get_xticklabels()]
    assert {"0", "200k", "400k", "1M"} <= set(ticks)


def test_title_and_number_of_episodes_are_shown(drawn):
    figure = drawn(two_actors(), title="CartPole")
    assert figure.axes[0].get_title(loc="left") == "CartPole"
    assert "mean over 4 episodes" in figure.get_supxlabel()


@pytest.mark.parametrize("shape", [(3, 4), (5, 3, 4, 2)])
def test_returns_of_wrong_rank_are_refused(tmp_path, shape):
    with pytest.raises(ValueError, match=re.escape(f"returns of shape {shape}")):
        plot_learning_curve(training(np.ones(shape)), tmp_path / "curve.png")


def test_environment_steps_that_do_not_match_the_returns_are_refused(tmp_path):
    metrics = two_actors() | {"n_environment_steps": np.arange(5)}
    with pytest.raises(ValueError, match=r"n_environment_steps of shape \(5,\)"):
        plot_learning_curve(metrics, tmp_path / "curve.png")


@pytest.mark.parametrize("returns", [np.ones((3, 0, 2)), np.full((3, 4, 2), np.nan)])
def test_a_training_without_evaluations_is_refused(tmp_path, returns):
    with pytest.raises(ValueError, match="no evaluation ran"):
        plot_learning_curve(training(returns), tmp_path / "curve.png")


def test_plotting_does_not_import_pyplot_and_importing_does_not_import_matplotlib(tmp_path):
    code = f"""
import sys, numpy as np, jaxagents.visual.plots
print("matplotlib" in sys.modules)
metrics = {{"returns": np.ones((2, 3, 1)), "n_environment_steps": np.arange(2)}}
jaxagents.visual.plots.plot_learning_curve(metrics, {str(tmp_path / "curve.png")!r})
print("matplotlib" in sys.modules, "matplotlib.pyplot" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "True", "False"]


def curve_from(first, *later):
    """Make the metrics of equal episodes of one actor."""
    return training(
        np.broadcast_to(
            np.array([[[first]], *[[[each]] for each in later]]), (len(later) + 1, 4, 1)
        )
    )


def test_a_first_evaluation_far_below_leaves_the_axis_to_the_rest(drawn):
    low, high = drawn(curve_from(-120, -20, -15, -12)).axes[0].get_ylim()
    assert (low, high) == pytest.approx((-20.4, -11.6))  # 5 % more than the curve's -20 to -12


@pytest.mark.parametrize(("random", "low"), [(None, -28.0), (-27.0, -28.0)])
def test_a_first_evaluation_that_takes_half_of_the_axis_stays_on_it(drawn, random, low):
    figure = drawn(curve_from(-28, -20, -15, -12), random_returns=random and [random])
    assert figure.axes[0].get_ylim() == pytest.approx((low - 0.8, -11.2))
    assert any(line.get_linestyle() == ":" for line in figure.axes[0].lines) == (random is not None)


@pytest.mark.parametrize(("random", "text"), [(-121.25, "below"), (60.0, "above")])
def test_random_actions_beyond_the_axis_are_named_at_its_edge(drawn, random, text):
    axes = drawn(curve_from(-120, -20, -15, -12), random_returns=[random]).axes[0]
    assert axes.get_ylim() == pytest.approx((-20.4, -11.6))
    assert [each.get_text() for each in axes.texts] == [f"random actions: {random:.3g}, {text}"]


def test_a_level_curve_has_an_axis_of_some_height(drawn):
    low, high = drawn(curve_from(500, 500, 500, 500)).axes[0].get_ylim()
    assert low < 500 < high


def test_first_evaluations_of_several_actors_do_not_widen_the_axis_in_turn(drawn):
    # Each first evaluation would double what the ones before have left of the axis.
    returns = [curve_from(first, -20, -15, -12)["returns"] for first in (-28, -44, -76)]
    low, high = drawn(training(np.concatenate(returns, axis=2))).axes[0].get_ylim()
    assert (low, high) == pytest.approx((-28.8, -11.2))
