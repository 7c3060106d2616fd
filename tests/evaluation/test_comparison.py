"""Comparison of groups of runs over their seeds."""

import itertools
import json

import numpy as np
import pytest
import scipy.stats

from jaxagents.cli.output import comparison_text
from jaxagents.errors import ExperimentError
from jaxagents.evaluation.comparison import (
    Group,
    compare,
    compare_groups,
    describe_comparison,
    performance_profiles,
    probability_of_improvement,
)
from jaxagents.evaluation.comparison_tables import table_of
from jaxagents.evaluation.runs import read_groups
from tests.fabricated import returns, write_run


def group(label, *returns):
    return Group(label, np.array(returns, np.float64))


def test_the_probability_of_improvement_is_the_share_of_pairs_won_with_ties_half():
    # 3 > 1, 3 > 2, 3 = 3; 2 > 1, 2 = 2, 2 < 3: 2.5 and 1.5 of 6.
    assert probability_of_improvement(np.array([3.0, 2.0]), np.array([1.0, 2.0, 3.0])) == 4 / 6
    assert probability_of_improvement(np.array([1.0]), np.array([0.0])) == 1.0
    assert probability_of_improvement(np.array([1.0]), np.array([1.0])) == 0.5


def test_the_probability_of_improvement_is_mann_and_whitneys_statistic():
    draw = np.random.default_rng(0).integers
    first, second = draw(0, 5, 7).astype(float), draw(0, 5, 9).astype(float)
    u = scipy.stats.mannwhitneyu(first, second).statistic
    assert probability_of_improvement(first, second) == pytest.approx(u / 63)


def test_a_profile_is_the_share_of_runs_above_each_score():
    groups = [group("a", 0.0, 4.0, 10.0), group("b", 10.0, 10.0)]
    profiles = performance_profiles(groups, n_scores=11)
    np.testing.assert_array_equal(profiles["a"].scores, np.arange(11.0))
    np.testing.assert_allclose(profiles["a"].share, [2 / 3] * 4 + [1 / 3] * 6 + [0])
    np.testing.assert_array_equal(profiles["b"].share, [1.0] * 10 + [0])
    low, high = profiles["a"].band
    assert (low <= profiles["a"].share).all()
    assert (profiles["a"].share <= high).all()
    np.testing.assert_array_equal(profiles["b"].band[0], profiles["b"].share)  # both alike


def test_groups_differ_by_their_interquartile_means():
    comparison = compare(group("a", -50.0, 4.0, 6.0, 90.0), group("b", 1.0, 2.0, 3.0))
    assert comparison.difference == 5.0 - 2.0
    assert comparison.probability == 9 / 12


def test_groups_without_spread_have_an_interval_of_one_point():
    comparison = compare(group("a", 0.3, 0.3), group("b", 0.1, 0.1, 0.1))
    assert comparison.interval == (0.3 - 0.1, 0.3 - 0.1)
    assert comparison.probability == 1.0


def test_the_interval_agrees_with_that_of_all_possible_resamples():
    first, second = [0.0, 1.0, 5.0], [0.5, 2.0]
    interval = compare(group("a", *first), group("b", *second)).interval
    pairs = itertools.product(
        itertools.product(first, repeat=3), itertools.product(second, repeat=2)
    )
    exact = [np.mean(a) - np.mean(b) for a, b in pairs]
    (lower, low), (high, higher) = np.quantile(exact, [[0.01, 0.04], [0.96, 0.99]])
    assert lower <= interval.low <= low
    assert high <= interval.high <= higher


def test_the_seeds_of_both_groups_are_resampled():
    # In a quarter of the resamples the group that varies has its lower return only.
    varies, same = group("a", 0.0, 2.0), group("b", 5.0, 5.0)
    assert compare(varies, same).interval == (-5.0, -3.0)
    assert compare(same, varies).interval == (3.0, 5.0)


def test_the_interval_agrees_with_the_bootstrap_of_scipy():
    draw = np.random.default_rng(1).normal
    first, second = draw(3.0, 1.0, 12), draw(2.0, 1.0, 9)

    def difference(a, b, axis):
        trim = scipy.stats.trim_mean
        return trim(a, 0.25, axis=axis) - trim(b, 0.25, axis=axis)

    expected = scipy.stats.bootstrap(
        (first, second), difference, method="percentile", rng=np.random.default_rng(2)
    ).confidence_interval
    comparison = compare(group("a", *first), group("b", *second))
    np.testing.assert_allclose(comparison.interval, expected, atol=0.05)


