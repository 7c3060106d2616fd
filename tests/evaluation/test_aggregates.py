"""Comparison of methods over several environments."""

import csv
import json
import tracemalloc

import numpy as np
import pytest

from jaxagents.cli import main as cli
from jaxagents.errors import ExperimentError
from jaxagents.evaluation.aggregates import (
    Aggregate,
    aggregate,
    aggregate_profiles,
    describe_improvement,
    improvements,
)
from jaxagents.evaluation.comparison_tables import table_of
from jaxagents.evaluation.runs import read_groups
from tests.fabricated import returns, write_run

TASK = {"agent": {}}  # of a configuration that sets nothing
# On one environment returns rise from 0, on the other from -100.
RUNS = {
    ("a", "hunting/discrete"): (0.0, [8.0, 12.0]),
    ("b", "hunting/discrete"): (0.0, [5.0, 5.0]),
    ("a", "gymnax/CartPole-v1"): (-100.0, [-80.0, -80.0]),
    ("b", "gymnax/CartPole-v1"): (-100.0, [-50.0, -70.0]),
}


def write_runs(folder, runs=RUNS):
    return [
        write_run(
            folder / f"{name}-{env.split('/')[0]}-{seed}",
            name=name,
            env=env,
            seed=seed,
            metrics=returns(start, end),
            final_returns=[end],
        )
        for (name, env), (start, ends) in runs.items()
        for seed, end in enumerate(ends)
    ]


def test_scores_reach_from_the_return_before_training_to_the_best_methods(tmp_path):
    a, b = aggregate(read_groups(write_runs(tmp_path)))
    # The best means are 10 and -60: scores are return / 10 and (return + 100) / 40.
    np.testing.assert_allclose(a.scores["hunting/discrete"], [0.8, 1.2])
    np.testing.assert_allclose(a.scores["gymnax/CartPole-v1"], [0.5, 0.5])
    np.testing.assert_allclose(b.scores["hunting/discrete"], [0.5, 0.5])
    np.testing.assert_allclose(b.scores["gymnax/CartPole-v1"], [1.25, 0.75])
    # The middle halves are 0.5 and 0.8, and 0.5 and 0.75.
    assert a.iqm == pytest.approx(0.65)
    assert b.iqm == pytest.approx(0.625)
    # Resampled within environments: hunting's runs are (0.8, 0.8), (0.8, 1.2) or (1.2, 1.2).
    np.testing.assert_allclose(a.interval, [0.65, 0.85])


def test_improvement_is_averaged_over_environments(tmp_path):
    (only,) = improvements(aggregate(read_groups(write_runs(tmp_path))))
    assert (only.first, only.second) == ("a", "b")
    assert only.probability == 0.5  # 1 on hunting and 0 on CartPole
    assert only.interval == (0.5, 0.5)  # in every resample


def runs_of(n_seeds, *, other_is_solved):
    """Return runs of a, which earns more than b on hunting, and on CartPole more or as much."""
    low, high = [1.0 + i for i in range(n_seeds)], [11.0 + i for i in range(n_seeds)]
    return {
        ("a", "hunting/discrete"): (0.0, high),
        ("b", "hunting/discrete"): (0.0, low),
        ("a", "gymnax/CartPole-v1"): (0.0, [500.0] * n_seeds if other_is_solved else high),
        ("b", "gymnax/CartPole-v1"): (0.0, [500.0] * n_seeds if other_is_solved else low),
    }


@pytest.mark.parametrize(
    ("n_seeds", "other_is_solved", "enough"),
    # By chance, a beats b in all pairs, or b beats a, with probability 2/20, 2/70 on one
    # environment, and 2/6^2, 2/20^2 on two.
    [(3, True, False), (4, True, True), (2, False, False), (3, False, True)],
)
def test_few_seeds_are_no_evidence_over_several_environments(
    tmp_path, n_seeds, other_is_solved, enough
):
    runs = runs_of(n_seeds, other_is_solved=other_is_solved)
    groups = read_groups(write_runs(tmp_path, runs))
    (only,) = improvements(aggregate(groups))
    assert only.interval.low > 0.5
    assert only.may_be_chance != enough
    assert ("too few seeds to tell" in describe_improvement(only)) != enough
    ranks = {row["group"]: row["best"] for row in table_of(groups) if row["kind"] == "method"}
    assert ranks == {"a": "best", "b": None if enough else "close"}


@pytest.mark.parametrize(
    ("envs", "p_value"),
    # Of the C(4, 2) = 6 ways to name the runs of one environment, a share of 1, 3/4, 1/2, 1/2, 1/4
    # and 0 of the pairs is won. On two environments, 2 of 36 ways win or lose all.
    [("ab", 2 / 36), ("abc", 2 * (1 + 3 + 2 * 3 + 3) / 216)],
)
def test_names_drawn_for_the_runs_tell_how_likely_a_difference_is(envs, p_value):
    low, high = np.array([0.0, 1.0]), np.array([10.0, 11.0])
    around, between = np.array([0.0, 3.0]), np.array([1.0, 2.0])
    scores = ({"a": high, "b": high, "c": around}, {"a": low, "b": low, "c": between})
    methods = []
    for each in scores:
        own = {env: each[env] for env in envs}
        methods.append(Aggregate("x", own, own, 0.0, None, dict.fromkeys(envs, TASK)))
    (only,) = improvements(methods)
    assert only.p_value == pytest.approx(p_value, abs=0.015)
    assert only.interval.low > 0.5
    assert only.may_be_chance


