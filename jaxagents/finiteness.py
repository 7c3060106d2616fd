"""Numbers that are no longer finite, noticed at the update in which they arise."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from jaxagents.types import Batch, NetworkState

# In the order in which one follows from the other.
QUANTITIES = (
    "rewards",
    "observations",
    "running statistics",
    "values",
    "actor's loss",
    "actor's gradient",
    "actor's parameters",
    "critic's loss",
    "critic's gradient",
    "critic's parameters",
)


class NonFiniteError(FloatingPointError):
    """Training has met infinities or NaN; the message says where."""


def find_nonfinite(
    batch: Batch,
    actor: NetworkState,
    critic: NetworkState,
    normalizers: PyTree,
    metrics: dict[str, Array],
) -> Bool[Array, " quantities"]:
    """Tell which of `QUANTITIES` one policy's update has left infinite or NaN.

    What weighs nothing may be anything. The batch holds what normalizers make of observations and
    values, which may be finite where their statistics are no more.
    """
    weighty = batch.value_weight > 0
    targets = jnp.where(weighty, batch.value_target, 0.0)
    return jnp.stack(
        [
            _any_nonfinite(jnp.where(weighty, batch.path.reward, 0.0)),
            _any_nonfinite(batch.observation.features),
            _any_nonfinite(normalizers),
            # Reading the explained variance here keeps XLA from computing it last, from values that
            # hold on to the critic's old parameters: actors and critics would be trained in turn.
            _any_nonfinite(targets) | jnp.isnan(metrics["explained_variance"]),
            _any_nonfinite(metrics["actor_loss"]),
            _any_nonfinite(metrics["actor_gradient_norm"]),
            _any_nonfinite(actor.params),
            _any_nonfinite(metrics["critic_loss"]),
            _any_nonfinite(metrics["critic_gradient_norm"]),
            _any_nonfinite(critic.params),
        ]
    )


def describe_nonfinite(found: Bool[np.ndarray, "policies quantities"], update: int) -> str:
    """Say in one line what was found at an update, counted from 1."""
    policy, quantity = np.argwhere(found)[0]
    others = [f"policy {i}" for i in np.flatnonzero(found.any(axis=1)) if i != policy]
    also = f" (and something of {', '.join(others)})" if others else ""
    return f"update {update} is not finite in the {QUANTITIES[quantity]} of policy {policy}{also}"


def _any_nonfinite(tree: PyTree) -> Bool[Array, ""]:
    floats = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    # In one row, which takes a fraction of the kernels to compile.
    row = jnp.concatenate([jnp.ravel(leaf) for leaf in floats] or [jnp.zeros(0)])
    return ~jnp.all(jnp.isfinite(row))
