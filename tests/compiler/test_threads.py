"""The members of a `jax.vmap`, computed in threads."""

import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.compiler import threads
from jaxagents.compiler.threads import is_on_cpu, map_in_threads, vmap_by_members


def test_threads_run_at_the_same_time_and_keep_the_order():
    barrier = threading.Barrier(2)

    def square(i):
        barrier.wait(20.0)  # both at the same time
        return i * i

    assert map_in_threads(square, [3, 2], progress_bar=False) == [9, 4]


def test_there_are_as_many_threads_as_processors(monkeypatch):
    monkeypatch.setattr(threads, "n_processors", lambda: 1)
    running, peak, lock = 0, 0, threading.Lock()

    def run(_):
        nonlocal running, peak
        with lock:
            running += 1
            peak = max(peak, running)
        time.sleep(0.01)
        with lock:
            running -= 1

    map_in_threads(run, range(8), progress_bar=False)
    assert peak == 1


def test_threads_show_a_progress_bar(capfd):
    map_in_threads(str, [1, 2, 3], progress_bar=True)
    assert "Training: 100%" in capfd.readouterr().err


def test_an_error_in_a_thread_reaches_the_caller():
    with pytest.raises(ZeroDivisionError):
        map_in_threads(lambda i: 1 / i, [1, 0], progress_bar=False)


def test_no_call_begins_after_an_error():
    begun = []

    def fail(i):
        begun.append(i)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        map_in_threads(fail, range(1000), progress_bar=False)
    assert len(begun) < 1000


def counted():
    """Make a function with members, and a list of how many were computed one by one."""
    numbers = []

    def product(x, y):
        return {"product": jnp.sum(x * y["factor"])}

    def map_members(members):
        numbers.append(len(members))
        return [product(*member) for member in members]

    return vmap_by_members(product, map_members), numbers


ROWS = jnp.arange(6.0).reshape(3, 2)


def test_members_are_computed_one_by_one():
    product, numbers = counted()
    result = jax.vmap(product, in_axes=(0, None))(ROWS, {"factor": 2.0})
    np.testing.assert_array_equal(result["product"], [2, 10, 18])
    assert numbers == [3]


def test_members_inside_a_compiled_program_are_computed_as_one_batch():
    product, numbers = counted()
    both = jax.jit(jax.vmap(product, in_axes=(None, 0)))
    result = both(ROWS[2], {"factor": jnp.array([1.0, 2.0])})
    np.testing.assert_array_equal(result["product"], [9, 18])
    assert numbers == []


def test_members_of_members_are_computed_as_one_batch():
    product, numbers = counted()
    inner = jax.vmap(product, in_axes=(0, None))
    result = jax.vmap(inner, in_axes=(None, 0))(ROWS, {"factor": jnp.array([1.0, 2.0])})
    np.testing.assert_array_equal(result["product"], [[1, 5, 9], [2, 10, 18]])
    assert numbers == []


def test_without_vmap_the_function_is_called():
    product, numbers = counted()
    assert product(ROWS[1], {"factor": 1.0})["product"] == 5
    assert numbers == []


def test_arrays_on_a_cpu_are_recognised():
    with jax.default_device(jax.devices("cpu")[0]):
        for array in (jnp.ones(2), np.ones(2), jax.random.key(0)):
            assert is_on_cpu(array)
