"""The blocks of a training: updates between two evaluations, run one by one by the host."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jaxagents.config import AgentConfig
from jaxagents.training.metric_tables import lengthened, stack
from jaxagents.types import Metrics, Runner, Training, Updates


def block_sizes(n_updates_done: int, config: AgentConfig, initial: bool) -> list[int]:
    """Divide the updates that are left into blocks, each of which ends with an evaluation.

    Args:
        n_updates_done: Updates done so far.
        config: The number of updates, and those between evaluations.
        initial: Begin with a block of no updates: an evaluation before training.

    Raises:
        ValueError: nothing is left.
    """
    n_steps, frequency = config.n_steps, config.eval_frequency
    if n_updates_done >= n_steps:
        raise ValueError(
            f"the runner has done {n_updates_done} updates and n_steps={n_steps}: nothing is "
            "left to train. Give the agent a larger n_steps."
        )
    first_end = (n_updates_done // frequency + 1) * frequency
    ends = [n_updates_done, *range(first_end, n_steps, frequency), n_steps]
    return [0] * initial + np.diff(ends).tolist()


def open_block(
    training: Training,
    n_updates: Int[Array, ""],
    step_shapes: tuple[Runner, Metrics, Bool[Array, "policies quantities"]],
) -> Updates:
    """Return the carry of `update_repeatedly`; a stopped training has no updates left.

    Args:
        training: Where the block begins.
        n_updates: Updates of the block.
        step_shapes: The shapes and dtypes of what an update returns.
    """
    _, metrics, nonfinite = step_shapes
    return Updates(
        runner=training.runner,
        n_left=jnp.where(training.stop, 0, n_updates),
        nonfinite=jnp.zeros(nonfinite.shape, bool),
        n_finite=jnp.zeros(nonfinite.shape[0], jnp.int32),
        total=jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), metrics),
    )


def update_repeatedly(
    step: Callable[[Runner], tuple[Runner, Metrics, Bool[Array, "policies quantities"]]],
    updates: Updates,
    has_failed: Callable[[Bool[Array, "policies quantities"]], Bool[Array, ""]],
) -> Updates:
    """Do the updates that are left, up to one that fails, and sum their metrics.

    Args:
        step: Does one update; also returns its metrics, and which quantities of which policy are
            NaN or infinite.
        updates: The carry.
        has_failed: From what was NaN or infinite to whether training ends.
    """

    def unfinished(updates: Updates) -> Bool[Array, ""]:
        return (updates.n_left > 0) & ~has_failed(updates.nonfinite)

    def update(updates: Updates) -> Updates:
        runner, metrics, nonfinite = step(updates.runner)
        finite = ~jnp.any(nonfinite, axis=1)
        return Updates(
            runner=runner,
            n_left=updates.n_left - 1,
            nonfinite=updates.nonfinite | nonfinite,
            n_finite=updates.n_finite + finite,
            total=jax.tree.map(
                lambda total, value: total + jnp.where(finite, value, 0.0), updates.total, metrics
            ),
        )

    # The number is traced: a shorter last block is the same compiled loop.
    return jax.lax.while_loop(unfinished, update, updates)


def metrics_of_block(updates: Updates, evaluation: Metrics, lost: Bool[Array, ""]) -> Metrics:
    """Make a block's row of metrics.

    Args:
        updates: After the block's updates, whose metrics are averaged; NaN if there were none.
        evaluation: After them.
        lost: The block did not run, or failed: its row is NaN.
    """
    metrics = {
        **jax.tree.map(lambda total: total / updates.n_finite, updates.total),
        "n_updates_done": updates.runner.n_updates_done,
        "n_updates_skipped": updates.runner.n_updates_skipped,
        **evaluation,
    }
    # One dtype that has a NaN, for the rows of blocks that never run.
    return jax.tree.map(lambda leaf: jnp.where(lost, jnp.nan, leaf.astype(jnp.float32)), metrics)


def run_blocks(
    run_block: Callable[[Training, Int[Array, ""]], tuple[Training, Metrics]],
    training: Training,
    sizes: Sequence[int],
    ends: Callable[[Training], Any],
    is_shown: bool,
) -> tuple[Training, Metrics]:
    """Run blocks of updates until one ends the training.

    Args:
        run_block: Runs a block of so many updates; returns a row of metrics, too.
        training: Where to begin.
        sizes: Updates of each block.
        ends: Called after each block; True ends the training.
        is_shown: Show a progress bar.

    Returns:
        The training at its end, and a row of metrics per block, NaN for those that did not run.
    """
    from tqdm.auto import tqdm

    rows = []
    for size in tqdm(sizes, "Training", disable=not is_shown):
        training, row = run_block(training, jnp.asarray(size, jnp.int32))
        rows.append(jax.device_get(row))
        if ends(training) or training.stop:
            break
    metrics = jax.tree.map(jnp.asarray, stack(lengthened(rows, len(sizes))))
    return jax.block_until_ready(training), metrics
