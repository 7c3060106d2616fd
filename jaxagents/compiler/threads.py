"""Compute the members of a `jax.vmap` in threads, one per core, where one batch is slower."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.custom_batching import custom_vmap
from jax.typing import ArrayLike
from jaxtyping import PyTree

from jaxagents.compiler.processors import n_processors
from jaxagents.compiler.tuned_forms import is_plain
from jaxagents.compiler.waiting import wait_for

Argument = TypeVar("Argument")
Result = TypeVar("Result")


def map_in_threads(
    function: Callable[[Argument], Result], arguments: Sequence[Argument], progress_bar: bool
) -> list[Result]:
    """Call a function with each argument, in one thread per core; keep the order.

    After an error, no more calls are started. If the wait is interrupted, calls that have started
    continue.
    """
    from tqdm.auto import tqdm

    has_failed = threading.Event()

    def call_unless_failed(argument: Argument) -> Any:
        if has_failed.is_set():
            return None
        try:
            return function(argument)
        except BaseException:
            has_failed.set()
            raise

    pool = ThreadPoolExecutor(n_processors())
    with tqdm(desc="Training", total=len(arguments), disable=not progress_bar) as bar:
        calls = [pool.submit(call_unless_failed, argument) for argument in arguments]
        for call in calls:
            call.add_done_callback(lambda _: bar.update())
        try:
            wait_for(calls)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return [call.result() for call in calls]


def vmap_by_members(
    function: Callable[..., PyTree], map_members: Callable[[list[Any]], list[PyTree]]
) -> Callable[..., PyTree]:
    """Let `jax.vmap` of a function compute its members one by one on a CPU.

    On other devices, and if the `jax.vmap` is itself compiled, they are computed as one batch.

    Args:
        function: What to compute.
        map_members: Computes it for a list of argument tuples.
    """

    def batched(n_members: int, is_batched: Any, *arguments: PyTree) -> tuple[PyTree, PyTree]:
        def with_axis(leaf: Any, has_axis: bool) -> jax.Array:
            return leaf if has_axis else jnp.broadcast_to(leaf, (n_members, *jnp.shape(leaf)))

        arguments = jax.tree.map(with_axis, arguments, tuple(is_batched))
        leaves = jax.tree.leaves(arguments)
        if is_plain() or not all(map(_is_concrete_on_cpu, leaves)):
            results = jax.vmap(function)(*arguments)
        else:
            members = [jax.tree.map(itemgetter(i), arguments) for i in range(n_members)]
            results = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map_members(members))
        return results, jax.tree.map(lambda _: True, results)

    mappable = custom_vmap(function)
    mappable.def_vmap(batched)
    return mappable


def is_on_cpu(array: ArrayLike) -> bool:
    """True if an array is on a CPU, or jax would put it there."""
    return all(device.platform == "cpu" for device in jnp.asarray(array).devices())


def _is_concrete_on_cpu(leaf: Any) -> bool:
    return not isinstance(leaf, Tracer) and is_on_cpu(leaf)
