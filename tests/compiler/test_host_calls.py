"""Calls of numpy code from compiled programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.compiler.host_calls import call_host
from jaxagents.compiler.tuned_forms import plain_jax

SHAPES = {
    "total": jax.ShapeDtypeStruct((), jnp.int32),
    "doubled": jax.ShapeDtypeStruct((2,), jnp.float32),
}


class Register:
    """Adds up what it is called with."""

    def __init__(self):
        self.seen = []

    def __call__(self, argument, results):
        if argument[0] < 0:
            raise ValueError("below zero")
        self.seen.append(argument.tolist())
        results["total"][...] = len(self.seen)
        results["doubled"][...] = 2 * argument


def count_in_a_scan(register):
    @jax.jit
    def run(start):
        def advance(value, _):
            results = call_host(register, SHAPES, value)
            return results["doubled"], results["total"]

        return jax.lax.scan(advance, start, None, length=3)

    return run(jnp.array([1.0, 2.0]))


def assert_counted():
    register = Register()
    last, totals = count_in_a_scan(register)
    np.testing.assert_array_equal(last, [8, 16])
    np.testing.assert_array_equal(totals, [1, 2, 3])
    assert register.seen == [[1, 2], [2, 4], [4, 8]]


def test_calls_that_need_each_other_are_in_order():
    assert_counted()


@pytest.mark.slow
def test_plain_jax_calls_the_same():
    with plain_jax():
        assert_counted()


def test_a_call_whose_results_are_not_used_is_made():
    register = Register()

    @jax.jit
    def run(value):
        call_host(register, SHAPES, value)
        return value

    jax.block_until_ready(run(jnp.array([3.0, 4.0])))
    jax.effects_barrier()
    assert register.seen == [[3, 4]]


def test_an_exception_ends_the_program():
    run = jax.jit(lambda value: call_host(Register(), SHAPES, value))
    with pytest.raises(jax.errors.JaxRuntimeError, match="below zero"):
        jax.block_until_ready(run(jnp.array([-1.0, 0.0])))
