"""Comparisons as table files, in LaTeX and for MARL-eval."""

import csv
import io
import json

import numpy as np
import pytest

from jaxagents.cli import main as cli
from jaxagents.errors import ExperimentError
from jaxagents.evaluation.comparison_tables import (
    compare_runs,
    latex_of,
    sentences_of,
    table_of,
)
from jaxagents.evaluation.marl_eval import marl_eval_text
from jaxagents.evaluation.runs import read_groups
from tests.fabricated import returns, write_run


@pytest.fixture
def write(tmp_path):
    """Write a run of a name per list of returns at its evaluations; the last is final."""

    def write(name, *runs, env="jaxmarl/MPE_simple_spread_v3", success=None, first_seed=0):
        directories = []
        for seed, values in enumerate(runs, first_seed):
            metrics = returns(*values) | ({"success_mean": success} if success else {})
            folder = tmp_path / f"{name}-{env.replace('/', '-')}-{seed}"
            write_run(
                folder,
                name=name,
                seed=seed,
                env=env,
                metrics=metrics,
                final_returns=[float(np.mean(values[-1]))],
                agent={"n_steps": sum(map(ord, name))},
            )
            if success:
                path = folder / "summary.json"
                own = {"info": "won", "title": "battles won", "kind": "share", "mean": success[-1]}
                own |= {"low": 0.0, "high": 1.0, "n_episodes": 8, "others": {}}
                path.write_text(json.dumps(json.loads(path.read_text()) | {"success": own}))
            directories.append(folder)
        return directories

    return write


def test_a_table_has_a_row_per_group_seed_and_pair(write):
    runs = [*write("a", [0, 1], [0, 3]), *write("b", [0, 5])]
    rows = compare_runs(runs)
    assert len({tuple(row) for row in rows}) == 1  # all have the same columns
    shown = [(row["kind"], row["group"], row["seed"], row["mean"], row["iqm"]) for row in rows]
    assert shown == [
        ("group", "a", None, 2.0, 2.0),
        ("seed", "a", 0, 1.0, None),
        ("seed", "a", 1, 3.0, None),
        ("group", "b", None, 5.0, 5.0),
        ("seed", "b", 0, 5.0, None),
        ("pair", "a", None, None, None),
    ]
    assert (rows[0]["low"], rows[0]["high"]) == (1.0, 3.0)
    assert (rows[3]["low"], rows[3]["high"], rows[3]["best"]) == (None, None, "best")
    assert (rows[-1]["other"], rows[-1]["difference"], rows[-1]["probability"]) == ("b", -3.0, 0.0)


def test_groups_are_called_by_their_labels(write, capsys):
    runs = [*write("a", [0, 1]), *write("b", [0, 5]), *write("a", [0, 2], env="x/y")]
    runs += write("b", [0, 3], env="x/y")
    rows = compare_runs(runs, labels={"a": "Ours, new"})
    assert {row["group"] for row in rows} == {"Ours, new", "b"}
    assert cli.main(["compare", *map(str, runs[:2]), "--labels", "a=Ours", "--latex"]) == 0
    assert "Ours" in capsys.readouterr().out
    for wrong in ("c=Ours", "Ours"):
        assert cli.main(["compare", *map(str, runs[:2]), "--labels", wrong]) == 2
    errors = capsys.readouterr().err
    assert "there is no run named 'c'; there are a, b." in errors
    assert "--labels Ours is not of the form NAME=LABEL,..." in errors


