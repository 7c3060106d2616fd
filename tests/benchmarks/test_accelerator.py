"""The benchmark of accelerators: its budget, its table, and what it reads in profiles."""

import contextlib
import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPT = BENCHMARKS / "accelerator.py"


@pytest.fixture
def driver(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("accelerator_driver", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def turns(driver):
    return importlib.import_module("accelerator.turns")


@pytest.fixture
def profiles(driver):
    return importlib.import_module("accelerator.profile_of_kernels")


class Time:
    """A clock's time, which passes only when it is told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def passes(self, seconds):
        self.now += seconds


def measured(driver, monkeypatch, cases, seconds, time):
    """Measure a section of some cases in some seconds; return the table's rows."""
    monkeypatch.setattr(driver, "cases_of", lambda section, is_small: cases)
    monkeypatch.setattr(driver.time, "perf_counter", time)
    table = driver.Table(None)
    clock = driver.Clock(seconds, time)
    driver.measure(driver.Section("section", 1.0, ""), table, clock, is_small=False)
    return table.rows


def test_cases_that_the_time_does_not_allow_are_skipped_and_said_to_be(driver, monkeypatch):
    def case(size):
        def run(section, clock):
            # 30 s to compile, and twice a second per size.
            time.passes(30 + 2 * size)
            return driver.Outcome([driver.Row(section, f"size {size}")], 2, float(size))

        return driver.Case(f"size {size}", run, size)

    time = Time()
    cases = [case(1), case(2), case(40), case(3)]
    rows = measured(driver, monkeypatch, cases, seconds=120, time=time)
    assert [row.case for row in rows] == ["size 1", "size 2", "size 40", "size 3"]
    # 32 and 34 s are over; the next needs 30 + 2 * 40, of 54.
    assert [row.note for row in rows] == [
        *("", "", "skipped: it needs about 110 s, and its section had 54 s left", ""),
    ]


def test_a_case_that_fails_leaves_its_error_and_the_others_go_on(driver, monkeypatch):
    def fail(section, clock):
        raise MemoryError("RESOURCE_EXHAUSTED: 99 GB\nand a long explanation")

    def succeed(section, clock):
        return driver.Outcome([driver.Row(section, "good")])

    cases = [driver.Case("bad", fail), driver.Case("good", succeed)]
    rows = measured(driver, monkeypatch, cases, seconds=100, time=Time())
    assert rows[0].note == "failed: MemoryError: RESOURCE_EXHAUSTED: 99 GB"
    assert rows[1].case == "good"


def test_a_section_whose_modules_fail_leaves_its_error(driver):
    table = driver.Table(None)
    clock = driver.Clock(100.0)
    driver.measure(driver.Section("section", 1.0, "missing.cases"), table, clock, is_small=True)
    assert "accelerator.missing" in table.rows[0].note


def side(turns, name, train, n_updates=1):
    return lambda: turns.Side(name, train, n_updates, n_steps=10)


def test_a_side_that_runs_out_of_memory_leaves_the_others_their_times(driver, turns):
    def too_large(seed):
        raise RuntimeError("RESOURCE_EXHAUSTED")

    def too_large_later(seed):
        if seed:
            raise RuntimeError("RESOURCE_EXHAUSTED later")

    sides = [
        side(turns, "good", lambda seed: seed),
        side(turns, "bad", too_large),
        side(turns, "worse", too_large_later),
    ]
    rows = turns.in_turns("case", sides).run("section", driver.Clock(100.0)).rows
    assert rows[0].milliseconds
    assert [row.note for row in rows[1:]] == [
        *("failed: RuntimeError: RESOURCE_EXHAUSTED",),
        *("failed: RuntimeError: RESOURCE_EXHAUSTED later",),
    ]
    assert [row.side for row in rows] == ["good", "bad", "worse"]


def test_sides_take_turns_and_none_is_always_first(driver, turns):
    calls = []
    sides = [side(turns, name, lambda seed, name=name: calls.append((name, seed))) for name in "ab"]
    outcome = turns.in_turns("case", sides).run("section", driver.Clock(100.0))
    assert calls[:6] == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("b", 2), ("a", 2)]
    assert outcome.n_calls == 10  # nine rounds, and the call that compiles


def test_rounds_end_with_the_time(driver, turns, monkeypatch):
    time = Time()
    monkeypatch.setattr(turns.time, "perf_counter", time)
    sides = [side(turns, "slow", lambda seed: time.passes(10.0), n_updates=4)]
    outcome = turns.in_turns("case", sides).run("section", driver.Clock(35.0, time))
    # 10 s to compile, and 10 more; the next round might take the 12 s that are not there after it.
    assert outcome.n_calls == 3
    assert outcome.call_seconds == 10.0
    assert outcome.rows[0].milliseconds == "2500"
    assert outcome.rows[0].steps == "4"
    assert outcome.rows[0].compile_seconds == "0.0"


def test_ratios_are_taken_round_by_round_and_have_quartiles(turns):
    # 2, 1, 3, 2 and 4 times as long.
    text = turns.ratio_text([2.0, 2.0, 9.0, 4.0, 4.0], [1.0, 2.0, 3.0, 2.0, 1.0])
    assert text == "2 (2 to 3), 5"
    assert turns.ratio_text([], [1.0]) == ""


def test_the_file_is_complete_after_every_row_and_replaces_none(driver, tmp_path):
    path = tmp_path / "table.md"
    table = driver.Table(path)
    table.heading = "heading"
    table.add([driver.Row("section", "a | b", note="first")])
    lines = path.read_text().splitlines()
    assert lines[0] == "heading"
    assert lines[-1] == "| section | a / b |  |  |  |  |  |  |  | first |"
    with pytest.raises(FileExistsError):
        driver.Table(path)


def test_what_still_runs_when_the_time_is_over_is_abandoned(driver, monkeypatch):
    codes = []
    monkeypatch.setattr(driver.os, "_exit", codes.append)
    table = driver.Table(None)
    driver.abandon_after(0.01, table, ["one", "two", "three"]).join()
    assert codes == [0]
    assert [row.section for row in table.rows] == ["one", "two", "three"]
    assert table.rows[0].note.startswith("abandoned")
    assert all(row.note == "skipped: no time was left" for row in table.rows[1:])


def line(name, *events):
    """A profile's line of events, each a name, a start and a duration in ns."""
    fields = ("name", "start_ns", "duration_ns")
    return SimpleNamespace(
        name=name,
        events=[
            SimpleNamespace(**dict(zip(fields, each, strict=True)), stats=[]) for each in events
        ],
    )


def test_kernels_of_a_gpu_are_those_of_its_streams(profiles):
    gpu = SimpleNamespace(
        name="/device:GPU:0",
        lines=[
            line("Stream #1(Compute)", ("fusion_1", 0, 100), ("fusion.2", 400, 100)),
            line("Stream #2(MemcpyD2H)", ("MemcpyD2H", 450, 100)),
            line("XLA Modules", ("jit_update", 0, 1000)),
        ],
    )
    host = SimpleNamespace(name="/host:CPU", lines=[line("python", ("wait", 0, 5000))])
    found = profiles.kernels_of([host, gpu])
    assert (found.n, found.n_copies) == (3, 1)
    # From 0 to 100 and from 400 to 550, of 550.
    assert found.busy == pytest.approx(250e-9)
    assert found.window == pytest.approx(550e-9)
    assert found.by_name == pytest.approx({"fusion": 200e-9, "MemcpyD2H": 100e-9})
    text = found.text(n_updates=2)
    assert text.startswith("2 kernels and 0.5 copies from or to the host per update; 55% of")
    assert text.endswith("1.20 at a time otherwise; most time: fusion 67%, MemcpyD2H 33%")


def test_kernels_of_a_tpu_are_its_operations_and_not_the_loops_around_them(profiles):
    lines = [
        line("XLA Ops", ("while.1", 0, 1000), ("fusion.3", 0, 400)),
        line("Steps", ("0", 0, 9000)),
    ]
    found = profiles.kernels_of([SimpleNamespace(name="/device:TPU:0", lines=lines)])
    assert found.by_name == pytest.approx({"fusion": 400e-9})


def test_a_profile_without_kernels_is_an_error(profiles):
    host = SimpleNamespace(name="/host:CPU", lines=[line("python", ("wait", 0, 5000))])
    with pytest.raises(ValueError, match="saw no kernel"):
        profiles.kernels_of([host])


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="counts a CPU's kernels")
def test_a_real_profile_has_the_kernels_of_a_loop_but_not_the_loop(profiles):
    program = jax.jit(lambda x: jax.lax.fori_loop(0, 7, lambda _, x: x @ x, x))
    x = jnp.eye(64)
    jax.block_until_ready(program(x))
    found = profiles.traced(lambda: program(x))
    assert found.n >= 2 * 7  # products, and a counter
    assert "while" not in found.by_name
    assert 0 < found.busy <= found.window


