"""What each way of compiling changes, and that results, settings and the cache stay as they are."""

import contextlib
import logging
import math
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
from jaxagents.compiler.jit import (
    Workload,
    compiled_for_speed,
    compiled_quickly,
    is_traced,
    overlapping_pays,
    with_overlapping_loops,
)
from jaxagents.hyperparameters import HyperParameters, as_arrays

X = jax.random.normal(jax.random.key(0), (64, 64))


def loops(n: int):
    """Make a program of independent loops."""

    def loop(x):
        return jax.lax.fori_loop(0, 4, lambda i, x: jnp.sin(x @ x), x)

    return lambda x: [loop(x + i) for i in range(n)]


def flagged_loops(n: int):
    """Make a program of independent loops, each with a flag of one byte in its carry."""

    def loop(x):
        def turn(carry):
            i, x, flag = carry
            x = jnp.sin(x @ x)
            return i + 1, x, flag ^ (x[0, 0] > 0)

        start = (0, x, x[0, 0] > 0)
        return jax.lax.while_loop(lambda carry: (carry[0] < 4) & ~carry[2], turn, start)

    return lambda x: [loop(x + i) for i in range(n)]


def temporary_bytes(program, **options) -> int:
    compiled = jax.jit(program, **options).lower(X).compile()
    return compiled.memory_analysis().temp_size_in_bytes


OVERLAPPING = {"compiler_options": compilation._OVERLAPPING}


@pytest.fixture
def no_cache_on_disk():
    """Compile without writing the persistent cache, which refuses programs of several heaps."""
    name = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, name)
    jax.config.update(name, math.inf)
    yield
    jax.config.update(name, before)


@pytest.mark.usefixtures("no_cache_on_disk")
def test_overlapping_loops_do_not_share_memory():
    one, four = loops(1), loops(4)
    assert temporary_bytes(four) < 2 * temporary_bytes(one)
    assert temporary_bytes(four, **OVERLAPPING) > 3 * temporary_bytes(one, **OVERLAPPING)


@pytest.mark.usefixtures("no_cache_on_disk")
def test_overlapping_loops_do_not_share_even_a_byte():
    bytes_shared = compilation._OVERLAPPING | {"xla_multiheap_size_constraint_per_heap": 1}
    separate = temporary_bytes(flagged_loops(4), **OVERLAPPING)
    assert separate - temporary_bytes(flagged_loops(4), compiler_options=bytes_shared) == 4


@pytest.mark.parametrize("options", [compilation._FEW_ARRAYS, compilation._OVERLAPPING])
def test_loop_invariants_are_not_carried_through_the_loop(options):
    def program(x):
        return jax.lax.fori_loop(0, 4, lambda _, y: jnp.sin(y @ (x + jnp.sin(x))), x)

    def is_widened(**options):  # XLA's word for a loop that carries its invariants
        return "wide." in jax.jit(program, **options).lower(X).compile().as_text()

    assert is_widened()
    assert not is_widened(compiler_options=options)


def test_reshapes_stay_where_the_program_has_them():
    def n_reshapes(**options):  # XLA's "bitcast"
        compiled = jax.jit(lambda x, y: jnp.sin(x.ravel() * y.ravel()), **options).lower(X, X)
        return compiled.compile().as_text().count(" bitcast(")

    assert n_reshapes() == 1
    assert n_reshapes(compiler_options=compilation._FEW_ARRAYS) == 2


@pytest.mark.parametrize("options", [compilation._FEW_ARRAYS, {"xla_no_such_option": 1}])
def test_a_program_compiled_for_speed_computes_the_same(monkeypatch, options):
    monkeypatch.setattr(compilation, "_FEW_ARRAYS", options)
    fast = compiled_for_speed(("n",))(lambda n, x: loops(n)(x))
    np.testing.assert_allclose(fast(2, X), jax.jit(loops(2))(X), rtol=1e-5, atol=1e-6)


def test_overlapping_loops_give_the_same_bits_and_print_nothing(capfd):
    program = jax.jit(loops(4))
    overlapping = with_overlapping_loops(program)
    jax.tree.map(np.testing.assert_array_equal, program(X), overlapping(X))
    assert capfd.readouterr().err == ""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps freed memory")
