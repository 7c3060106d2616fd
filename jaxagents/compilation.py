"""Compiling programs in other ways than jax does by itself: to run faster, or to begin sooner."""

import contextlib
import ctypes
import functools
import logging
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax

from jaxagents.tracing import is_traced

# Passes of XLA to leave out, in place of any that XLA_FLAGS names: what does not change in a loop
# is then computed in it, not carried in one more array; and arrays are reshaped where the program
# says so.
_FEW_ARRAYS = {"xla_disable_hlo_passes": "while-loop-invariant-code-motion,reshape-mover"}
# XLA lets arrays share memory where, in the order of the program, one is done with before the other
# begins; whatever does not depend on each other then waits for each other, for its memory's sake.
# Heaps of no byte, exceeded by each array, are how to give each a place of its own.
_SIDE_BY_SIDE = _FEW_ARRAYS | {"xla_multiheap_size_constraint_per_heap": 0}
# XLA's older emitters of kernels, without MLIR; and LLVM without optimizations.
_OLDER_EMITTERS = {"xla_cpu_use_fusion_emitters": False}
_UNOPTIMIZED = {"xla_backend_optimization_level": 0}
_SECONDS_BETWEEN_TRIMS = 0.1
_ONE_AT_A_TIME = threading.RLock()  # jax traces once more to find a NaN, if that is asked for
# By the TF_CPP_MIN_LOG_LEVEL that XLA has begun with; jax sets it to 1 where it is not set.
_LOGGING_LEVELS = {"0": "INFO", "1": "WARNING", "2": "ERROR", "3": "CRITICAL"}


def keeps_compiled_programs() -> bool:
    """Whether jax's compilation cache spares later processes what this one compiles."""
    return bool(_read("jax_enable_compilation_cache") and _read("jax_compilation_cache_dir"))


def with_few_arrays(static_argnames: tuple[str, ...]) -> Callable[[Any], Any]:
    """Make `jax.jit` compile a function of loops with fewer arrays, on a CPU.

    It takes a little less time and memory to compile, and runs as fast; what `side_by_side` makes
    of it runs up to a twentieth faster. Elsewhere it is compiled as usual, and as a part of another
    compiled program like the rest of it.

    Args:
        static_argnames: As for `jax.jit`.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        jit = functools.partial(jax.jit, function, static_argnames=static_argnames)
        usual = jit()
        return _on_cpu(function, _or_as_usual(jit(compiler_options=_FEW_ARRAYS), usual), usual)

    return decorate


def side_by_side(
    function: Any, static_argnames: tuple[str, ...] = (), donate_argnames: tuple[str, ...] = ()
) -> Callable[..., Any]:
    """Compile a function so that its loops run at the same time where they can.

    Its results are the same to the last bit as `with_few_arrays`. It takes a tenth longer to
    compile, some hundred megabytes more, never comes from jax's compilation cache, and takes two to
    seven times the memory for what lives within it. To be called with concrete arguments only.

    Args:
        function: What `with_few_arrays`, or `jax.jit`, has returned.
        static_argnames: As for `jax.jit`.
        donate_argnames: Likewise. What comes out should be given in: where results get memory of
            their own, XLA uses it for what comes before them, and that is shared again.
    """
    thread = threading.local()

    @functools.wraps(function)
    def traced(*arguments: Any, **keywords: Any) -> Any:
        thread.stack.enter_context(_compiling())  # what is traced will be compiled
        return function.__wrapped__(*arguments, **keywords)

    concurrent = jax.jit(
        traced,
        static_argnames=static_argnames,
        donate_argnames=donate_argnames,
        compiler_options=_SIDE_BY_SIDE,
    )
    concurrent = _or_as_usual(concurrent, function)

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        with contextlib.ExitStack() as thread.stack:
            return concurrent(*arguments, **keywords)

    return call


def quick_to_compile(
    static_argnames: tuple[str, ...], optimized: bool = True
) -> Callable[[Any], Any]:
    """Make `jax.jit` compile a function of many kernels in a third less time and memory, on a CPU.

    It then runs 5 to 25 % slower: this is for what runs seldom. Elsewhere it is compiled as usual,
    and as a part of another compiled program like the rest of it.

    Args:
        static_argnames: As for `jax.jit`.
        optimized: Without, it takes a third of the time to compile, and runs slower: for what runs
            once, or computes next to nothing.
    """
    level = {} if optimized else _UNOPTIMIZED

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        jit = functools.partial(jax.jit, function, static_argnames=static_argnames)
        usual = jit()
        # Newer versions of XLA lack the older emitters.
        quick = _or_as_usual(jit(compiler_options=level), usual) if level else usual
        quick = _or_as_usual(jit(compiler_options=_OLDER_EMITTERS | level), quick)

        return _on_cpu(function, quick, usual)

    return decorate


def _on_cpu(
    function: Callable[..., Any], compiled: Callable[..., Any], usual: Callable[..., Any]
) -> Callable[..., Any]:
    """Call one compilation of a function on a CPU, and the usual one elsewhere and where traced."""

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        if is_traced((arguments, keywords)) or jax.default_backend() != "cpu":
            return usual(*arguments, **keywords)
        try:
            return compiled(*arguments, **keywords)
        except ValueError as error:
            if "can only be passed to top-level" not in str(error):
                raise
            return usual(*arguments, **keywords)  # of arrays, but within something that is traced

    return call


def _or_as_usual(function: Callable[..., Any], usual: Callable[..., Any]) -> Callable[..., Any]:
    """Call a function, or the usual one from when on XLA says that it lacks a compile option."""
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
    """Compile side by side: one thread at a time, as this takes settings of the whole process."""
    uncached = _set("jax_persistent_cache_min_compile_time_secs", math.inf)
    with _ONE_AT_A_TIME, uncached, _unwarned(), _trimmed():
        yield


@contextlib.contextmanager
def _unwarned() -> Iterator[None]:
    """Keep XLA from warning of each array that exceeds its heap."""
    before = _read("jax_logging_level")
    loggers = [logging.getLogger(name) for name in ("jax", "jaxlib")]  # which jax sets as well
    levels = [logger.level for logger in loggers]
    jax.config.update("jax_logging_level", "ERROR")
    try:
        yield
    finally:
        # "NOTSET" is for Python's loggers alone: XLA's level needs to be set before.
        of_xla = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "")
        jax.config.update("jax_logging_level", _LOGGING_LEVELS.get(of_xla, "WARNING"))
        jax.config.update("jax_logging_level", before or "NOTSET")
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def _trimmed() -> Iterator[None]:
    """Return freed memory to the system every so often, and at the end.

    XLA frees half of what it takes while it compiles, and the GNU C library keeps that.
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
