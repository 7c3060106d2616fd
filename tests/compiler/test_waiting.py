"""Waiting for compiled programs where signals arrive."""

import subprocess
import sys
from concurrent.futures import Future

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.compiler.waiting import interruptible, wait_for


def test_a_wait_ends_when_all_arrays_are_computed():
    # jax computes what is small before it returns.
    power = jax.jit(lambda n, x: jax.lax.fori_loop(0, n, lambda _, y: jnp.tanh(y @ x), x))
    result = power(3000, jnp.ones((100, 100)))
    wait_for({"power": result, "number": 1.0, "array": np.zeros(2)})
    assert result.is_ready()


def test_what_was_not_awaited_to_the_end_is_handed_over():
    def check():
        raise KeyboardInterrupt

    unfinished, done, program = [], jnp.zeros(2), Future()
    with pytest.raises(KeyboardInterrupt), interruptible(check, unfinished):
        wait_for([done, program])
    program.set_result(None)
    assert unfinished == [[program]]


def test_errors_of_results_are_raised_where_they_are_read():
    failed = Future()
    failed.set_exception(ZeroDivisionError())
    wait_for(failed)
    with pytest.raises(ZeroDivisionError):
        failed.result()


LEAVING = """
import jax
import jax.numpy as jnp
from jaxagents.compiler.waiting import interruptible, wait_for

def check():
    raise KeyboardInterrupt

power = jax.jit(lambda n, x: jax.lax.fori_loop(0, n, lambda _, y: jnp.tanh(y @ x), x))
result = power(30_000, jnp.ones((100, 100)))
try:
    with interruptible(check, []):
        wait_for(result)
except KeyboardInterrupt:
    print(result.is_ready())
"""


@pytest.mark.slow
def test_a_process_that_leaves_a_program_running_ends_without_an_error():
    finished = subprocess.run(
        [sys.executable, "-c", LEAVING], capture_output=True, text=True, timeout=100
    )
    assert (finished.stdout, finished.stderr, finished.returncode) == ("False\n", "", 0)