def test_memory_freed_during_compilation_is_returned_to_the_system():
    taken = [bytearray(os.urandom(10)) * 1_000 for _ in range(20_000)]
    full = resident_bytes()
    with compilation._trimming_memory():
        taken = taken[::100]
        time.sleep(5 * compilation._SECONDS_BETWEEN_TRIMS)
        assert full - resident_bytes() > 150e6
    while "trim" in [thread.name for thread in threading.enumerate()]:
        time.sleep(0.01)


def test_memory_is_trimmed_while_a_program_is_compiled_and_at_no_other_time(monkeypatch):
    @contextlib.contextmanager
    def trimming():
        events.append("begins")
        yield
        events.append("ends")

    events = []
    monkeypatch.setattr(compilation, "_trimming_memory", trimming)
    program = with_overlapping_loops(jax.jit(lambda x: x + 1))
    for _ in range(2):
        program(jnp.ones(2))
        assert events == ["begins", "ends"]


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
def test_compiling_leaves_the_settings_of_the_process_as_they_were(level, own):
    jax.config.update("jax_logging_level", level)
    try:
        if own:
            LOGGER.setLevel("CRITICAL")
        before = settings()
        with_overlapping_loops(jax.jit(lambda x: x + 1))(jnp.ones(2))
        assert settings() == before
    finally:
        jax.config.update("jax_logging_level", "NOTSET")
        LOGGER.setLevel("NOTSET")


def test_threads_that_compile_at_the_same_time_leave_the_settings_as_they_were():
    programs = [with_overlapping_loops(jax.jit(lambda x, n=n: loops(4)(x + n))) for n in range(4)]
    before = settings()
    with ThreadPoolExecutor(len(programs)) as pool:
        together = list(pool.map(lambda program: program(X), programs))
    assert settings() == before
    for outcome, program in zip(together, programs, strict=True):
        np.testing.assert_array_equal(outcome, program(X))


def test_jax_debug_nans_may_trace_a_second_time():
    code = """
import jax, jax.numpy as jnp
from jaxagents.compiler.jit import with_overlapping_loops
jax.config.update("jax_debug_nans", True)
try:
    with_overlapping_loops(jax.jit(jnp.log))(-jnp.ones(3))
except FloatingPointError:
    print("found")
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.stdout.endswith("found\n")


def test_a_compiled_program_changes_no_settings_when_called(monkeypatch):
    program = with_overlapping_loops(jax.jit(lambda x: x + 1))
    program(jnp.ones(2))
    monkeypatch.setattr(jax.config, "update", None)
    np.testing.assert_array_equal(program(jnp.ones(2)), [2, 2])


def test_overlapping_programs_are_not_cached_on_disk(tmp_path):
    code = """
import jax, jax.numpy as jnp
from jaxagents.compiler.jit import keeps_compiled_programs, with_overlapping_loops
assert keeps_compiled_programs()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
loop = jax.jit(lambda x: jax.lax.fori_loop(0, 9, lambda _, x: jnp.sin(x @ x), x))
with_overlapping_loops(loop)(jnp.ones((8, 8)))
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


def test_xla_warns_again_after_compiling_overlapping_loops(capfd):
    with_overlapping_loops(jax.jit(lambda x: x @ x))(jnp.ones((8, 8)))
    options = compilation._OVERLAPPING
    jax.jit(lambda x: jnp.cos(x @ x) @ x, compiler_options=options)(jnp.ones((8, 8)))
    assert "larger than the per-heap size limit" in capfd.readouterr().err


def test_an_xla_without_the_option_compiles_overlapping_loops_as_usual(monkeypatch):
    monkeypatch.setattr(compilation, "_OVERLAPPING", {"xla_no_such_option": 1})
    program = with_overlapping_loops(jax.jit(lambda x: x + 1))
    np.testing.assert_array_equal(program(jnp.ones(2)), [2, 2])


def test_errors_of_the_program_reach_the_caller():
    def fail():
        raise LookupError("on the host")

    shape = jax.ShapeDtypeStruct((), jnp.float32)
    program = with_overlapping_loops(jax.jit(lambda x: x + jax.pure_callback(fail, shape)))
    with pytest.raises(jax.errors.JaxRuntimeError, match="on the host"):
        jax.block_until_ready(program(jnp.ones(2)))