def test_csv_alone_is_printed_for_a_dash_and_holds_all_that_is_printed_otherwise(write, capsys):
    runs = [*write("a", [0, 1], success=[0.0, 0.5]), *write("b", [0, 5], success=[0.0, 0.75])]
    assert cli.main(["compare", *map(str, runs), "--csv", "-"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["kind"] for row in rows] == ["group", "seed", "group", "seed", "pair"]
    assert (rows[0]["success"], rows[0]["success_title"]) == ("0.5", "battles won")
    assert cli.main(["compare", *map(str, runs)]) == 0
    printed = capsys.readouterr().out
    assert rows[-1]["sentence"] in printed
    assert "50.0 %" in printed


def test_a_tie_is_called_a_tie(write):
    equal = [each for name in "abcdefg" for each in write(name, [0, 500])]
    rows = table_of(read_groups([*equal, *write("h", [0, 490])]))
    first, *_ = sentences_of(rows)
    assert first == (
        "Tie: 7 of 8 have the highest interquartile mean on jaxmarl/MPE_simple_spread_v3, 500.00: "
        "a, b, c, d, e, f, g."
    )
    assert r"\textbf" not in latex_of(rows)


def test_latex_is_escaped_and_bold_is_what_is_highest_or_may_be(write, capsys):
    best = write("lr_50%", *([0, -1 - i] for i in range(4)))  # -1 to -4: -2.50
    close = write("c", *([0, -1.5 - i] for i in range(4)))
    runs = [*best, *close, *write("b&c", *([0, -50 - i] for i in range(4)))]
    assert cli.main(["compare", *map(str, runs), "--latex"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(r"% Needs \usepackage{booktabs}. Bold: ")
    cells = {line.split(" & ")[0]: line.split(" & ") for line in lines if line.count(" & ") == 7}
    iqms = {name: own[3] for name, own in cells.items() if name}
    assert iqms == {
        r"lr\_50\%": r"\textbf{$-$2.50}",
        "c": r"\textbf{$-$3.00}",
        r"b\&c": "$-$51.50",
    }
    assert lines.count(r"\toprule") == lines.count(r"\bottomrule") == 2
    assert r"3 & $-$4.00 & $-$4.50 & $-$53.00 \\" in lines


def test_too_few_seeds_leave_nothing_bold(write):
    rows = table_of(read_groups([*write("a", *[[0, 9]] * 3), *write("b", *[[0, 1]] * 3)]))
    assert [row["best"] for row in rows if row["kind"] == "group"] == ["best", "close"]
    assert r"\textbf" not in latex_of(rows)


def test_latex_over_several_environments_has_a_column_for_each(write):
    envs = "hunting/discrete", "gymnax/CartPole-v1"
    ends = {"a": (4, 6), "b": (5, 6)}
    runs = [
        each
        for name, of_name in ends.items()
        for env, end in zip(envs, of_name, strict=True)
        for each in write(name, *[[0, end]] * 4, env=env)
    ]
    lines = latex_of(table_of(read_groups(runs))).splitlines()
    assert r" & gymnax/CartPole-v1 & hunting/discrete & score & 95 \% from & to \\" in lines
    # On CartPole both are best.
    assert r"b & 6.00 & \textbf{5.00} & \textbf{1.000} & 1.000 & 1.000 \\" in lines
    assert r"gymnax/CartPole-v1 & 0 & 6.00 & 6.00 \\" in lines


def check_marl_eval(data):
    """Check the rules of MARL-eval's DiagnoseData and of its readers."""
    for environment, tasks in data.items():
        assert isinstance(environment, str)
        algorithms = {tuple(sorted(each)) for each in tasks.values()}
        assert len(algorithms) == 1
        assert not any("," in name for name in algorithms.pop())
        every = [runs for of_task in tasks.values() for runs in of_task.values()]
        assert len({tuple(runs) for runs in every}) == 1  # runs are looked up by the first's keys
        steps = [run for runs in every for run in runs.values()]
        assert len({tuple(run) for run in steps}) == 1
        for run in steps:
            *names, last = run
            assert names == [f"step_{i}" for i in range(len(names))]
            assert last == "absolute_metrics"
            metrics = set(run[last])
            for name in names:
                assert set(run[name]) == metrics | {"step_count", "elapsed_time"}
                assert isinstance(run[name]["step_count"], int)
                assert isinstance(run[name]["elapsed_time"], float)
            for own in run.values():
                assert all(isinstance(own[m], list) and len(own[m]) == 1 for m in metrics)


def test_marl_eval_reads_all_evaluations(write, tmp_path, capsys):
    success = [0.0, 0.5]
    a = write("a", [[3, 5], [4, 6]], success=success, first_seed=1)
    runs = [*a, *write("b", [6, 7], success=success, first_seed=1)]
    path = tmp_path / "raw.json"
    assert cli.main(["compare", *map(str, runs), "--csv", "-", "--marl-eval", str(path)]) == 0
    printed = capsys.readouterr()
    assert printed.err == f"{path}\n"  # apart from the table
    assert printed.out.startswith("kind,env,group")
    data = json.loads(path.read_text())
    check_marl_eval(data)
    assert data["jaxmarl"]["MPE_simple_spread_v3"]["a"] == {
        "seed_1": {
            "step_0": {"step_count": 0, "elapsed_time": 0.0, "return": [4.0], "success": [0.0]},
            "step_1": {"step_count": 100, "elapsed_time": 0.5, "return": [5.0], "success": [0.5]},
            "absolute_metrics": {"return": [5.0], "success": [0.5]},
        }
    }


def test_no_table_file_is_replaced(write, tmp_path, capsys):
    runs = [str(each) for each in [*write("a", [0, 1]), *write("b", [0, 2])]]
    path = tmp_path / "mine.csv"
    path.write_text("mine")
    for option in ("--csv", "--marl-eval"):
        assert cli.main(["compare", *runs, option, str(path)]) == 2
        assert "mine.csv exists already; name another file" in capsys.readouterr().err
    assert path.read_text() == "mine"


def test_runs_of_other_seeds_are_numbered_for_marl_eval(write):
    groups = read_groups([*write("a", [0, 1]), *write("b", [0, 2], first_seed=7)])
    data = json.loads(marl_eval_text(groups))
    check_marl_eval(data)
    assert list(data["jaxmarl"]["MPE_simple_spread_v3"]["b"]) == ["run_0"]


@pytest.mark.parametrize(
    ("name", "of_b", "message"),
    [
        ("b", [[0, 1], [0, 1]], "a has 1 runs and b has 2; MARL-eval needs equal numbers"),
        ("b", [[0, 1, 2]], "has 2 evaluations and .* has 3; MARL-eval needs equal numbers"),
        ("b,c", [[0, 1]], "'b,c' has a comma, which MARL-eval does not allow"),
    ],
)
def test_what_marl_eval_refuses_is_explained(write, name, of_b, message):
    groups = read_groups([*write("a", [0, 1]), *write(name, *of_b)])
    with pytest.raises(ExperimentError, match=message):
        marl_eval_text(groups)
