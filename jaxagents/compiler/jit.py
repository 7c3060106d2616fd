"""`jax.jit` by purpose: to run fast, or to compile fast."""

import contextlib
import ctypes
import functools
import logging
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import PyTree

from jaxagents.compiler.forks import check_has_threads
from jaxagents.compiler.switch import tunes_for_cpu
from jaxagents.compiler.threads import is_on_cpu

# Passes of XLA to skip, in place of those that XLA_FLAGS skips: loop invariants are computed
# inside the loop instead of being carried in one more array, and reshapes stay where they are.
_FEW_ARRAYS = {"xla_disable_hlo_passes": "while-loop-invariant-code-motion,reshape-mover"}
# XLA lets two arrays share memory if one is dead before the other is written, in the order of the
# program. Independent loops then wait for each other because they share memory. Heaps of zero
# bytes, which every array exceeds, give each array memory of its own.
_OVERLAPPING = _FEW_ARRAYS | {"xla_multiheap_size_constraint_per_heap": 0}
_OLDER_EMITTERS = {"xla_cpu_use_fusion_emitters": False}  # kernels without MLIR
_UNOPTIMIZED = {"xla_backend_optimization_level": 0}  # LLVM without optimizations
_SECONDS_BETWEEN_TRIMS = 0.1
_ONE_AT_A_TIME = threading.RLock()  # reentrant: jax_debug_nans traces a second time
# XLA reads TF_CPP_MIN_LOG_LEVEL when it starts; jax sets it to 1 if it is not set.
_LOGGING_LEVELS = {"0": "INFO", "1": "WARNING", "2": "ERROR", "3": "CRITICAL"}

# Overlapping loops take longer to compile and more memory. They pay for runs of at least
# _MANY_SAMPLES samples and updates of at most _TOO_MANY_SAMPLES_AT_ONCE: see benchmarks/RESULTS.md.
_MANY_SAMPLES = 1_000_000
_MANY_SAMPLES_WITH_CACHE = 5_000_000  # overlapping programs are never cached on disk
_TOO_MANY_SAMPLES_AT_ONCE = 500_000


class Workload(NamedTuple):
    """Size and structure of the work that a program is compiled for."""

    n_samples: int  # of a whole training run
    n_samples_at_once: int  # of an update
    has_independent_loops: bool  # some of its loops do not need each other's results


def is_traced(tree: PyTree) -> bool:
    """True if any leaf of a tree is abstract, as under `jax.vmap`."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))


def keeps_compiled_programs() -> bool:
    """True if jax's persistent compilation cache is on."""
    return bool(_read("jax_enable_compilation_cache") and _read("jax_compilation_cache_dir"))


