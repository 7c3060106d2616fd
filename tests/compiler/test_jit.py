"""Programs compiled in other ways than jax compiles by itself."""

import contextlib
import logging
import os
import platform
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.compiler import jit as compilation
from jaxagents.compiler.jit import quick_to_compile, side_by_side, with_few_arrays

X = jax.random.normal(jax.random.key(0), (64, 64))


def loops(n: int):
    """Make a program of loops that have nothing to do with each other."""

    def loop(x):
        return jax.lax.fori_loop(0, 4, lambda i, x: jnp.sin(x @ x), x)

    return lambda x: [loop(x + i) for i in range(n)]


def flagged_loops(n: int):
    """Make likewise loops that end early, or would, by a flag of one byte."""

    def loop(x):
        def turn(carry):
            i, x, flag = carry
            x = jnp.sin(x @ x)
            return i + 1, x, flag ^ (x[0, 0] > 0)

        start = (0, x, x[0, 0] > 0)
        return jax.lax.while_loop(lambda carry: (carry[0] < 4) & ~carry[2], turn, start)

    return lambda x: [loop(x + i) for i in range(n)]


def memory(program, **options) -> int:
    compiled = jax.jit(program, **options).lower(X).compile()
    return compiled.memory_analysis().temp_size_in_bytes


SIDE_BY_SIDE = {"compiler_options": compilation._SIDE_BY_SIDE}


def test_each_loop_has_memory_of_its_own():
    assert memory(loops(4)) < 2 * memory(loops(1))
    assert memory(loops(4), **SIDE_BY_SIDE) > 3 * memory(loops(1), **SIDE_BY_SIDE)


def test_not_even_a_byte_is_shared():
    bytes_shared = compilation._SIDE_BY_SIDE | {"xla_multiheap_size_constraint_per_heap": 1}
    flags = memory(flagged_loops(4), **SIDE_BY_SIDE)
    flags -= memory(flagged_loops(4), compiler_options=bytes_shared)
    assert flags == 4


@pytest.mark.parametrize("options", [compilation._FEW_ARRAYS, compilation._SIDE_BY_SIDE])
def test_what_does_not_change_in_a_loop_gets_no_array_of_its_own(options):
    def program(x):
        return jax.lax.fori_loop(0, 4, lambda _, y: jnp.sin(y @ (x + jnp.sin(x))), x)

    def is_widened(**options):  # XLA's word for a loop that carries what has been moved out of it
        return "wide." in jax.jit(program, **options).lower(X).compile().as_text()

    assert is_widened()
    assert not is_widened(compiler_options=options)


def test_arrays_are_reshaped_where_the_program_says_so():
    def n_reshaped(**options):  # a "bitcast" where it costs nothing
        compiled = jax.jit(lambda x, y: jnp.sin(x.ravel() * y.ravel()), **options).lower(X, X)
        return compiled.compile().as_text().count(" bitcast(")

    assert n_reshaped() == 1
    assert n_reshaped(compiler_options=compilation._FEW_ARRAYS) == 2


@pytest.mark.parametrize("options", [compilation._FEW_ARRAYS, {"xla_no_such_option": 1}])
def test_with_few_arrays_a_program_computes_the_same(monkeypatch, options):
    monkeypatch.setattr(compilation, "_FEW_ARRAYS", options)
    few = with_few_arrays(("n",))(lambda n, x: loops(n)(x))
    np.testing.assert_allclose(few(2, X), jax.jit(loops(2))(X), rtol=1e-5, atol=1e-6)


def test_results_are_the_same_and_nothing_is_printed(capfd):
    program = jax.jit(loops(4))
    for plain, concurrent in zip(program(X), side_by_side(program)(X), strict=True):
        np.testing.assert_array_equal(plain, concurrent)
    assert capfd.readouterr().err == ""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only it keeps freed memory")
def test_memory_that_is_freed_meanwhile_is_returned():
    taken = [bytearray(os.urandom(10)) * 1_000 for _ in range(20_000)]
    full = resident_bytes()
    with compilation._trimmed():
        taken = taken[::100]
        time.sleep(5 * compilation._SECONDS_BETWEEN_TRIMS)
        assert full - resident_bytes() > 150e6
    while "trim" in [thread.name for thread in threading.enumerate()]:
        time.sleep(0.01)


def test_memory_is_returned_while_a_program_is_compiled_only(monkeypatch):
    @contextlib.contextmanager
    def trimmed():
        happened.append("begins")
        yield
        happened.append("ends")

    happened = []
    monkeypatch.setattr(compilation, "_trimmed", trimmed)
    program = side_by_side(jax.jit(lambda x: x + 1), ())
    for _ in range(2):
        program(jnp.ones(2))
        assert happened == ["begins", "ends"]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


LOGGER = logging.getLogger("jax")


