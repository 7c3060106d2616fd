"""`jax.jit` by purpose: to run fast, or to compile fast."""

import contextlib
import ctypes
import functools
import inspect
import logging
import math
import operator
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MethodType
from typing import Any, NamedTuple

import jax
from flax.core.tracers import current_trace
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import PyTree

from jaxagents.compiler.forks import check_has_threads
from jaxagents.compiler.threads import is_on_cpu
from jaxagents.compiler.tuned_forms import tunes_for_cpu

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

# Overlapping loops take longer to compile and more memory. They pay off in runs of at least
# _MANY_SAMPLES samples and updates of at most _TOO_MANY_SAMPLES_AT_ONCE: see benchmarks/RESULTS.md.
_MANY_SAMPLES = 1_000_000
_MANY_SAMPLES_WITH_CACHE = 5_000_000  # overlapping programs are never cached on disk
_TOO_MANY_SAMPLES_AT_ONCE = 500_000

with jax.ensure_compile_time_eval():  # this module may be imported inside a trace
    _OUTSIDE_OF_TRACES = current_trace()

Options = Mapping[str, Any]
"""Compile options of XLA."""


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


def compiled_for_speed(static_argnames: tuple[str, ...] = ()) -> Callable[[Any], Any]:
    """Compile a function of loops, or a method, with full optimisation.

    On a CPU its program has fewer arrays: it compiles in a little less time and memory, runs as
    fast, and with `with_overlapping_loops` up to a twentieth faster. On other devices, and inside
    another compiled program, this is plain `jax.jit`.

    Args:
        static_argnames: As for `jax.jit`; the object of a method is always static.
    """
    return functools.partial(_Compiled, static_argnames, lambda: [_FEW_ARRAYS])


def compiled_quickly(
    static_argnames: tuple[str, ...] = (), optimized: bool = True, shared: bool = True
) -> Callable[[Any], Any]:
    """Compile a function that runs rarely, in a third to two thirds of the time.

    On a CPU it then runs 5 to 25 % slower. On other devices, and inside another compiled program,
    this is plain `jax.jit`.

    Args:
        static_argnames: As for `jax.jit`; the object of a method is always static.
        optimized: False compiles in a third of the time, for code that runs once or computes
            little.
        shared: False compiles a method for each object, even if it has a `program_owner`.
    """

    # Newer versions of XLA lack the older emitters.
    def options() -> list[Options]:
        quick = [_FEW_ARRAYS, _OLDER_EMITTERS]
        return quick if optimized else [*quick, _UNOPTIMIZED]

    return functools.partial(_Compiled, static_argnames, options, shared=shared)


def compiled(static_argnames: tuple[str, ...] = ()) -> Callable[[Any], Any]:
    """Compile a function as `jax.jit` does, and a method for each object."""
    return functools.partial(_Compiled, static_argnames, list)


class _Compiled:
    """A function, or a method, whose programs are compiled with some options.

    The programs of a method belong to the object's `program_owner`, or to the object itself: they
    are freed with it, and treat its attributes as static arguments.
    """

    def __init__(
        self,
        static_argnames: tuple[str, ...],
        options: Callable[[], Sequence[Options]],
        function: Callable[..., Any],
        shared: bool = True,
    ):
        self._static_argnames = static_argnames
        self._options = options
        self._shared = shared
        self._is_method = next(iter(inspect.signature(function).parameters), "") == "self"
        self._function = function
        functools.update_wrapper(self, function)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Return the program of a method, so that callers reach it without a call in between."""
        if instance is None:
            return self
        owning = getattr(instance, "program_owner", instance) if self._shared else instance
        return self._program(owning, functools.partial(MethodType, self._function, owning))

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call the function, or the method with its object first."""
        if self._is_method:
            return self.__get__(arguments[0])(*arguments[1:], **keywords)
        return self._program(self, lambda: self._function)(*arguments, **keywords)

    def _program(self, owner: Any, function: Callable[[], Callable[..., Any]]) -> Any:
        check_has_threads()
        # XLA takes options for whole programs only.
        is_tuned = tunes_for_cpu() and current_trace() == _OUTSIDE_OF_TRACES
        programs = vars(owner).setdefault("_programs", {})
        if (self, is_tuned) not in programs:
            program = self._compile(function(), is_tuned)
            programs.setdefault((self, is_tuned), program)  # the first one, if threads race
        return programs[self, is_tuned]

    def _compile(self, function: Callable[..., Any], is_tuned: bool) -> Any:
        known = [each for each in self._options() if is_tuned and _is_known(**each)]
        options = functools.reduce(operator.or_, known, {}) or None
        return jax.jit(function, static_argnames=self._static_argnames, compiler_options=options)


class _Overlapping(_Compiled):
    """A function, or a method, whose independent loops run at the same time on a CPU."""

    def __init__(self, usual: Any, donated: tuple[str, ...]):
        super().__init__((), lambda: [_OVERLAPPING], usual.__wrapped__)
        self._usual = usual
        self._donated = donated

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Return the program of a method, or its usual compilation."""
        if instance is None or _can_overlap():
            return super().__get__(instance, owner)
        return self._usual.__get__(instance, owner)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call the function."""
        call = super().__call__ if _can_overlap() else self._usual
        return call(*arguments, **keywords)

    def _compile(self, function: Callable[..., Any], is_tuned: bool) -> Any:
        thread = threading.local()

        @functools.wraps(function)
        def traced(*arguments: Any, **keywords: Any) -> Any:
            thread.stack.enter_context(_compiling())  # what is traced will be compiled
            return function(*arguments, **keywords)

        program = jax.jit(traced, donate_argnames=self._donated, compiler_options=_OVERLAPPING)

        def call(*arguments: Any, **keywords: Any) -> Any:
            with contextlib.ExitStack() as thread.stack:
                return program(*arguments, **keywords)

        return call


def with_overlapping_loops(function: Any, donate_argnames: tuple[str, ...] = ()) -> Any:
    """Compile a function, or a method, so that its independent loops run at the same time.

    The results are bit-identical to those of `compiled_for_speed`. Compiling takes a tenth longer
    and a few hundred megabytes more, the program is never cached on disk, and its temporary arrays
    take two to seven times the memory. Call it with concrete arguments only.

    Args:
        function: A result of `compiled_for_speed` or `jax.jit`.
        donate_argnames: As for `jax.jit`. Donate the arguments that the results replace: otherwise
            XLA places temporary arrays in the results' memory, and loops share it again.
    """
    return _Overlapping(function, donate_argnames)


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


def _can_overlap() -> bool:
    return tunes_for_cpu() and _is_known(**_OVERLAPPING)


@functools.cache
def _is_known(**options: Any) -> bool:
    """True if XLA knows these compile options: it rejects unknown ones."""
    try:
        uncached = _set("jax_persistent_cache_min_compile_time_secs", math.inf)
        with _ONE_AT_A_TIME, uncached, _without_warnings():
            jax.jit(lambda: 0, compiler_options=options)()
    except jax.errors.JaxRuntimeError as error:
        if "No such compile option" not in str(error):
            raise
        return False
    return True


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    """Change the settings of the process while one thread compiles overlapping loops."""
    uncached = _set("jax_persistent_cache_min_compile_time_secs", math.inf)
    with _ONE_AT_A_TIME, uncached, _without_warnings(), _trimming_memory():
        yield


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Keep XLA from warning about each array that exceeds its heap."""
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

    While it compiles, XLA frees half of the memory it uses, but the GNU C library would keep it.
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
