"""Making use of a CPU's cores by programs in threads."""

import os
from collections.abc import Callable, Sequence
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
