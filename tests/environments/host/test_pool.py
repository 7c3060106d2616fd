"""Worker processes, and what happens when one of them fails."""

import concurrent.futures
import functools
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from jaxagents.environments.host import HostEnvironmentError
from jaxagents.environments.host.environment import HostEnvironment
from tests.environments.host.probes import Borrowed, Faulty, Party, Stairs, Unstartable
from tests.environments.host.processes import is_running, workers

SEEDS = np.array([11, 22, 33], np.uint32)


@pytest.fixture
def started():
    """Make a pool of 3 environments; afterwards, no process is left."""
    assert workers() == set()
    environments = []

    def start(make_env, n_envs=3, n_workers=1, max_episode_steps=None, **settings):
        settings = {"timeout": 20.0} | settings
        environments.append(HostEnvironment(make_env, n_workers=n_workers, **settings))
        return environments[-1].make_pool(n_envs, max_episode_steps, has_state=True)

    yield start
    for environment in environments:
        environment.close()
    assert workers() == set()


def actions(*values):
    return np.array(values, np.int32).reshape(len(values), -1)


def test_environments_are_shared_out_among_workers_and_seeded_at_every_reset(started):
    pool = started(functools.partial(Stairs, limit=2), n_workers=2)
    frame = pool.reset(SEEDS)
    assert len(pool.process_ids) == 2
    assert set(pool.process_ids) == workers()
    np.testing.assert_allclose(frame["features"][:, 0, 0], [0.1, 0.2, 0.3])
    frame = pool.step(actions(0, 1, 0), SEEDS)
    np.testing.assert_allclose(frame["features"][:, 0, 0], [0.1, 1.2, 0.3])
    assert not frame["over"].any()

    frame = pool.step(actions(0, 1, 0), SEEDS + 4)

    assert frame["over"].all()
    assert frame["truncated"].all()
    assert not frame["terminated"].any()
    assert frame["alive"].all()  # in the next episode
    np.testing.assert_allclose(frame["final_features"][:, 0, 0], [0.1, 2.2, 0.3])
    np.testing.assert_allclose(frame["features"][:, 0, 0], [0.5, 0.6, 0.7])
    np.testing.assert_array_equal(frame["features"][:, 0, 1], 0)


def test_only_environments_whose_episode_is_over_are_reset(started):
    pool = started(functools.partial(Stairs, top=1))
    pool.reset(SEEDS)

    frame = pool.step(actions(0, 1, 0), SEEDS)

    assert frame["over"].tolist() == [False, True, False]
    assert frame["terminated"][:, 0].tolist() == [False, True, False]
    np.testing.assert_array_equal(frame["features"][:, 0, 1], [1, 0, 1])


def test_a_shorter_limit_truncates_those_that_are_alive(started):
    everyone, two = ("host_0", "host_1", "guest_0"), ("host_0", "guest_0")
    pool = started(functools.partial(Party, [everyone, two, two, two]), 1, max_episode_steps=2)
    pool.reset(SEEDS[:1])

    was_over = pool.step(np.zeros((1, 3), np.int32), SEEDS[:1])["over"].tolist()
    last = pool.step(np.zeros((1, 3), np.int32), SEEDS[:1])

    assert (was_over, last["over"].tolist()) == ([False], [True])
    assert last["terminated"].tolist() == [[False, True, False]]
    assert last["truncated"].tolist() == [[True, False, True]]
    np.testing.assert_array_equal(last["final_global_state"], [[2, 2]])
    np.testing.assert_array_equal(last["global_state"], [[0, 3]])


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("raise", "raised ZeroDivisionError: the stairs are broken"),
        ("kill", r"ended its worker process \(SIGKILL\)"),
        ("exit", r"ended its worker process \(exit code 3\)"),
        pytest.param("hang", "has not returned within timeout=3 s", marks=pytest.mark.slow),
        ("nan", "returned an observation that is NaN or infinite"),
        ("nan reward", "returned a reward that is NaN or infinite"),
        ("shape", r"observation of shape \(1,\) for actor 0, whose space has shape \(2,\)"),
        ("dtype", "observation of <U4 for actor 0, whose space has float32"),
        ("reward of two numbers", r"returned a reward of shape \(2,\), not one number"),
    ],
)
def test_a_fault_names_the_environment_and_the_step(started, fault, text):
    pool = started(functools.partial(Faulty, fault), timeout=3.0)
    pool.reset(SEEDS)
    pool.step(actions(0, 1, 0), SEEDS)

    with pytest.raises(HostEnvironmentError, match=text) as refusal:
        pool.step(actions(0, 2, 0), SEEDS)

    message, *traceback = str(refusal.value).splitlines()
    assert message.startswith("environment 1 at step 2 ")
    assert any("in step" in line for line in traceback) == (fault == "raise")
    assert workers() == set()


