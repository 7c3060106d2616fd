"""Blocks of updates: their sizes, the loop over updates, and the row of metrics of each."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jaxagents.config import AgentConfig
from jaxagents.types import Metrics, PyTree, Runner, Training, Updates, shapes_by_name

MAXIMA = ("largest_value", "largest_reward")
"""Training metrics whose maximum over its updates a block reports; never negative."""


def block_sizes(n_updates_done: int, config: AgentConfig, initial: bool) -> list[int]:
    """Divide the remaining updates into blocks.

    Args:
        n_updates_done: Updates done so far.
        config: Blocks end at multiples of its ``eval_frequency``, and the last one at ``n_steps``.
        initial: Begin with a block of zero updates, for the evaluation before training.

    Raises:
        ValueError: No updates remain.
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
    step_shapes: tuple[PyTree, PyTree, jax.ShapeDtypeStruct],
) -> Updates:
    """Initial carry of a block; a stopped run has no updates left.

    Args:
        training: State of the run before the block.
        n_updates: Number of updates in the block.
        step_shapes: Shapes and dtypes of one update's results.

    Raises:
        ValueError: an update adds an array to the runner, drops one, or changes its shape or dtype.
    """
    after, metrics, nonfinite = step_shapes
    _check_keeps_shapes(training.runner, after)
    return Updates(
        runner=training.runner,
        n_left=jnp.where(training.stop, 0, n_updates),
        nonfinite=jnp.zeros(nonfinite.shape, bool),
        n_finite=jnp.zeros(nonfinite.shape[0], jnp.int32),
        total=jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), metrics),
    )


def _check_keeps_shapes(before: PyTree, after: PyTree) -> None:
    old, new = shapes_by_name(before), shapes_by_name(after)
    for name in old | new:
        if old.get(name) != new.get(name):
            raise ValueError(
                f"an update changes the runner's {name} from {old.get(name)} to {new.get(name)}. "
                "`adapted` must keep shapes and dtypes: start a hyperparameter that it changes "
                "with one value per policy, as in (1.0,)."
            )


def update_repeatedly(
    step: Callable[[Runner], tuple[Runner, Metrics, Bool[Array, "policies quantities"]]],
    updates: Updates,
    has_failed: Callable[[Bool[Array, "policies quantities"]], Bool[Array, ""]],
) -> Updates:
    """Run a block's updates and accumulate their metrics; stop after an update that fails.

    Each policy's metrics leave out the updates in which one of its quantities is NaN or infinite.

    Args:
        step: Does one update. Returns the runner, the update's metrics, and which quantities of
            which policy are NaN or infinite.
        updates: The carry.
        has_failed: True if these NaN or infinite quantities end the run.
    """

    def unfinished(updates: Updates) -> Bool[Array, ""]:
        return (updates.n_left > 0) & ~has_failed(updates.nonfinite)

    def update(updates: Updates) -> Updates:
        return accumulated(updates, *step(updates.runner))

    # The number of updates is traced, so that a shorter last block needs no second program.
    return jax.lax.while_loop(unfinished, update, updates)


def accumulated(
    updates: Updates,
    runner: Runner,
    metrics: Metrics,
    nonfinite: Bool[Array, "policies quantities"],
) -> Updates:
    """Add an update's results to a block's carry."""
    finite = ~jnp.any(nonfinite, axis=1)
    return Updates(
        runner=runner,
        n_left=updates.n_left - 1,
        # `|` also reads the carry. A carry that is only written would share its memory with
        # temporary arrays of actor and critic, which would then wait for each other.
        nonfinite=updates.nonfinite | nonfinite,
        n_finite=updates.n_finite + finite,
        total={
            name: _accumulate(name, total, jnp.where(finite, metrics[name], 0.0))
            for name, total in updates.total.items()
        },
    )


def metrics_of_block(updates: Updates, evaluation: Metrics, lost: Bool[Array, ""]) -> Metrics:
    """Assemble a block's row of metrics, as float32.

    Args:
        updates: The carry after the block. The row holds the means of the training metrics, and the
            maxima of `MAXIMA`, which are NaN if there were no finite updates.
        evaluation: Metrics of the evaluation that ends the block.
        lost: True if the block did not run or failed; the whole row is then NaN.
    """
    metrics = {
        **{
            # A maximum divided by 0 or 1: NaN without finite updates.
            name: total / jnp.minimum(updates.n_finite, 1 if name in MAXIMA else jnp.inf)
            for name, total in updates.total.items()
        },
        "n_updates_done": updates.runner.n_updates_done,
        "n_updates_skipped": updates.runner.n_updates_skipped,
        **evaluation,
    }
    # Integers have no NaN for the rows of blocks that never run.
    return jax.tree.map(lambda leaf: jnp.where(lost, jnp.nan, leaf.astype(jnp.float32)), metrics)


def _accumulate(name: str, total: Array, value: Array) -> Array:
    return jnp.maximum(total, value) if name in MAXIMA else total + value
