"""The learning matrix: what it trains, and how it sums up its results."""

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPT = BENCHMARKS / "learning_matrix.py"


@pytest.fixture
def report(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from matrix import report

    return report


def row(task, setting, seed, final):
    numbers = {"area": 1.0, "explained_variance": 0.5, "largest_value_of_possible": 0.1}
    return {
        "task": task, "setting": setting, "seed": str(seed), "final": str(final),
        **{name: str(value) for name, value in numbers.items()},
    }  # fmt: skip


ROWS = [
    *(row("catch", "defaults", seed, final) for seed, final in enumerate([1.0, 2.0, 3.0, 4.0])),
    *(row("catch", "other", seed, final) for seed, final in enumerate([5.0, 6.0, 7.0, 8.0])),
    row("pong", "other", 0, 5.0),
]


def test_a_line_has_the_interquartile_mean_the_worst_seed_and_the_comparison(report):
    lines = report.table(ROWS, None, "defaults").splitlines()
    assert len(lines) == 2 + 3
    # Of 1, 2, 3 and 4 the middle half is 2 and 3; all of 5 to 8 are larger.
    assert lines[2].startswith("| catch | defaults | 4 | 2.50 [1.00, 4.00] | 1.00 |")
    assert lines[3].split(" | ")[3].startswith("6.50 [")
    assert "| 100 %, by 4.00 [" in lines[3]
    assert lines[4].endswith("|  |")  # nothing to compare with


def test_the_latest_row_of_a_seed_counts(report):
    rows = [*ROWS, row("catch", "defaults", 0, 9.0)]
    final = report.column(report.select(rows, "catch", "defaults"), "final")
    np.testing.assert_array_equal(final, [9.0, 2.0, 3.0, 4.0])


def test_a_picture_is_drawn(report, tmp_path):
    report.draw(ROWS, "defaults", tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1_000


def test_every_setting_configures_an_agent(report, monkeypatch):
    from matrix.tasks import SETTINGS, TASKS
    from matrix.train import configure

    for name, setting in SETTINGS.items():
        config, hyperparams = configure(TASKS["pendulum"], setting)
        for key, value in setting.items():
            group = config if hasattr(config, key.split(".")[0]) else hyperparams
            for part in key.split("."):
                group = getattr(group, part)
            assert group == value, name
        assert config.n_steps * config.steps_per_update == pytest.approx(1e6, rel=1e-2)


@pytest.mark.slow
def test_seeds_are_trained_once(tmp_path):
    path = tmp_path / "results.csv"
    command = [
        *(sys.executable, str(SCRIPT), "--file", str(path), "train", "--tasks", "catch"),
        *("--seeds", "2", "--steps", "4096"),
    ]
    first, second = (
        subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)
    )
    assert len(first.splitlines()) == 2
    assert second == ""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert [each["seed"] for each in rows] == ["0", "1"]
    assert all(-1 <= float(each["final"]) <= 1 for each in rows)