def test_an_environment_that_cannot_be_made_is_an_error(started, tmp_path):
    pool = started(functools.partial(Unstartable, tmp_path / "made"))
    with pytest.raises(
        HostEnvironmentError, match="environment 0 at the reset raised OSError: no stairs left"
    ):
        pool.reset(SEEDS)


def test_a_worker_killed_between_steps_is_an_error(started):
    pool = started(Stairs, n_workers=2)
    pool.reset(SEEDS)
    os.kill(pool.process_ids[1], signal.SIGKILL)
    with pytest.raises(HostEnvironmentError, match=r"environments 1-2 at step 1 ended"):
        pool.step(actions(0, 0, 0), SEEDS)


@pytest.mark.parametrize(
    "fault", ["raise", "kill", pytest.param("hang", marks=pytest.mark.slow), "nan"]
)
def test_a_restarted_workers_episodes_are_truncated(started, fault, tmp_path):
    once = tmp_path / "once"
    make_env = functools.partial(Faulty, fault, once)
    pool = started(make_env, n_workers=3, timeout=3.0, on_worker_failure="restart")
    pool.reset(SEEDS)
    before = pool.step(actions(1, 1, 1), SEEDS)
    once.touch()

    frame = pool.step(actions(0, 0, 0), SEEDS + 4)

    (failed,) = np.flatnonzero(pool.n_restarts)
    others = np.arange(3) != failed
    assert pool.n_restarts[failed] == 1
    assert frame["over"].tolist() == frame["truncated"][:, 0].tolist() == (~others).tolist()
    assert not frame["terminated"].any()
    assert frame["reward"][failed] == 0
    np.testing.assert_array_equal(frame["final_features"][failed], before["features"][failed])
    np.testing.assert_allclose(frame["features"][failed, 0], [(5, 6, 7)[failed] / 10, 0])
    np.testing.assert_array_equal(frame["features"][others, 0, 1], 2)
    frame = pool.step(actions(1, 1, 1), SEEDS)
    np.testing.assert_array_equal(frame["reward"], 1)
    assert not frame["over"].any()
    assert len(workers()) == 3


def test_restarts_leave_no_open_files_and_no_processes(started, tmp_path):
    once = tmp_path / "once"
    make_env = functools.partial(Faulty, "raise", once)
    pool = started(make_env, n_workers=3, on_worker_failure="restart")
    pool.reset(SEEDS)
    counts = []
    for _ in range(4):
        pool.step(actions(1, 1, 1), SEEDS)
        once.touch()
        pool.step(actions(1, 1, 1), SEEDS)
        counts.append((len(os.listdir("/proc/self/fd")), len(workers())))
    assert counts == [counts[0]] * 4
    assert pool.n_restarts.sum() == 4


def test_a_worker_that_fails_at_once_is_not_restarted(started):
    pool = started(functools.partial(Faulty, "raise"), on_worker_failure="restart")
    pool.reset(SEEDS)
    pool.step(actions(0, 0, 0), SEEDS)
    pool.step(actions(2, 0, 0), SEEDS)
    assert pool.n_restarts.tolist() == [1, 1, 1]  # they share a worker
    with pytest.raises(HostEnvironmentError, match="environment 1 at step 3"):
        pool.step(actions(0, 2, 0), SEEDS)


def test_workers_that_die_while_they_wait_are_replaced(started):
    pool = started(Stairs, n_workers=3, on_worker_failure="restart")
    pool.reset(SEEDS)
    os.kill(pool.process_ids[1], signal.SIGKILL)
    first = pool.step(actions(1, 1, 1), SEEDS)
    assert first["over"].tolist() == [False, True, False]
    os.kill(pool.process_ids[2], signal.SIGKILL)

    again = pool.reset(SEEDS)

    assert pool.n_restarts.tolist() == [0, 1, 1]
    np.testing.assert_array_equal(again["features"][:, 0, 1], 0)
    assert not pool.step(actions(1, 1, 1), SEEDS)["over"].any()


