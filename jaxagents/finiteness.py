"""Numbers that are no longer finite, noticed at the update in which they arise."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

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
    weighty, explained = batch.value_weight > 0, metrics["explained_variance"]
    residues = [
        _residue(jnp.where(weighty, batch.path.reward, 0.0)),
        _residue(batch.observation.features),
        _residue(normalizers),
        # Reading the explained variance here keeps XLA from computing it last, from values that
        # hold on to the critic's old parameters: actors and critics would be trained in turn.
        _residue(jnp.where(weighty, batch.value_target, 0.0))
        + jnp.where(jnp.isnan(explained), explained, 0.0),
        metrics["actor_loss"],
        metrics["actor_gradient_norm"],
        _residue(actor.params),
        metrics["critic_loss"],
        metrics["critic_gradient_norm"],
        _residue(critic.params),
    ]
    return ~jnp.isfinite(jnp.stack(residues))


def describe_nonfinite(found: Bool[np.ndarray, "policies quantities"], update: int) -> str:
    """Say in one line what was found at an update, counted from 1."""
    policy, quantity = np.argwhere(found)[0]
    others = [f"policy {i}" for i in np.flatnonzero(found.any(axis=1)) if i != policy]
    also = f" (and something of {', '.join(others)})" if others else ""
    return f"update {update} is not finite in the {QUANTITIES[quantity]} of policy {policy}{also}"


def _residue(tree: PyTree) -> Float[Array, ""]:
    """Return 0, or NaN where an array of floats is not finite.

    All in one row, and as a sum of floats: both take XLA a fraction of the kernels to compile.
    """
    floats = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    row = jnp.concatenate([jnp.ravel(leaf) for leaf in floats] or [jnp.zeros(0)])
    return jnp.sum(row - row)
