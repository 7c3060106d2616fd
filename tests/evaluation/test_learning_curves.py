"""Learning curves of groups of runs."""

import numpy as np
import pytest

from jaxagents.errors import ExperimentError
from jaxagents.evaluation.learning_curves import make_panels, metric_names
from jaxagents.evaluation.runs import read_run
from tests.fabricated import returns, write_run


@pytest.fixture
def runs(tmp_path):
    """Write a run for each dictionary of arguments, with its own seed, and read the runs."""

    def write(*fabrications):
        return [
            read_run(write_run(tmp_path / f"run{i}", **{"seed": i, **each}))
            for i, each in enumerate(fabrications)
        ]

    return write


def test_a_line_is_the_interquartile_mean_over_runs(runs):
    group = runs(*({"metrics": returns(0.0, end)} for end in (-90.0, 1.0, 3.0, 90.0)))
    (panel,) = make_panels({"four": group}, "return")
    np.testing.assert_array_equal(panel.curves["four"].x, [0, 100])
    np.testing.assert_array_equal(panel.curves["four"].line, [0.0, 2.0])


def test_a_band_is_the_bootstrap_interval_over_runs(runs):
    # Of two runs, a quarter of the resamples hold only the one, and a quarter only the other.
    group = runs({"metrics": returns(1.0, 4.0)}, {"metrics": returns(1.0, 8.0)})
    (panel,) = make_panels({"two": group}, "return")
    np.testing.assert_array_equal(panel.curves["two"].line, [1.0, 6.0])
    np.testing.assert_array_equal(panel.curves["two"].band, [[1.0, 4.0], [1.0, 8.0]])
    assert panel.curves["two"].extremes is None


def test_a_single_run_has_the_spread_of_its_episodes(runs):
    (panel,) = make_panels({"one": runs({"metrics": returns(5.0, 7.0)})}, "return")
    curve = panel.curves["one"]
    np.testing.assert_array_equal(curve.line, [5.0, 7.0])
    np.testing.assert_array_equal(curve.band, [[4.0, 6.0], [6.0, 8.0]])
    np.testing.assert_array_equal(curve.extremes, [[3.0, 5.0], [8.0, 10.0]])


def test_a_band_stays_within_the_lowest_and_highest_episode(runs):
    metrics = returns(5.0, std=3.0, below=1.0, above=9.0)
    (panel,) = make_panels({"one": runs({"metrics": metrics})}, "return")
    np.testing.assert_array_equal(panel.curves["one"].band, [[4.0], [8.0]])


def test_a_metric_without_episodes_has_no_spread(runs):
    metrics = {"kl": [[None], [0.2], [0.4]], "episode_length_mean": [3.0, 4.0, 5.0]}
    group = {"one": runs({"metrics": metrics})}
    (kl,), (length,) = make_panels(group, "kl"), make_panels(group, "episode_length")
    np.testing.assert_array_equal(kl.curves["one"].x, [100, 200])
    np.testing.assert_array_equal(kl.curves["one"].line, [0.2, 0.4])
    np.testing.assert_array_equal(length.curves["one"].line, [3.0, 4.0, 5.0])
    assert kl.curves["one"].band is length.curves["one"].band is None
    assert kl.subject == length.subject == ""


def test_runs_evaluated_at_different_points_are_interpolated_at_all_of_them(runs):
    group = runs(
        {"metrics": returns(0.0, 10.0, 20.0), "steps": [0, 100, 200]},
        {"metrics": returns(0.0, 30.0), "steps": [0, 150]},
    )
    (panel,) = make_panels({"two": group}, "return")
    curve = panel.curves["two"]
    # At 100 the second would be at 20; at 150 the first would be at 15.
    np.testing.assert_array_equal(curve.x, [0, 100, 150])
    np.testing.assert_allclose(curve.line, [0.0, 15.0, 22.5])


def test_a_curve_covers_the_part_of_training_common_to_all_runs(runs):
    group = runs(
        {"metrics": returns(1.0, 1.0, 1.0, 1.0)},
        {"metrics": returns(3.0, 3.0), "steps": [100, 200]},
    )
    (panel,) = make_panels({"two": group}, "return")
    np.testing.assert_array_equal(panel.curves["two"].x, [100, 200])
    np.testing.assert_array_equal(panel.curves["two"].line, [2.0, 2.0])


def test_runs_without_a_common_part_of_training_are_refused(runs):
    group = runs({"metrics": returns(1.0)}, {"metrics": returns(1.0), "steps": [500]})
    with pytest.raises(ExperimentError, match="the runs of two were evaluated in parts"):
        make_panels({"two": group}, "return")


def test_each_group_has_a_curve_of_its_own_length(runs):
    short, long = runs({"metrics": returns(1.0)}, {"metrics": returns(1.0, 2.0)})
    (panel,) = make_panels({"short": [short], "long": [long]}, "return")
    assert list(panel.curves) == ["short", "long"]
    assert [len(curve.line) for curve in panel.curves.values()] == [1, 2]


def subjects(groups, metric="return"):
    return [panel.subject for panel in make_panels(groups, metric)]


def test_actors_share_a_panel_if_their_returns_are_equal_in_all_runs(runs):
    team, apart = runs(
        {"metrics": returns([1, 1, 1, 5], [2, 2, 2, 6])},
        {"metrics": returns([1, 1, 1, 5], [2, 2, 3, 6])},
    )
    assert subjects({"a": [team]}) == ["actors 0 to 2", "actor 3"]
    assert subjects({"a": [team], "b": [apart]}) == ["actors 0, 1", "actor 2", "actor 3"]
    panels = make_panels({"a": [team], "b": [apart]}, "return")
    np.testing.assert_array_equal(panels[1].curves["b"].line, [1.0, 3.0])