def run_small(*arguments):
    command = [sys.executable, str(SCRIPT), "--small", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=BENCHMARKS.parent)


def test_an_existing_file_is_not_overwritten(tmp_path):
    path = tmp_path / "mine.md"
    path.write_text("mine")
    done = run_small("--to", str(path))
    assert done.returncode == 2
    assert f"--to {path} exists; name another file" in done.stderr
    assert path.read_text() == "mine"


@pytest.mark.slow  # trains by a command of its own
def test_a_section_of_the_command_trains(tmp_path):
    path = tmp_path / "table.md"
    done = run_small("--sections", "hunting", "--to", str(path))
    assert done.returncode == 0, done.stderr
    (row,) = [each for each in path.read_text().splitlines() if each.startswith("| hunting")]
    cells = row.split(" | ")
    assert float(cells[3]) > 0
    assert not cells[-1].startswith(("failed", "skipped"))


@pytest.mark.slow
def test_every_section_measures_something(driver, tmp_path):
    path = tmp_path / "table.md"
    done = run_small("--to", str(path))
    assert done.returncode == 0, done.stderr
    text = path.read_text()
    for section in driver.SECTIONS:
        assert f"| {section.name} |" in text
    assert "failed" not in text
    assert "skipped" not in text
    assert "abandoned" not in text
    assert "XLA's analysis" in text or "the device's peak" in text


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_every_tuned_form_turned_the_other_way_is_another_program(driver, monkeypatch, backend):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    tuning = importlib.import_module("tuning")
    workload = {"batch_size": 1024, "minibatch_size": 512, "rollout_length": 8}
    # Truncations are bootstrapped from, and an episode may end at any step.
    workload |= {"env": "gymnax/CartPole-v1", "time_limits": "bootstrap", "observe_time": False}

    def lowered(context):
        agent = tuning.make_agent(workload)
        with context:
            update = jax.jit(agent.collect_and_learn).trace(agent.runners.shapes())
        return update.lower(lowering_platforms=("cuda" if backend == "gpu" else "cpu",)).as_text()

    usual = lowered(contextlib.nullcontext())
    assert lowered(contextlib.nullcontext()) == usual
    for name in tuning.FORMS:
        assert lowered(tuning.other_form(name)) != usual, name


def test_the_time_of_an_accelerator_is_expected_to_grow_with_the_updates(driver, monkeypatch):
    trainings = importlib.import_module("accelerator.trainings")
    monkeypatch.setattr(trainings, "is_on_cpu", lambda: False)
    sizes = {case.name.split()[0]: case.size for case in trainings.by_environments(is_small=False)}
    # 20 million samples, of 3 actors and 128 steps, in 10 to 200 updates.
    expected = {"16": 200, "64": 200, "256": 200, "1,024": 51, "4,096": 13, "16,384": 10}
    assert sizes == expected