def compiled_for_speed(static_argnames: tuple[str, ...]) -> Callable[[Any], Any]:
    """Compile a function of loops with full optimisation.

    On a CPU its program has fewer arrays: it compiles in a little less time and memory, runs as
    fast, and with `with_overlapping_loops` up to a twentieth faster. On other devices, and inside
    another compiled program, this is plain `jax.jit`.

    Args:
        static_argnames: As for `jax.jit`.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        jit = functools.partial(jax.jit, function, static_argnames=static_argnames)
        usual = jit()
        return _on_cpu(function, _or_usual(jit(compiler_options=_FEW_ARRAYS), usual), usual)

    return decorate


def compiled_quickly(
    static_argnames: tuple[str, ...], optimized: bool = True
) -> Callable[[Any], Any]:
    """Compile a function that runs seldom, in two thirds of the time and memory.

    On a CPU it then runs 5 to 25 % slower. On other devices, and inside another compiled program,
    this is plain `jax.jit`.

    Args:
        static_argnames: As for `jax.jit`.
        optimized: False compiles in a third of the time, for what runs once or computes little.
    """
    level = {} if optimized else _UNOPTIMIZED

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        jit = functools.partial(jax.jit, function, static_argnames=static_argnames)
        usual = jit()
        # Newer versions of XLA lack the older emitters.
        quick = _or_usual(jit(compiler_options=level), usual) if level else usual
        quick = _or_usual(jit(compiler_options=_OLDER_EMITTERS | level), quick)

        return _on_cpu(function, quick, usual)

    return decorate


def with_overlapping_loops(
    function: Any, static_argnames: tuple[str, ...] = (), donate_argnames: tuple[str, ...] = ()
) -> Callable[..., Any]:
    """Compile a function so that its independent loops run at the same time.

    The results are bit-identical to those of `compiled_for_speed`. Compiling takes a tenth longer
    and some hundred megabytes more, the program is never cached on disk, and its temporary arrays
    take two to seven times the memory. Call it with concrete arguments only.

    Args:
        function: What `compiled_for_speed` or `jax.jit` returned.
        static_argnames: As for `jax.jit`.
        donate_argnames: Likewise. Donate the arguments of which the results are new versions:
            otherwise XLA places temporary arrays in the results' memory, and loops share it again.
    """
    thread = threading.local()

    @functools.wraps(function)
    def traced(*arguments: Any, **keywords: Any) -> Any:
        thread.stack.enter_context(_compiling())  # what is traced will be compiled
        return function.__wrapped__(*arguments, **keywords)

    overlapping = jax.jit(
        traced,
        static_argnames=static_argnames,
        donate_argnames=donate_argnames,
        compiler_options=_OVERLAPPING,
    )
    overlapping = _or_usual(overlapping, function)

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        if not tunes_for_cpu():
            return function(*arguments, **keywords)
        with contextlib.ExitStack() as thread.stack:
            return overlapping(*arguments, **keywords)

    return call


def overlapping_pays(workload: Workload, array: ArrayLike) -> bool:
    """True if a workload on the device of ``array`` should use `with_overlapping_loops`."""
    many = _MANY_SAMPLES_WITH_CACHE if keeps_compiled_programs() else _MANY_SAMPLES
    return (
        tunes_for_cpu()
        and workload.has_independent_loops
        and workload.n_samples >= many
        and workload.n_samples_at_once <= _TOO_MANY_SAMPLES_AT_ONCE
        and is_on_cpu(array)
    )


def _on_cpu(
    function: Callable[..., Any], compiled: Callable[..., Any], usual: Callable[..., Any]
) -> Callable[..., Any]:
    """Call one compilation on a CPU, and the usual one elsewhere and inside a trace."""

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        check_has_threads()
        if not tunes_for_cpu() or is_traced((arguments, keywords)):
            return usual(*arguments, **keywords)
        try:
            return compiled(*arguments, **keywords)
        except ValueError as error:
            if "can only be passed to top-level" not in str(error):
                raise
            return usual(*arguments, **keywords)  # concrete arguments, but inside a trace

    return call


def _or_usual(function: Callable[..., Any], usual: Callable[..., Any]) -> Callable[..., Any]:
    """Call a function, or the usual one once XLA has rejected a compile option."""
    chosen = function

    def call(*arguments: Any, **keywords: Any) -> Any:
        nonlocal chosen
        try:
            return chosen(*arguments, **keywords)
        except jax.errors.JaxRuntimeError as error:
            if "No such compile option" not in str(error):
                raise
            chosen = usual
            return usual(*arguments, **keywords)

    return call


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    """Change the settings of the process while one thread compiles overlapping loops."""
    uncached = _set("jax_persistent_cache_min_compile_time_secs", math.inf)
    with _ONE_AT_A_TIME, uncached, _without_warnings(), _trimming_memory():
        yield


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Keep XLA from warning of each array that exceeds its heap."""
    before = _read("jax_logging_level")
    loggers = [logging.getLogger(name) for name in ("jax", "jaxlib")]  # jax sets their levels too
    levels = [logger.level for logger in loggers]
    jax.config.update("jax_logging_level", "ERROR")
    try:
        yield
    finally:
        # "NOTSET" changes Python's loggers only: restore XLA's level first.
        of_xla = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "")
        jax.config.update("jax_logging_level", _LOGGING_LEVELS.get(of_xla, "WARNING"))
        jax.config.update("jax_logging_level", before or "NOTSET")
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def _trimming_memory() -> Iterator[None]:
    """Return freed memory to the system every tenth of a second, and at the end.

    XLA frees half of the memory it uses while it compiles, which the GNU C library would keep.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is None:
        yield
        return
    ended = threading.Event()

    def trim_until_the_end() -> None:
        while not ended.wait(_SECONDS_BETWEEN_TRIMS):
            trim(ctypes.c_size_t(0))

    thread = threading.Thread(target=trim_until_the_end, name="trim", daemon=True)
    try:
        thread.start()
        yield
    finally:
        ended.set()
        trim(ctypes.c_size_t(0))


@contextlib.contextmanager
def _set(name: str, value: Any) -> Iterator[None]:
    before = _read(name)
    jax.config.update(name, value)
    try:
        yield
    finally:
        jax.config.update(name, before)


def _read(name: str) -> Any:
    return getattr(jax.config, name)