def test_comparing_large_populations_takes_little_memory():
    scores = np.arange(100.0)
    methods = [Aggregate(name, {}, {"a": scores}, 0.0, None, {"a": TASK}) for name in "xy"]
    tracemalloc.start()
    try:
        (only,) = improvements(methods)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50e6  # bytes; all pairs of runs in all 2,000 draws would take 160e6
    assert (only.probability, only.p_value) == (0.5, 1.0)


def test_a_description_begins_with_the_better_method(tmp_path):
    runs = runs_of(4, other_is_solved=True)
    swapped = {({"a": "b", "b": "a"}[name], env): own for (name, env), own in runs.items()}
    (only,) = improvements(aggregate(read_groups(sorted(write_runs(tmp_path, swapped)))))
    assert (only.first, only.second, only.probability) == ("a", "b", 0.25)  # 0 and 1/2
    assert describe_improvement(only) == (
        "b earns more than a in 75 % of pairs of runs on the same environment (95 % interval 75 to "
        "75 %)."
    )


def test_profiles_are_of_all_scores(tmp_path):
    methods = aggregate(read_groups(write_runs(tmp_path)))
    profile = aggregate_profiles(methods, n_scores=4)["a"]
    np.testing.assert_allclose(profile.scores, [0.5, 0.75, 1.0, 1.25])
    np.testing.assert_allclose(profile.share, [0.5, 0.5, 0.25, 0.0])
    low, high = profile.band
    np.testing.assert_allclose((low[2], high[2]), (0.0, 0.5))


def test_a_single_run_has_no_interval(tmp_path):
    few = {key: (start, ends[:1]) for key, (start, ends) in RUNS.items()}
    methods = aggregate(read_groups(write_runs(tmp_path, few)))
    assert [each.interval for each in methods] == [None, None]
    assert improvements(methods)[0].interval is None


def test_the_command_compares_by_name_and_writes_table_and_profiles(tmp_path, capsys):
    runs = [str(each) for each in write_runs(tmp_path)]
    table, picture = tmp_path / "scores.csv", tmp_path / "profiles.svg"
    options = ["--csv", str(table), "--profiles", str(picture)]
    assert cli.main(["compare", *runs, *options]) == 0
    output = capsys.readouterr().out
    assert "a earns more than b in 50 % of pairs of runs on the same environment" in output
    row = next(line.split() for line in output.splitlines() if line.startswith("a "))
    assert row == ["a", "-80.00", "10.00", "0.650", "0.650", "0.850"]
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["kind"] for row in rows].count("seed") == 8
    (a, b), (pair,) = ([r for r in rows if r["kind"] == kind] for kind in ("method", "pair"))
    assert (a["group"], float(a["score"]), a["best"]) == ("a", pytest.approx(0.65), "best")
    assert (b["group"], float(b["score"]), b["best"]) == ("b", pytest.approx(0.625), "close")
    assert pair["sentence"] in output
    assert "2 environments" in picture.read_text()


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        (
            {key: RUNS[key] for key in list(RUNS)[:3]},
            "b has no run on gymnax/CartPole-v1; over several environments methods are compared",
        ),
        (
            {
                **RUNS,
                ("b", "gymnax/CartPole-v1"): (-10.0, [-80.0]),
                ("a", "gymnax/CartPole-v1"): (-10.0, [-80.0]),
            },
            "no method earns more on gymnax/CartPole-v1 than before training",
        ),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(tmp_path, runs, message):
    with pytest.raises(ExperimentError, match=message):
        aggregate(read_groups(write_runs(tmp_path, runs)))


def test_a_name_stands_for_one_method(tmp_path):
    runs = write_runs(tmp_path)
    changed = write_run(tmp_path / "changed", name="a", env="hunting/discrete", agent={"x": 1})
    with pytest.raises(ExperimentError, match="a names several configurations on hunting"):
        aggregate(read_groups([*runs, changed]))


def test_runs_without_an_evaluation_before_training_are_refused(tmp_path):
    runs = write_runs(tmp_path)
    lines = (runs[0] / "metrics.jsonl").read_text().splitlines()
    (runs[0] / "metrics.jsonl").write_text("\n".join(lines[1:]))
    with pytest.raises(ExperimentError, match="was not evaluated before training"):
        aggregate(read_groups(runs))


def test_scores_begin_at_the_return_of_random_actions_if_all_runs_know_it(tmp_path):
    directories = write_runs(tmp_path)
    for directory in directories:
        path = directory / "summary.json"
        summary = json.loads(path.read_text())
        start = -10.0 if "hunting" in directory.name else -100.0
        path.write_text(json.dumps(summary | {"random_returns": {"mean": [start]}}))
    a, _ = aggregate(read_groups(directories))
    np.testing.assert_allclose(a.scores["hunting/discrete"], [0.9, 1.1])  # (return + 10) / 20
