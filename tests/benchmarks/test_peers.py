import importlib
import importlib.util
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxagents.experiments.config_files.file import load_config

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

STUB = """
import sys
sys.path.insert(0, {peers!r})
from worker import serve

def train(seed):
    print("training without end of line", end="")
    if seed == 3:
        raise RuntimeError("three is too much")
    import time
    time.sleep(0.1 if seed else 0.6)

serve(train, 1000)
"""


@pytest.fixture
def processes(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("peers.processes")


@pytest.fixture
def driver(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("peers_driver", BENCHMARKS / "peers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def worker(processes, tmp_path):
    script = tmp_path / "stub.py"
    script.write_text(STUB.format(peers=str(BENCHMARKS / "peers")))
    worker = processes.Worker(processes.Side("stub", (sys.executable, str(script))))
    yield worker
    worker.stop()


def test_a_worker_trains_on_request_and_reports_time_and_memory(worker):
    for seed in (1, 2):
        worker.train(seed)

    assert len(worker.trainings) == 2
    for training in worker.trainings:
        assert 0.1 <= training.seconds < 5
        assert training.speed == pytest.approx(1000 / training.seconds)
        assert 1 < training.peak_megabytes < 200
    assert 0.1 < worker.compile_seconds < 0.6


def test_a_failing_worker_ends_the_comparison_with_its_error(worker):
    with pytest.raises(SystemExit, match=r"(?s)stub ended early.*three is too much"):
        worker.train(3)


def test_a_peer_without_its_environment_is_told_the_command_that_makes_it(processes, tmp_path):
    side = processes.Side("rejax 0.1.3", (str(tmp_path / "rejax" / "bin" / "python"),))
    with pytest.raises(SystemExit, match=r"make_environment\.py rejax"):
        processes.Worker(side)


def test_foreign_load_is_a_share_of_all_processors(processes, monkeypatch):
    monkeypatch.setattr(processes.os, "cpu_count", lambda: 2)
    # In two seconds of two processors, 2.2 seconds of work, of which the worker did 1.
    assert processes.foreign_share(elapsed=2.0, busy=2.2, own=1.0) == pytest.approx(0.3)
    assert processes.foreign_share(elapsed=2.0, busy=0.99, own=1.0) == 0.0
    assert math.isnan(processes.foreign_share(elapsed=2.0, busy=math.nan, own=1.0))


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="the load is only known on Linux")
def test_load_of_another_program_is_noticed(worker):
    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        worker.train(1)
    finally:
        burner.kill()
        burner.wait()
    assert worker.trainings[0].foreign_share > 0.4 / os.cpu_count()


def test_the_table_warns_of_foreign_load(driver):
    assert "WARNING" in driver._foreign_load([0.0, 0.2, 0.3])
    assert "WARNING" not in driver._foreign_load([0.0, 0.01, 0.3])
    assert "not known" in driver._foreign_load([math.nan])


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("cartpole", 1_024_000),
        ("gymnasium_cartpole", 40_960),
        ("hunting", 76_800),
        ("simple_spread", 25_600),
    ],
)
def test_our_side_of_each_comparison_is_a_valid_configuration(name, steps):
    config = load_config(str(BENCHMARKS / "peers" / f"{name}.yaml"), [])
    assert config.n_environment_steps == steps
    assert config.agent.n_evals == 0
