"""Making use of a CPU's cores: loops of one program side by side, and programs in threads."""

import contextlib
import functools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.typing import ArrayLike
from jaxtyping import PyTree

from jaxagents.tracing import is_traced

Argument = TypeVar("Argument")
Result = TypeVar("Result")

# XLA lets arrays share memory where, in the order of the program, one is done with before the other
# begins; whatever does not depend on each other then waits for each other, for its memory's sake.
# Heaps of one byte, exceeded by each array, are how to give each a place of its own.
_NOTHING_SHARED = {"xla_multiheap_size_constraint_per_heap": 1}
# By the TF_CPP_MIN_LOG_LEVEL that XLA has begun with; jax sets it to 1 where it is not set.
_LOGGING_LEVELS = {"0": "INFO", "1": "WARNING", "2": "ERROR", "3": "CRITICAL"}


def keeps_compiled_programs() -> bool:
    """Whether jax's compilation cache spares later processes what this one compiles."""
    return bool(_read("jax_enable_compilation_cache") and _read("jax_compilation_cache_dir"))


def side_by_side(function: Any, static_argnames: tuple[str, ...]) -> Callable[..., Any]:
    """Compile a jitted function so that its loops run at the same time where they can.

    Its results are the same to the last bit. It takes about a quarter longer to compile, up to two
    gigabytes more meanwhile, never comes from jax's compilation cache, and takes two to seven times
    the memory for what lives within it. To be called with concrete arguments only.

    Args:
        function: What `jax.jit` has returned.
        static_argnames: As for `jax.jit`.
    """
    concurrent = jax.jit(
        function.__wrapped__, static_argnames=static_argnames, compiler_options=_NOTHING_SHARED
    )

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        try:
            with _unshared():
                return concurrent(*arguments, **keywords)
        except jax.errors.JaxRuntimeError as error:
            if "No such compile option" not in str(error):
                raise
            return function(*arguments, **keywords)

    return call


def map_in_threads(
    function: Callable[[Argument], Result], arguments: Sequence[Argument], progress_bar: bool
) -> list[Result]:
    """Call a function with each argument, as many at a time as there are cores; keep the order."""
    from tqdm.auto import tqdm

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = pool.map(function, arguments)
        return list(tqdm(results, "Training", len(arguments), disable=not progress_bar))


def with_members(
    function: Callable[..., PyTree], map_members: Callable[[list[Any]], list[PyTree]]
) -> Callable[..., PyTree]:
    """Let a function's members under `jax.vmap` be computed one by one on a CPU.

    Elsewhere, and where the `jax.vmap` is a part of a compiled program, they are computed as one.

    Args:
        function: What to compute.
        map_members: Does so for a list of argument tuples.
    """

    def batched(n_members: int, is_batched: Any, *arguments: PyTree) -> tuple[PyTree, PyTree]:
        def with_axis(leaf: Any, has_axis: bool) -> jax.Array:
            return leaf if has_axis else jnp.broadcast_to(leaf, (n_members, *jnp.shape(leaf)))

        arguments = jax.tree.map(with_axis, arguments, tuple(is_batched))
        if is_traced(arguments) or not all(map(is_on_cpu, jax.tree.leaves(arguments))):
            results = jax.vmap(function)(*arguments)
        else:
            members = [jax.tree.map(itemgetter(i), arguments) for i in range(n_members)]
            results = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map_members(members))
        return results, jax.tree.map(lambda _: True, results)

    mappable = custom_vmap(function)
    mappable.def_vmap(batched)
    return mappable


def is_on_cpu(array: ArrayLike) -> bool:
    """Whether an array lies, or will lie once jax takes it, where the host computes."""
    return all(device.platform == "cpu" for device in jnp.asarray(array).devices())


@contextlib.contextmanager
def _unshared() -> Iterator[None]:
    """Keep XLA from warning of each array that exceeds its heap, and jax from caching in vain."""
    with _set("jax_persistent_cache_min_compile_time_secs", math.inf):
        before = _read("jax_logging_level")
        jax.config.update("jax_logging_level", "ERROR")
        try:
            yield
        finally:
            # "NOTSET" is for Python's loggers alone: XLA's level needs to be set before.
            level = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "")
            jax.config.update("jax_logging_level", _LOGGING_LEVELS.get(level, "WARNING"))
            jax.config.update("jax_logging_level", before or "NOTSET")


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