def test_actors_with_equal_returns_share_one_panel(runs):
    (panel,) = make_panels({"a": runs({"metrics": returns([4, 4, 4])})}, "return")
    assert panel.subject == "each of 3 actors"
    assert panel.curves["a"].line == [4.0]
    np.testing.assert_array_equal(panel.curves["a"].band, [[3.0], [5.0]])


def test_a_single_actor_needs_no_name(runs):
    assert subjects({"a": runs({"metrics": returns(1.0)})}) == [""]


def test_many_actors_share_a_panel_per_policy(runs):
    policies = {"parameter_sharing": [0, 0, 0, 1, 1, 1, 1]}
    group = runs({"metrics": returns([0, 1, 2, 10, 20, 30, 40]), "agent": policies})
    first, second = make_panels({"a": group}, "return")
    assert first.subject == "mean of actors 0 to 2"
    assert second.subject == "mean of actors 3 to 6"
    assert (first.curves["a"].line, second.curves["a"].line) == ([1.0], [25.0])
    assert first.curves["a"].band is None  # a mean's spread is not recorded


@pytest.mark.parametrize(
    ("n_actors", "sharing", "expected"),
    [
        (7, "shared", ["mean of 7 actors"]),
        (7, "independent", [f"actor {i}" for i in range(7)]),
        (7, "team", [f"actor {i}" for i in range(7)]),
        (13, "independent", ["mean of 13 actors"]),
        (13, "team", ["mean of 13 actors"]),
    ],
)
def test_the_number_of_panels_is_bounded(runs, n_actors, sharing, expected):
    agent = {"parameter_sharing": sharing}
    group = runs({"metrics": returns(range(n_actors)), "agent": agent})
    assert subjects({"a": group}) == expected


def test_panels_are_not_per_policy_if_runs_assign_policies_differently(runs):
    metrics = returns(range(7))
    shared, independent = runs(
        {"metrics": metrics}, {"metrics": metrics, "agent": {"parameter_sharing": "independent"}}
    )
    assert len(subjects({"a": [shared], "b": [independent]})) == 7


def test_runs_with_different_numbers_of_actors_share_a_panel_of_means(runs):
    two, three = runs({"metrics": returns([1, 3])}, {"metrics": returns([1, 2, 6])})
    (panel,) = make_panels({"two": [two], "three": [three]}, "return")
    assert panel.subject == "mean of all actors"
    assert (panel.curves["two"].line, panel.curves["three"].line) == ([2.0], [3.0])


def test_losses_are_per_policy(runs):
    group = {"a": runs({"metrics": {"kl": [[0.1, 0.3], [0.2, 0.4]]}})}
    first, second = make_panels(group, "kl")
    assert (first.subject, second.subject) == ("policy 0", "policy 1")
    np.testing.assert_array_equal(second.curves["a"].line, [0.3, 0.4])


def test_an_actor_without_finite_returns_has_no_panel(runs):
    group = {"a": runs({"metrics": returns([1, 2]) | {"return_mean": [[None, 2]]}})}
    assert subjects(group) == ["actor 1"]


def test_an_actor_without_finite_returns_has_no_part_in_a_mean(runs):
    metrics = returns(range(7), range(7)) | {"return_mean": [[None, *range(6)], [None, *[4] * 6]]}
    (panel,) = make_panels({"a": runs({"metrics": metrics})}, "return")
    np.testing.assert_array_equal(panel.curves["a"].line, [2.5, 4.0])


def test_means_that_are_nowhere_finite_are_refused(runs):
    metrics = returns([1, 2], [3, 4]) | {"return_mean": [[1, None], [None, 4]]}
    with pytest.raises(ExperimentError, match="no curve can be drawn: 'return' is nowhere finite"):
        make_panels({"a": runs({"metrics": metrics})}, "return", actors="mean")


def test_evaluations_without_a_value_are_left_out(runs):
    metrics = returns(1.0, 2.0, 3.0)
    metrics["return_mean"][1] = [None]
    (panel,) = make_panels({"a": runs({"metrics": metrics})}, "return")
    np.testing.assert_array_equal(panel.curves["a"].x, [0, 200])
    np.testing.assert_array_equal(panel.curves["a"].extremes, [[-1.0, 1.0], [4.0, 6.0]])


def test_metrics_may_be_named_with_or_without_their_reduction(runs):
    (run,) = runs({"metrics": {**returns(1.0), "info_won_mean": [0.5], "kl": [[0.1]]}})
    assert metric_names(run) == ["info_won", "kl", "return"]
    for name in ("info_won", "info_won_mean"):
        (panel,) = make_panels({"a": [run]}, name)
        assert panel.metric == "info_won"
        assert panel.curves["a"].line == [0.5]


@pytest.mark.parametrize("metric", ["return", "return_mean", "return_min"])
def test_all_names_of_the_return_are_per_actor(runs, metric):
    group = {"a": runs({"metrics": returns([1, 2])})}
    assert subjects(group, metric) == ["actor 0", "actor 1"]


@pytest.mark.parametrize("metric", ["ret", "", "seconds", "entropy"])
def test_an_unrecorded_metric_is_refused_with_the_recorded_ones(runs, metric):
    metrics = {**returns(1.0), "entropy": [[None]]}
    group = {"a": runs({"metrics": metrics})}
    with pytest.raises(ExperimentError, match=f"run0 has recorded no '{metric}'; it has return."):
        make_panels(group, metric)


def test_a_run_without_evaluations_is_refused(runs):
    with pytest.raises(ExperimentError, match="recorded no 'return'; it has nothing yet"):
        make_panels({"a": runs({})}, "return")