def settings():
    return (
        (LOGGER.level, list(LOGGER.handlers), jax.config.jax_logging_level),
        jax.config.jax_persistent_cache_min_compile_time_secs,
    )


@pytest.mark.parametrize("own", [False, True], ids=["", "own level"])
@pytest.mark.parametrize("level", ["NOTSET", "INFO"])
def test_settings_stay_as_they_were(level, own):
    jax.config.update("jax_logging_level", level)
    try:
        if own:
            LOGGER.setLevel("CRITICAL")
        before = settings()
        side_by_side(jax.jit(lambda x: x + 1), ())(jnp.ones(2))
        assert settings() == before
    finally:
        jax.config.update("jax_logging_level", "NOTSET")
        LOGGER.setLevel("NOTSET")


def test_threads_that_compile_at_the_same_time_leave_settings_as_they_were():
    programs = [side_by_side(jax.jit(lambda x, n=n: loops(4)(x + n)), ()) for n in range(4)]
    before = settings()
    with ThreadPoolExecutor(len(programs)) as pool:
        together = list(pool.map(lambda program: program(X), programs))
    assert settings() == before
    for outcome, program in zip(together, programs, strict=True):
        np.testing.assert_array_equal(outcome, program(X))


def test_jax_may_trace_once_more_to_find_a_nan():
    code = """
import jax, jax.numpy as jnp
from jaxagents.compilation import side_by_side
jax.config.update("jax_debug_nans", True)
try:
    side_by_side(jax.jit(jnp.log))(-jnp.ones(3))
except FloatingPointError:
    print("found")
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.stdout.endswith("found\n")


def test_what_is_compiled_already_touches_no_settings(monkeypatch):
    program = side_by_side(jax.jit(lambda x: x + 1), ())
    program(jnp.ones(2))
    monkeypatch.setattr(jax.config, "update", None)
    np.testing.assert_array_equal(program(jnp.ones(2)), [2, 2])


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
    options = compilation._SIDE_BY_SIDE
    jax.jit(lambda x: jnp.cos(x @ x) @ x, compiler_options=options)(jnp.ones((8, 8)))
    assert "larger than the per-heap size limit" in capfd.readouterr().err


def test_an_xla_without_the_option_compiles_as_usual(monkeypatch):
    monkeypatch.setattr(compilation, "_SIDE_BY_SIDE", {"xla_no_such_option": 1})
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


def quick(function, static_argnames=(), **options):
    return quick_to_compile(static_argnames, **options)(function)


@pytest.mark.parametrize("optimized", [True, False])
def test_what_compiles_quickly_computes_the_same(optimized):
    program = quick(loops(2), optimized=optimized)
    np.testing.assert_allclose(program(X), jax.jit(loops(2))(X), rtol=1e-4)


@pytest.mark.parametrize("lacking", [["_OLDER_EMITTERS"], ["_OLDER_EMITTERS", "_UNOPTIMIZED"]])
def test_options_that_an_xla_lacks_are_left_out(monkeypatch, lacking):
    def spy(function, compiler_options=None, **keywords):
        def call(*arguments):
            used.append(compiler_options)
            return program(*arguments)

        program = jit(function, compiler_options=compiler_options, **keywords)
        return call

    used, jit = [], jax.jit
    monkeypatch.setattr(jax, "jit", spy)
    for name in lacking:
        monkeypatch.setattr(compilation, name, {f"xla_no_such{name}".lower(): 1})
    program = quick(lambda x: x + 1, optimized=False)
    for _ in range(2):
        np.testing.assert_array_equal(program(jnp.ones(2)), [2, 2])
    assert used[-1] == (None if "_UNOPTIMIZED" in lacking else compilation._UNOPTIMIZED)


@pytest.mark.parametrize("decorator", [quick_to_compile, with_few_arrays])
def test_what_is_compiled_otherwise_may_be_a_part_of_a_compiled_program(decorator):
    double, ones = decorator(("n",))(lambda n, x: x * n), jnp.ones(2)
    np.testing.assert_array_equal(jax.jit(lambda: double(2, ones) + 1)(), [3, 3])
    np.testing.assert_array_equal(jax.jit(lambda x: double(2, x) + 1)(jnp.ones(2)), [3, 3])
    np.testing.assert_array_equal(jax.vmap(lambda x: double(n=2, x=x))(jnp.ones(2)), [2, 2])


def test_what_compiles_quickly_is_compiled_once(caplog):
    function = quick(lambda x: jnp.sin(x) + 1)
    with jax.log_compiles():
        function(X)
        assert "Finished XLA compilation" in caplog.text
        caplog.clear()
        function(X)
    assert "XLA compilation" not in caplog.text


def test_an_xla_without_older_emitters_compiles_as_usual(monkeypatch):
    monkeypatch.setattr(compilation, "_OLDER_EMITTERS", {"xla_no_such_option": True})
    np.testing.assert_array_equal(quick(lambda x: x + 1)(jnp.ones(2)), [2, 2])