def test_loops_do_not_overlap_in_plain_jax(monkeypatch):
    program = with_overlapping_loops(jax.jit(lambda x: x + 1))
    monkeypatch.setattr(compilation, "tunes_for_cpu", lambda: False)
    monkeypatch.setattr(compilation, "_compiling", None)  # fails where loops overlap
    np.testing.assert_array_equal(program(jnp.ones(2)), [2, 2])


def quickly(function, **options):
    return compiled_quickly((), **options)(function)


@pytest.mark.parametrize("optimized", [True, False])
def test_a_program_compiled_quickly_computes_the_same(optimized):
    program = quickly(loops(2), optimized=optimized)
    np.testing.assert_allclose(program(X), jax.jit(loops(2))(X), rtol=1e-4)


@pytest.mark.parametrize("lacking", [["_OLDER_EMITTERS"], ["_OLDER_EMITTERS", "_UNOPTIMIZED"]])
def test_options_that_xla_rejects_are_left_out(monkeypatch, lacking):
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
    program = quickly(lambda x: x + 1, optimized=False)
    for _ in range(2):
        np.testing.assert_array_equal(program(jnp.ones(2)), [2, 2])
    known = {} if "_UNOPTIMIZED" in lacking else compilation._UNOPTIMIZED
    assert used[-1] == compilation._FEW_ARRAYS | known


@pytest.mark.parametrize("decorator", [compiled_quickly, compiled_for_speed])
def test_a_compiled_function_may_be_part_of_another_compiled_program(decorator):
    double, ones = decorator(("n",))(lambda n, x: x * n), jnp.ones(2)
    np.testing.assert_array_equal(jax.jit(lambda: double(2, ones) + 1)(), [3, 3])
    np.testing.assert_array_equal(jax.jit(lambda x: double(2, x) + 1)(jnp.ones(2)), [3, 3])
    np.testing.assert_array_equal(jax.vmap(lambda x: double(n=2, x=x))(jnp.ones(2)), [2, 2])


@pytest.mark.parametrize("decorator", [compiled_quickly, compiled_for_speed])
def test_an_error_of_the_function_is_raised_without_tracing_it_again(decorator):
    def fail(x):
        traced.append(x)
        raise ValueError("mine")

    traced = []
    with pytest.raises(ValueError, match="mine"):
        decorator(())(fail)(jnp.ones(2))
    assert len(traced) == 1


def test_a_program_compiled_quickly_is_compiled_once(caplog):
    function = quickly(lambda x: jnp.sin(x) + 1)
    with jax.log_compiles():
        function(X)
        assert "Finished XLA compilation" in caplog.text
        caplog.clear()
        function(X)
    assert "XLA compilation" not in caplog.text


def test_an_xla_without_older_emitters_compiles_as_usual(monkeypatch):
    monkeypatch.setattr(compilation, "_OLDER_EMITTERS", {"xla_no_such_option": True})
    np.testing.assert_array_equal(quickly(lambda x: x + 1)(jnp.ones(2)), [2, 2])


def test_a_tree_is_traced_as_soon_as_one_leaf_is():
    seen = []
    jax.vmap(lambda gamma: seen.append(is_traced(HyperParameters(gamma=gamma))))(jnp.ones(2))
    assert seen == [True]
    assert not is_traced(as_arrays(HyperParameters()))
    assert not is_traced(None)


LARGE = Workload(n_samples=1_000_000, n_samples_at_once=500_000, has_independent_loops=True)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="only a CPU overlaps loops")
@pytest.mark.parametrize(
    ("changes", "pays", "pays_with_cache"),
    [
        ({}, True, False),
        ({"n_samples": 999_999}, False, False),  # compiling takes longer than it saves
        ({"n_samples": 5_000_000}, True, True),  # otherwise a cached program is faster
        ({"n_samples_at_once": 500_001}, False, False),  # takes too much memory
        ({"n_samples": 10**9, "has_independent_loops": False}, False, False),
    ],
    ids=str,
)
def test_overlapping_loops_pay_for_long_trainings_of_moderate_batches(
    monkeypatch, changes, pays, pays_with_cache
):
    for is_cached, expected in ((False, pays), (True, pays_with_cache)):
        monkeypatch.setattr(compilation, "keeps_compiled_programs", lambda c=is_cached: c)
        assert overlapping_pays(LARGE._replace(**changes), jnp.zeros(())) == expected
