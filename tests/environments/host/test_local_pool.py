"""Environments that the training process steps itself."""

import concurrent.futures
import functools
import threading
import time
from typing import ClassVar

import gymnasium
import jax
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.environments.host import HostEnvironmentError
from jaxagents.environments.host.sharing import RESET, STEP
from jaxagents.environments.host.stepper import failure_of
from tests.agents import FAST, assert_trees_equal, tiny
from tests.environments.host.probes import Echo, Faulty, Party, Stairs, Unstartable
from tests.environments.host.processes import workers

SEEDS = np.array([11, 22, 33], np.uint32)
EVERYONE, TWO = ("host_0", "host_1", "guest_0"), ("host_0", "guest_0")


def local_pool(make_env, n_envs=3, max_episode_steps=None):
    return ja.HostEnvironment(make_env, n_workers=0).make_pool(n_envs, max_episode_steps, True)


@pytest.mark.parametrize(
    "make_env",
    [functools.partial(Stairs, top=2, limit=3), functools.partial(Party, [EVERYONE, TWO, TWO])],
    ids=["one actor", "several"],
)
def test_environments_do_as_in_workers(make_env):
    local = local_pool(make_env, max_episode_steps=4)
    with ja.HostEnvironment(make_env, n_workers=2) as env:
        remote = env.make_pool(3, 4, has_state=True)
        assert_trees_equal(local.reset(SEEDS), remote.reset(SEEDS))
        generator = np.random.default_rng(0)
        for i in range(12):
            actions = generator.integers(0, 2, (3, env.n_actors)).astype(np.int32)
            assert_trees_equal(local.step(actions, SEEDS + i), remote.step(actions, SEEDS + i))


def test_there_is_no_process_and_global_generators_are_left_alone():
    np.random.seed(5)  # noqa: NPY002 -- the generator meant
    expected = np.random.get_state()[1].copy()  # noqa: NPY002
    pool = local_pool(Stairs)
    pool.reset(SEEDS)
    assert pool.process_ids == []
    assert workers() == set()
    np.testing.assert_array_equal(np.random.get_state()[1], expected)  # noqa: NPY002


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("raise", "raised ZeroDivisionError: the stairs are broken"),
        ("nan", "returned an observation that is NaN or infinite"),
        ("shape", r"observation of shape \(1,\) for actor 0, whose space has shape \(2,\)"),
    ],
)
def test_a_fault_names_the_environment_and_the_step(fault, text):
    pool = local_pool(functools.partial(Faulty, fault))
    pool.reset(SEEDS)
    pool.step(np.array([[0], [1], [0]], np.int32), SEEDS)

    with pytest.raises(HostEnvironmentError, match=text) as refusal:
        pool.step(np.array([[0], [2], [0]], np.int32), SEEDS)

    assert str(refusal.value).startswith("environment 1 at step 2 ")
    assert isinstance(refusal.value.__cause__, ZeroDivisionError) == (fault == "raise")
    assert not pool.is_open


def test_an_error_without_a_message_is_named():
    assert failure_of(AssertionError(), 0).text == "raised AssertionError"


def test_an_environment_that_cannot_be_made_is_an_error(tmp_path):
    with pytest.raises(HostEnvironmentError, match="at the reset raised OSError: no stairs left"):
        local_pool(functools.partial(Unstartable, tmp_path / "made"))


@pytest.mark.slow
def test_training_is_that_of_workers_bit_for_bit():
    config, key = tiny(n_steps=2), jax.random.key(0)
    results = []
    for n_workers in (0, 1):
        with ja.HostEnvironment(Echo, n_workers=n_workers) as env:
            results.append(ja.DiscreteIPPO(env, None, config).train(key, FAST))
    assert_trees_equal(*results)


@pytest.mark.slow
def test_a_fault_in_training_is_raised_as_it_was(tmp_path):
    once = tmp_path / "once"
    once.touch()
    make = functools.partial(Faulty, "raise", once)
    env = ja.HostEnvironment(make, n_workers=0, explored_steps=0)
    agent = ja.DiscreteIPPO(env, None, tiny())
    with pytest.raises(HostEnvironmentError, match="raised ZeroDivisionError"):
        agent.train(jax.random.key(0), FAST)


class Blocked(Stairs):
    """Stairs whose steps wait for an event, and which note what happens."""

    may_end, seen = threading.Event(), []

    def step(self, action):
        self.seen.append("step")
        assert self.may_end.wait(60)
        self.seen.append("stepped")
        return super().step(action)

    def close(self):
        self.seen.append("close")


def one_vector(n_envs):
    return gymnasium.vector.SyncVectorEnv([Blocked] * n_envs)


@pytest.mark.parametrize(
    ("make_env", "settings"),
    [(Blocked, {"n_workers": 0}), (one_vector, {"vectorized": True})],
    ids=["local", "vector"],
)
def test_environments_that_another_thread_steps_are_closed_after_the_step(make_env, settings):
    env = ja.HostEnvironment(make_env, explored_steps=0, **settings)
    pool = env.make_pool(1, None, has_state=False)
    pool.reset(SEEDS[:1])
    Blocked.seen.clear()
    Blocked.may_end.clear()

    def step():
        with pytest.raises(HostEnvironmentError, match="were closed in mid-step"):
            pool.step(np.zeros((1, 1), np.int32), SEEDS[:1])

    with concurrent.futures.ThreadPoolExecutor() as threads:
        stepping = threads.submit(step)
        while not Blocked.seen:
            time.sleep(0.01)

        pool.close()

        assert not pool.is_open
        assert Blocked.seen == ["step"]
        Blocked.may_end.set()
        stepping.result(60)
    pool.close()
    assert Blocked.seen == ["step", "stepped", "close"]


@pytest.mark.parametrize("command", ["reset", "step"])
def test_a_closed_pool_is_neither_reset_nor_stepped(command):
    Blocked.may_end.set()
    pool = local_pool(Blocked, 1)
    (worker,) = pool.workers
    pool.reset(SEEDS[:1])
    pool.close()
    Blocked.seen.clear()

    worker.send({"reset": RESET, "step": STEP}[command])
    with pytest.raises(HostEnvironmentError, match="were closed in mid-step"):
        pool.reset(SEEDS[:1]) if command == "reset" else pool.step(np.zeros((1, 1)), SEEDS[:1])

    assert Blocked.seen == []


class Stuck(Faulty):
    """Faulty stairs that note what is closed; the second to be closed raises an error."""

    closed: ClassVar[list[str]] = []

    def close(self):
        self.closed.append("close")
        if len(self.closed) == 2:
            raise OSError("the stairs are stuck")


def test_all_environments_are_closed_where_one_raises_an_error():
    pool = local_pool(functools.partial(Stuck, "raise"))
    Stuck.closed.clear()
    with pytest.raises(OSError, match="stairs are stuck"):
        pool.close()
    assert len(Stuck.closed) == 3