def test_a_comparison_is_deterministic():
    groups = group("a", 1.0, 2.0, 4.0, 9.0, 3.0), group("b", 1.5, 2.5, 0.0, 3.0)
    first, second = compare(*groups), compare(*groups)
    assert first.interval == second.interval


@pytest.mark.parametrize(
    ("n_first", "n_second", "enough"),
    # By chance, one group beats the other in all pairs with probability 2 / binomial(n + m, n):
    # 1/10 for 3 and 3, 2/35 for 3 and 4, 1/35 for 4 and 4, 2/45 for 2 and 8, 2/40 for 1 and 39.
    [(3, 3, False), (3, 4, False), (4, 4, True), (2, 8, True), (2, 7, False), (1, 39, False)],
)
def test_enough_runs_could_show_a_significant_difference(n_first, n_second, enough):
    comparison = compare(group("a", *range(n_first)), group("b", *range(n_second)))
    assert comparison.has_enough_runs == enough


def test_a_description_says_which_group_earns_more_and_how_sure_that_is():
    better = group("new", 12.0, 12.0, 12.0, 12.0)
    worse = group("old", 10.0, 10.0, 10.0, 10.0)
    expected = (
        "new earns 2.00 more than old (95 % interval 2.00 to 2.00; better in 100 % of pairs of "
        "seeds)."
    )
    assert describe_comparison(compare(better, worse)) == expected
    assert describe_comparison(compare(worse, better)) == expected


def test_a_description_begins_with_the_better_group():
    comparison = compare(group("a", 0.0, 1.0, 2.0, 3.0, 9.0), group("b", 2.5, 4.0, 5.0, 6.0))
    low, high = comparison.interval
    assert describe_comparison(comparison) == (
        # The middle of b is 4 and 5, of a 1, 2 and 3; b wins 4 + 4 + 4 + 3 of 20 pairs.
        f"b earns 2.50 more than a (95 % interval {-high:.2f} to {-low:.2f}; better in 75 % of "
        "pairs of seeds), which may be chance."
    )


def test_a_description_says_that_few_seeds_are_no_evidence():
    text = describe_comparison(compare(group("a", 5.0, 6.0, 7.0), group("b", 1.0, 2.0, 3.0)))
    assert text.startswith("a earns 4.00 more than b (95 % interval ")
    assert text.endswith("but these are too few seeds to tell: train with 4 or more of each.")


@pytest.mark.parametrize("others", [(1.0,), (1.0, 2.0, 3.0)])
def test_a_single_seed_has_no_interval(others):
    comparison = compare(group("a", 5.0), group("b", *others))
    assert comparison.interval is None
    assert "but a single seed says nothing about others" in describe_comparison(comparison)
    assert "interval" not in describe_comparison(comparison)


def test_a_description_calls_equal_groups_equal():
    comparison = compare(group("a", 2.0, 2.0, 2.0, 2.0), group("b", 2.0, 2.0, 2.0, 2.0))
    assert describe_comparison(comparison).startswith("a and b earn the same")


def test_a_run_that_was_trained_on_since_its_summary_is_refused(write, tmp_path):
    run, other = *write("a", 1.0), *write("b", 2.0)
    summary = json.loads((run / "summary.json").read_text())
    text = json.dumps(summary | {"training": {"n_updates_done": 4}})
    (run / "summary.json").write_text(text)
    for n_updates_done in (4, 5):
        record = {"n_updates_done": n_updates_done, "n_environment_steps": 100, "seconds": 1.0}
        (run / "metrics.jsonl").write_text(json.dumps(record) + "\n")
        if n_updates_done == 4:
            assert len(compare_groups(read_groups([run, other]))) == 1
    with pytest.raises(
        ExperimentError, match=r"was trained on after its summary.*jaxagents resume"
    ):
        compare_groups(read_groups([run, other]))


@pytest.fixture
def write(tmp_path):
    """Write runs of a name with these final returns, and return their directories."""

    def write(name, *returns, **more):
        return [
            write_run(
                tmp_path / f"{name}-{seed}",
                name=name,
                seed=seed,
                final_returns=value if isinstance(value, list) else [value],
                agent={"n_steps": ord(name)},  # each name is another experiment
                **more,
            )
            for seed, value in enumerate(returns)
        ]

    return write


