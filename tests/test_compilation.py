"""Programs compiled in other ways than jax compiles by itself."""

import logging
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents import compilation
from jaxagents.compilation import quick_to_compile, side_by_side

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

    options = {"compiler_options": compilation._NOTHING_SHARED}
    assert memory(4) < 2 * memory(1)
    assert memory(4, **options) > 3 * memory(1, **options)


def test_results_are_the_same_and_nothing_is_printed(capfd):
    program = jax.jit(loops(4))
    for plain, concurrent in zip(program(X), side_by_side(program)(X), strict=True):
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
from jaxagents.compilation import keeps_compiled_programs, side_by_side
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
    options = compilation._NOTHING_SHARED
    jax.jit(lambda x: jnp.cos(x @ x) @ x, compiler_options=options)(jnp.ones((8, 8)))
    assert "larger than the per-heap size limit" in capfd.readouterr().err


def test_an_xla_without_the_option_compiles_as_usual(monkeypatch):
    monkeypatch.setattr(compilation, "_NOTHING_SHARED", {"xla_no_such_option": 1})
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


def quick(function, static_argnames=()):
    return quick_to_compile(static_argnames)(function)


def test_what_compiles_quickly_computes_the_same():
    np.testing.assert_allclose(quick(loops(2))(X), jax.jit(loops(2))(X), rtol=1e-4)


def test_what_compiles_quickly_may_be_a_part_of_a_compiled_program():
    double = quick(lambda n, x: x * n, ("n",))
    np.testing.assert_array_equal(jax.jit(lambda x: double(2, x) + 1)(jnp.ones(2)), [3, 3])
    np.testing.assert_array_equal(jax.vmap(lambda x: double(n=2, x=x))(jnp.ones(2)), [2, 2])


def test_what_compiles_quickly_is_compiled_once_and_by_the_older_emitters(caplog):
    function = quick(lambda x: jnp.sin(x) + 1)
    with jax.log_compiles():
        function(X)
        function(X)
    assert sum("Finished XLA compilation" in each.message for each in caplog.records) == 1
    assert "xla_cpu_use_fusion_emitters" in compilation._OLDER_EMITTERS


def test_an_xla_without_older_emitters_compiles_as_usual(monkeypatch):
    monkeypatch.setattr(compilation, "_OLDER_EMITTERS", {"xla_no_such_option": True})
    np.testing.assert_array_equal(quick(lambda x: x + 1)(jnp.ones(2)), [2, 2])
