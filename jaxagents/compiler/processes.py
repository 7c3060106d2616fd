"""Several processes that train together, with jax's own distributed runtime.

All of them run the same program at the same time. The first one saves and reports; the functions
here exchange values that only one process has. With a single process nothing is exchanged.
"""

import atexit
import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxagents.compiler.rendezvous import ProcessError, meet

Result = TypeVar("Result")

_SECONDS_TO_BEGIN, _SECONDS_OF_SILENCE, _SECONDS_TO_END = 60, 30, 10
_SECONDS_TO_LEAVE = 1
_SECONDS_TO_WAIT = 24 * 3600  # until the first process has evaluated; a lost one is noticed earlier
_MOST_BYTES = 65_536  # of a text that is exchanged
# jax's messages when another process has ended, on CPUs and on accelerators.
_SIGNS_OF_LOSS = ("gloo", "nccl", "coordination service", "heartbeat")


def connect_processes(
    coordinator: str | None = None, n_processes: int | None = None, process_id: int | None = None
) -> None:
    """Make this process one of several; call it before anything else uses jax.

    Args:
        coordinator: Address and port of the first process, "10.0.0.1:1234". None: read it from
            SLURM, Kubernetes or Open MPI.
        n_processes: Number of processes.
        process_id: Index of this process.

    Raises:
        ProcessError: the others cannot be reached, or are not known.
    """
    if coordinator is not None and n_processes is not None and process_id is not None:
        meet(coordinator, n_processes, process_id, _SECONDS_TO_BEGIN)
    if getattr(jax.config, "jax_platforms", None) == "cpu":
        # Collectives on CPUs fail when a process has ended. On accelerators they wait, until jax
        # aborts all processes.
        with contextlib.suppress(AttributeError):
            jax.config.update("jax_enable_recoverability", True)
    try:
        jax.distributed.initialize(
            coordinator,
            n_processes,
            process_id,
            initialization_timeout=_SECONDS_TO_BEGIN,
            heartbeat_timeout_seconds=_SECONDS_OF_SILENCE,
            shutdown_timeout_seconds=_SECONDS_TO_END,
        )
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise ProcessError(f"jax cannot connect the processes: {reason}") from error
    atexit.register(_leave)  # before jax's own, which was registered earlier


def n_processes() -> int:
    """Return the number of processes."""
    return jax.process_count()


def process_id() -> int:
    """Return this process's index."""
    return jax.process_index()


def is_first() -> bool:
    """Return True in the process that saves and reports."""
    return jax.process_index() == 0


def largest(value: int) -> int:
    """Return the largest value of all processes."""
    return max(int(text) for text in exchange(str(int(value))))


def from_first(text: str) -> str:
    """Return the first process's text."""
    return exchange(text)[0]


def exchange(text: str) -> list[str]:
    """Return the texts of all processes, in their order."""
    if n_processes() == 1:
        return [text]
    from jax.experimental.multihost_utils import process_allgather

    data = text.encode()
    if len(data) > _MOST_BYTES:
        raise ValueError(f"a text of {len(data)} bytes is too long to be exchanged.")
    padded = np.zeros(_MOST_BYTES, np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    with noticing_losses():
        rows = np.asarray(process_allgather(padded))
    return [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in rows]


def joined_over_processes(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Join the rows ``[rows]`` of all processes, which have the same names and numbers of rows."""
    if n_processes() == 1 or not columns:
        return dict(columns)
    from jax.experimental.multihost_utils import process_allgather

    with noticing_losses():
        parts = np.asarray(process_allgather(np.stack(list(columns.values()))))
    return dict(zip(columns, np.concatenate(parts, axis=1), strict=True))


def together(work: Callable[[], Result]) -> Result:
    """Run a context in each process; an error in one of them is raised in all.

    Raises:
        ProcessError: the context has failed in another process.
    """
    if n_processes() == 1:
        return work()
    try:
        result, failure = work(), None
    except Exception as error:
        result, failure = None, error
    said = "" if failure is None else " ".join(str(failure).split())[:2000] or "an error"
    texts = exchange(said)
    if failure is not None:
        raise failure
    for i, text in enumerate(texts):
        if text:
            raise ProcessError(f"process {i} has failed: {text}")
    return result  # type: ignore[return-value]


def check_agreement(what: Mapping[str, Any]) -> None:
    """Raise ProcessError in every process if one has values that differ from the first's."""
    if n_processes() == 1:
        return
    first, *others = (json.loads(text) for text in exchange(json.dumps(what, sort_keys=True)))
    for i, other in enumerate(others, start=1):
        for name in first:
            if other.get(name) != first[name]:
                raise ProcessError(
                    f"the processes disagree about {name}: it is {first[name]!r} in process 0 and "
                    f"{other.get(name)!r} in process {i}; start all with the same."
                )


@contextlib.contextmanager
def noticing_losses() -> Iterator[None]:
    """Raise a ProcessError in place of jax's error when another process has ended."""
    try:
        yield
    except ProcessError:
        raise
    except (jax.errors.JaxRuntimeError, RuntimeError, ValueError) as error:
        text = str(error).lower()
        if n_processes() == 1 or not any(sign in text for sign in _SIGNS_OF_LOSS):
            raise
        reason = " ".join(str(error).split())[:120]
        raise ProcessError(
            "another process has ended, and this one cannot continue; start all of them again "
            f"and resume the run ({reason})."
        ) from error


@contextlib.contextmanager
def ending_together() -> Iterator[None]:
    """Leave this context together: jax aborts processes that wait too long for another one."""
    try:
        yield
    except ProcessError:
        raise
    except Exception:
        _wait_for_all()
        raise
    _wait_for_all()


def _wait_for_all() -> None:
    """Wait for all processes, without using devices."""
    if n_processes() == 1:
        return
    with noticing_losses():
        _client().wait_at_barrier("jaxagents", 1000 * _SECONDS_TO_WAIT)


def _leave() -> None:
    """Let the first process end last: jax aborts processes that lose contact with it."""
    client = _client()
    if client is None or n_processes() == 1:
        return
    with contextlib.suppress(Exception):  # others have ended already
        client.wait_at_barrier("jaxagents.end", 1000 * _SECONDS_TO_END)
        if is_first():
            time.sleep(_SECONDS_TO_LEAVE)


def _client() -> Any:
    from jax._src import distributed  # jax has no public barrier that does not use devices

    return distributed.global_state.client


def gathered(tree: PyTree) -> PyTree:
    """Return arrays that are divided among processes as whole numpy arrays."""
    from jax.experimental.multihost_utils import process_allgather

    def gather(leaf: Any) -> np.ndarray:
        is_whole = not isinstance(leaf, jax.Array) or leaf.is_fully_replicated
        if is_whole or leaf.is_fully_addressable:
            return np.asarray(jax.device_get(leaf))
        return np.asarray(process_allgather(leaf, tiled=True))

    return jax.tree.map(gather, tree)


def as_global(leaf: Any, sharding: jax.sharding.Sharding) -> jax.Array:
    """Combine the processes' arrays into one that they share; random keys too.

    Undivided arrays must be equal in all processes. Of divided arrays, each process passes its
    part.
    """
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = as_global(jax.random.key_data(leaf), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    array = np.asarray(leaf)
    if sharding.is_fully_replicated:
        return jax.device_put(array, sharding)
    return jax.make_array_from_callback(array.shape, sharding, lambda part: array[part])
