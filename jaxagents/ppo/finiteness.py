"""NaN and infinities, found in the update in which they arise."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxagents.compiler.devices import max_over_devices
from jaxagents.compiler.tuned_forms import nan_unless_finite
from jaxagents.ppo.statistics import ValueStats
from jaxagents.types import Batch, NetworkState, PyTree, Runner

# In the order in which they depend on each other.
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
_OF_ENVIRONMENTS = ("rewards", "observations")
NonFinite = Bool[Array, "policies quantities"]
"""Which `QUANTITIES` of each policy are NaN or infinite."""


class NonFiniteError(FloatingPointError):
    """A quantity of training has become NaN or infinite; the message names it."""


Residues = Float[Array, "policies quantities"]
"""NaN or infinite where that one of a policy's `QUANTITIES` is."""
Update = Callable[..., tuple[Runner, dict[str, Array], Residues]]


def skip_nonfinite(update: Update) -> Callable[..., tuple[Runner, dict[str, Array], NonFinite]]:
    """Wrap an update: policies with NaN or infinite quantities keep what they had before it.

    Args:
        update: Maps a runner, and further arguments, to the runner after the update, the update's
            metrics, and the residues of its quantities.

    Returns:
        The same update. In place of the residues, it returns which quantities are NaN or infinite.
    """

    def update_finite(before: Runner, *more: Any) -> tuple[Runner, dict[str, Array], NonFinite]:
        runner, metrics, residues = update(before, *more)
        nonfinite = max_over_devices(~jnp.isfinite(residues))
        return keep_finite_policies(runner, before, nonfinite), metrics, nonfinite

    return update_finite


def residues_of(
    batch: Batch,
    actor: NetworkState,
    critic: NetworkState,
    normalizers: PyTree,
    metrics: dict[str, Array],
) -> Float[Array, " quantities"]:
    """Return a number for each of `QUANTITIES` of one policy's update: NaN unless it is finite.

    Samples with zero weight may hold anything. The batch holds normalised observations and values,
    which may be finite where the running statistics no longer are.
    """
    has_weight = batch.value_weight > 0
    # The metrics follow from the targets. If these were read nowhere else, they would be computed
    # last, and actor and critic could not be trained at the same time (benchmarks/RESULTS.md).
    of_values = [metrics["explained_variance"], *(metrics[name] for name in ValueStats._fields)]
    residues = [
        nan_unless_finite(jnp.where(has_weight, batch.trajectory.reward, 0.0)),
        nan_unless_finite(batch.observation.features),
        nan_unless_finite(normalizers),
        nan_unless_finite([jnp.where(has_weight, batch.value_target, 0.0), of_values]),
        metrics["actor_loss"],
        metrics["actor_gradient_norm"],
        nan_unless_finite(actor.params),
        metrics["critic_loss"],
        metrics["critic_gradient_norm"],
        nan_unless_finite(critic.params),
    ]
    return jnp.stack(residues)


def keep_finite_policies(
    runner: Runner, before: Runner, nonfinite: Bool[Array, "policies quantities"]
) -> Runner:
    """Undo the update of every policy with a NaN or infinite quantity, and count it.

    A rollout with such a quantity is not replayed, and recurrent states are not continued where
    they are NaN or infinite: they become 0.
    """
    finite = ~jnp.any(nonfinite, axis=1)

    def choose(new: Array, old: Array) -> Array:
        return jnp.where(finite.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    def of_policies(runner: Runner) -> dict[str, Any]:
        names = ("actor", "critic", "normalizers", "learning_rate")
        return {name: getattr(runner, name) for name in names}

    chosen = jax.tree.map(choose, of_policies(runner), of_policies(before))
    if before.replay is not None:
        chosen["replay"] = jax.lax.cond(
            jnp.all(finite), lambda: runner.replay, lambda: before.replay
        )
    memory = jax.tree.map(lambda leaf: jnp.where(jnp.isfinite(leaf), leaf, 0), runner.memory)
    n_updates_skipped = before.n_updates_skipped + ~finite
    return runner.replace(**chosen, memory=memory, n_updates_skipped=n_updates_skipped)


def raise_nonfinite(found: Bool[np.ndarray, "policies quantities"], update: int) -> None:
    """Raise NonFiniteError if anything was found at an update, counted from 1."""
    if found.any():
        quantity, _ = _first(found)
        remedy = (
            "the environment returned it: mend its step or reset"
            if QUANTITIES[quantity] in _OF_ENVIRONMENTS
            else "lower the learning rate, normalise rewards or values"
        )
        raise NonFiniteError(
            f"{describe_nonfinite(found, update)}; {remedy}, or skip such updates by "
            "on_nonfinite='skip'."
        )


def describe_nonfinite(found: Bool[np.ndarray, "policies quantities"], update: int) -> str:
    """Say which quantity of which policies was found at an update."""
    quantity, policy = _first(found)
    others = [f"policy {i}" for i in np.flatnonzero(found.any(axis=1)) if i != policy]
    also = f" (and in {', '.join(others)})" if others else ""
    what = QUANTITIES[quantity]
    return f"update {update} has NaN or infinity in the {what} of policy {policy}{also}"


def _first(found: Bool[np.ndarray, "policies quantities"]) -> tuple[int, int]:
    """Return the quantity on which all others may depend, and the policy that has it."""
    quantity, policy = np.argwhere(found.T)[0]
    return int(quantity), int(policy)
