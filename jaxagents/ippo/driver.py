"""The driver of a run: blocks of updates, one after the other, each reported to the host.

It drives an agent, the members of a population, and agents that train together. What is reported,
when, and who may end the run is decided here.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jaxagents.compiler.processes import (
    check_agreement,
    gathered,
    is_first,
    largest,
    n_processes,
    noticing_losses,
)
from jaxagents.compiler.waiting import wait_for
from jaxagents.training.blocks import block_sizes
from jaxagents.training.named_arrays import Leaves, Table, from_leaves, strip_keys, to_leaves
from jaxagents.training.recorder import Recorder, recording
from jaxagents.types import Metrics, PyTree, Runner


class Learners(NamedTuple):
    """What a run trains.

    Its state is a named tuple with ``stop``: True if no more updates can be done.
    """

    agents: Sequence[Any]
    recorders: Sequence[Recorder]  # one per agent
    report_themselves: Sequence[bool]  # whose compiled programs report evaluations, one per agent
    # Does some updates of all agents, and evaluates them; returns a row of metrics per agent.
    run_block: Callable[[Any, Int[Array, ""]], tuple[Any, Sequence[Mapping[str, Any]]]]
    runners: Callable[[Any], Sequence[Runner]]  # of a state, one per agent


def drive(
    learners: Learners,
    state: Any,
    n_updates_done: int,
    initial: bool,
    histories: Sequence[Leaves | None] = (None,),
    best: Leaves | None = None,
    is_shown: bool = True,
) -> tuple[Any, list[Metrics]]:
    """Run the remaining blocks, and record them if there are checkpoints or callbacks.

    Args:
        learners: What to train.
        state: Its state before the first block.
        n_updates_done: Updates done before.
        initial: Begin with an evaluation.
        histories: Each agent's metrics of earlier evaluations, if it resumes a run.
        best: The best runners so far, if it resumes a population.
        is_shown: Show a progress bar, if the configuration has one.

    Returns:
        The final state, and each agent's metrics ``[evaluations, ...]``, which begin with the
        earlier ones. Rows of blocks that did not run are NaN.
    """
    config = learners.agents[0].config
    sizes = block_sizes(n_updates_done, config, initial)
    has_work = any(recorder.has_work for recorder in learners.recorders)
    check_agreement(
        {
            "updates done": n_updates_done,
            "whether there are checkpoints or callbacks": has_work,
        }
    )
    tables = [Table() for _ in learners.agents]
    # A recorder has a progress bar of its own.
    is_shown = is_shown and config.progress_bar and not has_work and is_first()
    with recording(learners.recorders, n_updates_done, histories, best), noticing_losses():
        if has_work and not initial and not any(histories):
            for recorder, runner in zip(learners.recorders, learners.runners(state), strict=True):
                recorder.save(_on_host(local(runner)))
        for size in _shown(sizes, is_shown):
            state, rows = learners.run_block(state, jnp.asarray(size, jnp.int32))
            wait_for((state, rows))
            for table, row in zip(tables, rows, strict=True):
                table.append(jax.device_get(row))
            if _ends(learners, state, rows):
                break
        state = local(state)  # from here on each process runs alone
    metrics = []
    for table, history in zip(tables, histories, strict=True):
        whole = Table(history)
        whole.extend(table.columns(len(sizes)))
        # jnp.asarray would compile a program for each shape.
        metrics.append(jax.device_put(whole.columns()))
    return state, metrics


def _shown(sizes: Sequence[int], is_shown: bool) -> Iterable[int]:
    from tqdm.auto import tqdm

    return tqdm(sizes, "Training", disable=not is_shown)


def _ends(learners: Learners, state: Any, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Report a block to the host, and return True if the run ends with it.

    A run ends early if its updates have failed, if reporting them has, if a callback says so or
    raises, or after a signal; all agents and all processes end together. No failed block is
    reported: a run resumed from it would fail again.
    """
    has_failed = stop = bool(state.stop)
    if not any(recorder.has_work for recorder in learners.recorders):
        return stop
    for agent, recorder, reports_itself, runner, row in zip(
        learners.agents,
        learners.recorders,
        learners.report_themselves,
        learners.runners(state),
        rows,
        strict=True,
    ):
        own = local(runner)
        if recorder.has_work and not (reports_itself or has_failed):
            stop |= bool(recorder.on_evaluation(_on_host(own), jax.device_get(row)))
        stop |= recorder.call_back(agent, own)
    interruption = learners.recorders[0].interruption
    if n_processes() > 1:
        agreed, stop = largest(interruption.signal_number), bool(largest(stop))
        if agreed:  # a signal that has arrived meanwhile waits for the next block
            interruption.signal_number = agreed
        return stop or agreed > 0
    return stop or interruption.requested


def local(tree: PyTree) -> PyTree:
    """Return arrays of several processes as arrays of this one; random keys too."""
    arrays = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]
    if all(array.is_fully_addressable for array in arrays):
        return tree
    return from_leaves(to_leaves(gathered(strip_keys(tree))), tree)


def _on_host(runner: Runner) -> Runner:
    """Return a runner as numpy arrays, its random keys as uint32 data."""
    return jax.device_get(strip_keys(runner))