def test_returns_are_the_summaries_averaged_over_actors(write):
    directories = [*write("a", [1.0, 3.0], [3.0, 5.0]), *write("b", [0.0, 1.0])]
    (comparison,) = compare_groups(read_groups(directories))
    assert (comparison.first.label, comparison.second.label) == ("a", "b")
    np.testing.assert_array_equal(comparison.first.returns, [2.0, 4.0])
    np.testing.assert_array_equal(comparison.second.returns, [0.5])


def test_each_pair_of_groups_is_compared(write):
    directories = [*write("a", 1.0), *write("b", 2.0), *write("c", 3.0)]
    comparisons = compare_groups(read_groups(directories))
    pairs = [(each.first.label, each.second.label) for each in comparisons]
    assert pairs == [("a", "b"), ("a", "c"), ("b", "c")]


def test_the_printed_text_lists_the_groups_and_then_compares_them(write):
    directories = [*write("a", 0.0, 8.0, 9.0, 10.0), *write("b", 1.0, 2.0)]
    lines = comparison_text(table_of(read_groups(directories))).splitlines()
    assert " ".join(lines[0].split()) == "runs mean iqm 95 % from to lowest highest"
    # In a resample of the four, the middle two are 0 and 0 at worst, and 10 and 10 at best.
    name, *row, low, high, lowest, highest = lines[1].split()
    assert (name, row, lowest, highest) == ("a", ["4", "6.75", "8.50"], "0.00", "10.00")
    assert 0 <= float(low) < 8.5 < float(high) <= 10
    assert lines[2].split() == ["b", "2", "1.50", "1.50", "1.00", "2.00", "1.00", "2.00"]
    assert lines[4].startswith("a earns 7.00 more than b (95 % interval")


def test_settings_that_change_what_returns_measure_are_reported(write):
    first = write("a", 1.0, evaluation={"greedy": True}, side={"actors": [0]})
    text = comparison_text(table_of(read_groups([*first, *write("b", 2.0)])))
    assert "They differ in side and evaluation, so their returns may measure different" in text
    same = {"evaluation": {"x": 1}}
    alike = [*write("c", 1.0, **same), *write("d", 2.0, agent_class="another algorithm", **same)]
    assert "They differ" not in comparison_text(table_of(read_groups(alike)))


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"env_params": {"n": 3}}, "env_params"),
        ({"side": {"actors": [0]}}, "side"),
        ({"agent": {"max_episode_steps": 10}}, "agent.max_episode_steps"),
    ],
)
@pytest.mark.parametrize("envs", [["hunting/discrete"], ["gymnax/CartPole-v1", "hunting/discrete"]])
def test_runs_of_another_task_are_told(tmp_path, envs, settings, name):
    directories = [
        write_run(
            tmp_path / f"{i}-{label}",
            name=label,
            env=env,
            metrics=returns(0.0, 1.0),
            final_returns=[1.0],
            **(settings if label == "b" and env == "hunting/discrete" else {}),
        )
        for i, env in enumerate(envs)
        for label in "ab"
    ]
    (pair,) = [row for row in table_of(read_groups(directories)) if row["kind"] == "pair"]
    assert f"They differ in {name}, so" in pair["sentence"]


def test_a_single_group_is_refused(write):
    with pytest.raises(ExperimentError, match=r"are one group \(a\)"):
        compare_groups(read_groups(write("a", 1.0, 2.0)))


def test_groups_with_different_environments_are_refused(write):
    directories = [*write("a", 1.0), *write("b", 2.0, env="gymnax/CartPole-v1")]
    with pytest.raises(ExperimentError, match="a was trained on hunting/discrete and b on"):
        compare_groups(read_groups(directories))


def test_an_unfinished_run_is_refused_by_name(write):
    (ended,), (training,) = write("a", 1.0), write("b", 1.0)
    (training / "summary.json").unlink()
    with pytest.raises(ExperimentError, match=r"b-0 has no summary\.json.*jaxagents resume"):
        compare_groups(read_groups([ended, training]))


def test_infinite_returns_are_refused(write):
    with pytest.raises(ExperimentError, match=r"b-0/summary\.json has NaN or infinite returns"):
        compare_groups(read_groups([*write("a", 1.0), *write("b", [1.0, None])]))
