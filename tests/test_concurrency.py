"""Loops of one program side by side, members in threads."""

import logging
import os
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents import concurrency
from jaxagents.concurrency import is_on_cpu, map_in_threads, side_by_side, with_members

X = jax.random.normal(jax.random.key(0), (64, 64))


def loops(n: int):
    """Make a program of loops that have nothing to do with each other."""

    def loop(x):
        return jax.lax.fori_loop(0, 4, lambda i, x: jnp.sin(x @ x), x)

    return lambda x: [loop(x + i) for i in range(n)]


def test_each_loop_has_memory_of_its_own():
    def memory(n: int, **options) -> int:
        program = jax.jit(loops(n), **options).lower(X).compile()
        return program.memory_analysis().temp_size_in_bytes

    options = {"compiler_options": concurrency._NOTHING_SHARED}
    assert memory(4) < 2 * memory(1)
    assert memory(4, **options) > 3 * memory(1, **options)


def test_results_are_the_same_and_nothing_is_printed(capfd):
    program = jax.jit(loops(4))
    for plain, concurrent in zip(program(X), side_by_side(program, ())(X), strict=True):
        np.testing.assert_array_equal(plain, concurrent)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("level", ["NOTSET", "INFO"])
def test_settings_stay_as_they_were(level):
    def settings():
        return (
            (logger.level, list(logger.handlers), jax.config.jax_logging_level),
            jax.config.jax_persistent_cache_min_compile_time_secs,
        )

    logger = logging.getLogger("jax")
    jax.config.update("jax_logging_level", level)
    try:
        before = settings()
        side_by_side(jax.jit(lambda x: x + 1), ())(jnp.ones(2))
        assert settings() == before
    finally:
        jax.config.update("jax_logging_level", "NOTSET")


def test_the_compilation_cache_is_left_alone(tmp_path):
    code = """
import jax, jax.numpy as jnp
from jaxagents.concurrency import keeps_compiled_programs, side_by_side
assert keeps_compiled_programs()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
side_by_side(jax.jit(lambda x: jax.lax.fori_loop(0, 9, lambda _, x: jnp.sin(x @ x), x)), ())(
    jnp.ones((8, 8))
)
jax.config.update("jax_enable_compilation_cache", False)
assert not keeps_compiled_programs()
"""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "JAX_COMPILATION_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert not [path for path in tmp_path.iterdir() if "lambda" in path.name]


def test_xla_warns_again_afterwards(capfd):
    side_by_side(jax.jit(lambda x: x @ x), ())(jnp.ones((8, 8)))
    options = concurrency._NOTHING_SHARED
    jax.jit(lambda x: jnp.cos(x @ x) @ x, compiler_options=options)(jnp.ones((8, 8)))
    assert "larger than the per-heap size limit" in capfd.readouterr().err


def test_an_xla_without_the_option_compiles_as_usual(monkeypatch):
    monkeypatch.setattr(concurrency, "_NOTHING_SHARED", {"xla_no_such_option": 1})
    program = side_by_side(jax.jit(lambda x: x + 1), ())
    np.testing.assert_array_equal(program(jnp.ones(2)), [2, 2])


def test_other_errors_reach_the_caller():
    def fail():
        raise LookupError("on the host")

    shape = jax.ShapeDtypeStruct((), jnp.float32)
    program = side_by_side(jax.jit(lambda x: x + jax.pure_callback(fail, shape)), ())
    with pytest.raises(jax.errors.JaxRuntimeError, match="on the host"):
        jax.block_until_ready(program(jnp.ones(2)))


def test_static_arguments_stay_static():
    program = side_by_side(jax.jit(lambda n, x: x * len(n), static_argnames="n"), ("n",))
    np.testing.assert_array_equal(program((1, 2), jnp.ones(2)), [2, 2])


def test_threads_keep_the_order():
    barrier = threading.Barrier(2)

    def square(i):
        barrier.wait(20.0)  # both at the same time
        return i * i

    assert map_in_threads(square, [3, 2], progress_bar=False) == [9, 4]


def test_threads_show_how_far_they_are(capfd):
    map_in_threads(str, [1, 2, 3], progress_bar=True)
    assert "Training: 100%" in capfd.readouterr().err


def test_what_a_thread_raises_reaches_the_caller():
    with pytest.raises(ZeroDivisionError):
        map_in_threads(lambda i: 1 / i, [1, 0], progress_bar=False)


def counted():
    """Make a sum of products whose members are computed one by one, and a list of their number."""
    numbers = []

    def product(x, y):
        return {"product": jnp.sum(x * y["factor"])}

    def map_members(members):
        numbers.append(len(members))
        return [product(*member) for member in members]

    return with_members(product, map_members), numbers


ROWS = jnp.arange(6.0).reshape(3, 2)


def test_members_are_computed_one_by_one():
    product, numbers = counted()
    result = jax.vmap(product, in_axes=(0, None))(ROWS, {"factor": 2.0})
    np.testing.assert_array_equal(result["product"], [2, 10, 18])
    assert numbers == [3]


def test_members_of_a_compiled_program_are_computed_at_once():
    product, numbers = counted()
    both = jax.jit(jax.vmap(product, in_axes=(None, 0)))
    result = both(ROWS[2], {"factor": jnp.array([1.0, 2.0])})
    np.testing.assert_array_equal(result["product"], [9, 18])
    assert numbers == []


def test_members_of_members_are_computed_at_once():
    product, numbers = counted()
    inner = jax.vmap(product, in_axes=(0, None))
    result = jax.vmap(inner, in_axes=(None, 0))(ROWS, {"factor": jnp.array([1.0, 2.0])})
    np.testing.assert_array_equal(result["product"], [[1, 5, 9], [2, 10, 18]])
    assert numbers == []


def test_without_members_the_function_is_called():
    product, numbers = counted()
    assert product(ROWS[1], {"factor": 1.0})["product"] == 5
    assert numbers == []


def test_arrays_of_a_cpu_are_recognised():
    with jax.default_device(jax.devices("cpu")[0]):
        for array in (jnp.ones(2), np.ones(2), jax.random.key(0)):
            assert is_on_cpu(array)