def test_a_new_worker_that_cannot_reset_its_environments_ends_the_pool(started, tmp_path):
    there = tmp_path / "there"
    there.touch()
    pool = started(functools.partial(Borrowed, there), n_workers=3, on_worker_failure="restart")
    pool.reset(SEEDS)
    there.unlink()
    os.kill(pool.process_ids[0], signal.SIGKILL)
    with pytest.raises(HostEnvironmentError, match="FileNotFoundError"):
        pool.step(actions(1, 1, 1), SEEDS)
    assert workers() == set()


def test_a_pool_that_another_thread_closes_in_mid_step_starts_no_new_worker(started, tmp_path):
    once = tmp_path / "once"
    pool = started(functools.partial(Faulty, "hang", once), on_worker_failure="restart")
    pool.reset(SEEDS)
    once.touch()
    with concurrent.futures.ThreadPoolExecutor() as threads:
        stepping = threads.submit(pool.step, actions(0, 0, 0), SEEDS)
        while once.exists():
            time.sleep(0.01)
        pool.close(seconds=0.0)
        with pytest.raises(HostEnvironmentError, match="were closed in mid-step"):
            stepping.result(60)
    assert workers() == set()
    assert pool.n_restarts.sum() == 0


def test_signals_to_the_whole_group_of_processes_leave_workers_alone(started):
    pool = started(Stairs)
    pool.reset(SEEDS)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pool.process_ids[0], number)
    pool.step(actions(0, 0, 0), SEEDS)


def test_a_pool_that_is_forgotten_ends_its_workers(started):
    pool = started(Stairs)
    pool.reset(SEEDS)
    del pool
    deadline = time.monotonic() + 10
    while workers() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert workers() == set()


@pytest.mark.slow
@pytest.mark.parametrize("is_stuck", [False, True], ids=["waiting", "stuck in a step"])
def test_workers_end_with_their_process(is_stuck):
    program = (
        "import functools, numpy as np\n"
        "from tests.environments.host.probes import Faulty\n"
        "from jaxagents.environments.host.environment import HostEnvironment\n"
        "env = HostEnvironment(functools.partial(Faulty, 'hang'), n_workers=2)\n"
        "pool = env.make_pool(2, None, has_state=False)\n"
        "seeds = np.array([1, 2], np.uint32)\n"
        "pool.reset(seeds)\n"
        "print(*pool.process_ids, flush=True)\n"
        f"pool.step(np.array([[{2 * is_stuck}], [0]]), seeds)\n"
        "print('stepped', flush=True)\n"
        "input()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with process:
        assert process.stdout is not None
        process_ids = [int(each) for each in process.stdout.readline().split()]
        if not is_stuck:
            process.stdout.readline()
        assert all(map(is_running, process_ids))
        process.kill()
    deadline = time.monotonic() + 10
    while any(map(is_running, process_ids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_running, process_ids))


def test_workers_import_no_jax():
    program = (
        "import sys, jaxagents.environments.host.worker\n"
        "assert not {'jax', 'flax', 'optax', 'gymnasium'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.slow
def test_time_in_which_a_job_is_suspended_counts_for_no_deadline():
    """Of a step that takes half a second, the whole job is stopped for longer than the timeout."""
    program = (
        "import functools, numpy as np\n"
        "from tests.environments.host.probes import Faulty\n"
        "from jaxagents.environments.host.environment import HostEnvironment\n"
        "env = HostEnvironment(functools.partial(Faulty, 'slow'), n_workers=1, timeout=3.0)\n"
        "pool = env.make_pool(1, None, has_state=False)\n"
        "seeds = np.array([1], np.uint32)\n"
        "pool.reset(seeds)\n"
        "print('begun', flush=True)\n"
        "pool.step(np.array([[2]]), seeds)\n"
        "print('stepped', flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(0.1)
        os.killpg(process.pid, signal.SIGSTOP)
        time.sleep(4.0)
        os.killpg(process.pid, signal.SIGCONT)
        assert process.stdout.readline() == "stepped\n"
